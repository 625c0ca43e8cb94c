"""The paper's network on MNIST as five covers: an ordinary training loop with two changed lines.

python examples/mnist_mlp.py                                 # fetches MNIST on first use
python examples/mnist_mlp.py --data digits --epochs 10       # needs no download
python examples/mnist_mlp.py --data digits --covers 1        # the plain network, to compare
"""

import argparse

import torch
from reproduction.data import load
from torch import nn
from torch.nn import functional as F  # noqa: N812

import mcover


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="mnist", help="mnist, fashion-mnist or digits")
    parser.add_argument("--covers", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256)
    given = parser.parse_args()

    data = load(given.data, normalize=True)
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(data.inputs, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, data.classes),
    )

    # Changed: the model becomes M covers of itself ...
    ring = mcover.GaussianRing(sigma=1.5, shift=2)
    model = mcover.lift(model, covers=given.covers, topology=ring, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for epoch in range(1, given.epochs + 1):
        for batch in torch.randperm(len(labels)).split(given.batch):
            # ... and the loss is summed over them.
            loss = mcover.cover_loss(F.cross_entropy, model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}/{given.epochs}  loss per cover {loss.item() / given.covers:.4f}")

    net = model.collapse()  # one nn.Sequential again, with the keys and the size of the first
    with torch.no_grad():
        guess = net(torch.from_numpy(data.test_images)).argmax(dim=1).numpy()
    print(f"test error of the collapse: {(guess != data.test_labels).mean():.4f}")


if __name__ == "__main__":
    main()
