"""A sample of the malformed calls of everything public; ``tests/run_fuzzing.py`` makes them all.

Each is refused by McoverError at the boundary, or has a result that was meant: nothing raw comes
from our own code or a dependency, nothing that cannot be meant is accepted, and nothing hangs.
"""

from __future__ import annotations

import warnings
import zlib

import pytest

import fuzzing
import fuzzing_examples as examples

TARGETS = fuzzing.targets()
EVERY = 40  # one call in so many is made here; the calls are the same in every run
WRONG = ("strange", "raw", "foreign", "hanging")


@pytest.fixture(scope="module", autouse=True)
def _one_rank():
    with examples.one_rank():
        yield


def sample(name: str) -> list[tuple[str, str, str]]:
    calls = fuzzing.cases({name: TARGETS[name]})
    return [call for call in calls if zlib.crc32(repr(call).encode()) % EVERY == 0]


def test_everything_public_is_called():
    assert len(TARGETS) >= 120
    assert len(fuzzing.cases(TARGETS)) >= 15_000
    assert sum(len(sample(name)) for name in TARGETS) >= 300


@pytest.mark.parametrize("name", TARGETS)
def test_malformed_calls_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = TARGETS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target.call(**target.given())  # the arguments that the others vary are valid
    ends = {call: fuzzing.run(call, TARGETS) for call in sample(name)}
    wrong = [f"{call}: {end}" for call, end in ends.items() if end.kind in WRONG]
    assert not wrong, "\n".join(wrong)
    writes = {"path", "folder"} & set(target.annotations)  # some texts are names of new files
    assert writes or list(tmp_path.iterdir()) == []
