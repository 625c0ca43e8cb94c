"""Import times of mcover, of NumPy alone and of torch, each in a new process."""

import subprocess
import sys

from timing import best_seconds, rows


def seconds(statement: str) -> float:
    """Best of five new interpreters that run ``statement``."""
    return best_seconds(lambda: subprocess.run([sys.executable, "-c", statement], check=True))


def main() -> None:
    names = ["pass", "import numpy", "import torch", "import numpy, torch", "import mcover"]
    measured = {name: seconds(name) for name in names}
    ours = measured["import mcover"]
    rows(
        "start-up, whole process, best of 5",
        ["statement", "seconds", "mcover / this"],
        [[name, f"{s:.3f}", f"{ours / s:.2f}"] for name, s in measured.items()],
    )


if __name__ == "__main__":
    main()
