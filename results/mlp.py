"""The paper's network on MNIST, and a smaller one on 1,000 images: rows and table.

    python results/mlp.py                            # run what is missing, then print the table
    python results/mlp.py --part low-data --seeds 10
    python results/mlp.py --report                   # the table of the rows that are there
    python results/mlp.py --smoke                    # everything at tiny size, kept elsewhere

Rows go to ``mlp.csv`` beside this file as they finish; what is there is not run again, so it may be
stopped and started at will, here or in another clone that has the rows. All settings meet the same
images, first weights and order of images. Strengths are chosen on 5,000 images held out of the
training set, with seeds of their own; settings with nothing to choose are tested before that.
"""

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from mlp_settings import PARTS, Part, Run, mnist
from scipy.stats import permutation_test

import mcover
from mcover import McoverError, statistics
from mcover.training.loop import fit

HERE = Path(__file__).parent
FIELDS = ["part", "stage", "setting", "candidate", "seed", "error", "cover_error", "train_loss"]
FIELDS += ["epochs", "seconds", "core_seconds", "version", "options"]
CHOOSING = 1000  # first seed of the choice of strengths: never one of the test


@dataclass(frozen=True)
class Job:
    """One training of the study."""

    part: str
    stage: str
    setting: str
    candidate: str
    seed: int
    smoke: bool = False

    @property
    def run(self) -> Run:
        return PARTS[self.part].settings[self.setting][self.candidate]

    @property
    def key(self) -> tuple[str, str, int, str]:
        """A row is that of this job if it was trained in this very way, whatever it was called."""
        options = PARTS[self.part].plain(self.run)
        return self.part, self.stage, self.seed, json.dumps(options, sort_keys=True)


class Rows:
    """The table on disk: one whole line at a time, so that a killed run leaves a readable file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[tuple[str, str, int, str], dict[str, str]] = {}
        if path.exists():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    key = row["part"], row["stage"], int(row["seed"]), row["options"]
                    self.rows[key] = row

    def append(self, job: Job, outcome: dict[str, float]) -> None:
        row = {name: getattr(job, name) for name in FIELDS[:5]} | outcome
        row |= {"version": mcover.__version__, "options": job.key[3]}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if new:
                writer.writeheader()
            writer.writerow(row)
        self.rows[job.key] = {name: str(value) for name, value in row.items()}

    def error(self, job: Job) -> float:
        """Error of the collapse; nan where the job has not run or its training failed."""
        return float(self.rows[job.key]["error"]) if job.key in self.rows else math.nan


def train(job: Job) -> dict[str, float]:
    """Runs a job; a training that diverges is a row of nan, not the end of the study."""
    torch.set_num_threads(1)
    part, run = PARTS[job.part], job.run
    dataset = part.dataset(job.stage, job.seed)
    begin = time.process_time()
    settings = part.how(run)
    if job.smoke:
        dataset = mcover.data.subset(dataset, min(len(dataset.train_labels), 2000), job.seed)
        settings = replace(settings, epochs=2, evaluate_every=2)
    model = part.network(run.dropout).build([job.seed, 0])
    if run.lift:
        model = mcover.lift(model, seed=[job.seed, 1], **run.lift)
    outcome = dict.fromkeys(("error", "cover_error", "train_loss", "seconds"), math.nan)
    try:
        history = fit(model, dataset, settings, seed=[job.seed, 2])
        if history.interrupted:
            raise KeyboardInterrupt  # a part of a training is no row
        outcome = {
            "error": float(history.collapse_error[-1]),
            "cover_error": float(history.cover_error[-1].mean()),
            "train_loss": float(history.train_loss[-1]),
            "seconds": round(float(history.seconds[-1]), 3),
        }
    except McoverError as error:
        print(f"\n{job}: {error}")
    return outcome | {
        "epochs": settings.epochs,
        "core_seconds": round(time.process_time() - begin, 3),
    }


def candidates(name: str, part: Part, seeds: int, smoke: bool) -> list[Job]:
    """The jobs that choose strengths."""
    return [
        Job(name, "choose", setting, candidate, CHOOSING + seed, smoke)
        for seed in range(seeds)
        for setting, options in part.settings.items()
        if len(options) > 1
        for candidate in options
    ]


def chosen(name: str, part: Part, setting: str, rows: Rows, seeds: int, smoke: bool) -> str | None:
    """The candidate of least mean validation error; None while some are missing."""
    options = list(part.settings[setting])
    if len(options) == 1:
        return options[0]
    means = []
    for candidate in options:
        jobs = [Job(name, "choose", setting, candidate, CHOOSING + s, smoke) for s in range(seeds)]
        if any(job.key not in rows.rows for job in jobs):
            return None
        mean = float(np.mean([rows.error(job) for job in jobs]))
        means.append(math.inf if math.isnan(mean) else mean)
    return options[int(np.argmin(means))]


def tests(name: str, part: Part, rows: Rows, given: argparse.Namespace) -> list[Job]:
    """The jobs of the table, seed by seed so that a stopped study is paired as far as it went."""
    picks = {
        setting: chosen(name, part, setting, rows, given.choosing_seeds, given.smoke)
        for setting in part.settings
    }
    return [
        Job(name, "test", setting, pick, seed, given.smoke)
        for seed in range(given.seeds)
        for setting, pick in picks.items()
        if pick is not None
    ]


def run(jobs: list[Job], rows: Rows, workers: int) -> None:
    """Runs what is missing, each job on one core; rows are kept as they finish."""
    missing = list({job.key: job for job in jobs if job.key not in rows.rows}.values())
    begin = time.perf_counter()
    for done, (job, outcome) in enumerate(_in_processes(missing, workers), start=1):
        rows.append(job, outcome)
        elapsed = time.perf_counter() - begin
        left = elapsed / done * (len(missing) - done)
        text = f"{done}/{len(missing)} rows, {elapsed:.0f} s, {left:.0f} s left"
        print(f"\r{text} ", end="", flush=True)
    if missing:
        print()


def _in_processes(jobs: list[Job], workers: int) -> Iterator[tuple[Job, dict[str, float]]]:
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    waiting = list(reversed(jobs))
    running: dict[Future[dict[str, float]], Job] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop()
                running[pool.submit(train, job)] = job
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                yield running.pop(future), future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def report(name: str, part: Part, rows: Rows, given: argparse.Namespace) -> list[str]:
    """The table of a part: errors with intervals, and paired differences with tests."""
    errors: dict[str, dict[int, float]] = {}
    lines = [
        f"## {name}",
        "",
        "| setting | chosen | test error of the one model | mean error of covers (SWA: last "
        "weights) | core seconds a run | n | failed |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for setting in part.settings:
        jobs = [job for job in tests(name, part, rows, given) if job.setting == setting]
        have = [rows.rows[job.key] for job in jobs if job.key in rows.rows]
        good = [row for row in have if math.isfinite(float(row["error"]))]
        if not good:
            lines.append(f"| {setting} | | | | | 0 | {len(have)} |")
            continue
        errors[setting] = {int(row["seed"]): float(row["error"]) for row in good}
        columns = [
            [float(row[key]) for row in good] for key in ("error", "cover_error", "core_seconds")
        ]
        error, cover, core = map(statistics.mean, columns)
        lines.append(
            f"| {setting} | {jobs[0].candidate or '–'} | {error:.4f} | {cover:.4f} | {core:.1f} | "
            f"{error.n} | {len(have) - len(good)} |"
        )
    lines += [
        "",
        "| paired difference of test error | mean [95 % interval] | p (permutation) | n |",
        "| --- | --- | --- | --- |",
    ]
    base = next(iter(part.settings))
    pairs = [(setting, base) for setting in part.settings if setting != base]
    lines += [
        compare(first, second, errors[first], errors[second])
        for first, second in (*pairs, *part.pairs)
        if set(errors.get(first, ())) & set(errors.get(second, ()))
    ]
    return [*lines, ""]


def compare(first: str, second: str, ours: dict[int, float], theirs: dict[int, float]) -> str:
    """A paired difference, tested by sign flips within pairs."""
    difference = np.array([ours[seed] - theirs[seed] for seed in sorted(set(ours) & set(theirs))])
    mean = statistics.mean(difference)
    p = math.nan
    if len(difference) > 1:
        rng = np.random.default_rng(0)
        p = permutation_test(
            (difference,), np.mean, permutation_type="samples", n_resamples=99_999, rng=rng
        ).pvalue
    return f"| {first} − {second} | {mean:.4f} | {p:.2g} | {mean.n} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=[*PARTS], help="one part only")
    parser.add_argument("--seeds", type=int, default=10, help="paired seeds of each setting")
    parser.add_argument("--choosing-seeds", type=int, default=3, help="seeds that choose strengths")
    parser.add_argument("--workers", type=int, default=2, help="processes of one core each")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, rows in out/")
    given = parser.parse_args()
    folder = Path("out/smoke") if given.smoke else HERE
    rows = Rows(folder / "mlp.csv")
    parts = {name: PARTS[name] for name in ([given.part] if given.part else PARTS)}
    try:
        if not given.report:
            mnist()  # before any process starts: if it is not here, say so once
        for name, part in parts.items() if not given.report else ():
            print(f"{name}: testing what has nothing to choose")
            run(tests(name, part, rows, given), rows, given.workers)
            print(f"{name}: choosing strengths")
            run(candidates(name, part, given.choosing_seeds, given.smoke), rows, given.workers)
            print(f"{name}: testing")
            run(tests(name, part, rows, given), rows, given.workers)
    except KeyboardInterrupt:
        print("\nstopped; what is finished is kept")
    except McoverError as error:
        sys.exit(f"mlp.py: {error}")
    lines = [line for name, part in PARTS.items() for line in report(name, part, rows, given)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mlp.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
