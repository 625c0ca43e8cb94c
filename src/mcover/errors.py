"""Exceptions and warnings of mcover.

Each message says what was wrong, what was seen and what to write instead.
"""


class McoverError(ValueError):
    """Bad input. It is a ``ValueError``, so that handlers of ``ValueError`` catch it too."""


class TooLargeError(McoverError):
    """The request would not fit in memory; raised before anything is allocated."""


class UnreachableError(McoverError):
    """No permutation has positive weight under the given topology."""


class McoverWarning(UserWarning):
    """A request that has less effect than it seems, or may not be what was meant."""
