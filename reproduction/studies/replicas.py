"""rSGD at its strongest: its coupling finishes growing before the training stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from reproduction.studies.networks import EPOCHS, chosen_cell, committee, committee_methods
from reproduction.study import COMMITTEE, PUBLISHED, Cells, Choosing, Scale, Study, at_scales

_PLANNED, _EARLY = "rSGD M=4, growth over all planned epochs", "rSGD M=4, growth before the stop"


# Initial coupling, its total growth, and the epochs of the growth.
_Candidates = Sequence[tuple[Any, float, int]]
_PAPER: _Candidates = (
    *product(("auto",), (1e2, 1e4), (200, 400, 800)),
    *product((1e-5, 1e-6, 1e-7), (1e4,), (400, 800)),
)


def _growth(scale: Scale, candidates: _Candidates, trials: int) -> Cells:
    known = committee_methods(scale)
    rsgd: Any = known["rSGD M=4"]
    early = {
        f"{first}, {total:g} over {span} epochs": replace(
            rsgd, coupling=first, growth=total, growth_epochs=span
        )
        for first, total, span in candidates
    }
    lines = {
        "vanilla": {"": known["vanilla"]},
        # The rSGD of committee-errors as a different trial, so that its rows have the distance.
        _PLANNED: {"": replace(rsgd, growth_epochs=EPOCHS[scale])},
        _EARLY: early,
        "M-cover M=4": {"": known["M-cover M=4"]},
    }
    cells = (
        chosen_cell(series, {name: committee(scale, one) for name, one in of.items()}, trials)
        for series, of in lines.items()
    )
    # Both growths are readings of the paper's rSGD.
    known_values = PUBLISHED if scale == "paper" else {}
    return tuple(
        replace(cell, published=known_values.get((COMMITTEE, cell.series.partition(",")[0])))
        for cell in cells
    )


def _choosing(scale: Scale, epochs: int, validation: int, seeds: int) -> Choosing:
    """Held-out images, and separate training images for each seed: some sets stop late or never.

    The coupling of all candidates finishes growing long before the epochs end.
    """
    training = replace(committee(scale).training, epochs=epochs, evaluate_every=epochs)
    extra = {"validation": validation, "subset_seed": None, "training": training}
    return Choosing(extra, seeds=seeds)


COMMITTEE_GROWTH = Study(
    name="committee-growth",
    title="Committee machines: rSGD whose coupling grows before the stop",
    source="beyond the paper",
    about=(
        "As in committee-errors (dress against coat, rows of norm √N, learning rate 10, which is "
        "10/784 for rows of norm 1). There, rSGD's coupling grows by 10⁴ over the planned 20,000 "
        "epochs, and the training stops long before. Here it grows by 10² or 10⁴ within 200, 400 "
        "or 800 epochs and then stays constant. It starts from the automatic strength (about 1.3 · "
        "10⁻⁴, which alone merges the replicas within 300 epochs) or from a weaker one, which lets "
        "them separate first. Candidates are chosen on 2,000 held-out images, with three separate "
        "seeds and sets of training images, in at most 4,000 epochs. The distance of covers at the "
        "stop is the mean of |J_k^a − J_k^b|²/N over rows and pairs of covers: 0 if they are "
        "equal, 2 if they are uncorrelated. Rows shared with older studies do not have it."
    ),
    cells=at_scales(
        _growth,
        smoke=((("auto", 1e2, 2), (1e-4, 1e4, 4)), 2),
        quick=((("auto", 1e4, 200), (1e-6, 1e4, 800)), 3),
        paper=(_PAPER, 10),
    ),
    contrasts=(
        (_EARLY, "vanilla", _PLANNED),
        ("M-cover M=4", _EARLY),
    ),
    picture="outcomes",
    choosing={
        "smoke": _choosing("smoke", 4, 100, seeds=1),
        "quick": _choosing("quick", 4000, 2000, seeds=3),
        "paper": _choosing("paper", 4000, 2000, seeds=3),
    },
)
