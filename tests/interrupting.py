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
    """A process that receives Ctrl-C even if the tests themselves ignore it.

    Shells start background jobs with SIGINT ignored, and children inherit that. The process is
    killed after two minutes at the latest.
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
