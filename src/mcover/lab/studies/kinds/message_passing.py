"""Message passing on the instance that annealers meet: what the data allow without annealing."""

from __future__ import annotations

import time

from mcover.annealing import teacher_student
from mcover.annealing.amp import amp
from mcover.lab.studies.cells import Plain


def run(settings: Plain, seed: int) -> dict[str, float]:
    """AMP; its seed (seed, 2) is none of the annealers'."""
    problem = teacher_student(
        settings["n"], settings["alpha"], seed=[seed, 0], ties=settings["ties"]
    )
    begin = time.process_time()
    found = amp(problem.patterns, problem.labels, seed=[seed, 2])
    energy = float(problem.energy(found.weights))
    return {
        "generalization_error": float(problem.generalization_error(found.magnetization)),
        "generalization_error_sign": float(problem.generalization_error(found.weights)),
        "training_errors": float(problem.training_errors(found.weights)),
        "collapsed_energy": energy,
        "solved": float(energy == 0),
        "core_seconds": time.process_time() - begin,
    }
