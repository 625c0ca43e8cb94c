"""Table 1's perceptron with covers that attract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mcover import MCover
from reproduction.studies.perceptrons import BASES, TABLE_1_METHODS, TABLE_1_RING
from reproduction.study import PERCEPTRON, Cells, Scale, Study, at_scales, panel_cells

# The perceptron of Table 1, with the paper's schedule; rows of the methods without attraction are
# those of the study perceptron-variants.
_GAMMAS = (0.3,)


def _attracting(scale: Scale, banks: Sequence[int], trials: int) -> Cells:
    base = BASES[scale]
    lines = {**TABLE_1_METHODS}
    for bank in banks:
        lines |= {f"M-cover M=3, S={bank}": MCover(3, TABLE_1_RING, bank)} if bank != 10 else {}
        lines |= {
            f"M-cover M=3, S={bank}, γ={gamma:g}": MCover(3, TABLE_1_RING, bank, coupling=gamma)
            for gamma in _GAMMAS
        }
    trials_of = {series: replace(base, method=one) for series, one in lines.items()}
    return panel_cells(trials_of, PERCEPTRON, trials, scale != "smoke")


ATTRACTION = Study(
    name="attraction",
    title="Table 1's perceptron with covers that attract",
    source="beyond Table 1",
    about=(
        "N = 1000, α = 1.58, the paper's schedule, T = 0.4 to 0.01 in 3,901 sweeps; σ = 3, "
        "shift = 2. γ is the attraction of the covers."
    ),
    cells=at_scales(_attracting, smoke=((2,), 2), quick=((2,), 5), paper=((10, 2), 40)),
    contrasts=(
        ("M-cover M=3, S=10, γ=0.3", "M-cover M=3"),
        ("M-cover M=3, S=2, γ=0.3", "M-cover M=3, S=2", "M-cover M=3", "RSA M=3"),
    ),
    picture="outcomes",
)
