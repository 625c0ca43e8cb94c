"""Shared settings of the tests."""

import os

# What is printed must not wrap differently from one terminal to another. Read by the console when
# the package is first imported.
os.environ["COLUMNS"] = "160"

from hypothesis import settings

# Compiled kernels make the first example slow, and the machines that run this are noisy.
settings.register_profile("mcover", deadline=None, max_examples=40)
settings.load_profile("mcover")
