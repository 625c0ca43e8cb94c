"""Checks of what estimators are given, where scikit-learn's own let something through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_sample_weight

from mcover import McoverError, checks


def refuse_masked(**given: Any) -> None:
    """Refuses masked entries, which scikit-learn would use with the values below the mask."""
    for name, value in given.items():
        count = int(np.ma.count_masked(value)) if isinstance(value, np.ma.MaskedArray) else 0
        if count:
            raise McoverError(
                f"{name} is a masked array with {count} masked entries; impute them, e.g. with "
                "sklearn.impute.SimpleImputer, or leave these samples out."
            )


def class_weights(given: Any, y: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.float64]:
    """The weight of each sample by its class; ``classes`` are all that may come."""
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
            f"class_weight is {given!r}; write a dict of weights by class, 'balanced' or None."
        )
    return np.asarray(compute_sample_weight(given, y), dtype=np.float64)
