"""Ctrl-C, or a stopping function, ends a run with the results so far."""

import signal
import sys
import time

import numpy as np

from interrupting import interruptible
from mcover import FactorGraph, LinearSchedule, anneal, solve, teacher_student
from problems_under_test import random_labels

HARD = random_labels(150, 51)
RING = FactorGraph([(lambda a, b: -a * b, (i, (i + 1) % 8)) for i in range(8)])
LONG = LinearSchedule(2.0, 0.2, 1e-6)


def test_annealing_returns_the_reads_that_were_begun():
    problem = teacher_student(501, 1.5, seed=0)
    begin = time.monotonic()

    def stop():
        return time.monotonic() > begin + 1

    result = anneal(problem, num_sweeps=10**6, num_reads=8, seed=0, workers=2, interrupt=stop)
    assert result.interrupted
    assert not result.finished.any()
    assert 1 <= len(result.energy) <= 3
    assert np.all(result.sweeps > 0)
    assert np.all(np.abs(result.weights) == 1)
    assert time.monotonic() - begin < 30


def test_a_graph_returns_what_was_reached():
    anneal(RING, num_sweeps=2, seed=0)  # compiles, which may take longer than two polls
    seen, stop = [], iter([False, True]).__next__
    result = anneal(RING, schedule=LONG, seed=0, interrupt=stop, progress=seen.append)
    assert result.interrupted
    assert not result.finished.any()
    assert 0 < result.sweeps[0] < 1_800_000
    assert str(seen[-1]).startswith("T ")


def test_solve_returns_the_best_so_far():
    calls = []
    found = solve(HARD, seed=0, interrupt=lambda: calls.append(1) or len(calls) > 3)
    assert found.interrupted
    assert "interrupted" in repr(found)
    assert found.errors == HARD.training_errors(found.weights)


GRAPH = """
import mcover
told = []
def tell(at):
    if not told and at.share:
        told.append(True)  # before the print: Ctrl-C may arrive while it returns
        print("running", flush=True)
ring = mcover.FactorGraph([(lambda a, b: -a * b, (i, (i + 1) % 8)) for i in range(8)])
mcover.anneal(ring, num_sweeps=2, seed=0)  # compiles
long = mcover.LinearSchedule(2.0, 0.2, 1e-6)
assert mcover.anneal(ring, schedule=long, seed=0, progress=tell).interrupted
print("ended", flush=True)
"""


def test_ctrl_c_returns_what_was_reached(tmp_path):
    """Of a graph: ``test_cli.py`` interrupts problems and searches."""
    with interruptible([sys.executable, "-c", GRAPH], tmp_path) as process:
        assert process.stdout.readline().strip() == "running"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().strip() == "ended"
    assert process.returncode == 0
