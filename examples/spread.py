"""Covers on several processes: each runs some covers, and they exchange data by collectives.

torchrun --standalone --nproc-per-node 4 examples/spread.py                   # one cover a process
torchrun --standalone --nproc-per-node 4 examples/spread.py --cover-ranks 2   # 2 × 2: covers × data

Rank 0 also trains the plain network, for equal steps and for equal gradients. One seed does not
show which is better: examples/mlp.py has twenty.
"""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

import mcover
from mcover import distributed


def plain_network() -> nn.Module:
    torch.manual_seed(0)  # the same weights on all ranks, and the same order of batches
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def trained_alone(images: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    net = plain_network()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cover-ranks", type=int, help="ranks that share the covers; default all")
    parser.add_argument("--routing", default="messages", help="messages or directed")
    parser.add_argument("--covers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", help="a file for the collapsed network")
    given = parser.parse_args()

    mesh = distributed.start(given.cover_ranks)
    digits = load_digits()
    pixels = torch.tensor(digits.images / 16, dtype=torch.float32)
    images, test = pixels[:1437], pixels[1437:]
    labels, target = torch.tensor(digits.target).split([1437, 360])
    topology = mcover.GaussianRing(sigma=1.5, shift=1)
    covered = mcover.lift(plain_network(), given.covers, topology, given.routing, seed=0)
    part = distributed.spread(covered, mesh)
    model = part
    if mesh.size(1) > 1:
        model = DistributedDataParallel(part, process_group=mesh.get_group("data"))
    place, places = mesh.get_local_rank("data"), mesh.size(1)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(1, given.epochs + 1):
        for batch in torch.randperm(len(labels)).split(64):
            own = batch.chunk(places)[place]
            loss = mcover.cover_loss(F.cross_entropy, model(images[own]), labels[own])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total = part.total(loss).item() / given.covers
        if dist.get_rank() == 0:
            print(f"epoch {epoch}/{given.epochs}  loss per cover {total:.4f}")
    net = part.gather().collapse()
    if dist.get_rank() == 0:
        if given.output:
            torch.save(net.state_dict(), given.output)
        alone = {
            "plain, equal steps": trained_alone(images, labels, given.epochs),
            "plain, equal gradients": trained_alone(images, labels, given.covers * given.epochs),
        }
        print("test error, one seed")
        for name, one in (alone | {"collapse of the covers": net}).items():
            with torch.no_grad():
                error = (one(test).argmax(dim=1) != target).float().mean().item()
            print(f"  {name:24} {error:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
