"""Shared settings of the tests."""

from hypothesis import settings

# Compiled kernels make the first example slow, and the machines that run this are noisy.
settings.register_profile("mcover", deadline=None, max_examples=40)
settings.load_profile("mcover")
