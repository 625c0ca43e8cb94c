"""One ±1 perceptron with its teacher, annealed."""

from __future__ import annotations

from functools import cache

import numpy as np

from mcover.annealing import LinearSchedule, anneal, teacher_student
from mcover.lab.studies.cells import Plain
from mcover.topology import from_dict


def run(settings: Plain, seed: int) -> dict[str, float]:
    """Anneals a fresh instance.

    Instance and annealing have the seeds (seed, 0) and (seed, 1) whatever the method, so that
    methods compare on paired instances. With several ``reads`` the one of least energy counts,
    judged on the training patterns alone.
    """
    _warm_up()
    problem = teacher_student(
        settings["n"], settings["alpha"], seed=[seed, 0], ties=settings["ties"]
    )
    options = dict(settings["anneal"])
    if "topology" in options:
        options["topology"] = from_dict(options["topology"])
    result = anneal(
        problem,
        schedule=LinearSchedule(**settings["schedule"]),
        num_reads=settings.get("reads", 1),
        seed=[seed, 1],
        workers=1,
        record=2,
        **options,
    )
    if result.interrupted:
        raise KeyboardInterrupt  # a part of an annealing is no row
    best = int(np.argmin(result.collapsed_energy))
    return {
        "generalization_error": float(result.generalization_error[best]),
        "generalization_error_sign": float(
            problem.generalization_error(result.collapsed_sign)[best]
        ),
        "training_errors": float(result.training_errors[best]),
        "collapsed_energy": float(result.collapsed_energy[best]),
        "solved": float(result.collapsed_energy[best] == 0),
        "energy": float(result.energy[best]),
        "proposals": float(result.proposals.sum()),
        "core_seconds": float(result.seconds.sum()),
    }


@cache
def _warm_up() -> None:
    """Compiles and loads once in a process what would count as the time of its first trial."""
    anneal(teacher_student(11, 1.0, seed=0), num_sweeps=1, bank=2, seed=0, workers=1, record=2)
