"""Time of a read with a short schedule and small banks, against the popcount limit.

The **popcount limit** of a proposal is the time of a minimal compiled loop over the same words: for
S contexts, two loads, a select, a popcount and an add for each 512 patterns, with columns in
sequence, and no random numbers, decisions or flips. It is measured in the same run on whole blocks
of 512, and scaled to P/512 blocks, as if without padding. It counts one pair of masks, as for an
even N; an odd N has two pairs.

Times at M = 9, S = 3, α = 1.58, on a busy machine (N = 501 | 1001, ns per proposal): energy changes
9.7 | 13.1, including popcounts over as many words, 2.6 | 4.1 for each pair; the rest of a rejection
(random numbers, tables and the site's weight) 3.4 | 4.2; flips 3.1 | 7.6, at 6 % accepted;
start-up, slices and records 1.8 | 2.9. The energy change takes longer than its popcounts because it
loads three scattered contexts. For odd N the chain took 19.4 | 28.8 ns when the two pairs of masks
were read separately; it takes 15.7 | 24.5 now that they are read together.

    python bench/short_schedules.py [--n 1000] [--alpha 1.58] [--covers 7] [--banks 2 3 4 6 8]
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable

import numpy as np
from numba import njit

import mcover
from mcover.annealing.bits import ONES, WORDS, aligned, broadcast, count, load, total
from mcover.annealing.chain import compute_site_sums
from mcover.annealing.kernels import _perceptron_change, advance
from mcover.annealing.options import bank_size, couplings_of
from mcover.annealing.states import compile_kernels, make_state, pack_columns, random_weights
from mcover.annealing.students import solved
from mcover.routing import draw_bank
from timing import best_in_turns, rows

SCHEDULE = mcover.LinearSchedule(0.4, 0.01, 1e-3)
PASSES, COLD, SLICES = 20, 20, 30  # of the columns, sweeps of a frozen chain, parts of a chain
LOOKS = 1000


def _limit(covers, destinations, blocks):
    """The loop of the popcount limit; its sizes are constants, so LLVM can unroll it."""
    row = 2 * blocks * WORDS

    @njit(nogil=True)
    def stream(columns, masks, passes):
        a = b = broadcast(np.uint64(0))
        context = 0
        for _ in range(passes):
            for column in range(0, columns.size, blocks * WORDS):
                context = context + 1 if context + 1 < covers else 0
                for s in range(destinations):
                    for j in range(blocks):
                        at = (s * covers + context) * row + 2 * j * WORDS
                        hold, d = load(masks, at + WORDS), load(columns, column + j * WORDS)
                        a, b = b + count(hold ^ (d & (load(masks, at) ^ hold))), a
        return total(a + b)

    return stream


@njit(nogil=True)
def _changes(state, proposals):
    """Only the energy changes of scattered proposals."""
    covers, sites = state.weights.shape
    flip, sums = broadcast(ONES), 0
    for i in range(proposals):
        index = 1237 * i % (covers * sites)
        sums += _perceptron_change(state, index, index // covers, flip)
    return sums


@njit(nogil=True)
def _looks(state, site_sums, looks):
    """Checks for a solution, as ``stop_at_zero`` does each sweep; most end in the first block."""
    found = 0
    for _ in range(looks):
        found += solved(state, site_sums)
    return found


class Setting:
    """One method on one problem: its chain, and the same chain in a frozen state."""

    def __init__(self, problem: mcover.Perceptron, method: mcover.annealing.Method) -> None:
        self.problem, self.method = problem, method
        self.options = mcover.annealing.AnnealOptions(method, SCHEDULE)
        self.covers, self.bank = method.covers, bank_size(method, problem.sites)
        self.patterns = len(problem.patterns)
        self.columns = pack_columns(problem.gauged)
        self.rng = np.random.SeedSequence(2).generate_state(4, np.uint64)
        self.weights = random_weights(self.rng, self.covers, problem.inputs)
        self.blocks = -(-self.patterns // (64 * WORDS))
        self.masks = aligned(self.covers * self.bank * self.blocks * 2 * WORDS)
        self.proposals = self.covers * problem.inputs * len(SCHEDULE.temperatures())
        self.accepted, self.slices, self.read = 0, np.full(SLICES, np.inf), np.inf
        self.hot, self.frozen = self.start(), self.chain()
        for _ in range(3):
            self.rejections()

    def start(self):
        bank = draw_bank(self.method.topology, self.covers, self.problem.inputs, self.bank, 1)
        size = self.patterns, 1, self.problem.inputs
        return make_state(self.columns, *size, bank.routes, self.weights)

    def chain(self):
        """The whole schedule; keeps the best time of each slice, whose work is always the same."""
        state, rng, self.accepted = self.start(), self.rng.copy(), 0
        course = SCHEDULE.temperatures(), couplings_of(self.options)
        parts = zip(*(np.array_split(each, SLICES) for each in course), strict=True)
        for i, part in enumerate(parts):
            begin = time.thread_time()
            accepted = advance(state, *part, "glauber", "random", rng).accepted
            self.slices[i] = min(self.slices[i], time.thread_time() - begin)
            self.accepted += int(accepted.sum())
        return state

    def rejections(self) -> None:
        advance(self.frozen, np.full(COLD, 1e-5), 0.0, "metropolis", "random", self.rng.copy())

    def anneal(self) -> None:
        result = mcover.anneal(self.problem, self.method, schedule=SCHEDULE, seed=0, workers=1)
        self.read = min(self.read, float(result.seconds[0]))

    def parts(self) -> dict[str, Callable[[], object]]:
        limit, site_sums = (
            _limit(self.covers, self.bank, self.blocks),
            compute_site_sums(self.hot.weights),
        )
        return {
            "limit": lambda: limit(self.columns, self.masks, PASSES),
            "change": lambda: _changes(self.frozen, PASSES * self.problem.inputs),
            "looks": lambda: _looks(self.hot, site_sums, LOOKS),
            "rejections": self.rejections,
            "start-up": self.start,
            "chain": self.chain,
            "anneal": self.anneal,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--alpha", type=float, default=1.58)
    parser.add_argument("--covers", type=int, default=7)
    parser.add_argument("--banks", type=int, nargs="+", default=(2, 3, 4, 6, 8))
    parser.add_argument("--seconds", type=float, default=25.0)
    given = parser.parse_args()
    print(f"compiling, or loading: {compile_kernels():.1f} s; load {os.getloadavg()[0]:.1f}")
    problem = mcover.teacher_student(given.n, given.alpha, seed=0)
    methods = {"vanilla": mcover.Vanilla(), "RSA": mcover.RSA(given.covers)}
    ring = mcover.GaussianRing(1.5, shift=2)
    methods |= {f"S = {bank}": mcover.MCover(given.covers, ring, bank) for bank in given.banks}
    settings = {name: Setting(problem, method) for name, method in methods.items()}
    works = {
        (name, part): work
        for name, setting in settings.items()
        for part, work in setting.parts().items()
    }
    best = best_in_turns(works, given.seconds, clock=time.process_time)
    each, shares = [], []
    for name, setting in settings.items():
        best_of = {part: one for (whose, part), one in best.items() if whose == name}
        padded = best_of["limit"] / (PASSES * problem.inputs)
        limit = padded * setting.patterns / (64 * WORDS * setting.blocks)
        change = best_of["change"] / (PASSES * problem.inputs)
        rejection = best_of["rejections"] / (COLD * setting.covers * problem.inputs)
        chain = setting.slices.sum() / setting.proposals
        read, start, whole = (
            one / setting.proposals
            for one in (setting.read, best_of["start-up"], best_of["anneal"])
        )
        times = [limit, padded, change, rejection, chain, read, whole]
        cells = [f"{1e9 * one:.1f}" for one in times]
        each.append([name, *cells, f"{chain / limit:.1f}", f"{read / limit:.1f}"])
        parts = [start, read - chain - start, rejection, chain - rejection]
        looks = best_of["looks"] / LOOKS * len(SCHEDULE.temperatures())
        flip = (chain - rejection) * setting.proposals / max(setting.accepted, 1)
        shares.append(
            [name, f"{1e3 * setting.read:.1f}", *(f"{one / read:.0%}" for one in parts),
             f"{setting.accepted / setting.proposals:.1%}", f"{1e9 * flip:.0f}",
             f"{1e3 * (whole - read) * setting.proposals:.1f}",
             f"{looks / setting.slices.sum():.1%}"]
        )  # fmt: skip
    blocks = math.ceil(len(problem.patterns) / 512)
    rows(
        f"ns a proposal, N={given.n} P={len(problem.patterns)} ({blocks} blocks) M={given.covers}, "
        f"{len(SCHEDULE.temperatures())} sweeps, one core",
        ["", "limit", "padded", "change", "rejection", "chain", "read", "anneal()",
         "chain/limit", "read/limit"],
        each,
    )  # fmt: skip
    rows(
        "shares of a read, and what anneal() does outside of it",
        ["", "ms a read", "start-up", "Python", "rejections", "flips", "accepted", "ns a flip",
         "ms outside", "looks"],
        shares,
    )  # fmt: skip
    print("flips: what the chain takes beyond as many rejections; Python: slices and records")
    print("looks: what stop_at_zero adds to the chain, one look for a solution a sweep")


if __name__ == "__main__":
    main()
