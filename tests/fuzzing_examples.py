"""Valid arguments for every public function; the malformed calls are variations of them.

Parameters without a default have an example by name, or one for the function if the name has
another meaning there. If a new public function has no examples, the test of the malformed calls
fails and names the missing ones.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import mcover
from mcover import annealing, distributed, optim, permutations
from mcover.nn import binary
from test_public_api import RETURNED as RETURNED

try:
    from sklearn.base import BaseEstimator

    ESTIMATORS: tuple[type, ...] = (BaseEstimator,)
except ModuleNotFoundError:
    ESTIMATORS = ()

INTEGRATIONS = ("hf", "lightning", "optuna", "sklearn")
Made = Callable[[], Any]

# Called with inputs of the base model, whose own code answers for them; made by functions; or
# functions of Trainer and Lightning, which call them.
LEFT_OUT = {
    "mcover.annealing.AutoSchedule.temperatures",  # always refused: they come from a problem
    "mcover.nn.Covered.each",
    "mcover.nn.Covered.report",
    "mcover.nn.Covered.forward",
    "mcover.nn.Covered.loss",
    "mcover.nn.binary.Folded.forward",
    "mcover.nn.binary.Sign.forward",
    "mcover.distributed.Spread",
    "mcover.hf.CollapsedAdapters",
    "mcover.hf.CoverTrainer",
    "mcover.hf.CoverSeq2SeqTrainer",
    "mcover.lightning.CollapseCallback",
}


class Several(list[Any]):
    """Arguments of a parameter like ``*topologies``; one value in their place is one argument."""


RING = mcover.GaussianRing(1.5, shift=1)
_folder = tempfile.TemporaryDirectory()
FOLDER = Path(_folder.name)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def covered() -> Any:
    return mcover.lift(net(), 2, RING, "directed", seed=0)


def binarized() -> nn.Module:
    return binary.binarize(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), binary.Sign()))


def covered_signs() -> Any:
    return mcover.lift(binarized(), 2, RING, seed=0)


@functools.cache
def problem() -> Any:
    return mcover.teacher_student(11, 1.0, seed=0)


@functools.cache
def result() -> Any:
    return mcover.anneal(problem(), num_sweeps=2, seed=0)


@functools.cache
def solution() -> Any:
    return mcover.solve(problem().patterns, problem().labels, time_limit=1, seed=0)


@functools.cache
def saved_result() -> Path:
    return result().save(FOLDER / "result.npz")


@functools.cache
def saved_problem() -> Path:
    path = FOLDER / "problem.npz"
    np.savez(path, patterns=problem().patterns, labels=problem().labels)
    return path


@functools.cache
def saved_covers() -> Path:
    return covered().save(FOLDER / "covers")


@functools.cache
def saved_checkpoint() -> Path:
    distributed.save(covered(), FOLDER / "checkpoint")
    return FOLDER / "checkpoint"


def stacks() -> list[nn.Parameter]:
    return [nn.Parameter(torch.arange(6.0).view(2, 3))]


def sign_stacks() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(2, 3))]


def moved(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    return parameters


@functools.cache
def elastic() -> Any:
    """Shared by all calls, because ``centre`` needs one of the optimizer's stacks."""
    return optim.ElasticSGD(moved(stacks()), 0.1)


def graph() -> Any:
    return mcover.FactorGraph([(lambda a, b: -a * b, (0, 1)), (lambda a, b: a - b, (1, 0))])


@functools.cache
def mesh() -> Any:
    """Shared by all calls, because each mesh creates groups that are never closed."""
    return distributed.start()


@contextmanager
def one_rank() -> Iterator[None]:
    """A process group of one process, for functions that need several."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        mesh.cache_clear()
        dist.destroy_process_group()


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, 3))
    return X, (X[:, 0] > 0).astype(int)


_SIGNS = {"restarts": 1, "thermometer": 1, "students": 1, "random_state": 0}
_LAYERS = {"hidden_layer_sizes": (4,), "covers": 2, "max_iter": 1, "random_state": 0}
SMALL: dict[str, dict[str, Any]] = {
    "MCoverPerceptronClassifier": _SIGNS,
    "MCoverCommitteeClassifier": _SIGNS | {"hidden": 3},
    "MCoverMLPClassifier": _LAYERS,
    "MCoverMLPRegressor": _LAYERS,
}


def fitted(kind: type) -> Any:
    return kind(**SMALL[kind.__name__]).fit(*data())


def trial() -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study().ask()


def with_adapters() -> Any:
    import peft

    adapters = peft.LoraConfig(target_modules=["0", "2"], r=2)
    return mcover.lift(peft.get_peft_model(net(), adapters), 2, RING, seed=0)


# Objects whose methods are called, by class.
RECEIVERS: dict[str, Made] = {
    "Chain": mcover.Chain,
    "Custom": lambda: mcover.Custom([[1, 1], [1, 3]]),
    "GaussianRing": lambda: RING,
    "Identity": mcover.Identity,
    "Uniform": mcover.Uniform,
    "FactorGraph": graph,
    "Messages": mcover.Messages,
    "Perceptron": problem,
    "Problem": problem,
    "Committee": lambda: mcover.teacher_student(11, 1.0, seed=0, hidden=3),
    "LinearSchedule": lambda: mcover.LinearSchedule(step=0.1),
    "GeometricSchedule": annealing.GeometricSchedule,
    "BetaSchedule": annealing.BetaSchedule,
    "CustomSchedule": lambda: annealing.CustomSchedule((0.2, 0.1)),
    "AnnealResult": result,
    "Trajectory": lambda: result().trajectory,
    "Covered": covered,
    "GraphResult": lambda: mcover.anneal(graph(), num_sweeps=2, seed=0),
    "AutoSchedule": annealing.AutoSchedule,
    "Solution": solution,
    "Sign": binary.Sign,
    "Bop": lambda: optim.Bop(moved(sign_stacks())),
    "ElasticSGD": elastic,
    "EntropySGD": lambda: optim.EntropySGD(moved(stacks()), 0.1),
    "ReplicatedSGD": lambda: optim.ReplicatedSGD(moved(stacks()), 0.1, steps=10),
    "Sampler": lambda: permutations.Sampler(np.ones((3, 3))),
}

BY_NAME: dict[str, Made] = {
    "alpha": lambda: 1.0,
    "channels": lambda: False,
    "cost": lambda: [1.0, 2.0],
    "covered": covered,
    "covers": lambda: 2,
    "first": lambda: [1.0, 2.0],
    "hidden": lambda: 1,
    "hits": lambda: [True],
    "index": lambda: 0,
    "inputs": lambda: 8,
    "kernel": lambda: np.ones((3, 3)),
    "labels": lambda: problem().labels,
    "lr": lambda: 0.1,
    "max_norm": lambda: 1.0,
    "mesh": mesh,
    "model": net,
    "n": lambda: 11,
    "params": stacks,
    "patterns": lambda: problem().patterns,
    "problem": problem,
    "p_values": lambda: [0.1],
    "ranks": lambda: 2,
    "routes": lambda: [0, 1, 2],
    "second": lambda: [2.0, 1.0],
    "size": lambda: 2,
    "solved": lambda: [True, False],
    "topology": lambda: RING,
    "trial": trial,
    "units": lambda: 4,
    "value": lambda: RING,
    "values": lambda: [1.0, 2.0],
    "weights": lambda: problem().teacher,
}

OWN: dict[str, dict[str, Made]] = {
    "mcover.Custom": {"values": lambda: [[1, 1], [1, 3]]},
    "mcover.FactorGraph": {"factors": lambda: [(lambda a, b: a * b, (0, 1))]},
    "Committee.energy": {"weights": lambda: np.ones(33)},
    "Committee.generalization_error": {"weights": lambda: np.ones(33)},
    "Committee.overlap": {"weights": lambda: np.ones(33)},
    "Committee.training_errors": {"weights": lambda: np.ones(33)},
    "mcover.anneal": {"num_sweeps": lambda: 2, "seed": lambda: 0},
    "mcover.cover_loss": {
        "loss": lambda: torch.nn.functional.cross_entropy,
        "outputs": lambda: torch.zeros(2, 3, 4),
        "target": lambda: torch.zeros(3, dtype=torch.long),
    },
    "mcover.mix": {"topologies": lambda: Several([RING, mcover.Uniform()])},
    "AutoSchedule.from_temperature": {"hot": lambda: 1.0, "factor": lambda: 1.0},
    "mcover.solve": {"problem": problem, "time_limit": lambda: 1, "seed": lambda: 0},
    "AnnealResult.load": {"path": saved_result},
    "AnnealResult.save": {"path": lambda: FOLDER / "again.npz"},
    "mcover.annealing.CustomSchedule": {"values": lambda: (0.3, 0.2)},
    "mcover.annealing.load_problem": {"path": saved_problem},
    "Covered.ensemble": {"args": lambda: Several([torch.zeros(1, 3)])},
    "Covered.save": {"path": lambda: FOLDER / "covers"},
    "Covered.set_extra_state": {"state": lambda: covered().get_extra_state()},
    "mcover.nn.load": {"path": saved_covers},
    "mcover.nn.register": {
        "kind": lambda: type("Layer", (nn.Linear,), {}),
        "shapes": lambda: len,
    },
    "mcover.nn.binary.bake": {"model": binarized},
    "mcover.nn.binary.fold": {"model": lambda: binarized().eval()},
    "mcover.nn.binary.clip_latents": {"model": binarized},
    "mcover.nn.binary.collapse": {"covered": covered_signs},
    "mcover.nn.binary.latents": {"model": binarized},
    "mcover.nn.binary.other_parameters": {"model": binarized},
    "mcover.nn.binary.snap_latents": {"model": binarized},
    "Bop.add_param_group": {"param_group": lambda: {"params": sign_stacks()}},
    "mcover.optim.Bop": {"params": sign_stacks},
    "mcover.optim.ReplicatedSGD": {"params": stacks, "steps": lambda: 10},
    "mcover.hf.collapse_adapters": {"covered": with_adapters},
    "ElasticSGD.add_param_group": {"param_group": lambda: {"params": stacks()}},
    "ElasticSGD.centre": {"stack": lambda: elastic().stacks()[0]},
    "EntropySGD.add_param_group": {"param_group": lambda: {"params": stacks()}},
    "EntropySGD.step": {"closure": lambda: lambda: torch.zeros(())},
    "ReplicatedSGD.add_param_group": {"param_group": lambda: {"params": stacks()}},
    "ReplicatedSGD.start": {"loss": lambda: 1.0},
    "ReplicatedSGD.step": {"closure": lambda: lambda: torch.ones(())},
    "mcover.plain.from_plain": {"annotation": lambda: int, "plain": lambda: 2},
    "mcover.statistics.paired_time_to_solution": {
        "first": lambda: ([True, False], [1.0, 2.0]),
        "second": lambda: ([True, True], [1.0, 2.0]),
    },
    "mcover.distributed.load": {"model": covered, "folder": saved_checkpoint},
    "mcover.distributed.save": {"model": covered, "folder": lambda: FOLDER / "checkpoint"},
    "mcover.distributed.check": {"mesh": mesh},
    "mcover.lightning.collapsed": {"module": lambda: nn.Sequential(covered())},
}


def of(name: str) -> dict[str, Made]:
    return OWN.get(name, {})
