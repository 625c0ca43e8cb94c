"""What the study of smooth networks compares: two parts, their settings, and their candidates.

A setting with several candidates has its strength chosen on a validation split, before the test
images are looked at.
"""

from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

from mcover import GaussianRing, Identity, Uniform
from mcover.data import Dataset, holdout, load, subset
from mcover.models import Mlp, paper_mlp, small_mlp
from mcover.training.settings import Training

RING = GaussianRing(sigma=1.5, shift=2)


@dataclass(frozen=True)
class Run:
    """One way to train: everything but the seed."""

    lift: dict[str, Any] = field(default_factory=dict)
    """Options of mcover.lift; empty trains the plain network."""
    training: dict[str, Any] = field(default_factory=dict)
    """What differs from the training of the part."""
    dropout: float = 0.0


@dataclass(frozen=True)
class Part:
    """A data set, a network, and the settings that are compared on it."""

    images: int | None
    training: Training
    settings: dict[str, dict[str, Run]]
    """Candidates by label, by the name of the setting."""
    pairs: tuple[tuple[str, str], ...]
    """Comparisons beside those with the first setting."""
    small: bool = False

    def how(self, run: Run) -> Training:
        return replace(self.training, **run.training)

    def plain(self, run: Run) -> dict[str, Any]:
        """All that decides a training but its seed, for JSON; rows are found again by it."""
        lift = {
            name: value.to_dict() if name == "topology" else value
            for name, value in run.lift.items()
        }
        return {
            "images": self.images,
            "network": asdict(self.network(run.dropout)),
            "training": _row(self.how(run)),
            "lift": lift,
        }

    def network(self, dropout: float) -> Mlp:
        return (small_mlp if self.small else paper_mlp)(dropout=dropout)

    def dataset(self, stage: str, seed: int, validation: int = 5000) -> Dataset:
        """For "choose", images held out of the training set stand in for the test images."""
        whole = mnist()
        if stage == "choose":
            whole = holdout(whole, validation, seed)
        return whole if self.images is None else subset(whole, self.images, seed)


# What a row has always said of a training; what came later is said only where it is not a default.
_ALWAYS = ("batch", "epochs", "evaluate_every", "lr", "momentum", "weight_decay", "weight_noise")


def _row(training: Training) -> dict[str, Any]:
    """A training as rows name it: those of before there were methods are found again."""
    given = asdict(training)
    row = {name: given.pop(name) for name in _ALWAYS} | {"swa_from": None}
    if training.method == "swa":
        row["swa_from"] = training.option("average_from")
        del given["method"], given["average_from"]
    plain = asdict(Training())
    return row | {name: value for name, value in given.items() if value != plain[name]}


@lru_cache(maxsize=1)
def mnist() -> Dataset:
    return load("mnist", normalize=True)


def _messages(covers: int, topology: Any, **more: Any) -> dict[str, Any]:
    return {"routing": "messages", "covers": covers, "topology": topology, "blocks": 8} | more


def _directed(noise: float = 0.05, **more: Any) -> dict[str, Any]:
    options = {"routing": "weights", "covers": 4, "topology": Uniform(), "bank": 8}
    return options | {"noise": noise} | more


def _swa(share: float) -> dict[str, Any]:
    return {"method": "swa", "average_from": share}


NOISES = (0.03, 0.05, 0.07)
DROPOUTS = (0.2, 0.35, 0.5, 0.65)
EPOCH = 10  # steps in an epoch of 1,000 images
REDRAWN = {"redraw_every": EPOCH}

# What the search of the directed lift goes through: one change at a time from the first try.
SEARCH = {
    "M=4 redrawn": _directed(**REDRAWN),
    "redrawn every 5 steps": _directed(redraw_every=5, bank=5),
    "redrawn every step": _directed(redraw_every=1, bank=1),
    "M=2": _directed(**REDRAWN, covers=2),
    "M=8": _directed(**REDRAWN, covers=8),
    "noise 0.04": _directed(0.04, **REDRAWN),
    "noise 0.06": _directed(0.06, **REDRAWN),
    "noise 0.08": _directed(0.08, **REDRAWN),
    "ring σ=1.5 shift=2": _directed(**REDRAWN, topology=RING),
    "ring σ=1 shift=0": _directed(**REDRAWN, topology=GaussianRing(sigma=1.0)),
    "by unit": _directed(**REDRAWN, granularity="unit"),
    "by tensor": _directed(**REDRAWN, granularity="tensor"),
    "two destinations a step": _directed(**REDRAWN, destinations=2),
}

MNIST = Part(
    images=None,
    training=Training(epochs=40, batch=256, evaluate_every=40),
    settings={
        "M=1": {"": Run()},
        "message lift, M=5": {"": Run(_messages(5, RING))},
        "Identity, M=5": {"": Run(_messages(5, Identity()))},
        # One model for 200 epochs: as many gradients as 5 covers for 40.
        "SWA, 200 epochs": {"": Run(training={"epochs": 200, "evaluate_every": 200} | _swa(0.75))},
    },
    pairs=(("message lift, M=5", "Identity, M=5"), ("message lift, M=5", "SWA, 200 epochs")),
)

LOW_DATA = Part(
    images=1000,
    small=True,
    training=Training(epochs=60, batch=100, evaluate_every=60),
    settings={
        "M=1": {"": Run()},
        "message lift, M=5": {"": Run(_messages(5, RING))},
        "Identity, M=5": {"": Run(_messages(5, Identity()))},
        "SWA, 300 epochs": {
            f"from {share}": Run(training={"epochs": 300, "evaluate_every": 300} | _swa(share))
            for share in (0.25, 0.5, 0.75)
        },
        "directed lift, M=4, quenched": {f"noise {x}": Run(_directed(x)) for x in NOISES},
        "directed lift, M=4, redrawn each epoch": {
            f"noise {x}": Run(_directed(x, **REDRAWN)) for x in NOISES
        },
        "directed lift, best of search": {name: Run(one) for name, one in SEARCH.items()},
        "dropout": {f"{p}": Run(dropout=p) for p in DROPOUTS},
        "dropout, 240 epochs": {
            f"{p}": Run(training={"epochs": 240, "evaluate_every": 240}, dropout=p)
            for p in DROPOUTS
        },
        "weight noise": {
            f"{x}": Run(training={"weight_noise": x}) for x in (0.02, 0.035, 0.05, 0.07)
        },
        "directed lift, M=4, redrawn, and dropout": {
            f"noise {x}, dropout {p}": Run(_directed(x, **REDRAWN), dropout=p)
            for x in (0.03, 0.05)
            for p in (0.2, 0.35, 0.5)
        },
    },
    pairs=(
        ("directed lift, best of search", "dropout"),
        ("directed lift, best of search", "dropout, 240 epochs"),
        ("directed lift, best of search", "weight noise"),
        ("directed lift, M=4, redrawn, and dropout", "dropout"),
        ("directed lift, M=4, redrawn, and dropout", "dropout, 240 epochs"),
        ("message lift, M=5", "Identity, M=5"),
    ),
)

PARTS = {"mnist": MNIST, "low-data": LOW_DATA}
