"""One training entry for every model and method: settings, loop, and trials of an experiment.

torch is loaded with the first use of ``fit``, so that settings can be read without it.
"""

from typing import TYPE_CHECKING, Any

from mcover.lab.training.settings import Training

if TYPE_CHECKING:
    from mcover.lab.training.loop import fit

__all__ = ["Training", "fit"]


def __getattr__(name: str) -> Any:
    if name != "fit":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mcover.lab.training.loop import fit

    return fit
