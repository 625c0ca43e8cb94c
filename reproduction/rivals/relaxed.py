"""Real-valued weights first, then their signs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Signs = NDArray[np.int8]


def largest_margin(gauged: Signs, seconds: float) -> Signs | None:
    """Signs of the weights in [−1, 1] whose least margin is largest, by a linear program.

    None if no such weights are found in time.
    """
    from scipy.optimize import linprog

    count, inputs = gauged.shape
    # Margin t is the last variable; −g·w + t ≤ 0.
    rows = np.hstack([-gauged.astype(np.float64), np.ones((count, 1))])
    # The interior-point method: the simplex method takes minutes on rows without zeros.
    cost = np.zeros(inputs + 1)
    cost[-1] = -1
    bounds = [(-1, 1)] * inputs + [(0, None)]
    found = linprog(
        cost,
        rows,
        np.zeros(count),
        bounds=bounds,
        method="highs-ipm",
        options={"time_limit": seconds},
    )
    return None if found.x is None else _signs(found.x[:-1])


def logistic_regression(gauged: Signs, strength: float = 1.0) -> Signs:
    """Signs of the weights of a logistic regression without intercept; ``strength`` is its C."""
    from sklearn.linear_model import LogisticRegression

    # (g, +1) and (−g, −1) are equivalent; the estimator needs both labels.
    labels = np.where(np.arange(len(gauged)) % 2, 1, -1)
    model = LogisticRegression(C=strength, fit_intercept=False, max_iter=1000, tol=1e-3)
    model.fit(gauged * labels[:, None], labels)
    return _signs(model.coef_[0])


def _signs(weights: NDArray[np.float64]) -> Signs:
    return np.where(weights >= 0, 1, -1).astype(np.int8)
