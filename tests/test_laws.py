"""Three laws of every lift, annealer and optimizer, stated once over a table of all of them.

1. One cover is the base: M = 1 gives what the plain model, annealer or optimizer gives.
2. Without mixing, covers are independent: the identity topology, or no coupling, gives M separate
   runs.
3. Equal covers collapse to themselves: M copies of one state compute what that state computes,
   and collapse back to it.

A subject returns, for each law, what mcover computes and what it must equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from mcover import (  # noqa: E402
    RSA,
    FactorGraph,
    GaussianRing,
    Identity,
    MCover,
    Uniform,
    Vanilla,
    anneal,
    cover_loss,
    lift,
    teacher_student,
)
from mcover.nn import binary  # noqa: E402
from mcover.optim import ReplicatedSGD  # noqa: E402
from optim_battery import CASES, Quadratics, alone  # noqa: E402
from tiny_models import MODELS, tiny  # noqa: E402

torch.set_num_threads(1)

RING = GaussianRing(1.5, shift=2)
COVERS = 3
Pairs = Iterator[tuple[Any, Any]]


@dataclass(frozen=True)
class Subject:
    """Each law as pairs of (what mcover computes, what it must equal)."""

    one_cover: Callable[[], Pairs]
    independent: Callable[[], Pairs]
    equal: Callable[[], Pairs]
    rtol: float = 0.0
    """Zero where sums are taken in the same order, so that every bit agrees."""
    atol: float = 0.0


# --- the general lift -----------------------------------------------------------------------------


def quartic() -> FactorGraph:
    """Factors of one, two and three variables."""
    return FactorGraph(
        [
            (lambda a: (a - 1) ** 2, (0,)),
            (lambda a, b: (a - b**2) ** 2, (0, 2)),
            (lambda a, b, c: a * b * c, (1, 2, 3)),
        ]
    )


def graph_pairs(topology: Any, covers: int, equal: bool) -> Pairs:
    graph, draw = quartic(), np.random.default_rng(0)
    values = draw.normal(size=(1 if equal else covers, 4))
    values = np.broadcast_to(values, (covers, 4))
    want = sum(graph.objective(own) for own in values)
    yield graph.lift(topology, covers, seed=0).objective(values), want


GRAPH = Subject(
    partial(graph_pairs, Uniform(), 1, False),
    partial(graph_pairs, Identity(), 5, False),
    partial(graph_pairs, RING, 5, True),
    rtol=1e-12,
)


# --- annealers ------------------------------------------------------------------------------------

COOLING = np.linspace(0.4, 0.01, 40)
RULES: dict[str, dict[str, Any]] = {
    "glauber": {"schedule": COOLING},
    "metropolis": {"schedule": COOLING, "rule": "metropolis"},
    "errors": {"schedule": COOLING, "energy": "errors"},
    "sequential": {"schedule": COOLING, "order": "sequential"},
    "repair": {"rule": "repair", "schedule": [0.15] * 200},
    "descent": {"rule": "descent"},
    "permuted descent": {"rule": "descent", "order": "permutation"},
    "best descent": {"rule": "descent", "improvement": "best"},
}


def annealed_as_vanilla(how: dict[str, Any]) -> Pairs:
    problem = teacher_student(41, 1.5, seed=0)
    want = anneal(problem, Vanilla(), seed=3, num_reads=2, **how)
    for method in (MCover(1, bank=1), MCover(1, bank=4), RSA(1)):
        if method.bank == 4 and how.get("rule") == "repair":
            continue  # repair draws among the contexts of the bank: another random number
        got = anneal(problem, method, seed=3, num_reads=2, **how)
        yield got.weights, want.weights
        yield got.proposals, want.proposals


def annealed_apart(how: dict[str, Any]) -> Pairs:
    problem = teacher_student(31, 1.5, seed=0)
    free = anneal(problem, RSA(COVERS, coupling=0.0), seed=3, **how)
    # Repair draws among the contexts of the bank, so a larger one takes other random numbers.
    for bank in (1,) if how.get("rule") == "repair" else (1, 5):
        method = MCover(COVERS, Identity(), bank=bank)
        yield anneal(problem, method, seed=3, **how).weights, free.weights
    energy = problem.energy(free.weights[0], how.get("energy", "linear")).sum()
    yield np.round(free.energy[0], 9), np.round(energy, 9)


def annealed_equal(how: dict[str, Any]) -> Pairs:
    """Started at the teacher, where no proposal lowers the energy, copies stay there."""
    problem = teacher_student(41, 3.0, seed=0)
    start = np.tile(problem.teacher, (COVERS, 1))
    cold = {name: value for name, value in how.items() if name != "schedule"}
    if how.get("rule") != "descent":
        cold["schedule"] = [1e-6]
    for method in (MCover(COVERS, bank=2), RSA(COVERS, coupling=1.0)):
        got = anneal(problem, method, seed=0, initial_states=start, **cold)
        yield got.weights[0], start
        yield got.collapsed[0], problem.teacher
        yield got.collapsed_sign[0], problem.teacher
        yield got.energy[0], 0.0
        yield np.round(got.generalization_error[0], 6), 0.0
        yield got.solved, np.ones(1, dtype=bool)


def annealer(how: dict[str, Any]) -> Subject:
    laws = (annealed_as_vanilla, annealed_apart, annealed_equal)
    return Subject(*(partial(law, how) for law in laws))


# --- lifts of networks ----------------------------------------------------------------------------

Make = Callable[[int], tuple[nn.Module, Any]]  # a model and a batch, of a seed


def binary_model(kind: type[nn.Module], options: dict[str, Any], seed: int) -> Any:
    model, x = tiny(kind, seed)
    return binary.binarize(model, **options), x


def squares(output: Any, target: float) -> Any:
    return ((output - target) ** 2).mean()


def train(model: nn.Module, x: Any, loss: Callable[[Any], Any], steps: int = 3) -> nn.Module:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()
    return model


def states(got: nn.Module, want: nn.Module) -> Pairs:
    assert type(got) is type(want)
    assert list(got.state_dict()) == list(want.state_dict())
    yield from zip(got.state_dict().values(), want.state_dict().values(), strict=True)


def trained_as_base(make: Make, routing: str) -> Pairs:
    base, x = make(0)
    covered = train(
        lift(base, 1, RING, routing, seed=0), x, partial(cover_loss, squares, target=0.5)
    )
    train(base, x, partial(squares, target=0.5))
    yield from states(covered.collapse(), base.eval())


def trained_apart(make: Make, routing: str) -> Pairs:
    models, x = [make(seed)[0] for seed in range(COVERS)], make(0)[1]
    covered = lift(models[0], models, Identity(), routing, seed=0)
    train(covered, x, partial(cover_loss, squares, target=0.5))
    for cover, model in enumerate(models):
        yield from states(covered.cover(cover), train(model, x, partial(squares, target=0.5)))


def lifted_equal(make: Make, routing: str) -> Pairs:
    """Rows of a mixer sum to one, so equal covers pass through any lift unchanged."""
    model, x = make(3)
    model.eval()
    covered = lift(model, [make(3)[0] for _ in range(COVERS)], RING, routing, seed=0).eval()
    for output in covered(x):
        yield output, model(x)
    yield from states(covered.collapse(), model)


def lifted(make: Make, routing: str) -> Subject:
    laws = (trained_as_base, trained_apart, lifted_equal)
    return Subject(*(partial(law, make, routing) for law in laws), rtol=1e-9, atol=1e-11)


# --- optimizers of replicas -----------------------------------------------------------------------


def one_replica(case: Any) -> Pairs:
    """One replica of rSGD is at its own mean. That of elastic SGD still follows its centre, and a
    walk of Entropy-SGD its own weights, so these are the base optimizer without coupling only.
    """
    problem = Quadratics()
    problem.targets = [target[:1] for target in problem.targets]
    problem.params = [nn.Parameter(p.detach()[:1].clone()) for p in problem.params]
    given = case.options if case.kind is ReplicatedSGD else case.off
    want = alone(case, problem, 4)
    problem.run(case.make(problem.params, **given), 4)
    yield from zip(problem.values(), want, strict=True)


def replicas_apart(case: Any) -> Pairs:
    problem = Quadratics()
    want = alone(case, problem, 5)
    problem.run(case.make(problem.params, **case.off), 5)
    yield from zip(problem.values(), want, strict=True)


def equal_replicas(case: Any) -> Pairs:
    """Replicas that start together and see the same data stay together."""
    problem = Quadratics()
    with torch.no_grad():
        for tensors in (problem.params, problem.targets):
            for stack in tensors:
                stack.copy_(stack[:1].expand_as(stack).clone())
    quiet = {"noise": 0.0} if case.walks else {}
    problem.run(case.make(problem.params, **quiet), 4)
    for stack in problem.values():
        yield stack, stack[:1].expand_as(stack)


def optimizer(case: Any) -> Subject:
    laws = (one_replica, replicas_apart, equal_replicas)
    return Subject(*(partial(law, case) for law in laws), rtol=1e-11, atol=1e-12)


# --- the table ------------------------------------------------------------------------------------

STUDENTS = {"±1": {}, "ternary, scaled": {"ternary": True, "scale": "channel"}}
SUBJECTS: dict[str, Subject] = {"factor graph": GRAPH}
SUBJECTS |= {f"annealer, {name}": annealer(how) for name, how in RULES.items()}
for routing in ("messages", "directed"):
    SUBJECTS |= {f"{routing}, {k.__name__}": lifted(partial(tiny, k), routing) for k in MODELS}
    for name, options in STUDENTS.items():
        make = partial(binary_model, MODELS[0], options)
        SUBJECTS[f"{routing}, {name} {MODELS[0].__name__}"] = lifted(make, routing)
SUBJECTS |= {f"optimizer {name}": optimizer(case) for name, case in CASES.items()}

EVERY = pytest.mark.parametrize("name", SUBJECTS)


def check(pairs: Pairs, subject: Subject) -> None:
    count = 0
    for got, want in pairs:
        got, want = (v.detach() if isinstance(v, torch.Tensor) else v for v in (got, want))
        np.testing.assert_allclose(got, want, rtol=subject.rtol, atol=subject.atol)
        count += 1
    assert count


@EVERY
def test_one_cover_is_the_base(name):
    check(SUBJECTS[name].one_cover(), SUBJECTS[name])


@EVERY
def test_without_mixing_covers_are_independent(name):
    check(SUBJECTS[name].independent(), SUBJECTS[name])


@EVERY
def test_equal_covers_collapse_to_themselves(name):
    check(SUBJECTS[name].equal(), SUBJECTS[name])
