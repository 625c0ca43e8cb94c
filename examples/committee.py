"""A committee machine on two classes of images: plain SGD, coupled replicas, and routed covers.

python examples/committee.py                                     # digits 3 and 8, no download
python examples/committee.py --data fashion-mnist:dress,coat     # fetched on first use, minutes
"""

import argparse

import torch
from reproduction.committee import CommitteeMachine
from reproduction.data import load, subset
from reproduction.training import RSGD, SGD, Lifted, Training, fit

import mcover


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="digits:3,8", help="two classes, e.g. mnist:3,8")
    parser.add_argument("--images", type=int, help="to train on; all, or 500 if there are more")
    parser.add_argument("--covers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=4000)
    given = parser.parse_args()
    torch.set_num_threads(1)  # the products are small

    # Each image becomes ±1 by its own median.
    data = load(given.data, binarize="median")
    balanced = 2 * min(data.train_labels.sum(), (1 - data.train_labels).sum())
    data = subset(data, given.images or min(500, int(balanced)), seed=0)
    print(data)
    # Independent starts; the first is that of plain SGD.
    machines = [CommitteeMachine(data.inputs, hidden=9, seed=[0, k]) for k in range(given.covers)]
    # Rows have norm √N: this rate is N times that of rows of norm 1.
    training = Training(
        given.epochs, batch=100, lr=10.0, momentum=0.0, evaluate_every=given.epochs,
        stop_loss=1e-7, stop_error=0.0,
    )  # fmt: skip
    for method in (SGD(), RSGD(covers=given.covers), Lifted(covers=given.covers)):
        model = machines[0]
        if isinstance(method, Lifted):  # each weight of a machine is read from its routed cover
            routing = mcover.Directed(bank=10, destinations=None)
            model = mcover.lift(model, machines, mcover.Uniform(), routing, seed=0)
        elif isinstance(method, RSGD):  # covers that are not routed, but pulled together
            model = mcover.lift(model, machines, mcover.Identity())
        history = fit(model, data, training, method, seed=0)
        print(
            f"{method.kind:6}  test error {history.collapse_error[-1]:.4f} after "
            f"{history.epoch[-1]:.0f} epochs, {history.gradients[-1]:,} gradients, "
            f"{history.seconds[-1]:.1f} s"
        )
        machines[0] = CommitteeMachine(data.inputs, hidden=9, seed=[0, 0])  # fit trains in place


if __name__ == "__main__":
    main()
