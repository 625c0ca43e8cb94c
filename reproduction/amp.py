"""Where the limit lies: message passing at N = 1000 against the load α, and its theory.

    python -m reproduction.amp --trials 100

Writes ``amp.csv`` (one row per load) and ``amp.png`` to ``reproduction/results``; the page of
results has the table.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import mcover
from mcover import statistics
from mcover.statistics import Estimate
from reproduction.figures import COLOURS, save
from reproduction.perceptron import MessagePassingTrial
from reproduction.state_evolution import (
    algorithmic_threshold,
    information_threshold,
    state_evolution,
)

N = 1000
LOADS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.45, 1.5, 1.55, 1.58, 1.6, 1.65, 1.7, 1.8, 1.9)
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100, help="instances for each load")
    trials = parser.parse_args().trials
    rows = []
    for alpha in LOADS:
        outcomes = [MessagePassingTrial(N, alpha).run(number) for number in range(trials)]
        solved = statistics.fraction([one["solved"] > 0 for one in outcomes])
        error = statistics.mean([one["generalization_error_sign"] for one in outcomes])
        rows.append((alpha, solved, error, state_evolution(alpha)))
        print(f"α = {alpha:.2f}  solved {solved}  ε_g {error}", flush=True)  # noqa: T201
    write(rows)
    draw(rows)


def write(rows: list[Any]) -> None:
    header = (
        "alpha n solved solved_low solved_high error error_low error_high theory_clipped "
        "theory_bayes version"
    )
    with (RESULTS / "amp.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header.split())
        for alpha, solved, error, theory in rows:
            values: tuple[Any, ...] = (solved.n, solved.value, solved.low, solved.high)
            values += (error.value, error.low, error.high)
            values += (theory.clipped_error, theory.bayes_error, mcover.__version__)
            writer.writerow((alpha, *values))


def table() -> str:
    """The content of ``amp.csv`` as a Markdown table."""
    with (RESULTS / "amp.csv").open(newline="", encoding="utf-8") as file:
        rows = [{name: float(of) for name, of in row.items() if name != "version"}
                for row in csv.DictReader(file)]  # fmt: skip

    def estimate(row: dict[str, float], name: str) -> Estimate:
        return Estimate(row[name], row[f"{name}_low"], row[f"{name}_high"], int(row["n"]))

    lines = [
        f"Message passing at N = {N}, n = {rows[0]['n']:.0f} instances a load; ε_g is that of its "
        "±1 student, the theory is N → ∞.",
        "",
        "| α | solved | ε_g | ε_g in theory | Bayes-optimal ε_g |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {row['alpha']:.2f} | {estimate(row, 'solved'):.2f} | "
            f"{estimate(row, 'error'):.4f} | {row['theory_clipped']:.4f} | "
            f"{row['theory_bayes'] if row['alpha'] < information_threshold() else 0:.4f} |"
            for row in rows
        ),
        "",
        f"Thresholds for N → ∞: the data determine the teacher above α = "
        f"{information_threshold():.4f}; message passing finds it above α = "
        f"{algorithmic_threshold():.4f}.",
    ]
    return "\n".join(lines)


def draw(rows: list[Any]) -> None:
    figure = Figure(figsize=(7, 4.4), layout="constrained")
    axes = figure.subplots()
    loads = np.linspace(LOADS[0], LOADS[-1], 300)
    theory = [state_evolution(load).clipped_error for load in loads]
    axes.plot(loads, theory, color=COLOURS[0], label="AMP, theory (N → ∞)")
    alphas, errors = [row[0] for row in rows], [row[2] for row in rows]
    spans = [[e.value - e.low for e in errors], [e.high - e.value for e in errors]]
    axes.errorbar(
        alphas,
        [e.value for e in errors],
        yerr=spans,
        fmt="o",
        markersize=4,
        color=COLOURS[1],
        label=f"AMP, N = {N}, n = {errors[0].n}, 95 %",
    )
    for at, name in ((information_threshold(), "information"), (algorithmic_threshold(), "AMP")):
        axes.axvline(at, color="0.5", linestyle="--", linewidth=1)
        axes.text(at, 0.27, f" {name}\n {at:.4f}", va="top")
    axes.set(xlabel="load α = P/N", ylabel="generalization error of the ±1 student")
    axes.set_ylim(-0.005, 0.28)
    axes.legend(frameon=False, loc="lower left")
    axes.grid(alpha=0.25)
    save(figure, RESULTS / "amp.png")


if __name__ == "__main__":
    main()
