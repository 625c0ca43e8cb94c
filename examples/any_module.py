"""Cover a module of your own: convolutions, a residual, a norm and a bare parameter, on digits.

python examples/any_module.py                        # single weights are routed
python examples/any_module.py --routing messages     # messages between layers are
python examples/any_module.py --select head          # cover the head only, share the rest
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import mcover


class Net(nn.Module):
    """Nothing in here knows about covers."""

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--routing", default="directed", help="directed or messages")
    parser.add_argument("--select", help="cover only what this glob matches, e.g. head")
    parser.add_argument("--covers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--channels", type=int, default=16)
    given = parser.parse_args()

    digits = load_digits()
    pixels = torch.tensor(digits.images / 16, dtype=torch.float32)
    images, test = pixels[:1437], pixels[1437:]
    labels, target = torch.tensor(digits.target).split([1437, 360])
    torch.manual_seed(0)
    covered = mcover.lift(
        Net(given.channels),
        given.covers,
        routing=given.routing,
        select=given.select,
        seed=0,
    )
    print(covered.report())

    optimizer = torch.optim.AdamW(covered.parameters(), lr=2e-3)
    for epoch in range(1, given.epochs + 1):
        for batch in torch.randperm(len(labels)).split(64):
            loss = mcover.cover_loss(F.cross_entropy, covered(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net = covered.collapse()  # a Net; training goes on with the covers
        with torch.no_grad():
            error = (net(test).argmax(dim=1) != target).float().mean().item()
        print(
            f"epoch {epoch}/{given.epochs}  loss per cover {loss.item() / given.covers:.4f}  "
            f"test error of the collapse {error:.4f}"
        )
    print(f"{type(net).__name__} with {sum(p.numel() for p in net.parameters()):,} parameters")


if __name__ == "__main__":
    main()
