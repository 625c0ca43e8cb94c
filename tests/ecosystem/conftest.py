"""Shared settings of the tests against other frameworks."""

import os
import sys

# Read when SciPy is first imported; without it scikit-learn skips its checks of array inputs.
os.environ["SCIPY_ARRAY_API"] = "1"

import pytest
import torch


@pytest.fixture(autouse=True)
def _as_it_was():
    """Sets one thread, and undoes changes that frameworks and examples make to global state."""
    if "accelerate.state" in sys.modules:
        sys.modules["accelerate.state"].AcceleratorState._reset_state(reset_partial_state=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def wine():
    """Scaled features and three classes."""
    from sklearn.datasets import load_wine
    from sklearn.preprocessing import scale

    X, y = load_wine(return_X_y=True)
    return scale(X), y
