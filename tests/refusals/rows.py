"""Calls that are refused, in rows: a name, the call, and text of the message (… is any text)."""

import re
from collections.abc import Callable, Sequence

import pytest

from mcover import McoverError

Row = tuple[str, Callable[[], object], str]


def every_row(**subjects: Sequence[Row]) -> pytest.MarkDecorator:
    """Parametrizes a test with ``call`` and ``text``; its ids are "subject: name"."""
    rows = {}
    for subject, own in subjects.items():
        for name, call, text in own:
            assert f"{subject}: {name}" not in rows, "two rows have one name"
            rows[f"{subject}: {name}"] = call, text
    return pytest.mark.parametrize(("call", "text"), rows.values(), ids=rows)


def check_refusal(call: Callable[[], object], text: str) -> None:
    """The call raises McoverError, and its message contains the text."""
    pattern = ".*".join(map(re.escape, text.split("…")))
    with pytest.raises(McoverError, match=re.compile(pattern, re.DOTALL)):
        call()
