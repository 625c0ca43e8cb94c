"""Learn a ±1 perceptron three ways on the same teacher, and see which one finds it."""

import mcover


def main(n: int = 1000, alpha: float = 1.58, reads: int = 10) -> None:
    problem = mcover.teacher_student(n, alpha, seed=1)
    ring = mcover.GaussianRing(sigma=3, shift=2)
    runs = {
        "vanilla": mcover.anneal(problem, "vanilla", num_reads=reads, seed=0),
        "RSA": mcover.anneal(problem, "rsa", covers=3, coupling=1.0, num_reads=reads, seed=0),
        "M-cover": mcover.anneal(problem, covers=3, topology=ring, num_reads=reads, seed=0),
    }
    for name, result in runs.items():
        errors = mcover.statistics.mean(result.generalization_error)
        print(f"{name:8s} solved {result.solved.sum()}/{reads}   generalization error {errors}")


if __name__ == "__main__":
    main()
