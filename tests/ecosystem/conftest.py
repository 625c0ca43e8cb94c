"""Shared settings of the tests against other frameworks."""

import os

# Read when SciPy is first imported; without it scikit-learn skips its checks of array inputs.
os.environ["SCIPY_ARRAY_API"] = "1"
