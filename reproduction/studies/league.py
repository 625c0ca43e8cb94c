"""The directed lift compared with other regularizers at equal gradients, and its ablations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcover import Identity
from reproduction.rows import Trial
from reproduction.studies.networks import (
    SMOKE_CHOOSING,
    changed,
    chosen_cell,
    directed,
)
from reproduction.study import Cells, Scale, Study, at_scales
from reproduction.training import (
    EMA,
    SAM,
    SWA,
    CoverTrial,
    DistilledTrial,
    NetworkTrial,
    RepeatedTrial,
    Soup,
    Training,
)

_COVERS = 4
_NOISES = (0.03, 0.05, 0.07)
_RATES = (0.2, 0.35, 0.5, 0.65)
LIFT, BOTH, PLAIN = "directed lift", "directed lift and dropout", "plain"
SHORT, VOTE = "plain, a quarter of the gradients", "ensemble of 4 (not one model)"
EARLIER = "directed lift, noise 0.05"  # what earlier code chose
ONE_COVER, APART = "routes without averaging: single covers", "averaging without routes"


def _lines(scale: Scale) -> dict[str, Mapping[str, Trial]]:
    """Candidates of each line, by label, for 60 epochs of four covers or equal gradients."""
    given: dict[str, Any] = {"data": "mnist", "training": Training(60, 100), "images": 1000}
    if scale == "smoke":
        given = {"data": "digits", "training": Training(5, 50), "images": 100}
    given["model"] = "small-mlp"
    network, cover = NetworkTrial(**given), CoverTrial(**given)

    def long(**how: Any) -> NetworkTrial:
        return changed(network, _COVERS, **how)

    def lifted(noises: Sequence[float] = _NOISES, of: NetworkTrial = network, **how: Any) -> Any:
        return {f"noise {x:g}": changed(of, method=directed(x, **how)) for x in noises}

    def distilled(temperature: float) -> NetworkTrial:
        # Four members and a student instead of four covers.
        trial = DistilledTrial(**given, members=_COVERS, temperature=temperature)
        return changed(trial, _COVERS / (_COVERS + 1))

    return {
        PLAIN: {"": long()},
        SHORT: {"": changed(network)},
        "dropout": {f"{p}": long(dropout=p) for p in _RATES},
        "DropConnect": {f"{p}": long(drop_connect=p) for p in (0.1, 0.2, 0.35, 0.5)},
        "weight noise": {f"{x}": long(weight_noise=x) for x in (0.02, 0.035, 0.05, 0.07)},
        "SAM": {f"ρ = {r}": changed(network, 2, method=SAM(r)) for r in (0.05, 0.1, 0.2, 0.5)},
        "SWA": {f"from {share}": long(method=SWA(share)) for share in (0.25, 0.5, 0.75)},
        "EMA": {f"decay {d}": long(method=EMA(d)) for d in (0.99, 0.997, 0.999)},
        "soup of 4": {f"trunk {t}": long(method=Soup(4, t)) for t in (0.0, 0.25, 0.5, 0.75)},
        "ensemble of 4, distilled": {f"T = {t:g}": distilled(t) for t in (1.0, 2.0, 3.0)},
        VOTE: {"": RepeatedTrial(changed(network), 4, "vote")},
        LIFT: lifted(),
        EARLIER: {"": changed(network, method=directed(0.05))},
        BOTH: {
            f"noise {x}, dropout {p}": changed(network, method=directed(x), dropout=p)
            for x in (0.03, 0.05)
            for p in (0.2, 0.35, 0.5)
        },
        ONE_COVER: lifted(of=cover),
        APART: lifted((0.01, *_NOISES), topology=Identity()),
        "redrawn every step": lifted(redraw_every=1, bank=1),
        "never redrawn": lifted(redraw_every=None),
        "no noise": lifted((0.0,)),
        "independent starts": lifted((0.0,), start="independent"),
    }


_ABLATIONS = (
    *(EARLIER, ONE_COVER, APART, "redrawn every step", "never redrawn", "no noise"),
    "independent starts",
)
_ALL = tuple(_lines("paper"))
_RIVALS = tuple(one for one in _ALL if one not in (LIFT, BOTH, *_ABLATIONS))
_QUICK = (PLAIN, "dropout", "DropConnect", "weight noise", LIFT, ONE_COVER, APART)


def _league(scale: Scale, names: Sequence[str], trials: int) -> Cells:
    lines = _lines(scale)
    return tuple(chosen_cell(series, lines[series], trials) for series in names)


LEAGUE = Study(
    name="league",
    title="The directed lift among its kin, at equal gradients",
    source="beyond the paper",
    about=(
        "784-256-256-10 on 1,000 MNIST images, batch 100, 2,400 minibatch gradients for every line "
        "unless its name says otherwise: 60 epochs of four covers, 240 of one model, 120 of SAM, "
        "48 of each of four members and their student. Strengths are chosen on 5,000 held-out "
        "images with three separate seeds; then all lines use the same images. DropConnect drops "
        "weights and biases of all layers, with one mask per batch. A soup is the mean of branches "
        "that start from one trunk and train on different batches. The student's loss gives the "
        "members' predictions a weight of 0.9. The directed lift has M = 4, uniform routes that "
        "are redrawn every epoch, and noise between covers with a common start; a separate line "
        "has the noise that earlier code chose. The ablations, each with its own choice of noise, "
        "are: single covers instead of their mean; the mean of covers without routes; routes "
        "redrawn every step, or fixed (a bank of 8, visited in turn); covers without noise, which "
        "stay equal, so this is plain SGD of 60 epochs; independent starts."
    ),
    cells=at_scales(_league, smoke=(_ALL, 2), quick=(_QUICK, 3), paper=(_ALL, 10)),
    contrasts=(
        (LIFT, *_RIVALS),
        (EARLIER, PLAIN, "dropout", "SAM"),
        (BOTH, "dropout", LIFT),
        *((part, LIFT) for part in _ABLATIONS),
    ),
    picture="outcomes",
    choosing={"smoke": SMOKE_CHOOSING},
)
