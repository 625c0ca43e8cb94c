"""A cache of compiled code that is damaged, stale or not writable costs time, not an exception."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from mcover.compiled import njit

functions = []
for number in range({count}):
    scope = {{"__name__": __name__}}
    source = f"def add_{{number}}(x):\\n    return x + {{number}}\\n"
    exec(compile(source, __file__, "exec"), scope)
    functions.append(njit()(scope[f"add_{{number}}"]))
assert [function(1) for function in functions] == list(range(1, {count} + 1))
print(*[sum(function.stats.cache_hits.values()) for function in functions])
"""


def run(folder: Path, count: int = 1, **variables: str) -> list[int]:
    """Runs functions that differ in a constant; how many of each the cache saved, 0 or 1."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(count=count))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=os.environ | variables,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [int(hits) for hits in done.stdout.split()]


def test_compiled_code_is_cached(tmp_path):
    assert [run(tmp_path), run(tmp_path)] == [[0], [1]]


def flipped(content: bytes, share: float) -> bytes:
    at = int(share * (len(content) - 1))
    return content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_no_damaged_machine_code_is_run(tmp_path, ending):
    """It would crash the process or compute something else; it is compiled again."""
    damages = [lambda old, share=k / 8: flipped(old, share) for k in range(9)]
    damages += [lambda old: old[:-9], lambda old: b"", lambda old: b"x" * 99]
    count = len(damages) + 2
    run(tmp_path, count)
    files = [
        next((tmp_path / "__pycache__").glob(f"script.add_{number}-*.{ending}"))
        for number in range(count)
    ]
    contents = [file.read_bytes() for file in files]
    for file, content, damage in zip(files, contents, damages, strict=False):
        file.write_bytes(damage(content))
    files[-1].write_bytes(contents[-2])  # each under the name of the other
    files[-2].write_bytes(contents[-1])
    assert run(tmp_path, count) == [0] * count
    assert run(tmp_path, count) == [1] * count


def test_a_changed_file_in_the_folder_makes_the_cache_stale(tmp_path):
    run(tmp_path)
    (tmp_path / "other.py").write_text("inlined = 1\n")
    assert run(tmp_path) == [0]


def test_a_cache_for_another_cpu_is_not_used(tmp_path):
    run(tmp_path)
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert [run(tmp_path, **other), run(tmp_path, **other), run(tmp_path)] == [[0], [1], [1]]


def test_without_a_writable_folder_there_is_no_cache(tmp_path):
    (tmp_path / "__pycache__").write_text("not a folder")
    nowhere = str(tmp_path / "__pycache__")
    variables = {"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "PYTHONDONTWRITEBYTECODE": "1"}
    assert [run(tmp_path, **variables), run(tmp_path, **variables)] == [[0], [0]]
