"""Progress bars, and the functions that a user passes for progress and interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from mcover import checks

S = TypeVar("S")


def check_callbacks(interrupt: Any, progress: Any, status: str) -> None:
    """Refuses what cannot be called; ``status`` names the class that ``progress`` receives."""
    if interrupt is not None:
        checks.check_callable("interrupt", interrupt, "a function that returns a bool, or None")
    if not isinstance(progress, bool):
        checks.check_callable("progress", progress, f"True, False or a function of {status}")


@contextmanager
def reporting(
    progress: bool | Callable[[S], None], form: str, share: Callable[[S], float]
) -> Iterator[Callable[[S], None] | None]:
    """The function to call with each status: the user's, that of a bar of tqdm, or none.

    Args:
        progress: the user's choice.
        form: the text of the bar, with tqdm's fields; ``{desc}`` is the status as text.
        share: the share of the work that is done, 0 to 1.
    """
    if progress is not True:
        yield progress or None
        return
    from tqdm.auto import tqdm

    with tqdm(total=1.0, bar_format=form, desc="starting") as bar:

        def show(status: S) -> None:
            bar.set_description_str(str(status), refresh=False)
            bar.update(share(status) - bar.n)
            bar.refresh()

        yield show
