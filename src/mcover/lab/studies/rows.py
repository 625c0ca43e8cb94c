"""A row: what one trial gave, and where it comes from."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import mcover
from mcover.errors import McoverError
from mcover.lab.studies.cells import Job, Plain, settings_of

Status = Literal["done", "failed"]

_PACKAGES = ("numpy", "scipy", "numba", "torch", "scikit-learn", "pytorch_optimizer")


@dataclass(frozen=True)
class Row:
    """One trial.

    Attributes:
        config: hash of kind and settings.
        seed: number of the trial.
        kind: which function computed it.
        settings: all that decided it but the seed.
        status: "done", or "failed" where the computation refused (a training that diverged).
        outcome: finite numbers by name; empty for a failed trial.
        message: why it failed.
        seconds: wall time of the trial.
        finished: when, UTC.
        origin: versions of mcover, of its sources, of Python and of packages.
    """

    config: str
    seed: int
    kind: str
    settings: Plain = field(hash=False)
    status: Status
    outcome: Mapping[str, float] = field(hash=False)
    message: str
    seconds: float
    finished: str
    origin: Mapping[str, str] = field(hash=False)

    @property
    def key(self) -> tuple[str, int]:
        return self.config, self.seed


def make_row(job: Job, outcome: Mapping[str, float], message: str, seconds: float) -> Row:
    """The row of a job that has just ended here; a message means that it failed."""
    plain = {name: float(value) for name, value in outcome.items()}
    odd = [f"{name} = {value}" for name, value in plain.items() if not math.isfinite(value)]
    if odd and not message:
        message = f"the outcome is not finite: {', '.join(odd)}"
    return Row(
        config=job.config,
        seed=job.seed,
        kind=job.trial.kind,
        settings=settings_of(job.trial),
        status="failed" if message else "done",
        outcome={} if message else plain,
        message=message,
        seconds=round(seconds, 4),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        origin=origin(),
    )


@cache
def origin() -> dict[str, str]:
    """Versions of what computes here; the sources of mcover as a hash, since no git is needed."""
    found = {"mcover": mcover.__version__, "code": _code_version()}
    found["python"] = platform.python_version()
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _code_version() -> str:
    folder = Path(mcover.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def check_seed(seed: int) -> int:
    """Refuses what cannot be the number of a trial."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise McoverError(f"the number of a trial is {seed!r}; write a whole number, 0 or more.")
    return seed
