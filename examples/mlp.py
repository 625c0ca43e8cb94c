"""A perceptron on digits, plain and as four covers: an ordinary loop with two changed lines.

python examples/mlp.py
python examples/mlp.py --seeds 50 --covers 8

A step of M covers computes M gradients. So the plain network is trained twice: for equal steps, and
for equal gradients. A seed fixes the training images, the first weights and the batches.
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import mcover


def train(x: Tensor, y: Tensor, covers: int, steps: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    if covers > 1:
        model = mcover.lift(model, covers, seed=seed)  # changed: M covers of the model,
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = torch.cat([torch.randperm(len(y)) for _ in range(steps // 10 + 1)]).split(100)
    for batch in batches[:steps]:
        output = model(x[batch])
        if covers > 1:  # changed: the loss is summed over them.
            loss = mcover.cover_loss(F.cross_entropy, output, y[batch])
        else:
            loss = F.cross_entropy(output, y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.collapse() if covers > 1 else model  # one nn.Sequential, with the base's keys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--covers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)  # the products are small
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)

    ways = {
        f"{given.covers} covers": (given.covers, given.steps),
        "plain, equal steps": (1, given.steps),
        "plain, equal gradients": (1, given.steps * given.covers),
    }
    errors: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(given.seeds):
        order = np.random.default_rng([seed, 7]).permutation(len(y))
        learn, test = torch.from_numpy(order).split([1000, len(y) - 1000])
        for name, how in ways.items():
            net = train(x[learn], y[learn], *how, seed=seed)
            with torch.no_grad():
                errors[name].append(float((net(x[test]).argmax(1) != y[test]).float().mean()))
    covered, *plain = errors
    print(f"test error, {given.seeds} seeds")
    for name, found in errors.items():
        print(f"  {name:24} {mcover.statistics.mean(found)}")
    for name in plain:
        gain = [b - a for a, b in zip(errors[covered], errors[name], strict=True)]
        print(f"  gain over {name:24} {mcover.statistics.mean(gain)}")


if __name__ == "__main__":
    main()
