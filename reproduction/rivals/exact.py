"""Exact solvers: find binary weights x with g·(2x − 1) ≥ 1 for every gauged pattern g."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Signs = NDArray[np.int8]


def solve_highs(gauged: Signs, seconds: float) -> Signs | None:
    """HiGHS, a solver of mixed-integer programs, on one thread; None at the time limit."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    rows = gauged.astype(np.float64)
    sizes = rows.sum(axis=1)
    found = milp(
        np.zeros(gauged.shape[1]),
        constraints=LinearConstraint(2 * rows, lb=1 + sizes),
        integrality=np.ones(gauged.shape[1]),
        bounds=Bounds(0, 1),
        options={"time_limit": seconds},
    )
    return None if found.x is None else np.where(found.x > 0.5, 1, -1).astype(np.int8)


def solve_cp_sat(gauged: Signs, seconds: float, seed: int = 0) -> Signs | None:
    """CP-SAT of OR-Tools on one worker; None at the time limit."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    positive = [model.new_bool_var(f"w{i}") for i in range(gauged.shape[1])]
    for row in gauged.tolist():
        weighted = cp_model.LinearExpr.weighted_sum(positive, [2 * one for one in row])
        model.add(weighted >= 1 + sum(row))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return np.array([1 if solver.value(one) else -1 for one in positive], dtype=np.int8)
