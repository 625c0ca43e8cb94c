"""Independent random streams from a seed, without global state."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.random import Generator, SeedSequence

from mcover import checks
from mcover.errors import McoverError

Seed: TypeAlias = int | Sequence[int] | SeedSequence | Generator | None


def seed_sequence(seed: Seed) -> SeedSequence:
    """The root of a seed tree.

    The same integer always gives the same tree. A ``Generator`` is advanced and gives a new tree in
    each call. ``None`` uses entropy from the operating system.
    """
    if isinstance(seed, SeedSequence):
        # A new object, so that its children do not depend on earlier children of the given one.
        return SeedSequence(seed.entropy, spawn_key=seed.spawn_key, pool_size=seed.pool_size)
    if isinstance(seed, Generator):
        return SeedSequence([int(word) for word in seed.integers(0, 2**32, size=4)])
    if seed is None:
        return SeedSequence()
    try:
        words: list[Any] = list(seed) if isinstance(seed, Sequence) else [seed]
    except Exception:  # a user's sequence may raise anything
        words = []
    are_integers = all(isinstance(w, int | np.integer) and not isinstance(w, bool) for w in words)
    if not words or isinstance(seed, str | bytes) or not are_integers or min(words) < 0:
        raise McoverError(
            f"seed is {checks.shown(seed)}; write a non-negative integer, a sequence of them, "
            "a SeedSequence, a Generator or None."
        )
    return SeedSequence([int(word) for word in words])


def streams(seed: Seed, count: int) -> list[Generator]:
    """``count`` independent generators from one seed.

    >>> a, b = streams(0, 2)
    >>> bool(a.random() == streams(0, 2)[0].random()), bool(a.random() == b.random())
    (True, False)
    """
    return [np.random.default_rng(child) for child in seed_sequence(seed).spawn(count)]
