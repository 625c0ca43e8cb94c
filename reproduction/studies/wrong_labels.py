"""Patterns with some wrong labels: training errors and recovery of the teacher, at equal time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from reproduction.families import ATTRACTING, FAMILIES, ONE, SMOKE
from reproduction.patterns import Patterns
from reproduction.planted import Annealed, Logistic, MessagePassing, PlantedTrial, Solver
from reproduction.study import Cell, Cells, Choosing, Scale, Study, at_scales

_READS = {"vanilla": 6, "RSA": 4, "M-cover": 6, ATTRACTING: 6}
"""Reads of one setting in a quarter of a core second, for independent patterns and N = 501."""
_FAMILIES = ("iid, N = 501", "AR(1), ρ = 0.9", "MNIST pixels", "Fashion-MNIST pixels")
_FLIPPED = (0.01, 0.05)
_RIVALS: dict[str, Mapping[str, Solver]] = {
    "message passing": {
        f"r={r:g}": MessagePassing(reinforcement=r, max_iterations=300) for r in (0.0, 0.003, 0.02)
    },
    "logistic regression, signs": {f"C={c:g}": Logistic(c) for c in (0.001, 0.01, 1.0)},
}


def _schedules(one: Annealed, reads: int) -> dict[str, Solver]:
    """Candidates with equal total sweeps: many short reads, few, or a single long one."""
    split = {reads: one.sweeps, max(1, reads // 4): 4 * one.sweeps, 1: reads * one.sweeps}
    return {
        f"{count} reads of {sweeps} sweeps": replace(one, reads=count, sweeps=sweeps)
        for count, sweeps in split.items()
    }


def _cells(scale: Scale, families: Mapping[str, Patterns], trials: int) -> Cells:
    cells = []
    for name, family in families.items():
        for flipped in _FLIPPED:
            solvers = {series: _schedules(one, _READS[series]) for series, one in ONE.items()}
            if scale == "smoke":
                short = replace(ONE[ATTRACTING], sweeps=20)
                solvers = {ATTRACTING: _schedules(short, 2)}
            for series, some in (solvers | _RIVALS).items():
                noisy = replace(family, flipped=flipped)
                given = {label: PlantedTrial(noisy, solver) for label, solver in some.items()}
                first = next(iter(given.values()))
                panel = f"{name}, {100 * flipped:g} % flipped"
                cells.append(Cell(first, series, panel, trials=trials, choices=given))
    return tuple(cells)


_CHOOSING = Choosing(extra={}, outcome="error_rate", seeds=8)
_CHOSEN = {name: FAMILIES[name] for name in _FAMILIES}

WRONG_LABELS = Study(
    name="wrong-labels",
    title="±1 weights where some labels are wrong, at equal time",
    source="beyond the paper",
    about=(
        "A planted ±1 teacher. 1 % or 5 % of its labels are flipped, so hardly any student is "
        "without errors. Every annealer has the setting that serves all families in the study "
        "`structured`, and about a quarter of a core second for its reads: many short ones, few, "
        "or a single long one, chosen by training errors on other instances. The student is the "
        "majority or the cover with the fewest training errors. The share of flipped labels is the "
        "teacher's own error."
    ),
    cells=at_scales(
        _cells,
        smoke=({"iid": SMOKE["iid"]}, 2),
        quick=(_CHOSEN, 10),
        paper=(_CHOSEN, 100),
    ),
    choosing={"smoke": replace(_CHOOSING, seeds=2), "quick": _CHOOSING, "paper": _CHOOSING},
    contrasts=(
        (ATTRACTING, "M-cover", "RSA", "vanilla", *_RIVALS),
        ("M-cover", "RSA"),
    ),
    picture="outcomes",
)
