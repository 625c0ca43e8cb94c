"""Test errors against the noise that separates the covers at the start.

Small models on images and tables are trained from scratch, fine-tuned in all weights, or adapted
with LoRA. Each is trained plain, plain at equal gradients, and as four covers of the directed lift.
The noise at the start is a share of each tensor's standard deviation. Seeds are paired: a seed
fixes data, first weights and batches of all trainings. All seeds of a setup use one pretrained
model.

    export PYTHONPATH=. MCOVER_DATA=folder    # the first is for the package reproduction
    python bench/noise.py --rows noise.csv    # rows are kept and not run again
    python bench/noise.py --rows noise.csv --show

The how-to page on training has a table of noise.csv, which is in this folder. Its rows were
computed with --seeds 10 and --trainings plain 10% 100%; two of the setups also have "plain x 4".
"""

import argparse
import copy
import csv
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import mcover
from reproduction.data import load
from reproduction.models import Conv, Mlp, Transformer, seeded
from timing import rows as print_rows

COVERS = 4
SHARES = ("10%", "30%", "100%")
MORE = ("3%", *SHARES, "60%", "150%", "200%")
SIDE = 14  # pixels of an image after 2 x 2 averaging

Data = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Setup:
    """A model, its data and how it is trained."""

    model: Callable[[int], nn.Module]
    data: Callable[[int], Data]
    steps: int = 400
    batch: int = 50
    lr: float = 0.05
    optimizer: str = "sgd"
    noise: tuple[str, ...] = SHARES


@functools.cache
def images(name: str) -> Data:
    """All images of a data set, averaged to 14 x 14, and their labels."""
    found = load(name, normalize=True)
    parts = []
    for pixels, labels in (
        (found.train_images, found.train_labels),
        (found.test_images, found.test_labels),
    ):
        small = F.avg_pool2d(torch.from_numpy(pixels)[:, None], 2)[:, 0]
        parts += [small, torch.from_numpy(labels)]
    return parts[0], parts[1], parts[2], parts[3]


def subset(name: str, count: int, seed: int, classes: range = range(10)) -> Data:
    """``count`` training images of some classes, drawn by the seed; at most 2,000 test images."""
    x, y, x_test, y_test = images(name)
    keep = torch.from_numpy(np.random.default_rng([seed, 1]).permutation(len(y)))
    keep = keep[torch.isin(y[keep], torch.tensor(classes))][:count]
    test = torch.isin(y_test, torch.tensor(classes)).nonzero()[:2000, 0]
    return x[keep], y[keep] - classes[0], x_test[test], y_test[test] - classes[0]


def turned(name: str, count: int, seed: int) -> Data:
    """The same classes as before, with images rotated by 90 degrees."""
    x, y, x_test, y_test = subset(name, count, seed)
    return torch.rot90(x, 1, (1, 2)), y, torch.rot90(x_test, 1, (1, 2)), y_test


def table(loader: Callable[..., tuple], train: int, scale: bool, seed: int) -> Data:
    values, labels = loader(return_X_y=True)
    order = np.random.default_rng([seed, 2]).permutation(len(labels))
    values, labels = values[order].astype(np.float32), labels[order]
    if scale:
        values = (values - values[:train].mean(0)) / (values[:train].std(0) + 1e-6)
    else:
        values = values / 16
    x, y = torch.from_numpy(values), torch.from_numpy(labels)
    return x[:train], y[:train], x[train:], y[train:]


class Residual(nn.Module):
    """A small residual network with batch normalisation, on digits of 8 x 8."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.body = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(16 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x.view(-1, 1, 8, 8)))
        x = x + F.relu(self.norm(self.body(x)))
        return self.head(F.max_pool2d(x, 2).flatten(1))


def residual(seed: int) -> nn.Module:
    with seeded([seed, 3]):
        return Residual()


def normalised(norm: type[nn.Module], seed: int) -> nn.Module:
    """The small MLP with a norm before each activation."""
    with seeded([seed, 7]):
        hidden = [
            layer
            for inputs in (SIDE**2, 128)
            for layer in (nn.Linear(inputs, 128), norm(128), nn.ReLU())
        ]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, 10))


class Adapter(nn.Module):
    """LoRA: a frozen linear layer plus the product of two thin ones; the second starts at zero."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


SMALL = {
    "MLP": Mlp((SIDE**2, 128, 128, 10)),
    "conv net": Conv((SIDE, SIDE), (8, 16)),
    "transformer": Transformer((SIDE, SIDE)),
}
ADAM = {"optimizer": "adamw", "lr": 2e-3}


@functools.cache
def pretrained(kind: str, classes: range = range(10)) -> nn.Module:
    """A model that was trained on 10,000 MNIST images of these classes."""
    setup = Setup(SMALL[kind].build, functools.partial(subset, "mnist", 10_000, classes=classes))
    how = replace(setup, steps=1500, **(ADAM if kind == "transformer" else {}))
    return train(how, SMALL[kind].build(0), how.data(0), 0, 1)[0]


def with_head(model: nn.Module, seed: int) -> nn.Module:
    """The model with a new last layer."""
    with seeded([seed, 4]):
        *_, (name, last) = ((n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear))
        model.set_submodule(name, nn.Linear(last.in_features, last.out_features))
    return model


def tuned(kind: str, new_head: bool, adapters: bool, seed: int) -> nn.Module:
    """A pretrained model, optionally with a new head and adapters on all other linear layers."""
    model = copy.deepcopy(pretrained(kind, range(5) if new_head else range(10)))
    if adapters:
        model.requires_grad_(False)
        with seeded([seed, 5]):
            for name, layer in [*model.named_modules()]:
                if type(layer) is nn.Linear:
                    model.set_submodule(name, Adapter(layer))
    return with_head(model, seed) if new_head and not adapters else model


def new_classes(kind: str, adapters: bool = False, **how: object) -> Setup:
    data = functools.partial(subset, "mnist", 200, classes=range(5, 10))
    model = functools.partial(tuned, kind, True, adapters)
    return Setup(model, data, **{"steps": 200, "lr": 0.02} | how)


def new_images(kind: str, adapters: bool = False, **how: object) -> Setup:
    model = functools.partial(tuned, kind, False, adapters)
    return Setup(model, functools.partial(turned, "mnist", 300), **{"steps": 200, "lr": 0.02} | how)


DIGITS = functools.partial(table, load_digits, 1000, False)
CANCER = functools.partial(table, load_breast_cancer, 300, True)
MNIST = functools.partial(subset, "mnist", 1000)
SETUPS = {
    "scratch: MLP, digits": Setup(Mlp((64, 128, 10)).build, DIGITS, 600, 100, 0.1),
    "scratch: residual net, digits": Setup(residual, DIGITS, 200, 100),
    "scratch: MLP, breast cancer": Setup(Mlp((30, 100, 2)).build, CANCER, **ADAM),
    "scratch: MLP, MNIST": Setup(SMALL["MLP"].build, MNIST, noise=MORE),
    "scratch: deep MLP, MNIST": Setup(Mlp((SIDE**2, *[128] * 5, 10)).build, MNIST),
    "scratch: MLP with batch norm, MNIST": Setup(
        functools.partial(normalised, nn.BatchNorm1d), MNIST
    ),
    "scratch: MLP with layer norm, MNIST": Setup(
        functools.partial(normalised, nn.LayerNorm), MNIST
    ),
    "scratch: conv net, MNIST": Setup(SMALL["conv net"].build, MNIST, lr=0.02, noise=MORE),
    "scratch: transformer, MNIST": Setup(SMALL["transformer"].build, MNIST, 300, **ADAM),
    "fine-tuned: MLP, new classes": new_classes("MLP"),
    "fine-tuned: conv net, new classes": new_classes("conv net"),
    "fine-tuned: transformer, new classes": new_classes("transformer", **ADAM),
    "fine-tuned: MLP, turned images": new_images("MLP"),
    "LoRA: MLP, new classes": new_classes("MLP", True, **ADAM),
    "LoRA: transformer, new classes": new_classes("transformer", True, **ADAM),
}
REDRAWN = ("scratch: MLP, digits", "scratch: MLP, MNIST", "scratch: conv net, MNIST")


def train(
    setup: Setup, model: nn.Module, data: Data, seed: int, times: int
) -> tuple[nn.Module, float]:
    """Trains a plain or a covered model; returns it or its collapse, and the test error."""
    x, y, x_test, y_test = data
    groups = [value for value in model.parameters() if value.requires_grad]
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[setup.optimizer]
    optimizer = kind(groups, setup.lr, **{"momentum": 0.9} if setup.optimizer == "sgd" else {})
    rng = np.random.default_rng([seed, 6])
    order = np.empty(0, dtype=np.int64)
    model.train()
    for _ in range(setup.steps * times):
        if len(order) < setup.batch:
            order = rng.permutation(len(y))
        batch, order = torch.from_numpy(order[: setup.batch]), order[setup.batch :]
        out = model(x[batch])
        covered = isinstance(model, mcover.nn.Covered)
        plain = F.cross_entropy
        loss = mcover.cover_loss(plain, out, y[batch]) if covered else plain(out, y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if isinstance(model, mcover.nn.Covered):
        norms = any(hasattr(one, "running_mean") for one in model.modules())
        model = model.collapse(loader=x.split(setup.batch) if norms else None)
    with torch.no_grad():
        return model.eval(), float((model(x_test).argmax(1) != y_test).float().mean())


def measure(setup: Setup, seed: int, how: str) -> float:
    """The test error of "plain", "plain x 4", or of covers with a share of noise."""
    data, model = setup.data(seed), setup.model(seed)
    if how.startswith("plain"):
        return train(setup, model, data, seed, COVERS if how.endswith("4") else 1)[1]
    noise, _, redraw = how.partition(", redrawn ")
    every = {"": 10, "never": None}.get(redraw) if redraw in ("", "never") else int(redraw)
    covered = mcover.lift(
        model, COVERS, mcover.Uniform(), mcover.Directed(redraw_every=every), noise=noise, seed=seed
    )
    return train(setup, covered, data, seed, 1)[1]


def run(path: Path, seeds: int, only: str, trainings: list[str]) -> None:
    done = {(row["setup"], row["how"], int(row["seed"])) for row in read(path)}
    for seed in range(seeds):
        for name, setup in SETUPS.items():
            if only not in name:
                continue
            ways = ["plain", "plain x 4", *setup.noise]
            if name in REDRAWN:
                ways += [f"100%, redrawn {every}" for every in (1, 100, "never")]
            for how in ways:
                if (name, how, seed) in done or (trainings and how not in trainings):
                    continue
                error = measure(setup, seed, how)
                with path.open("a", newline="") as file:
                    csv.writer(file).writerow([name, how, seed, error])


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [*csv.DictReader(file, ["setup", "how", "seed", "error"])]


def show(path: Path) -> None:
    """Mean test errors, and the mean paired difference to plain at equal steps."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in read(path):
        ways = found.setdefault(row["setup"], {})
        ways.setdefault(row["how"], {})[int(row["seed"])] = float(row["error"])
    for name, ways in found.items():
        lines = []
        for how, errors in ways.items():
            both = sorted(errors.keys() & ways["plain"].keys())
            cells = [how, str(len(errors))]
            if len(errors) > 2:
                cells.append(f"{mcover.statistics.mean([*errors.values()]):.4f}")
                gain = [ways["plain"][seed] - errors[seed] for seed in both]
                cells.append("" if how == "plain" else f"{mcover.statistics.mean(gain):+.4f}")
            else:
                cells += [f"{np.mean([*errors.values()]):.4f}", ""]
            lines.append(cells)
        print_rows(name, ["training", "n", "test error", "gain over plain, paired"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, default=Path("noise.csv"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="setups whose name contains this")
    parser.add_argument("--trainings", nargs="*", default=[], help='such as "plain" "100%%"; all')
    parser.add_argument("--show", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # it would pass by adapters
    if not given.show:
        run(given.rows, given.seeds, given.only, given.trainings)
    show(given.rows)


if __name__ == "__main__":
    main()
