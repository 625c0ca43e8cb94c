"""Processes that tests send Ctrl-C to."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def interruptible(
    arguments: list[str], folder: Path, group: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A process that hears Ctrl-C even where the tests themselves were started without it.

    Shells start background jobs with the interrupt ignored, and children inherit that. Whatever
    happens, the process does not outlive two minutes.
    """
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        start_new_session=group,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    limit = threading.Timer(120, process.kill)
    limit.start()
    try:
        with process:
            yield process
    finally:
        limit.cancel()
