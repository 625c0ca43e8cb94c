"""A cache of compiled code that is damaged, stale or not writable costs time, not an exception."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from mcover.compiled import njit

@njit()
def twice(x):
    return 2 * x + {constant}

assert twice(21) == 42 + {constant}
print(sum(twice.stats.cache_hits.values()))
"""


def run(folder: Path, constant: int = 0, **variables: str) -> int:
    """Runs the script in a process of its own; how many compilations the cache saved."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(constant=constant))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return int(done.stdout)


def test_compiled_code_is_cached(tmp_path):
    assert [run(tmp_path), run(tmp_path)] == [0, 1]


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [lambda old: old[:-9], lambda old: b"", lambda old: b"x" * 99])
def test_damaged_caches_cost_a_compilation(tmp_path, ending, damage):
    run(tmp_path)
    for path in (tmp_path / "__pycache__").glob(f"*.{ending}"):
        path.write_bytes(damage(path.read_bytes()))
    assert [run(tmp_path), run(tmp_path)] == [0, 1]


def test_a_changed_file_in_the_folder_makes_the_cache_stale(tmp_path):
    run(tmp_path)
    (tmp_path / "other.py").write_text("inlined = 1\n")
    assert run(tmp_path) == 0


def test_a_cache_for_another_cpu_is_not_used(tmp_path):
    run(tmp_path)
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert [run(tmp_path, **other), run(tmp_path, **other), run(tmp_path)] == [0, 1, 1]


def test_without_a_writable_folder_there_is_no_cache(tmp_path):
    (tmp_path / "__pycache__").write_text("not a folder")
    nowhere = str(tmp_path / "__pycache__")
    variables = {"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "PYTHONDONTWRITEBYTECODE": "1"}
    assert [run(tmp_path, **variables), run(tmp_path, **variables)] == [0, 0]
