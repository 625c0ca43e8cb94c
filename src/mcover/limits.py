"""The memory a single request may take, checked before anything is allocated."""

import os

from mcover.errors import McoverError, TooLargeError

VARIABLE = "MCOVER_MEMORY_LIMIT"
_WITHOUT_SYSCONF = 4 << 30


def memory_limit() -> int:
    """Bytes one request may take: ``$MCOVER_MEMORY_LIMIT``, or half of the physical memory."""
    text = os.environ.get(VARIABLE)
    if text is not None:
        if not text.isdecimal() or int(text) == 0:
            raise McoverError(f"{VARIABLE} is {text!r}; write a positive number of bytes.")
        return int(text)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # systems without sysconf
        return _WITHOUT_SYSCONF


def require_memory(needed: int, what: str, remedy: str) -> None:
    """Refuses a request of ``needed`` bytes that goes past :func:`memory_limit`.

    >>> require_memory(1000, "a bank", "draw fewer destinations")
    """
    limit = memory_limit()
    if needed > limit:
        raise TooLargeError(
            f"{what} would take {_readable(needed)}, more than the limit of {_readable(limit)}: "
            f"{remedy}, or raise the limit with {VARIABLE} (bytes)."
        )


def _readable(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
