"""Histories on disk: JSON lines always, TensorBoard events where they are asked for."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mcover import checks
from mcover.errors import McoverError
from mcover.files import write_atomic


def check_tensorboard(asked: Any) -> bool:
    """Whether TensorBoard events are asked for; refused where it is not installed."""
    if checks.check_bool("tensorboard", asked) and find_spec("tensorboard") is None:
        raise McoverError(
            "tensorboard is True and TensorBoard is not installed; write "
            "pip install 'mcover[tensorboard]'."
        )
    return bool(asked)


class HistoryLog:
    """A history, row by row, each on disk before the next one is made.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> HistoryLog(path).write(10, {"loss": 0.5, "errors": [0.25, math.nan]})
    >>> print(path.read_text(), end="")
    {"step": 10, "loss": 0.5, "errors": [0.25, null]}

    Args:
        path: of the file, one JSON object a line. JSON has no number that is not finite: it is
            written as null.
        tensorboard: whether a folder beside, named like the file without its ending, gets
            TensorBoard events of the same numbers.
        after: rows of an earlier run up to this step are kept, for a run that goes on from there.
    """

    def __init__(self, path: str | Path, tensorboard: bool = False, *, after: int = 0) -> None:
        tensorboard = check_tensorboard(tensorboard)
        self.path = checks.check_writable(path)
        kept = [line for line in _lines(self.path, after) if _step(line, self.path) <= after]
        write_atomic(self.path, "".join(kept).encode())
        self._events: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            folder, purge = self.path.with_suffix(""), after + 1 if after else None
            self._events = SummaryWriter(os.fspath(folder), purge_step=purge)

    def write(self, step: int, row: Mapping[str, Any]) -> None:
        """Adds a row of numbers and lists of numbers; None is left out.

        A row that cannot be written is no reason to end a training: it is said, and left out.
        """
        given = {name: _listed(value) for name, value in row.items() if value is not None}
        line = json.dumps({"step": step} | {name: _finite(of) for name, of in given.items()})
        try:
            with self.path.open("a") as file:
                file.write(line + "\n")
        except OSError as error:
            logging.getLogger("mcover").warning("cannot write to %s: %s", self.path, error)
        if self._events is not None:
            for name, value in given.items():
                for tag, number in _curves(name, value):
                    self._events.add_scalar(tag, number, step)
            self._events.flush()

    def close(self) -> None:
        if self._events is not None:
            self._events.close()


def _lines(path: Path, after: int) -> list[str]:
    return path.read_text().splitlines(keepends=True) if after and path.exists() else []


def _step(line: str, path: Path) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise McoverError(f"{path} is no history of an earlier run; write another path.") from error


def _listed(value: Any) -> Any:
    """Numbers and lists of NumPy's and torch's values."""
    return value.tolist() if hasattr(value, "tolist") else value


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return value if math.isfinite(value) else None


def _curves(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """What TensorBoard shows: a curve for a number, one for each entry of a list."""
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield from _curves(f"{name}/{index}", one)
    else:
        yield name, value
