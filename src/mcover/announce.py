"""A message while the library works for long without any other sign of progress."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 3.0  # seconds before a message
BRIEF = 10**6  # elements of work that never takes so long; a timer takes a thread


@contextmanager
def announced(what: str, elements: int | None = None) -> Iterator[None]:
    """Logs ``what`` to the logger "mcover" if the block takes longer than :data:`PATIENCE`.

    Nothing is logged where the block handles few ``elements``.
    """
    if elements is not None and elements < BRIEF:
        yield
        return
    # A warning, because without any logging set up Python shows warnings and hides infos.
    timer = threading.Timer(PATIENCE, logging.getLogger("mcover").warning, ("%s …", what))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
