"""A sample of the malformed calls of everything public; ``tests/run_fuzzing.py`` makes them all.

Each raises McoverError at the boundary, or is valid and has a result. No other exceptions come from
our code or a dependency, no invalid value is accepted, and no call hangs.
"""

from __future__ import annotations

import pytest

import fuzzing
import fuzzing_examples as examples

TARGETS = fuzzing.targets()
EVERY = 40


@pytest.fixture(scope="module", autouse=True)
def _one_rank():
    with examples.one_rank():
        yield


def test_everything_public_is_called():
    assert len(TARGETS) >= 120
    assert len(fuzzing.cases(TARGETS)) >= 15_000
    assert sum(len(fuzzing.sample(name, TARGETS, EVERY)) for name in TARGETS) >= 300


@pytest.mark.parametrize("name", TARGETS)
def test_malformed_calls_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fuzzing.check_sample(name, TARGETS, EVERY)
    writes = {"path", "folder"} & set(TARGETS[name].annotations)  # some texts name new files
    assert writes or list(tmp_path.iterdir()) == []
