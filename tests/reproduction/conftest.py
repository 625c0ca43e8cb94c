"""Images for the tests of training, and one torch thread for all of them."""

import pytest

from reproduction import data
from reproduction.models import one_thread


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


@pytest.fixture(scope="session")
def digits():
    return data.subset(data.load("digits"), 300, seed=0)


@pytest.fixture(scope="session")
def pair():
    """Two classes, of pixels ±1."""
    return data.subset(data.load("digits:3,8", binarize="median"), 200, seed=0)
