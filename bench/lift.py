"""A training step of the message lift against M plain networks: time and memory.

(a) is M steps of the plain network in sequence; (b) is M independent networks in one batched pass
through ``torch.func``. A step is forward, loss, backward and SGD with momentum. Times are medians,
with quartiles, measured in alternation in one process. Memory is the peak of a step beyond the
weights, as the system counts it, each in a separate process.

    python bench/lift.py [--threads 2] [--seconds 8] [--covers 5] [--only mlp conv residual]
"""

from __future__ import annotations

import argparse
import functools

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.func import functional_call, stack_module_state

import mcover
from networks import NETWORKS, Network, Step, about, joint, peak_mib, plain
from timing import in_turns, rows, shown

RING = mcover.GaussianRing(sigma=1.5, shift=2)
# Largest number of blocks; blocks of convolutions have eight channels or more by default.
ROUTINGS = {
    "covers, G = 1": mcover.Messages(blocks=1),
    "covers, G = 8": mcover.Messages(blocks=8),
    "covers, G = 8, 16 channels": mcover.Messages(blocks=8, block_channels=16),
}
NAMES = ("mlp", "conv", "residual")


def routings(name: str) -> dict[str, mcover.Messages]:
    """The methods to compare; an MLP does not depend on the width of convolutions' blocks."""
    return dict(list(ROUTINGS.items())[: 2 if name == "mlp" else None])


def independent(network: Network, covers: int) -> Step:
    """M networks as one: parameters stacked, ``vmap`` over them."""
    x, y = network.batch()
    parameters, _ = stack_module_state([network.make() for _ in range(covers)])
    skeleton = network.make().to("meta")

    def one(own: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(functional_call(skeleton, own, (x,)), y)

    return Step(lambda: torch.vmap(one)(parameters).sum(), list(parameters.values()))


def measure(name: str, covers: int, seconds: float, memory: dict[str, list[str]]) -> None:
    """Prints the table of one network."""
    network = NETWORKS[name]
    one = plain(network)
    works = {
        "(a) in a row": lambda: [one() for _ in range(covers)],
        "(b) batched": independent(network, covers),
    }
    works |= {key: joint(network, covers, RING, how) for key, how in routings(name).items()}
    times = in_turns(works, seconds)
    base, batched = times["(a) in a row"], times["(b) batched"]
    lines = [
        [key, f"{1e3 * own.median:.1f}", shown(own.ratio(base)), shown(own.ratio(batched)), peak]
        for (key, own), peak in zip(times.items(), memory[name], strict=True)
    ]
    title = f"{network.title}, M = {covers}, {len(base.each)} turns: median (quartiles)"
    rows(title, ["", "ms", "time/(a)", "time/(b)", "peak MiB"], lines)


def peaks(name: str, covers: int, threads: int) -> list[str]:
    network = NETWORKS[name]
    makes = [functools.partial(plain, network), functools.partial(independent, network, covers)]
    makes += [
        functools.partial(joint, network, covers, RING, how) for how in routings(name).values()
    ]
    return ["" if (n := peak_mib(make, threads)) is None else f"{n:.0f}" for make in makes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="for each network")
    parser.add_argument("--covers", type=int, default=5)
    parser.add_argument("--only", choices=NAMES, nargs="+", default=NAMES)
    given = parser.parse_args()
    torch.manual_seed(0)
    print(about(given.threads))
    memory = {name: peaks(name, given.covers, given.threads) for name in given.only}
    torch.set_num_threads(given.threads)
    for name in given.only:
        measure(name, given.covers, given.seconds, memory)


if __name__ == "__main__":
    main()
