"""Four laws of every lift, annealer and optimizer, stated once over a table of all of them.

1. One cover is the base: M = 1 gives what the plain model, annealer or optimizer gives.
2. Without mixing, covers are independent: the identity topology, or no coupling, gives M separate
   runs.
3. Equal covers collapse to themselves: M copies of one state compute what that state computes,
   and collapse back to it.
4. Saved, copied or pickled objects continue identically, and independently of the original.

A subject returns, for each law, what mcover computes and what it must equal.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from covering import (
    KINDS_OF_WEIGHTS,
    assert_equal,
    doubles,
    pickled,
    saved,
    squares,
    train,
)
from kernels_under_test import TOPOLOGIES
from mcover import (
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
)
from mcover.nn import binary, load
from mcover.optim import ReplicatedSGD
from optim_battery import BESIDE, CASES, alone
from problems_under_test import PROBLEMS, RUNS, final_states, pattern_graph, quartic
from tiny_models import MODELS, Convolutional, routed, tiny

torch.set_num_threads(1)

RING = GaussianRing(1.5, shift=2)
COVERS = 3
Pairs = Iterator[tuple[Any, Any]]


@dataclass(frozen=True)
class Subject:
    """Each law as pairs of (what mcover computes, what it must equal)."""

    one_cover: Callable[[], Pairs] | None = None
    independent: Callable[[], Pairs] | None = None
    equal: Callable[[], Pairs] | None = None
    goes_on: Callable[[], Pairs] | None = None
    rtol: float = 0.0
    """Zero where sums are taken in the same order, so that every bit agrees."""
    atol: float = 0.0


# --- the general lift -----------------------------------------------------------------------------


def graph_pairs(runs: Any, equal: bool = False) -> Pairs:
    draw = np.random.default_rng(0)
    for graph in (quartic(), pattern_graph(draw.choice([-1, 1], (3, 4)))):
        for topology, covers in runs:
            values = draw.normal(size=(1 if equal else covers, 4))
            values = np.broadcast_to(values, (covers, 4))
            want = sum(graph.objective(own) for own in values)
            yield graph.lift(topology, covers, seed=0).objective(values), want


GRAPH = Subject(
    partial(graph_pairs, [(Uniform(), 1)]),
    partial(graph_pairs, [(Identity(), 2), (Identity(), 5)]),
    partial(graph_pairs, TOPOLOGIES, equal=True),
    rtol=1e-12,
)


# --- annealers ------------------------------------------------------------------------------------


def banks(how: dict[str, Any], *sizes: int | None) -> tuple[int | None, ...]:
    """Repair draws among the contexts of the bank, so a larger one takes other random numbers."""
    return (1,) if how.get("rule") == "repair" else sizes


def annealed(problem: Any, method: Any, how: dict[str, Any]) -> tuple[Any, ...]:
    found = anneal(problem, method=method, num_reads=2, seed=3, **how)
    return final_states(found), found.energy, found.proposals, found.sweeps


def annealed_as_vanilla(problem: Any, how: dict[str, Any]) -> Pairs:
    want, methods = annealed(problem, Vanilla(), how), [RSA(1)]
    sizes = (None,) if isinstance(problem, FactorGraph) else (1, 4)
    for bank in banks(how, *sizes):
        methods += [MCover(1, bank=bank), MCover(1, Uniform(), bank, coupling=0.4)]
    for method in methods:
        yield from zip(annealed(problem, method, how), want, strict=True)


def annealed_apart(problem: Any, how: dict[str, Any]) -> Pairs:
    for coupling in (0.8, 0.0):
        free = annealed(problem, RSA(COVERS, coupling=coupling), how)
        for bank in banks(how, None, 5):
            method = MCover(COVERS, Identity(), bank, coupling=coupling)
            yield from zip(annealed(problem, method, how), free, strict=True)
    for covers, energy in zip(*free[:2], strict=True):
        if isinstance(problem, FactorGraph):
            yield energy, sum(problem.objective(one) for one in covers)
        else:
            yield energy, problem.energy(covers, how.get("energy", "linear")).sum()


def annealed_equal(problem: Any, how: dict[str, Any]) -> Pairs:
    """Copies of a state that no proposal improves stay there: a local minimum, or the teacher.

    A flip in one cover changes one context of each destination, as it changes the base.
    """
    if how.get("rule") == "descent":
        start = anneal(problem, Vanilla(), seed=1, **how).weights[0, 0]
    else:
        start, how = problem.teacher, how | {"schedule": [1e-6]}
    for method in (RSA(3, coupling=0.5), MCover(4, RING, 3), MCover(3, Uniform(), bank=None)):
        got = anneal(problem, method, seed=0, initial_states=start, **how)
        yield got.weights[0], np.tile(start, (method.covers, 1))
        yield got.collapsed[0], start
        yield got.collapsed_sign[0], start
        yield got.energy[0], method.covers * problem.energy(start, how.get("energy", "linear"))


def annealer(problem: Any, how: dict[str, Any]) -> Subject:
    """A graph has no collapse, and only the teacher is a minimum for any rule."""
    has_minimum = how.get("rule") == "descent" or problem is PROBLEMS["teacher"]
    laws = (annealed_as_vanilla, annealed_apart, annealed_equal)[: 3 if has_minimum else 2]
    return Subject(*(partial(law, problem, how) for law in laws), atol=1e-9)


# --- lifts of networks ----------------------------------------------------------------------------

Make = Callable[[int], tuple[nn.Module, Any]]  # a model and a batch, of a seed


def binary_model(kind: type[nn.Module], options: dict[str, Any], seed: int) -> Any:
    model, x = tiny(kind, seed)
    return binary.binarize(model, **options), x


def fit(model: nn.Module, forward: Callable[[], Any], loss: Callable[[Any], Any]) -> nn.Module:
    model.train()
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True)
    train(lambda: loss(forward()), model.parameters(), 3, sgd)
    return model


LOSS = partial(cover_loss, squares, target=0.5)


def states(got: nn.Module, want: nn.Module) -> Pairs:
    assert type(got) is type(want)
    assert list(got.state_dict()) == list(want.state_dict())
    yield from zip(got.state_dict().values(), want.state_dict().values(), strict=True)


def trained_as_base(make: Make, routing: str) -> Pairs:
    base, x = make(0)
    covered = lift(base, 1, RING, routing, seed=0)
    fit(covered, partial(covered, x), LOSS)
    yield from states(covered.collapse(), fit(base, partial(base, x), squares).eval())


def trained_apart(make: Make, routing: str) -> Pairs:
    """On one batch, and on a batch for each cover."""
    for own in (False, True):
        models, batches = zip(*map(make, range(COVERS)), strict=True)
        covered = lift(models[0], models, Identity(), routing, seed=0)
        once, apart = partial(covered, batches[0]), partial(covered.each, torch.stack(batches))
        fit(covered, apart if own else once, LOSS)
        for cover, model in enumerate(models):
            fit(model, partial(model, batches[cover if own else 0]), squares)
            yield from states(covered.cover(cover), model)


def lifted_equal(make: Make, routing: str) -> Pairs:
    """Rows of a mixer sum to one, so equal covers pass through any lift unchanged.

    Seven of them: the plain mean of as many equal floats is often another float.
    """
    (model, x), others = make(3), [make(3)[0] for _ in range(7)]
    for one in (model, *others):
        for p in one.eval().parameters():
            p.data *= 0.9  # numbers that use all digits
    covered = lift(model, others, RING, routing, seed=0).eval()
    for output in covered(x):
        yield output, model(x)
    assert_equal(covered.collapse().state_dict(), model.state_dict())  # to the last bit


def layer_equal(make_layer: Callable[[], nn.Module], routing: str) -> Pairs:
    layer, x = make_layer().double(), doubles(2, 4, 7)
    args = (x, x) if isinstance(layer, nn.Bilinear) else (x,)
    got = lift(layer, COVERS, RING, routing, noise=0.0, seed=0)(*args)
    got, want = (y[0] if isinstance(y, tuple) else y for y in (got, layer(*args)))
    for cover in got:
        yield cover, want


def signs_equal(options: dict[str, Any], policy: str) -> Pairs:
    models = [binary_model(Convolutional, options, 3)[0] for _ in range(4)]
    yield from states(
        binary.collapse(lift(models[0], models, Uniform(), seed=0), policy), models[0]
    )


def lift_goes_on(make: Make, routing: str) -> Pairs:
    """Copies are made between a forward and its backward pass, and include a redraw."""
    (model, x), how = make(0), routed(routing, redraw_every=2, bank=3)
    covered = lift(model, COVERS, RING, how, noise=0.3, seed=0)
    for _ in range(3):
        loss = covered(x).sum()
    other = lift(make(5)[0], COVERS, RING, how, noise=0.3, seed=9)
    other.load_state_dict(covered.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        loaded = load(covered.save(Path(folder, "covers")), make(9)[0])
    assert loaded.settings == covered.settings
    others = [other, loaded, copy.deepcopy(covered)]
    if not any(map(parametrize.is_parametrized, model.modules())):  # torch pickles no such modules
        others += [pickled(covered), saved(covered, weights_only=False)]
    loss.backward()
    want = [covered(x) for _ in range(3)]
    for again in others:
        yield from zip([again(x) for _ in range(3)], want, strict=True)
        yield from states(again.collapse(), covered.collapse())


def lifted(make: Make, routing: str) -> Subject:
    laws = (trained_as_base, trained_apart, lifted_equal, lift_goes_on)
    return Subject(*(partial(law, make, routing) for law in laws), rtol=1e-9, atol=1e-11)


# --- optimizers of replicas -----------------------------------------------------------------------


def one_replica(case: Any) -> Pairs:
    """One replica of rSGD is at its own mean. That of elastic SGD still follows its centre, and a
    walk of Entropy-SGD its own weights, so these are the base optimizer without coupling only.
    """
    problem = case.problem()
    problem.targets = [target[:1] for target in problem.targets]
    problem.params = [nn.Parameter(p.detach()[:1].clone()) for p in problem.params]
    given = case.options if case.kind is ReplicatedSGD else case.off
    want = alone(case, problem, 4)
    problem.run(case.make(problem.params, **given), 4)
    yield from zip(problem.values(), want, strict=True)


def replicas_apart(case: Any) -> Pairs:
    problem = case.problem()
    want = alone(case, problem, 5)
    problem.run(case.make(problem.params, **case.off), 5)
    yield from zip(problem.values(), want, strict=True)


def equal_replicas(case: Any) -> Pairs:
    """Replicas that start together and see the same data stay together."""
    problem = case.problem()
    with torch.no_grad():
        for tensors in (problem.params, problem.targets):
            for stack in tensors:
                stack.copy_(stack[:1].expand_as(stack).clone())
    quiet = {"noise": 0.0} if case.walks else {}
    problem.run(case.make(problem.params, **quiet), 4)
    for stack in problem.values():
        yield stack, stack[:1].expand_as(stack)


def optimizer_goes_on(case: Any) -> Pairs:
    problem = case.problem()
    optimizer = case.make(problem.params)
    problem.run(optimizer, 3)
    values, state = problem.values(), saved(optimizer.state_dict())
    clones = [clone((problem, optimizer)) for clone in (copy.deepcopy, pickled)]
    want = problem.run(optimizer, 4).values()
    for twin, same in clones:
        yield from zip(twin.run(same, 4).values(), want, strict=True)
    yield from zip(problem.values(), want, strict=True)

    again = case.problem(seed=5)
    again.targets = problem.targets
    resumed = case.make(again.params, lr=0.9)
    again.run(resumed, 1)  # what a new optimizer may hold already is replaced
    with torch.no_grad():
        for p, value in zip(again.params, values, strict=True):
            p.copy_(value)
    resumed.load_state_dict(state)
    yield from zip(again.run(resumed, 4).values(), want, strict=True)
    assert saved(resumed.state_dict())["param_groups"] == optimizer.state_dict()["param_groups"]


def optimizer(case: Any) -> Subject:
    laws = (one_replica, replicas_apart, equal_replicas, optimizer_goes_on)
    return Subject(*(partial(law, case) for law in laws), rtol=1e-11, atol=1e-12)


# --- the table ------------------------------------------------------------------------------------

STUDENTS = {"±1": {}, "ternary, scaled": {"ternary": True, "scale": "channel"}}
SUBJECTS: dict[str, Subject] = {"factor graph": GRAPH}
SUBJECTS |= {f"annealer, {name}": annealer(*run) for name, run in RUNS.items()}
for routing in ("messages", "directed"):
    SUBJECTS |= {f"{routing}, {k.__name__}": lifted(partial(tiny, k), routing) for k in MODELS}
    for name, options in STUDENTS.items():
        make = partial(binary_model, MODELS[0], options)
        SUBJECTS[f"{routing}, {name} {MODELS[0].__name__}"] = lifted(make, routing)
for options, policy in itertools.product(KINDS_OF_WEIGHTS, ("latents", "signs")):
    SUBJECTS[f"collapse of {policy}, {options}"] = Subject(
        equal=partial(signs_equal, options, policy)
    )
MIXING = {
    "circular padding": lambda: nn.Conv1d(4, 6, 3, padding="same", padding_mode="circular"),
    "depthwise": lambda: nn.Conv1d(4, 4, 3, groups=4),
    "stride and dilation": lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2),
    "uneven padding": lambda: nn.Conv1d(4, 6, 4, padding="same"),
}
COPIED = {
    "GRU": lambda: nn.GRU(7, 3),
    "norms": lambda: nn.Sequential(
        nn.BatchNorm1d(4, affine=False), nn.InstanceNorm1d(4, affine=True)
    ),
    "transposed": lambda: nn.ConvTranspose1d(4, 6, 3),
    "bilinear": lambda: nn.Bilinear(7, 7, 2),
    "cumulative": lambda: nn.BatchNorm1d(4, momentum=None),
}
for routing, layers in {"messages": MIXING, "directed": MIXING | COPIED}.items():
    for name, make_layer in layers.items():
        equal = partial(layer_equal, make_layer, routing)
        SUBJECTS[f"{routing}, layer {name}"] = Subject(equal=equal, rtol=1e-9, atol=1e-10)
SUBJECTS |= {f"optimizer {name}": optimizer(case) for name, case in CASES.items()}
for name, case in BESIDE.items():
    SUBJECTS[f"optimizer {name}"] = Subject(goes_on=partial(optimizer_goes_on, case))

LAWS = {
    "one cover is the base": "one_cover",
    "without mixing covers are independent": "independent",
    "equal covers collapse to themselves": "equal",
    "copies and saved states go on": "goes_on",
}


@pytest.mark.filterwarnings("ignore:Using padding='same'", "ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("law", "name"),
    [(law, n) for law, field in LAWS.items() for n, s in SUBJECTS.items() if getattr(s, field)],
)
def test_law(law, name):
    subject, count = SUBJECTS[name], 0
    exact = law == "copies and saved states go on"
    for got, want in getattr(subject, LAWS[law])():
        got, want = (v.detach() if isinstance(v, torch.Tensor) else v for v in (got, want))
        rtol, atol = (0, 0) if exact else (subject.rtol, subject.atol)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
        count += 1
    assert count
