"""Speed and memory of the annealer at the paper's setting, against two baselines in one run.

- C: ``rivals/annealer.c``, int16 margins, ``gcc -O3 -march=native``, O(P·S) per proposal. It draws
  the same random numbers, and the benchmark checks that its trajectory is the same.
- NumPy: the same arithmetic, one vectorised pass over S contexts and P patterns per proposal.

mcover and the C program run the whole schedule. NumPy is timed on a thousand proposals from the
state of mcover's chain at each of a few temperatures.
"""

import ctypes
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from numba import njit

import mcover
from mcover.annealing.bits import WORDS, aligned, broadcast, count, load, total
from mcover.annealing.kernels import _perceptron_change, advance
from mcover.annealing.states import (
    compile_kernels,
    make_state,
    pack_columns,
    random_weights,
    state_bytes,
)
from mcover.routing import draw_bank
from timing import best_seconds, rows

N, ALPHA, M, S = 1000, 1.58, 3, 10
TOPOLOGY = mcover.GaussianRing(sigma=3, shift=2)
SCHEDULE = mcover.LinearSchedule(0.4, 0.01, 1e-4).temperatures()
HERE = Path(__file__).parent


class Setting:
    """One instance with its routes, start and random state."""

    def __init__(self, n: int = N, patterns: int | None = None, covers: int = M, bank: int = S):
        count = round(ALPHA * N) if patterns is None else patterns
        self.problem = mcover.teacher_student(n, count / n, seed=0)
        self.routes = draw_bank(TOPOLOGY, covers, n, bank, seed=1).routes
        self.rng = np.random.SeedSequence(2).generate_state(4, np.uint64)
        self.weights = random_weights(self.rng, covers, n)
        self.columns = pack_columns(self.problem.gauged)

    def state(self):
        size = (len(self.problem.patterns), 1, self.problem.inputs)
        return make_state(self.columns, *size, self.routes, self.weights)


def our_run(setting: Setting, temperatures: np.ndarray):
    """Weights, accepted proposals and energies of one chain, and its seconds."""
    state, rng = setting.state(), setting.rng.copy()
    begin = time.perf_counter()
    accepted, energies, *_ = advance(state, temperatures, 0.0, "glauber", "random", rng)
    seconds = time.perf_counter() - begin
    return state.weights, accepted, energies * state.unit, seconds


def c_run(setting: Setting, temperatures: np.ndarray, library: ctypes.CDLL):
    """The same by the C program."""
    patterns, inputs = setting.problem.gauged.shape
    bank, _, covers = setting.routes.shape
    columns = np.ascontiguousarray(setting.problem.gauged.T)
    inverse = np.ascontiguousarray(np.argsort(setting.routes, axis=2).astype(np.uint8))
    weights, rng = setting.weights.copy(), setting.rng.copy()
    margins = np.zeros((bank * covers, patterns), dtype=np.int16)
    accepted, energies = np.zeros((2, len(temperatures)), dtype=np.int64)
    sizes = (inputs, patterns, covers, bank)
    at = [array.ctypes.data_as(ctypes.c_void_p) for array in (columns, inverse, weights, margins)]
    energy = library.prepare(*at, *sizes)
    begin = time.perf_counter()
    library.anneal(
        *at,
        *sizes,
        temperatures.ctypes.data_as(ctypes.c_void_p),
        len(temperatures),
        rng.ctypes.data_as(ctypes.c_void_p),
        accepted.ctypes.data_as(ctypes.c_void_p),
        energies.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(energy),
    )
    seconds = time.perf_counter() - begin
    return weights, accepted, energies / (bank * np.sqrt(inputs)), seconds


def numpy_seconds(setting: Setting, weights: np.ndarray, temperature: float, count: int) -> float:
    """Seconds of ``count`` proposals by NumPy, from given weights."""
    patterns, inputs = setting.problem.gauged.shape
    bank, _, covers = setting.routes.shape
    columns = np.ascontiguousarray(setting.problem.gauged.T).astype(np.int16)
    inverse = np.argsort(setting.routes, axis=2)
    weights, margins = weights.copy(), np.zeros((bank, covers, patterns), dtype=np.int16)
    for s in range(bank):
        for alpha in range(covers):
            routed = weights[setting.routes[s, :, alpha], np.arange(inputs)]
            margins[s, alpha] = setting.problem.gauged.astype(np.int16) @ routed
    rng, slots, unit = np.random.default_rng(0), np.arange(bank), 1 / (bank * np.sqrt(inputs))
    begin = time.perf_counter()
    for _ in range(count):
        index = int(rng.integers(inputs * covers))
        q, beta = index // covers, index % covers
        contexts = inverse[:, q, beta]
        before = margins[slots, contexts]
        after = before - 2 * weights[beta, q] * columns[q]
        change = (np.minimum(before, 0) - np.minimum(after, 0)).sum(dtype=np.int64)
        if rng.random() < 1 / (1 + np.exp(min(change * unit / temperature, 700.0))):
            margins[slots, contexts] = after
            weights[beta, q] *= -1
    return time.perf_counter() - begin


@njit(nogil=True)
def _passes(state, proposals):
    """Only the energy changes of scattered proposals."""
    covers, sites = state.weights.shape
    flip, sums = broadcast(np.uint64(0)), 0
    index = 0
    for _ in range(proposals):
        index += 1237
        if index >= covers * sites:
            index -= covers * sites
        sums += _perceptron_change(state, index, index // covers, flip)
    return sums


@njit(nogil=True)
def _popcounts(words, repeats):
    """Popcounts of 512 bits at full speed: from the first cache, into four sums."""
    a = b = c = d = broadcast(np.uint64(0))
    for _ in range(repeats):
        for at in range(0, words.size, 4 * WORDS):
            a = a + count(load(words, at))
            b = b + count(load(words, at + WORDS))
            c = c + count(load(words, at + 2 * WORDS))
            d = d + count(load(words, at + 3 * WORDS))
    return total(a + b + c + d)


def compare() -> None:
    setting = Setting()
    proposals = N * M * len(SCHEDULE)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "annealer.so"
        source = HERE / "rivals" / "annealer.c"
        flags = ["-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run(["gcc", *flags, str(source), "-o", str(target), "-lm"], check=True)
        library = ctypes.CDLL(str(target))
        library.prepare.restype = ctypes.c_int64
        theirs = c_run(setting, SCHEDULE, library)
    runs = [our_run(setting, SCHEDULE) for _ in range(3)]
    for part in range(3):
        if not np.allclose(runs[0][part], theirs[part], rtol=0, atol=1e-9):
            raise SystemExit("the C program has a different trajectory: the ratio is not valid")
    ours = min(run[3] for run in runs)
    spots = np.linspace(0, len(SCHEDULE) - 1, 8).astype(int)
    sample, slow = 400, 0.0
    for spot in spots:
        weights = our_run(setting, SCHEDULE[: spot + 1])[0]
        slow += numpy_seconds(setting, weights, SCHEDULE[spot], sample)
    numpy_all = slow / (sample * len(spots)) * proposals
    rows(
        f"one trial, N={N} P={len(setting.problem.patterns)} M={M} S={S}, "
        f"{len(SCHEDULE)} temperatures, one core",
        ["", "proposals/s", "s a trial", "times slower"],
        [
            [name, f"{proposals / s:,.0f}", f"{s:.2f}", f"{s / ours:.1f}"]
            for name, s in (("mcover", ours), ("C", theirs[3]), ("NumPy", numpy_all))
        ],
    )
    print("the C program has the same trajectory; NumPy is extrapolated from a sample")
    print(f"accepted over the run: {runs[0][1].sum() / proposals:.1%}")


def anatomy() -> None:
    """The time of a proposal by part: bare passes, the rest of a rejection, and flips."""
    setting = Setting()
    end = our_run(setting, SCHEDULE)
    cold = np.full(60, 1e-4)
    state, rng = setting.state(), setting.rng.copy()
    advance(state, SCHEDULE, 0.0, "glauber", "random", rng)  # frozen: hardly any flip from here on
    moves = N * M * len(cold)
    rejected = best_seconds(lambda: advance(state, cold, 0.0, "glauber", "random", rng)) / moves
    many, few = 400_000, aligned(2048)
    _passes(state, 1), _popcounts(few, 1)
    passes = best_seconds(lambda: _passes(state, many)) / many
    one = best_seconds(lambda: _popcounts(few, 4000)) / (4000 * few.size // WORDS)
    limit = one * S * state.valid.size / WORDS
    accepted, proposals = end[1].sum(), N * M * len(SCHEDULE)
    mean = end[3] / proposals
    flip = (end[3] - proposals * rejected) / accepted
    rows(
        "anatomy of a proposal",
        ["part", "ns", "share of the mean"],
        [
            [name, f"{1e9 * each:.1f}", f"{each * often / mean:.0%}"]
            for name, each, often in (
                ("limit: its popcounts at the machine's rate", limit, 1.0),
                ("selects, popcounts and loads as we do them", passes, 1.0),
                ("rest of a rejection: random numbers, tables, misses", rejected - passes, 1.0),
                ("an accepted flip: planes and masks", flip, accepted / proposals),
                ("mean proposal", mean, 1.0),
            )
        ],
    )


def growth() -> None:
    """Time of a short schedule against one size; the slope of log time against log size."""
    temperatures = np.linspace(0.4, 0.01, 60)
    lines = []
    for name, key, values in (
        ("S", "bank", (5, 10, 20, 40)),
        ("M", "covers", (3, 6, 12, 24)),
        ("P", "patterns", (1580, 3160, 6320, 12640)),
        ("N", "n", (500, 1000, 2000, 4000)),
    ):
        seconds = []
        for value in values:
            setting = Setting(**{key: value})
            seconds.append(min(our_run(setting, temperatures)[3] for _ in range(5)))
        slope = np.polyfit(np.log(values), np.log(seconds), 1)[0]
        cells = [f"{1e3 * s:.1f}" for s in seconds]
        lines.append([name, ", ".join(map(str, values)), ", ".join(cells), f"{slope:.2f}"])
    rows(
        f"growth of {len(temperatures)} sweeps (a sweep is N·M proposals)",
        ["size", "values", "ms", "exponent"],
        lines,
    )


def memory() -> None:
    patterns = round(ALPHA * N)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    problem = mcover.teacher_student(N, ALPHA, seed=0)
    mcover.anneal(problem, mcover.MCover(M, bank=S), num_sweeps=5, seed=0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"\nmemory: a chain {state_bytes(N, patterns, 1, M, S) / 1e6:.2f} MB;")
    print(f"peak of the process during anneal(): +{peak / 1024:.1f} MB over the loaded libraries")


def main() -> None:
    print(f"compiling, or loading what was compiled before: {compile_kernels():.1f} s")
    memory()
    compare()
    anatomy()
    growth()


if __name__ == "__main__":
    main()
