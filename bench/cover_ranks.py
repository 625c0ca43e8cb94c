"""Covers spread over ranks: bytes sent per step against the formula, time against one process.

Ranks are processes on this machine that communicate over loopback. Bytes are those that the kernel
counts on the sockets of rank 0 (TCP_INFO), compared with the formulas of
``mcover.distributed.exchange``. The difference is due to the check that ranks are at the same step,
and to gloo's headers. A step is forward, loss, backward and SGD with momentum. The baseline is the
same step in one process with one thread per rank, limited by the number of CPUs. Ranks have one
thread each.

    python bench/cover_ranks.py [--covers 4] [--batch 256] [--steps 10]
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.multiprocessing import get_context

import mcover
from mcover import distributed
from mcover.checks import cpus
from timing import best_seconds, rows

SENT = 200  # where tcpi_bytes_sent lies in the kernel's struct tcp_info
WIDTHS = (784, 512, 512, 10)
ROUTINGS = {
    "messages": mcover.Messages(),
    "directed, routed": mcover.Directed(),
    "directed, whole": mcover.Directed(),
}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def formula(name: str, covers: int, ranks: int, batch: int) -> float:
    """Bytes that one rank sends in a step, for float32 and uniform routes."""
    cross, elements = 1 - 1 / ranks, sum(p.numel() for p in mlp().parameters())
    if name == "messages":
        # The first layer's input is shared: with two or more covers per rank, weights are mixed if
        # a unit has fewer weights than there are samples.
        first = min(WIDTHS[0], batch) if covers > ranks else batch
        numbers = WIDTHS[1] * first + batch * sum(WIDTHS[2:])
        return 2 * cross * covers * numbers * 4
    if name == "directed, routed":
        return 2 * cross * covers / ranks * elements * 4
    return 2 * cross * covers * elements * 4


def sent_by_sockets() -> int:
    """Bytes sent by all TCP sockets of this process."""
    total = 0
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as one:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                total += struct.unpack_from("Q", info, SENT)[0]
        except OSError:  # closed since, or not TCP
            continue
    return total


def stepping(covered: mcover.nn.Covered, batch: int) -> Callable[[], None]:
    optimizer = torch.optim.SGD(covered.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, WIDTHS[0], generator=generator)
    y = torch.randint(0, WIDTHS[-1], (batch,), generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        mcover.cover_loss(F.cross_entropy, covered(x), y).backward()
        optimizer.step()

    return step


def measure(work: Callable[[], None], steps: int) -> float:
    """The best time of a step, after one to warm up."""
    work()
    return best_seconds(work, steps)


def lifted(name: str, covers: int) -> mcover.nn.Covered:
    return mcover.lift(mlp(), covers, mcover.Uniform(), ROUTINGS[name], seed=0)


def rank_main(rank: int, ranks: int, port: int, given: argparse.Namespace, pipe: object) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    mesh = distributed.start()
    results = {}
    for name in ROUTINGS:
        layout = name.rpartition(" ")[2] if "," in name else "auto"
        part = distributed.spread(lifted(name, given.covers), mesh, layout=layout)
        step = stepping(part, given.batch)
        step()
        dist.barrier()
        before, counted = sent_by_sockets(), part.exchange.sent
        seconds = measure(step, given.steps)
        done = given.steps + 1
        moved = (sent_by_sockets() - before) / done
        results[name] = moved, (part.exchange.sent - counted) / done, seconds
        dist.barrier()
    pipe.send(results)  # type: ignore[attr-defined]
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--covers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    given = parser.parse_args()
    context = get_context("spawn")
    lines = []
    for ranks in (2, 4):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        ours, theirs = zip(*(context.Pipe() for _ in range(ranks)), strict=True)
        processes = [
            context.Process(
                target=rank_main, args=(rank, ranks, port, given, theirs[rank]), daemon=True
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        seen, *_ = [pipe.recv() for pipe in ours]
        for process in processes:
            process.join()
        torch.set_num_threads(min(ranks, cpus()))
        for name, (moved, counted, seconds) in seen.items():
            alone = measure(stepping(lifted(name, given.covers), given.batch), given.steps)
            on_paper = formula(name, given.covers, ranks, given.batch)
            lines.append([
                name, str(ranks), f"{on_paper / 1e6:.3f}", f"{counted / on_paper:.3f}",
                f"{moved / on_paper:.3f}", f"{1e3 * seconds:.1f}", f"{1e3 * alone:.1f}",
                f"{seconds / alone:.2f}",
            ])  # fmt: skip
    title = (
        f"MLP {'-'.join(map(str, WIDTHS))}, {given.covers} covers, batch {given.batch}, "
        f"{cpus()} CPUs"
    )
    header = ["lift", "ranks", "formula MB", "counted", "moved", "step ms", "one process ms", "×"]
    rows(title, header, lines)


if __name__ == "__main__":
    main()
