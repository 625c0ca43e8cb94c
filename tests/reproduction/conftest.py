"""Images for the tests of training, the committed rows, and one torch thread for all of them."""

import pytest

from reproduction import data
from reproduction.models import one_thread
from reproduction.pages import RESULTS
from reproduction.rows import by_key, read_csv


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


@pytest.fixture(scope="session")
def rows():
    """All committed rows, by trial and seed."""
    names = [path for path in RESULTS.glob("*.csv") if path.name != "amp.csv"]
    return by_key(row for path in names for row in read_csv(path))
