"""Compares three annealers on a ±1 perceptron: how often they find the teacher, and their cost.

TTS99 is the time of restarts until a solution is found with 99 % certainty. It combines the cost of
a read and the fraction of reads that solve. One instance says little about others.
"""

import argparse

import mcover


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1000, help="inputs")
    parser.add_argument("--alpha", type=float, default=1.58, help="patterns per input")
    parser.add_argument("--reads", type=int, default=10, help="runs of each method")
    given = parser.parse_args()
    reads = given.reads
    problem = mcover.teacher_student(given.n, given.alpha, seed=1)
    methods = {
        "vanilla": mcover.Vanilla(),
        "RSA": mcover.RSA(covers=7, coupling=1.0),
        "M-cover": mcover.MCover(covers=7, bank=3, coupling=0.3),
    }
    for name, method in methods.items():
        # The paper's temperatures; by default, anneal chooses a shorter schedule from the data.
        schedule = mcover.annealing.PAPER.schedule
        result = mcover.anneal(problem, method, schedule=schedule, num_reads=reads, seed=0)
        solved = mcover.statistics.fraction(result.solved)
        seconds = mcover.statistics.time_to_solution(result.solved, result.seconds)
        print(f"{name:8s} solved {solved}   TTS99, core seconds: {seconds}")


if __name__ == "__main__":
    main()
