"""``mcover train``: train a network as M covers, and show covers and collapse side by side."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from rich.table import Table

from mcover import __version__, statistics
from mcover.data import Dataset, load, subset
from mcover.data.sources import Name
from mcover.errors import McoverError
from mcover.history import History, Status
from mcover.progress import Line, console, live_line
from mcover.topology import GaussianRing, Identity, Topology, Uniform
from mcover.training_settings import Training

if TYPE_CHECKING:
    from torch import nn

    from mcover.models import Mlp


@dataclass(frozen=True)
class Train:
    """Train covers of a network: a live line, a summary, a picture, and the collapsed network."""

    training: Training
    """How to train."""
    data: Name = "digits"
    """What to learn: digits (no download), mnist or fashion-mnist."""
    model: Literal["mlp", "small-mlp"] = "mlp"
    """Hidden layers: 512-512, the paper's, or 256-256."""
    covers: int = 5
    """Number of covers M; 1 trains the plain network."""
    routing: Literal["messages", "weights"] = "messages"
    """What is routed: messages between layers, or single weights (the directed lift)."""
    topology: Literal["ring", "uniform", "identity"] = "ring"
    """From which covers a source is read."""
    sigma: float = 1.5
    """Width of the ring."""
    shift: float = 2.0
    """Shift of the ring."""
    blocks: int | None = None
    """Messages: blocks of a layer's inputs that are routed together."""
    draws: int | None = None
    """Messages: routes averaged into each mixer."""
    bank: int | None = None
    """Weights: destinations that are kept."""
    noise: float | None = None
    """Gaussian noise that sets the covers apart at the start."""
    redraw_every: int | None = None
    """Draw new routes after so many steps (default: never)."""
    dropout: float = 0.0
    """Share of hidden units that are dropped in training."""
    images: int | None = None
    """Train on so many images only, as many of each class (default: all)."""
    seeds: int = 1
    """Independent trainings."""
    seed: int = 0
    """First seed: it draws the weights, the routes, the images of a subset and their order."""
    output: Path = Path("out/train")
    """Where to write: OUTPUT.png, and OUTPUT.safetensors with OUTPUT.json, the one network."""

    def run(self) -> None:
        if self.seeds < 1:
            raise McoverError(f"seeds is {self.seeds}; write at least 1.")
        _require_torch()
        from mcover.figures.style import save
        from mcover.figures.training import training_figure

        whole = load(self.data, normalize=True)
        kind = self._kind(whole)
        histories: list[History] = []
        with live_line() as line:
            for number in range(self.seeds):
                seed = self.seed + number
                dataset = whole if self.images is None else subset(whole, self.images, seed)
                if not number:
                    console.print(f"{dataset}\n{self.describe(kind)}", markup=False)
                one = self._train(kind, dataset, seed, line, number)
                if len(one.epoch):
                    histories.append(one)
                if one.interrupted:
                    break
        if not histories:
            raise KeyboardInterrupt
        if histories[-1].interrupted:
            console.print("interrupted: what follows is what was reached so far")
        console.print(summary(histories, len(whole.test_labels)))

        title = f"{self.data}, {self.describe(kind)}"
        picture = self.output.with_name(self.output.name + ".png")
        console.print(f"picture: {save(training_figure(histories, title), picture)}")
        for number, one in enumerate(histories):
            weights, _ = self._save(one, kind, number)
            console.print(f"network: {weights} (mcover.models.load)", soft_wrap=True)

    def _save(self, history: History, kind: Mlp, number: int) -> tuple[Path, Path]:
        from mcover import models

        ending = f"-{self.seed + number}" if self.seeds > 1 else ""
        settings = asdict(replace(self, seed=self.seed + number, seeds=1))
        del settings["output"]
        return models.save(
            history.model,
            kind,
            self.output.with_name(self.output.name + ending),
            settings=settings,
            history=course(history),
            version=__version__,
        )

    def describe(self, kind: Mlp) -> str:
        """The network and how it is covered, in a few words."""
        network = "-".join(map(str, kind.sizes))
        if self.covers == 1:
            return f"{network}, plain"
        return f"{network}, {self.covers} covers, {self._topology()!r}, routed {self.routing}"

    def _kind(self, dataset: Dataset) -> Mlp:
        from mcover.models import paper_mlp, small_mlp

        make = paper_mlp if self.model == "mlp" else small_mlp
        return make(dataset.inputs, dataset.classes, self.dropout)

    def _topology(self) -> Topology:
        if self.topology == "ring":
            return GaussianRing(self.sigma, self.shift)
        return Uniform() if self.topology == "uniform" else Identity()

    def _train(self, kind: Mlp, dataset: Dataset, seed: int, line: Line, number: int) -> History:
        from mcover.training import fit

        def show(status: Status) -> None:
            errors = f"covers {status.cover_error:.2%}  collapse {status.collapse_error:.2%}"
            which = f"seed {number + 1}/{self.seeds}  " if self.seeds > 1 else ""
            line(
                (number + status.share) / self.seeds,
                f"{which}epoch {status.epoch}/{self.training.epochs}  loss {status.loss:.4f}  "
                f"{errors if np.isfinite(status.cover_error) else ''}",
            )

        module = self._module(kind, seed)
        return fit(module, dataset, self.training, seed=[seed, 2], progress=show)

    def _module(self, kind: Mlp, seed: int) -> nn.Module:
        base = kind.build([seed, 0])
        if self.covers == 1:
            return base
        from mcover import lift

        options: dict[str, Any] = {
            "blocks": self.blocks,
            "draws": self.draws,
            "bank": self.bank,
            "noise": self.noise,
            "redraw_every": self.redraw_every,
        }
        return lift(
            base,
            covers=self.covers,
            topology=self._topology(),
            routing=self.routing,
            seed=[seed, 1],
            **{name: value for name, value in options.items() if value is not None},
        )


def summary(histories: list[History], tested: int) -> Table:
    """The last epoch in figures; over seeds where there are several, else over test images."""
    several = len(histories) > 1
    table = Table(title=f"after {histories[0].epoch[-1]:.4g} epochs", title_justify="left")
    table.caption = "intervals: over " + (
        f"{len(histories)} seeds" if several else f"{tested:,} test images; one seed"
    )
    table.add_column("figure")
    table.add_column("value [95 % interval]", justify="right")

    collapse = [one.collapse_error[-1] for one in histories]
    wrong = np.arange(tested) < round(collapse[0] * tested)
    error = statistics.mean(collapse) if several else statistics.fraction(wrong)
    covers = histories[0].cover_error[-1]
    table.add_row("test error of the collapse" if len(covers) > 1 else "test error", f"{error:.4f}")
    if len(covers) > 1 and several:
        mean = statistics.mean([one.cover_error[-1].mean() for one in histories])
        table.add_row(f"test error of a cover, mean of {len(covers)}", f"{mean:.4f}")
    elif len(covers) > 1:
        spread = f"{covers.mean():.4f}, from {covers.min():.4f} to {covers.max():.4f}"
        table.add_row(f"test error of a cover, mean of {len(covers)}", spread)
    loss = "training loss per cover" if len(covers) > 1 else "training loss"
    for name, column in ((loss, "train_loss"), ("seconds of training", "seconds")):
        values = [getattr(one, column)[-1] for one in histories]
        table.add_row(name, f"{statistics.mean(values):.4g}" if several else f"{values[0]:.4g}")
    return table


def course(history: History) -> dict[str, Any]:
    """A history as plain lists, for JSON."""
    names = ("epoch", "train_loss", "cover_error", "collapse_error", "seconds")
    return {name: getattr(history, name).tolist() for name in names}


def _require_torch() -> None:
    # Threads that spin while they wait are several times slower on a machine that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is first imported
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise McoverError(
            "'mcover train' needs torch, which is not installed: pip install 'mcover[torch,data]'."
        ) from error
