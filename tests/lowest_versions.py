"""Prints the lowest version of each requirement: constraints for pip, used by make test-versions.

python tests/lowest_versions.py sklearn test > constraints-lowest.txt
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def lowest(extras: list[str]) -> dict[str, str]:
    """The lower bound of each package that the library, some extras and the reproduction need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    waiting = list(project["dependencies"])
    waiting += (ROOT / "reproduction" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    for extra in extras:
        waiting += optional[extra]
    bounds = {}
    for requirement in waiting:  # grows while it is read
        if own := re.match(r"mcover\[(.*)\]", requirement):
            waiting += [line for extra in own[1].split(",") for line in optional[extra]]
        elif found := re.match(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", requirement):
            bounds[found[1]] = found[2]
    return bounds


if __name__ == "__main__":
    sys.stdout.write("".join(f"{name}=={bound}\n" for name, bound in lowest(sys.argv[1:]).items()))
