"""Malformed arguments to every public function: each is refused by McoverError, at the boundary.

Each parameter has a domain that says which values of one pool are valid; every other value of the
pool must be refused. So nothing raw comes from our own code or a dependency, nothing invalid is
accepted in silence, and nothing hangs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mcover
from mcover import annealing, nn, optim, permutations, routing, statistics

POOL: dict[str, Any] = {
    "none": None,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "-1": -1,
    "0": 0,
    "2": 2,
    "half": 0.5,
    "1.9": 1.9,
    "-0.5": -0.5,
    "1e308": 1e308,
    "huge": 10**30,
    "true": True,
    "numpy bool": np.True_,
    "uint8": np.uint8(2),
    "float32 nan": np.float32("nan"),
    "complex": 1 + 2j,
    "empty text": "",
    "text": "frobnicate",
    "bytes": b"\xff",
    "empty list": [],
    "nested list": [[1, [2]]],
    "dict": {},
    "array": np.zeros((2, 0)),
    "nan array": np.full((2, 2), np.nan),
    "tensor": torch.zeros(2),
    "function": len,
    "class": int,
    "object": object(),
}

Valid = Callable[[Any], bool]


def is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_)


def is_real(value: Any) -> bool:
    kinds = int | float | np.integer | np.floating
    return isinstance(value, kinds) and not isinstance(value, bool | np.bool_)


def whole(least: int | None = None, most: int = 10**6) -> Valid:
    return lambda v: is_whole(v) and (least is None or v >= least) and v <= most


def real(
    least: float = -math.inf, most: float = math.inf, above: float | None = None, inf: bool = False
) -> Valid:
    def valid(v: Any) -> bool:
        if not is_real(v) or math.isnan(v) or (math.isinf(v) and not inf):
            return False
        return least <= v <= most and (above is None or v > above)

    return valid


def optional(valid: Valid) -> Valid:
    return lambda v: v is None or valid(v)


def nothing(value: Any) -> bool:
    return False


def flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def seed(value: Any) -> bool:
    return value is None or (is_whole(value) and value >= 0)


RING = mcover.GaussianRing(1.5, shift=1)
PROBLEM = annealing.teacher_student(11, 1.0, seed=0)
NET = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
COVERED = mcover.lift(NET, 2, RING, "directed", seed=0)


def anneal(**given: Any) -> Any:
    return mcover.anneal(**{"problem": PROBLEM, "num_sweeps": 2, "seed": 0} | given)


def lift(**given: Any) -> Any:
    return mcover.lift(**{"model": NET, "covers": 2, "topology": RING, "seed": 0} | given)


class Layer(torch.nn.Linear):
    """What a user registers."""


def stack() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(2, 3))]


# A function, arguments that work, and the domain of each parameter that is tried.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Valid]]] = {
    "GaussianRing": (
        mcover.GaussianRing,
        {},
        {
            "sigma": real(above=0, inf=True),
            "shift": real(-1e15, 1e15),
        },
    ),
    "Chain": (mcover.Chain, {}, {"sigma": real(above=0, inf=True)}),
    "Custom": (mcover.Custom, {}, {"values": nothing}),
    "mix": (
        lambda topologies, weights: mcover.mix(*topologies, weights=weights),
        {"topologies": [RING, mcover.Uniform()], "weights": [0.5, 0.5]},
        {"weights": optional(nothing)},
    ),
    "matrix": (RING.matrix, {}, {"covers": whole(1, 1000)}),
    "sample": (
        permutations.sample,
        {"kernel": np.ones((3, 3)), "size": 2},
        {
            "kernel": nothing,
            "size": whole(0, 1000),
            "seed": seed,
            "method": nothing,
            "threads": optional(whole(1)),
        },
    ),
    "log_permanent": (permutations.log_permanent, {}, {"kernel": nothing}),
    "marginals": (permutations.marginals, {}, {"kernel": nothing}),
    "log_prob": (
        permutations.log_prob,
        {"kernel": np.ones((2, 2)), "routes": [0, 1]},
        {"kernel": nothing, "routes": nothing},
    ),
    "draw_bank": (
        routing.draw_bank,
        {"topology": RING, "covers": 3, "sources": 5, "size": 2},
        {
            "topology": nothing,
            "covers": whole(1, 1000),
            "sources": whole(1, 1000),
            "size": whole(1, 5),
            "seed": seed,
        },
    ),
    "mean": (statistics.mean, {"values": [1.0, 2.0]}, {"values": real()}),
    "fraction": (statistics.fraction, {"hits": [True]}, {"hits": flag}),
    "time_to_solution": (
        statistics.time_to_solution,
        {"solved": [True, False], "cost": [1.0, 2.0]},
        {"solved": nothing, "cost": nothing, "certainty": lambda v: is_real(v) and 0 < v < 1},
    ),
    "paired": (
        statistics.paired,
        {"first": [1.0, 2.0], "second": [2.0, 1.0]},
        {"first": nothing, "second": nothing},
    ),
    "holm": (
        statistics.holm,
        {},
        {"p_values": lambda v: v == [] if isinstance(v, list) else is_real(v) and 0 <= v <= 1},
    ),
    "teacher_student": (
        mcover.teacher_student,
        {"n": 11, "alpha": 1.0, "seed": 0},
        {
            "n": whole(1, 1000),
            "alpha": real(above=0, most=100),
            "seed": seed,
            "ties": nothing,
            "hidden": whole(1, 1000),
        },
    ),
    "Perceptron": (
        mcover.Perceptron,
        {"patterns": [[1, -1]], "labels": [1]},
        {"patterns": nothing, "labels": nothing, "teacher": optional(nothing)},
    ),
    "Committee": (
        mcover.Committee,
        {"patterns": [[1, -1]], "labels": [1], "hidden": 3},
        {"patterns": nothing, "labels": nothing, "hidden": whole(1, 1000)},
    ),
    "LinearSchedule": (
        mcover.LinearSchedule,
        {"start": 0.4, "stop": 0.01, "step": 0.1},
        {"start": real(0.01, 1e3), "stop": real(above=0, most=0.4), "step": real(above=0)},
    ),
    "GeometricSchedule": (
        annealing.GeometricSchedule,
        {"start": 0.4, "stop": 0.01, "count": 3},
        {"start": real(above=0), "stop": real(above=0), "count": whole(1, 10**5)},
    ),
    "CustomSchedule": (annealing.CustomSchedule, {}, {"values": nothing}),
    "MCover": (
        mcover.MCover,
        {},
        {
            "covers": whole(1, 255),
            "topology": nothing,
            "bank": optional(whole(1)),
            "redraw_every": optional(whole(1)),
            "coupling": real(0, 300),
            "coupling_growth": real(-1, 1e3),
        },
    ),
    "RSA": (
        mcover.RSA,
        {},
        {"covers": whole(1, 255), "coupling": real(0, 300), "coupling_growth": real(-1, 1e3)},
    ),
    "anneal": (
        anneal,
        {},
        {
            "problem": nothing,
            "method": nothing,
            "num_sweeps": optional(whole(1)),
            "num_reads": whole(1, 1000),
            "seed": seed,
            "energy": nothing,
            "rule": nothing,
            "order": nothing,
            "improvement": nothing,
            "stop_at_zero": flag,
            "workers": optional(whole(1)),
            "initial_states": optional(nothing),
        },
    ),
    "anneal with a schedule": (
        lambda schedule: mcover.anneal(PROBLEM, schedule=schedule, seed=0),
        {},
        {"schedule": optional(nothing)},
    ),
    "Messages": (
        mcover.Messages,
        {},
        {
            "blocks": optional(whole(1)),
            "draws": whole(1),
            "block_channels": whole(1),
            "mixer": nothing,
            "streams": optional(whole(1)),
            "redraw_every": optional(whole(1)),
        },
    ),
    "Directed": (
        mcover.Directed,
        {},
        {
            "bank": optional(whole(1)),
            "destinations": optional(whole(1)),
            "granularity": nothing,
            "redraw_every": optional(whole(1)),
        },
    ),
    "lift": (
        lift,
        {},
        {
            "model": nothing,
            "covers": whole(1, 1000),
            "topology": nothing,
            "routing": nothing,
            "noise": real(0, 1e6),
            "seed": seed,
            "select": lambda v: v is None or callable(v),
            "freeze": flag,
            "buffers": lambda v: v is None or (isinstance(v, list) and not v),
        },
    ),
    "collapse": (COVERED.collapse, {}, {"how": nothing}),
    "ensemble": (COVERED.ensemble, {"input": torch.zeros(1, 3)}, {}),
    "cover_loss": (
        mcover.cover_loss,
        {
            "loss": torch.nn.functional.cross_entropy,
            "outputs": torch.zeros(2, 3, 4),
            "target": torch.zeros(3, dtype=torch.long),
        },
        {"loss": nothing, "outputs": nothing},
    ),
    "nn.load": (nn.load, {"path": "missing.safetensors", "model": NET}, {"path": nothing}),
    "register": (
        nn.register,
        {"kind": type("Layer", (torch.nn.Linear,), {}), "shapes": len},
        {"kind": nothing},
    ),
    "ReplicatedSGD": (
        lambda **given: optim.ReplicatedSGD(stack(), **{"lr": 0.1, "steps": 10} | given),
        {},
        {"lr": real(0), "steps": whole(1), "growth": real(above=0), "coupling": real(0, inf=True)},
    ),
    "ElasticSGD": (
        lambda **given: optim.ElasticSGD(stack(), **{"lr": 0.1} | given),
        {},
        {"lr": real(0), "period": whole(1), "coupling": real(0, inf=True)},
    ),
    "EntropySGD": (
        lambda **given: optim.EntropySGD(stack(), **{"lr": 0.1} | given),
        {},
        {"lr": real(0), "inner_steps": whole(1), "scope": real(0, inf=True), "scoping": real(0)},
    ),
}

CASES = [
    (call, parameter, name)
    for call, (_, _, domains) in CALLS.items()
    for parameter, valid in domains.items()
    for name, value in POOL.items()
    if not valid(value)
]


def test_there_are_many():
    assert len(CASES) >= 2000


@pytest.mark.parametrize("call", [name for name, (_, given, _) in CALLS.items() if given])
def test_the_arguments_that_the_others_vary_are_valid(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, given, _ = CALLS[call]
    if call == "nn.load":
        with pytest.raises(mcover.McoverError, match="missing"):
            function(**given)
    else:
        function(**given)


@pytest.mark.parametrize("call", CALLS)
def test_malformed_arguments_are_refused(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, given, domains = CALLS[call]
    wrong = []
    for parameter, valid in domains.items():
        for name, value in POOL.items():
            if valid(value):
                continue
            try:
                function(**given | {parameter: value})
            except mcover.McoverError as error:
                if not str(error).rstrip().endswith((".", ")", "'")):
                    wrong.append(f"{parameter}={name}: not a sentence: {error}")
            except BaseException as error:
                wrong.append(f"{parameter}={name}: {type(error).__name__}: {str(error)[:100]}")
            else:
                wrong.append(f"{parameter}={name}: accepted")
    assert not wrong, "\n".join(wrong)
    assert list(Path(tmp_path).iterdir()) == []
