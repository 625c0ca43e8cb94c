"""Patterns with structure and wrong labels: errors and overlap at equal time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from reproduction.patterns import Patterns
from reproduction.planted import Logistic, MessagePassing, PlantedTrial, Solver
from reproduction.studies.settings import ATTRACTING, ONE, SMOKE
from reproduction.study import Cell, Cells, Scale, Study, at_scales

# Wrong labels: no student is right on all patterns. Reads are so many that each annealer takes
# about as long, and none ends early.
_NOISY: dict[str, Patterns] = {
    "iid, N = 501, α = 2": Patterns("iid", 501, 2.0),
    "AR(1), ρ = 0.9, α = 3": Patterns("ar1", 501, 3.0, 0.9),
    "MNIST pixels, α = 6": Patterns("mnist", 301, 6),
}
_READS = {"vanilla": 5, "RSA": 9, "M-cover": 5, ATTRACTING: 7}
_FLIPPED = (0.01, 0.05)


def _noisy_cells(scale: Scale, families: Mapping[str, Patterns], trials: int) -> Cells:
    passing: dict[str, Solver] = {
        "message passing": MessagePassing(),
        "message passing, r = 0.02": MessagePassing(reinforcement=0.02),
        "logistic regression, signs": Logistic(),
    }
    few = scale == "smoke"
    annealed: dict[str, Solver] = {
        series: replace(ONE[series], reads=reads, sweeps=50 if few else ONE[series].sweeps)
        for series, reads in _READS.items()
    }
    return tuple(
        Cell(
            PlantedTrial(replace(family, flipped=share), solver), series, name, share, trials=trials
        )
        for name, family in families.items()
        for share in _FLIPPED
        for series, solver in {**annealed, **passing}.items()
    )


STRUCTURED_NOISE = Study(
    name="structured-noise",
    title="Errors and overlap where labels are wrong",
    source="beyond the paper",
    about=(
        "A planted ±1 teacher, whose labels are flipped on a share of the patterns. Each annealer "
        "has its one setting of the study structured, and as many reads as fit into about 0.2 core "
        "seconds; of all majorities and covers the student with fewest errors on the given labels "
        "counts. Message passing and regression run once."
    ),
    cells=at_scales(_noisy_cells, smoke=(SMOKE, 2), quick=(_NOISY, 5), paper=(_NOISY, 20)),
    contrasts=((ATTRACTING, "M-cover", "RSA", "vanilla"),),
    x_label="share of flipped labels",
)
