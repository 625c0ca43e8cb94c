"""One training of a network, plain or lifted."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from mcover.data import Dataset, holdout, load, subset
from mcover.errors import McoverError
from mcover.studies.cells import Plain
from mcover.topology import from_dict
from mcover.training_settings import Training

# Threads that spin while they wait are slow on a machine that others use too.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is first imported


def prepare(settings: Plain) -> None:
    """Refuses at once where torch or the data are missing."""
    require_torch()
    _load(settings["data"])


def run(settings: Plain, seed: int) -> dict[str, float]:
    """Trains one network and tests the one model that comes out.

    First weights, routes and order of images have the seeds (seed, 0), (seed, 1) and (seed, 2), a
    subset of the images has the seed itself, whatever the method. ``validation`` images held out
    of the training set stand in for the test images where a strength is chosen.
    """
    from mcover.models import Mlp
    from mcover.nn import lift
    from mcover.training import fit

    dataset = _dataset(settings, seed)
    network = settings["network"]
    begin = time.process_time()
    with one_thread():
        model: Any = Mlp(tuple(network["sizes"]), network["dropout"]).build([seed, 0])
        covers = 1
        if settings["lift"]:
            options = dict(settings["lift"])
            options["topology"] = from_dict(options["topology"])
            covers = options["covers"]
            model = lift(model, seed=[seed, 1], **options)
        training = Training(**settings["training"])
        history = fit(model, dataset, training, seed=[seed, 2])
    if history.interrupted:
        raise KeyboardInterrupt  # a part of a training is no row
    steps = training.epochs * -(-len(dataset.train_labels) // training.batch)
    return {
        "error": float(history.collapse_error[-1]),
        "cover_error": float(history.cover_error[-1].mean()),
        "train_loss": float(history.train_loss[-1]),
        "gradients": float(steps * covers),
        "core_seconds": round(time.process_time() - begin, 3),
    }


def require_torch() -> None:
    """Says what to install where torch is missing."""
    if find_spec("torch") is None:
        raise McoverError(
            "this study trains networks and needs torch: pip install 'mcover[torch,data]'."
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order, so that outcomes do not depend on how many cores there are."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=2)
def _load(name: str) -> Dataset:
    return load(name, normalize=True)  # type: ignore[arg-type]


def _dataset(settings: Plain, seed: int) -> Dataset:
    whole = _load(settings["data"])
    if settings.get("validation"):
        whole = holdout(whole, settings["validation"], seed)
    return whole if settings["images"] is None else subset(whole, settings["images"], seed)
