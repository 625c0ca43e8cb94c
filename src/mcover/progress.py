"""What people see while they wait: one live line, and the consoles it shares with the rest."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)

PATIENCE = 3.0  # seconds that the library works in silence
_PLAIN_SECONDS = 10.0  # between lines where nobody watches a terminal


class Line:
    """A progress line: ``line(share, text)`` moves it."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=1.0) if bar else TaskID(0)
        self._printed = -_PLAIN_SECONDS  # the first line comes at once

    def wait(self, text: str) -> None:
        """Says what is waited for before there is any progress."""
        self(0.0, text)
        self._printed = -_PLAIN_SECONDS

    def __call__(self, share: float, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=share, description=text)
        elif time.monotonic() - self._printed > _PLAIN_SECONDS:
            self._printed = time.monotonic()
            errors.print(f"{share:4.0%}  {text}")


@contextmanager
def live_line() -> Iterator[Line]:
    """A live line on a terminal; elsewhere a plain one at once and every ten seconds; on stderr."""
    if not errors.is_terminal:
        yield Line(None)
        return
    columns = (  # with 52 characters of description, a line of 80
        BarColumn(bar_width=8),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=errors, transient=True) as bar:
        yield Line(bar)


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Says what is going on, by the logger "mcover", if it takes longer than :data:`PATIENCE`."""
    say = logging.getLogger("mcover").warning
    timer = threading.Timer(PATIENCE, say, ("%s …", what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
