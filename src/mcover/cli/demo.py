"""``mcover demo``: a topology, the paper's comparison on perceptrons, and a small network."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import mcover
from mcover import checks, statistics
from mcover.annealing import PAPER, AnnealOptions, AnnealResult, AutoSchedule
from mcover.annealing.trajectory import joined
from mcover.cli.output import draw, say
from mcover.extras import install
from mcover.tables import table

# The options of each method, in two groups of settings.
_PAPER: dict[str, dict[str, Any]] = {
    "vanilla": {"method": mcover.Vanilla(), "schedule": PAPER.schedule},
    "RSA": {"method": mcover.RSA(3, coupling=1.0), "schedule": PAPER.schedule},
    "M-cover": {"method": PAPER.method, "schedule": PAPER.schedule},
}
# The best settings of each method in the study `structured`, with one setting for all families.
_RECOMMENDED: dict[str, dict[str, Any]] = {
    "vanilla": {"method": mcover.Vanilla(), "schedule": AutoSchedule(4000, factor=0.5)},
    "RSA": {"method": mcover.RSA(9, coupling=1.0)},
    "M-cover": {"method": AnnealOptions.method},
}
_GROUPS = {"paper": _PAPER, "recommended": _RECOMMENDED}
_HEADLINES = {
    "paper": "The paper's settings: 3 copies, 3,901 temperatures from 0.4 to 0.01",
    "recommended": "Recommended settings (those of M-cover are the defaults of mcover.anneal):\n"
    "7 covers that attract each other, with a bank of 3; 9 replicas; temperatures from the data;\n"
    "a run ends at its first solution",
}
_Found = dict[str, dict[str, AnnealResult]]
_COVERS, _SEEDS, _BATCH, _TRAINED = 4, 5, 100, 1000  # of the network


def add_command(commands: Any) -> None:
    """Adds ``demo``."""
    parser = commands.add_parser(
        "demo",
        help="compare M-cover with its rivals on this machine",
        description="Show a topology, compare M-cover with plain and replicated annealing on "
        "perceptrons, and train a small network if torch and scikit-learn are installed.",
    )
    parser.add_argument("--n", type=int, default=1000, help="inputs (%(default)s, the paper's)")
    parser.add_argument(
        "--alpha", type=float, default=1.58, help="patterns per input (%(default)s, the paper's)"
    )
    parser.add_argument(
        "--trials", type=int, default=40, help="teachers, the same for each method (%(default)s)"
    )
    parser.add_argument(
        "--epochs", type=int, default=60, help="epochs of the covered network (%(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("out"), help="folder of the pictures (%(default)s)"
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> None:
    """Runs the three parts; after Ctrl-C the second prints the teachers that were finished."""
    for name in ("n", "trials", "epochs"):
        checks.check_int(name, getattr(given, name), 1)
    mcover.teacher_student(given.n, given.alpha, seed=0)  # refuses bad sizes before any work
    checks.check_writable(given.output / "topology.png")
    _show_topology(given.output)
    say()
    _compare_annealers(given)
    say()
    if find_spec("torch") is None or find_spec("sklearn") is None:
        say(f"no network, which needs torch and scikit-learn: run {install('sklearn')}")
        return
    _compare_networks(given.epochs, given.output)


def _show_topology(folder: Path) -> None:
    topology, covers = mcover.GaussianRing(sigma=1.5, shift=2), 12
    facts = topology.facts(covers)
    rows = [
        ["spectral gap: how fast covers mix; 0 is never", f"{facts.spectral_gap:.4f}"],
        ["drift: covers that one read moves along the ring", f"{facts.drift:.4f}"],
        ["effective width: covers that a cover reads from", f"{facts.effective_width:.4f}"],
    ]
    say(table([f"{topology!r}, {covers} covers", "value"], rows) + "\n")

    draw(folder / "topology.png", lambda: topology.plot(covers))


def _compare_annealers(given: argparse.Namespace) -> None:
    """Anneals the same problems with each method, at the paper's and the recommended settings."""
    from tqdm.auto import tqdm

    task = f"N = {given.n}, α = {given.alpha:g}"
    say(f"±1 perceptrons, {task}: {', '.join(_PAPER)} on the same {given.trials} teachers")
    found: list[_Found] = []
    begin, interrupted = time.perf_counter(), False
    with tqdm(total=given.trials, unit="teacher", desc="compiling") as bar:
        try:
            for results in _paired_runs(given.n, given.alpha, given.trials):
                found.append(results)
                solved = {n: sum(one["paper"][n].solved[0] for one in found) for n in _PAPER}
                bar.set_description_str(
                    "solved: " + ", ".join(f"{name} {count}" for name, count in solved.items()),
                    refresh=False,
                )
                bar.update()
        except KeyboardInterrupt:
            interrupted = True
    if found:
        for group, headline in _HEADLINES.items():
            by_name = {name: [one[group][name] for one in found] for name in _GROUPS[group]}
            say(f"{headline}\n\n{_summary(by_name)}\n")
        say(
            f"{len(found)} teachers, {time.perf_counter() - begin:.0f} s; brackets are 95 % "
            "intervals.\n"
            "ε_g: generalization error of the collapse (mean of the covers). RSA: replicated\n"
            "simulated annealing, copies that attract each other. TTS99: seconds of one core\n"
            "until restarts find a solution with 99 % certainty; inf if none was found.\n"
            "TTS99 is what compares the two tables: recommended runs are far shorter."
        )
        of_paper = {name: [one["paper"][name] for one in found] for name in _PAPER}

        def picture() -> Any:
            from mcover.figures import annealing_figure

            return annealing_figure(
                {n: vars(joined([r.trajectory for r in of])) for n, of in of_paper.items()},
                f"±1 perceptron, {task}, the paper's settings, {len(found)} paired teachers",
                {
                    n: np.array([r.generalization_error[0] for r in of])
                    for n, of in of_paper.items()
                },
            )

        draw(given.output / "annealing.png", picture)
    if interrupted:
        raise KeyboardInterrupt


def _paired_runs(n: int, alpha: float, trials: int) -> Iterator[_Found]:
    """One read of each method and setting for each teacher, in order, on threads.

    Ctrl-C, or an early end of the loop, stops the threads and drops unfinished teachers.
    """
    halt = threading.Event()

    def one(seed: int) -> _Found | None:
        problem = mcover.teacher_student(n, alpha, seed=[seed, 0])
        found: _Found = {group: {} for group in _GROUPS}
        for group, settings in _GROUPS.items():
            for name, options in settings.items():
                try:
                    result = mcover.anneal(
                        problem,
                        **options,
                        stop_at_zero=group == "recommended",
                        seed=[seed, 1],
                        workers=1,
                        interrupt=halt.is_set,
                    )
                except KeyboardInterrupt:  # halted before the first sweep
                    return None
                if result.interrupted:
                    return None
                found[group][name] = result
        return found

    pool = ThreadPoolExecutor(checks.cpus())
    try:
        for found in pool.map(one, range(trials)):
            if found is not None:
                yield found
    finally:
        halt.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _summary(found: dict[str, list[AnnealResult]]) -> str:
    rows = []
    for name, results in found.items():
        error = statistics.mean([one.generalization_error[0] for one in results])
        solved = [bool(one.solved[0]) for one in results]
        seconds = statistics.time_to_solution(solved, [one.seconds[0] for one in results])
        cells = f"{error:.4f}", f"{statistics.fraction(solved):.2f}", f"{seconds:.3g}"
        rows.append([name, *cells])
    return table(["method", "ε_g", "solved", "TTS99, core s"], rows)


def _compare_networks(epochs: int, folder: Path) -> None:
    """Compares the collapse of the directed lift with the plain network on some of the digits."""
    import torch
    from sklearn.datasets import load_digits
    from tqdm.auto import tqdm

    images, labels = load_digits(return_X_y=True)
    say(
        f"Network 64-128-10 on {_TRAINED} of the digits, {_SEEDS} seeds: the collapse of "
        f"{_COVERS} covers\n(mcover.lift(model, {_COVERS})), and the plain network at equal "
        f"steps and at equal\ngradients, which are {_COVERS} times as many steps"
    )
    runs = {
        "plain, equal steps": (1, epochs),
        "plain, equal gradients": (1, _COVERS * epochs),
        f"collapse of {_COVERS} covers": (_COVERS, epochs),
    }
    begin, curves = time.perf_counter(), {}
    # Such small products take longer on several threads, and much longer on a busy machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tqdm(total=len(runs) * _SEEDS, unit="run") as bar:
        for name, (covers, passes) in runs.items():
            errors = []
            for seed in range(_SEEDS):
                errors.append(_train(images, labels, covers, passes, seed))
                bar.update()
            curves[name] = np.array(errors)
    torch.set_num_threads(threads)
    rows = [[name, f"{statistics.mean(of[:, -1]):.2f}"] for name, of in curves.items()]
    say(table(["network", "test error, %"], rows) + "\n")
    *plain, covered = (of[:, -1] for of in curves.values())
    differences = [statistics.paired(covered, one).difference for one in plain]
    say(
        f"{time.perf_counter() - begin:.0f} s; brackets are 95 % intervals over {_SEEDS} seeds;\n"
        "one that contains 0 leaves open which is better. "
        "Collapse minus plain, in points of error:\n"
        f"{differences[0]:+.2f} at equal steps,\n{differences[1]:+.2f} at equal gradients."
    )

    def picture() -> Any:
        from mcover.figures import training_figure

        title = f"network on {_TRAINED} of the digits, {_SEEDS} seeds"
        return training_figure(curves, title, share=True)

    draw(folder / "training.png", picture)


def _train(images: Any, labels: Any, covers: int, epochs: int, seed: int) -> list[float]:
    """Test error in percent after each epoch, of the collapse or the plain network."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    train, test = order[:_TRAINED], order[_TRAINED:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    if covers > 1:
        model = mcover.lift(model, covers, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = np.random.default_rng([seed, 1])
    errors = []
    for _ in range(epochs):
        for batch in np.split(batches.permutation(_TRAINED), _TRAINED // _BATCH):
            at = train[torch.from_numpy(batch)]
            optimizer.zero_grad()
            if covers > 1:
                loss = mcover.cover_loss(cross_entropy, model(x[at]), y[at])
            else:
                loss = cross_entropy(model(x[at]), y[at])
            loss.backward()
            optimizer.step()
        network = model.collapse() if covers > 1 else model
        with torch.no_grad():
            wrong = network(x[test]).argmax(dim=1) != y[test]
        errors.append(100 * float(wrong.float().mean()))
    return errors
