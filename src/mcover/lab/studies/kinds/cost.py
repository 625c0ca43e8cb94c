"""What one update costs: processor time, on one core."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from mcover.annealing import MCover, anneal, teacher_student
from mcover.errors import McoverError
from mcover.lab.studies.cells import Plain
from mcover.lab.studies.kinds.experiment import one_thread, require_torch
from mcover.lifting import Messages
from mcover.topology import GaussianRing

_RING = GaussianRing(sigma=1.5, shift=2)


def prepare(settings: Plain) -> None:
    """Refuses at once where torch is missing."""
    if settings["model"] == "mlp":
        require_torch()


def run(settings: Plain, seed: int) -> dict[str, float]:
    """Microseconds of one update: a proposal of a ±1 weight, or a training step of a network."""
    if settings["model"] not in _MODELS:
        raise McoverError(f"no cost of {settings['model']!r}; write one of {', '.join(_MODELS)}.")
    return {"microseconds": _MODELS[settings["model"]](settings, seed)}


_REPEATS = 3  # the best of so many runs: a busy machine only ever adds to the time


def _annealing(settings: Plain, seed: int) -> float:
    """What sweeps add: a short run is taken off a longer one, and with it all that comes first."""
    n, hidden = settings["n"], settings.get("hidden", 1)
    alpha = settings["patterns"] / (n * hidden)
    problem = teacher_student(n, alpha, seed=[seed, 0], hidden=hidden)
    method = MCover(settings["covers"], _RING, settings["bank"])

    def spent(sweeps: int) -> tuple[float, float]:
        return min(once(sweeps) for _ in range(_REPEATS))

    def once(sweeps: int) -> tuple[float, float]:
        result = anneal(
            problem,
            method,
            num_sweeps=sweeps,
            seed=[seed, 1],
            workers=1,
            record=2,
        )
        return float(result.seconds[0]), float(result.proposals[0])

    once(1)  # compiles, or loads what was compiled
    short, long = spent(settings["sweeps"]), spent(4 * settings["sweeps"])
    if long[0] <= short[0]:
        raise McoverError(f"{settings['sweeps']} sweeps are too few to be timed; write more.")
    return 1e6 * (long[0] - short[0]) / (long[1] - short[1])


def _network(settings: Plain, seed: int) -> float:
    import torch
    from torch.nn import functional

    from mcover.lab.models import Mlp
    from mcover.nn import cover_loss, lift

    rng = np.random.default_rng([seed, 2])
    sizes = tuple(settings["sizes"])
    with one_thread():
        base = Mlp(sizes).build([seed, 0])
        how = Messages(blocks=settings["blocks"])
        model = lift(base, settings["covers"], _RING, how, seed=[seed, 1])
        images = torch.from_numpy(rng.standard_normal((settings["batch"], sizes[0]), np.float32))
        labels = torch.from_numpy(rng.integers(0, sizes[-1], settings["batch"]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
        best = np.inf
        for _ in range(settings["steps"]):
            begin = time.process_time()
            loss = cover_loss(functional.cross_entropy, model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            best = min(best, time.process_time() - begin)
    return 1e6 * float(best)


_MODELS: dict[str, Callable[[Plain, int], float]] = {
    "perceptron": _annealing,
    "committee": _annealing,
    "mlp": _network,
}
