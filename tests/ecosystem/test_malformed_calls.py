"""A sample of the malformed calls of the integrations, as ``tests/test_fuzz.py`` has them.

Estimators raise ValueError or TypeError, ours or those of scikit-learn's own checks.
"""

from __future__ import annotations

import pytest

import fuzzing

TARGETS = fuzzing.targets(integrations=True)


@pytest.mark.parametrize("name", TARGETS)
def test_malformed_calls_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fuzzing.check_sample(name, TARGETS, every=60)
    assert list(tmp_path.iterdir()) == []
