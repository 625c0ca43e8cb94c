"""The paper's network on digits as five covers: an ordinary training loop with two changed lines.

python examples/mlp.py
python examples/mlp.py --covers 1        # the plain network, to compare
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F  # noqa: N812

import mcover


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--covers", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    given = parser.parse_args()

    digits = load_digits()
    pixels = torch.tensor(digits.images / 16, dtype=torch.float32)
    images, test = pixels[:1437], pixels[1437:]
    labels, target = torch.tensor(digits.target).split([1437, 360])
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )

    # Changed: the model becomes M covers of itself,
    ring = mcover.GaussianRing(sigma=1.5, shift=2)
    model = mcover.lift(model, covers=given.covers, topology=ring, routing="messages", seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for epoch in range(1, given.epochs + 1):
        for batch in torch.randperm(len(labels)).split(given.batch):
            # changed: the loss is summed over them.
            loss = mcover.cover_loss(F.cross_entropy, model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}/{given.epochs}  loss per cover {loss.item() / given.covers:.4f}")

    net = model.collapse()  # an nn.Sequential with the keys and shapes of the original
    with torch.no_grad():
        error = (net(test).argmax(dim=1) != target).float().mean().item()
    print(f"test error of the collapse: {error:.4f}")


if __name__ == "__main__":
    main()
