"""A log message for long operations that show no other progress."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 3.0  # seconds before the message
BRIEF = 10**6  # with fewer elements no timer, and thus no thread, is started


@contextmanager
def announced(what: str, elements: int | None = None) -> Iterator[None]:
    """Logs ``what`` to the logger "mcover" if the block takes longer than :data:`PATIENCE`.

    Nothing is logged if the block handles few ``elements``.
    """
    if elements is not None and elements < BRIEF:
        yield
        return
    # A warning, because Python's default logging shows warnings and hides infos.
    timer = threading.Timer(PATIENCE, logging.getLogger("mcover").warning, ("%s …", what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
