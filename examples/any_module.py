"""Cover a module of your own: convolutions, a residual, a norm and a bare parameter, on digits.

python examples/any_module.py                        # single weights are routed
python examples/any_module.py --routing messages     # messages between layers are
python examples/any_module.py --select head          # cover the head only, share the rest

A step of M covers computes M gradients. So the plain network is trained twice: for equal steps, and
for equal gradients.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import mcover


class Net(nn.Module):
    """An ordinary module; it does not depend on covers."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.body = nn.Conv2d(channels, channels, 3, padding=1)
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))
        self.norm = nn.GroupNorm(4, channels)
        self.head = nn.Linear(channels * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x.unsqueeze(1)))
        x = x + self.scale * F.relu(self.norm(self.body(x)))
        x = F.max_pool2d(x, 2)
        return self.head(x.view(x.size(0), -1))


def lifted(given: argparse.Namespace, covers: int, seed: int) -> mcover.nn.Covered:
    torch.manual_seed(seed)
    net = Net(given.channels)
    return mcover.lift(net, covers, routing=given.routing, select=given.select, seed=seed)


def train(given: argparse.Namespace, covers: int, epochs: int, seed: int) -> Net:
    digits = load_digits()
    images = torch.tensor(digits.images[:1437] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target[:1437])
    covered = lifted(given, covers, seed)
    optimizer = torch.optim.AdamW(covered.parameters(), lr=2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(64):
            loss = mcover.cover_loss(F.cross_entropy, covered(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return covered.collapse()  # a Net; one cover is the plain network


def error(net: Net) -> float:
    digits = load_digits()
    images = torch.tensor(digits.images[1437:] / 16, dtype=torch.float32)
    with torch.no_grad():
        return float((net(images).argmax(dim=1).numpy() != digits.target[1437:]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--routing", default="directed", help="directed or messages")
    parser.add_argument("--select", help="cover only what this glob matches, e.g. head")
    parser.add_argument("--covers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)  # the products are small

    print(lifted(given, given.covers, seed=0).report())
    ways = {
        f"{given.covers} covers": (given.covers, given.epochs),
        "plain, equal steps": (1, given.epochs),
        "plain, equal gradients": (1, given.covers * given.epochs),
    }
    errors = {
        name: [error(train(given, *how, seed)) for seed in range(given.seeds)]
        for name, how in ways.items()
    }
    covers, *plain = errors
    print(f"test error, {given.seeds} seeds")
    for name, found in errors.items():
        print(f"  {name:24} {mcover.statistics.mean(found)}")
    for name in plain:
        gain = mcover.statistics.paired(errors[name], errors[covers]).difference
        print(f"  gain over {name:24} {gain}")


if __name__ == "__main__":
    main()
