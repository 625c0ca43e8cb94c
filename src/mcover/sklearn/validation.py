"""What all estimators check of their arguments, beside scikit-learn's own checks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.random import RandomState
from sklearn.utils import check_random_state

from mcover import McoverError, checks


@contextmanager
def reading(**given: Any) -> Iterator[None]:
    """Around scikit-learn's checks of data: masked arrays are refused, as masks would be ignored.

    Exceptions that are neither ValueError nor TypeError come from objects of the caller's, and
    become ours.
    """
    for name, values in given.items():
        checks.check_unmasked(name, values)
    try:
        yield
    except (ValueError, TypeError):
        raise
    except Exception as error:
        raise McoverError(f"{', '.join(given)} cannot be read: {error!r}.") from error


def random_state(value: Any) -> RandomState:
    """As scikit-learn has it: None, a seed below 2^32 or a RandomState."""
    try:
        return check_random_state(value)
    except Exception as error:  # NumPy's, for a seed out of range
        raise McoverError(
            f"random_state is {checks.shown(value)}; write None, a seed from 0 to 2**32 - 1 or a "
            "numpy.random.RandomState."
        ) from error


def check_n_jobs(value: Any) -> None:
    """As joblib has it: None, or a number of threads; −1 is one for each CPU."""
    if value is not None and checks.check_int("n_jobs", value, -(2**31), 2**31) == 0:
        raise McoverError("n_jobs is 0; write None, a number of threads, or -1 for all CPUs.")
