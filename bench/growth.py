"""Time and memory of a step against M: both lifts and M plain models.

Time is the median of alternating measurements, over one plain step. Memory is the peak of a step
beyond the weights, over that of the plain model, each in a separate process. The script draws the
figure of the documentation.

    python bench/growth.py [--threads 2] [--seconds 4] [--output docs/cost.png]
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt

import mcover
from networks import NETWORKS, Step, about, by_cover, joint, peak_mib, plain
from timing import in_turns, rows, shown

COVERS = (1, 2, 4, 8, 16)
UNIFORM = mcover.Uniform()
NAMES = ("mlp", "residual")
LINES = {
    "M plain models, one after the other": ("#777777", "--"),
    "directed lift, cover by cover": ("#1b7f5c", "-"),
    "directed lift, one forward": ("#3b6fb6", "-"),
    "message lift": ("#c2571a", "-"),
}
PLAIN, *LIFTS = LINES


def makes(name: str, covers: int) -> dict[str, Callable[[], Step]]:
    network = NETWORKS[name]
    directed = network, covers, UNIFORM, mcover.Directed()
    how = (by_cover, *directed), (joint, *directed), (joint, network, covers, UNIFORM,
                                                      mcover.Messages())  # fmt: skip
    return {key: functools.partial(*given) for key, given in zip(LIFTS, how, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="for each number of covers")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    print(about(given.threads))
    peaks = {
        (name, covers, key): peak_mib(make, given.threads, 1) or float("nan")
        for name in NAMES
        for covers in COVERS
        for key, make in makes(name, covers).items()
    }
    alone = {n: peak_mib(functools.partial(plain, NETWORKS[n]), given.threads, 1) for n in NAMES}
    torch.set_num_threads(given.threads)
    times = {}
    for name in NAMES:
        lines = []
        for covers in COVERS:
            works = {PLAIN: plain(NETWORKS[name])}
            works |= {key: make() for key, make in makes(name, covers).items()}
            seen = in_turns(works, given.seconds)
            ratios = {key: own.ratio(seen[PLAIN]) for key, own in seen.items()}
            times |= {(name, covers, key): ratios[key][0] for key in LIFTS}
            shares = [peaks[name, covers, key] / (alone[name] or float("nan")) for key in LIFTS]
            lines.append([
                str(covers), *(shown(ratios[key]) for key in LIFTS), *(f"{s:.2f}" for s in shares),
            ])  # fmt: skip
        header = ["M", *LIFTS, *(f"memory: {key}" for key in LIFTS)]
        rows(f"{NETWORKS[name].title}: over one plain step", header, lines)
    if given.output is not None:
        draw(times, peaks, alone, given.output)


def draw(times: dict, peaks: dict, alone: dict, output: Path) -> None:
    mpl.rcParams |= {"font.size": 9}
    figure, axes = plt.subplots(2, len(NAMES), figsize=(8, 6), sharex=True, layout="constrained")
    for column, name in enumerate(NAMES):
        top, bottom = axes[:, column]
        top.set_title(NETWORKS[name].title, fontsize=9)
        for key, (colour, style) in LINES.items():
            if key == PLAIN:
                top.plot(COVERS, COVERS, style, color=colour, label=key)
                bottom.axhline(1, linestyle=style, color=colour, label=key)
                continue
            top.plot(COVERS, [times[name, m, key] for m in COVERS], style, marker="o", ms=3,
                     color=colour, label=key)  # fmt: skip
            bottom.plot(COVERS, [peaks[name, m, key] / alone[name] for m in COVERS], style,
                        marker="o", ms=3, color=colour, label=key)  # fmt: skip
        for ax in (top, bottom):
            ax.set_xscale("log", base=2)
            ax.set_yscale("log", base=2)
            ax.set_xticks(COVERS, [str(m) for m in COVERS])
            ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.grid(alpha=0.3)
            ax.spines[["top", "right"]].set_visible(False)
        bottom.set_xlabel("covers M")
    axes[0, 0].set_ylabel("time of a step / one plain step")
    axes[1, 0].set_ylabel("peak memory of a step / one model's")
    axes[0, 0].legend(fontsize=7, frameon=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=160, metadata={"Software": None})


if __name__ == "__main__":
    main()
