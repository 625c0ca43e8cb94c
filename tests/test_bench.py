"""Every benchmark can be started as ``make bench`` starts it."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "bench").glob("*.py"))
IMPORTS = "import runpy, sys; [runpy.run_path(name, run_name='bench') for name in sys.argv[1:]]"


def test_every_benchmark_is_imported_without_errors():
    """In one process: most of the time is the import of torch and scikit-learn."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "bench")])}
    command = [sys.executable, "-c", IMPORTS, *map(str, SCRIPTS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_benchmarks_of_make_exist():
    named = re.findall(r"bench/\w+\.py", (ROOT / "Makefile").read_text())
    assert named
    assert {ROOT / name for name in named} <= set(SCRIPTS)
