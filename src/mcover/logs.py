"""Histories on disk: JSON lines always, TensorBoard events where they are asked for."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mcover import checks
from mcover.errors import McoverError
from mcover.files import write_atomic


class HistoryLog:
    """A history, a row at a time, each on disk before the next one is made.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> log = HistoryLog(path)
    >>> log.write(10, {"loss": 0.5, "errors": [0.25, math.nan]})
    >>> print(path.read_text(), end="")
    {"step": 10, "loss": 0.5, "errors": [0.25, null]}

    Args:
        path: of the file, one JSON object a line. A number that is not finite is null, since JSON
            has none.
        tensorboard: folder for TensorBoard events of the same numbers.
        after: rows of an earlier run up to this step are kept, for a run that goes on from there.
    """

    def __init__(
        self, path: str | Path, tensorboard: str | Path | None = None, *, after: int = 0
    ) -> None:
        if tensorboard is not None and find_spec("tensorboard") is None:
            raise ModuleNotFoundError(
                "TensorBoard events need tensorboard, which is not installed; write "
                "pip install 'mcover[tensorboard]'.",
                name="tensorboard",
            )
        self.path = checks.writable(path)
        kept = [line for line in self._lines() if after and _step(line, self.path) <= after]
        write_atomic(self.path, "".join(f"{line}\n" for line in kept).encode())
        self._events: Any = None
        if tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            purge = after + 1 if after else None
            self._events = SummaryWriter(os.fspath(tensorboard), purge_step=purge)

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Adds a row of numbers and lists of numbers; anything that is None is left out."""
        numbers = {name: _plain(value) for name, value in row.items() if value is not None}
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **numbers}, allow_nan=False) + "\n")
        if self._events is not None:
            for name, value in row.items():
                for tag, number in _scalars(name, value):
                    self._events.add_scalar(tag, number, step)
            self._events.flush()

    def close(self) -> None:
        if self._events is not None:
            self._events.close()

    def _lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


def _step(line: str, path: Path) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise McoverError(f"{path} is no history of an earlier run; write another path.") from error


def _plain(value: Any) -> Any:
    """Numbers and lists of them, out of NumPy's and torch's types as well."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _scalars(name: str, value: Any) -> list[tuple[str, float]]:
    """What TensorBoard shows: a curve for a number, one for each entry of a list."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list):
        return [pair for k, one in enumerate(value) for pair in _scalars(f"{name}/{k}", one)]
    return [] if value is None else [(name, value)]
