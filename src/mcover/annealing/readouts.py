"""Chooses the ±1 student after an annealing.

If ±1 weights fit the labels, the covers agree, and their majority is the solution. Otherwise they
need not agree, and the majority may have more errors than any cover. So the student is the one with
the fewest errors among the majority, every cover, and two polishes of the best of these.

A polish anneals one copy, from the student, with the number of errors as its energy. The linear
energy is easier to descend, but a pattern that cannot be satisfied contributes its whole negative
margin to it, and only one error to the number of errors. Training errors of the majority, of the
best of majority and covers, and after polishing, for RSA with M = 9 (n = 32,
``bench/readouts.py``): 0.036, 0.027 and 0.026 for ±1 weights that imitate units of a trained
network, where covers disagree; 0.187, 0.186 and 0.159 with 10 % of a teacher's labels flipped.

The first polish is cold and short and stays near the student, which was best on the units. The
second is hotter and longer, which was best on flipped labels. Four times its sweeps were better
still there, but every restart would pay for them, also if a teacher exists and polishing finds
nothing.
"""

from typing import Literal

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from mcover.annealing.problems import Signs, Size
from mcover.annealing.result import collapse_sign

_POLISHES = ((0.25, 0.25), (0.4, 1.0))
"""For each polish: the first temperature, as a share of T₀ of the energy "errors", and the number
of sweeps, as a share of those of the annealing."""
_COOLING = 0.2  # the last temperature of a polish as a share of the first

Readout = Literal["best", "majority"]
Columns = NDArray[np.uint64]


def read_out(
    columns: Columns,
    size: Size,
    covers: Signs,
    sweeps: int,
    seed: SeedSequence,
    hot: float | None = None,
    readout: Readout = "best",
) -> tuple[Signs, int, str, int]:
    """The student of an annealing: its weights, errors and name, and the proposals made.

    Args:
        columns: the packed patterns.
        size: the size of the problem.
        covers: the final covers of an annealing, (M, sites).
        sweeps: the sweeps of that annealing; 0 leaves out the polish.
        seed: the seed of the polish.
        hot: T₀ of the energy "errors" for these patterns; measured if None.
        readout: "best" for the student with the fewest errors, or "majority".
    """
    from mcover.annealing.temperatures import freezing_temperature

    if readout == "majority":
        student = collapse_sign(covers)
        return student, count_errors(columns, size, student), readout, 0
    best, errors, name = best_student(columns, size, covers)
    if not errors or not sweeps:
        return best, errors, name, 0
    hot = freezing_temperature(columns, size, "errors") if hot is None else hot
    proposals = 0
    for (heat, share), own in zip(_POLISHES, seed.spawn(len(_POLISHES)), strict=True):
        temperatures = np.linspace(1, _COOLING, max(1, round(share * sweeps)))
        polished, left, made = polish(columns, size, best, heat * hot * temperatures, own)
        proposals += made
        if left < errors:
            best, errors, name = polished, left, "polish"
    return best, errors, name, proposals


def count_errors(columns: Columns, size: Size, student: Signs) -> int:
    """The patterns that a ±1 student misclassifies, from the counters of a chain."""
    from mcover.annealing.states import margins, single

    return int(np.sum(margins(single(columns, size, student, "errors")) <= 0))


def best_student(columns: Columns, size: Size, covers: Signs) -> tuple[Signs, int, str]:
    """The majority or the cover with the fewest errors, its errors and its name.

    The majority wins ties, then the first cover.
    """
    students = [("majority", collapse_sign(covers))]
    if len(covers) > 1:
        students += [(f"cover {place}", one) for place, one in enumerate(covers)]
    best, errors, name = students[0][1], -1, ""
    for of, student in students:
        found = count_errors(columns, size, student)
        if errors < 0 or found < errors:
            best, errors, name = student.copy(), found, of
        if errors == 0:
            break
    return best, errors, name


def polish(
    columns: Columns,
    size: Size,
    student: Signs,
    temperatures: NDArray[np.float64],
    seed: SeedSequence,
) -> tuple[Signs, int, int]:
    """Anneals one copy from a student by errors; returns weights, errors and proposals."""
    from mcover.annealing.chain import generator
    from mcover.annealing.searches import run
    from mcover.annealing.states import single

    state = single(columns, size, student, "errors")
    done = run(state, temperatures, 0.0, generator(seed), "glauber", stop_at_zero=True)
    polished = state.weights[0].copy()
    return polished, count_errors(columns, size, polished), int(done.proposals.sum())
