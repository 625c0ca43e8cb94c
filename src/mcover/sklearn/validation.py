"""Checks of arguments that all estimators share, in addition to scikit-learn's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.random import RandomState
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight

from mcover import McoverError, checks


@contextmanager
def reading(**given: Any) -> Iterator[None]:
    """A context for scikit-learn's checks of data; refuses masked arrays, whose masks it ignores.

    Exceptions other than ValueError and TypeError come from the user's objects, and become
    McoverError.
    """
    for name, values in given.items():
        checks.check_unmasked(name, values)
        if isinstance(values, np.ndarray):  # a broadcast view may be small, its copy is not
            checks.check_memory(9 * values.size, f"{name} of shape {values.shape}", "write fewer")
    try:
        yield
    except (ValueError, TypeError):
        raise
    except Exception as error:
        raise McoverError(f"{', '.join(given)} cannot be read: {error!r}.") from error


def random_state(value: Any) -> RandomState:
    """As in scikit-learn: None, a seed below 2^32 or a RandomState."""
    try:
        return check_random_state(value)
    except Exception as error:  # NumPy's, for a seed out of range
        raise McoverError(
            f"random_state is {checks.shown(value)}; write None, a seed from 0 to 2**32 - 1 or a "
            "numpy.random.RandomState."
        ) from error


def check_n_jobs(value: Any) -> None:
    """As in joblib: None, or a number of threads; −1 is one for each CPU."""
    if value is not None and checks.check_int("n_jobs", value, -(2**31), 2**31) == 0:
        raise McoverError("n_jobs is 0; write None, a number of threads, or -1 for all CPUs.")


def class_weights(given: Any, y: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.float64]:
    """The weight of each sample by its class; ``classes`` are all possible classes."""
    if given is None:
        return np.ones(len(y))
    if isinstance(given, str) and given == "balanced":
        if len(np.unique(y)) < len(classes):
            raise McoverError(
                "class_weight='balanced' needs samples of every class; write the weights as a dict."
            )
    elif isinstance(given, Mapping):
        for name, weight in given.items():
            checks.check_float(f"class_weight[{name!r}]", weight, 0)
        known = classes.tolist()
        if foreign := [name for name in given if name not in known]:
            raise McoverError(f"class_weight names {foreign[:5]}; the classes are {known[:20]}.")
        if not any(given.get(name, 1) for name in known):
            raise McoverError("class_weight is 0 for all classes; write a weight above 0 for some.")
    else:
        raise McoverError(
            f"class_weight is {checks.shown(given)}; write a dict of weights by class, 'balanced' "
            "or None."
        )
    return np.asarray(compute_sample_weight(given, y), dtype=np.float64)
