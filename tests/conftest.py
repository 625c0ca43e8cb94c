"""Shared settings of the tests."""

import os

# argparse wraps its help by the terminal's width; tests need the same text everywhere.
os.environ["COLUMNS"] = "80"

from hypothesis import settings

# Compiled kernels make the first example slow, and the machines that run this are noisy.
settings.register_profile("mcover", deadline=None, max_examples=40)
settings.load_profile("mcover")
