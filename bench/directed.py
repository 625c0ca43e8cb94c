"""The directed lift of M = 4 covers against M plain networks: a full step, and routes.

A step is forward, cross entropy summed over covers, backward and SGD with momentum. Compared are M
steps of the plain network in sequence; "joint", ``cover_loss`` of one forward pass of all covers;
and "by cover", ``covered.loss``. Times are medians, with quartiles, measured in alternation in one
process. Memory is the peak of a step beyond the weights, as the system counts it, each in a
separate process. For "by cover", a second ratio to the plain network excludes the gradients and
momenta of the other covers. The draw of routes is also measured in a separate process.

    python bench/directed.py [--threads 2] [--seconds 10] [--only mlp conv ...]
"""

from __future__ import annotations

import argparse
import functools
import gc
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import mcover
from networks import NETWORKS, about, by_cover, joint, memory, peak_mib, plain
from timing import in_turns, rows, shown

COVERS = 4
UNIFORM, ROUTING = mcover.Uniform(), mcover.Directed()
MIB = 2**20


def step_line(name: str, seconds: float) -> list[str]:
    network = NETWORKS[name]
    one = plain(network)
    given = network, COVERS, UNIFORM, ROUTING
    times = in_turns(
        {
            "plain": lambda: [one() for _ in range(COVERS)],
            "joint": joint(*given),
            "by cover": by_cover(*given),
        },
        seconds,
    )
    base = times["plain"]
    return [
        network.title, str(len(base.each)), f"{1e3 * base.median:.1f}",
        *(shown(times[key].ratio(base)) for key in ("joint", "by cover")),
    ]  # fmt: skip


def memory_line(name: str, threads: int) -> list[str]:
    network = NETWORKS[name]
    given = network, COVERS, UNIFORM, ROUTING
    makes = [functools.partial(plain, network)]
    makes += [functools.partial(how, *given) for how in (joint, by_cover)]
    one, together, single = (peak_mib(make, threads) or float("nan") for make in makes)
    weights = sum(p.nbytes for p in network.make().parameters()) / MIB
    stacks = 2 * (COVERS - 1) * weights  # gradients and momenta of the other covers
    return [
        network.title, *(f"{n:.0f}" for n in (weights, one, together, single)),
        f"{(single - stacks) / one:.2f}",
    ]  # fmt: skip


def lifted(model: nn.Module) -> mcover.nn.Covered:
    return mcover.lift(model, COVERS, UNIFORM, ROUTING, seed=0)


def peak_of(work: Callable[[], object]) -> tuple[object, float, int]:
    """The result of ``work``, its seconds, and its peak memory in bytes."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak counts from here
    before, start = memory("VmRSS"), time.perf_counter()
    result = work()
    return result, time.perf_counter() - start, memory("VmHWM") - before


def draw_line(name: str) -> list[str]:
    """Runs in a new process, because memory freed before would hide new allocations."""
    lifted(nn.Linear(2, 2)).redraw()  # loops are compiled, or read from the cache
    model = NETWORKS[name].make()
    weights = sum(p.numel() for p in model.parameters())
    gc.collect()
    before = memory("VmRSS")
    covered, lift_seconds, lift_peak = peak_of(lambda: lifted(model))
    gc.collect()
    kept = memory("VmRSS") - before - 4 * weights * COVERS
    _, redraw_seconds, redraw_peak = peak_of(covered.redraw)
    return [
        name, f"{weights / 1e6:.2f}", f"{lift_seconds:.3f}", f"{lift_peak / MIB:.0f}",
        f"{redraw_seconds:.3f}", f"{redraw_peak / MIB:.0f}", f"{kept / MIB:.0f}",
        f"{kept / weights:.1f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each network")
    parser.add_argument("--only", choices=list(NETWORKS), nargs="+", default=list(NETWORKS))
    given = parser.parse_args()
    torch.manual_seed(0)
    print(about(given.threads))
    if Path("/proc/self/clear_refs").exists():
        lines = [memory_line(name, given.threads) for name in given.only]
        header = ["network", "weights", "one model", "joint", "by cover", "(by cover - stacks)/one"]
        rows(f"peak of a step beyond the weights, MiB, M = {COVERS}", header, lines)
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as fresh:
            lines = [fresh.apply(draw_line, (name,)) for name in given.only]
        header = ["network", "million weights", "lift s", "peak MiB", "redraw s", "peak MiB"]
        rows("drawing routes", [*header, "kept MiB", "kept bytes a weight"], lines)
    torch.set_num_threads(given.threads)
    header = ["network", "turns", "M plain steps, ms", "joint", "by cover"]
    title = f"a training step over M plain steps, M = {COVERS}: median (quartiles)"
    rows(title, header, [step_line(name, given.seconds) for name in given.only])


if __name__ == "__main__":
    main()
