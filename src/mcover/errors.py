"""What mcover raises when it is asked for something it cannot do.

Every message says what was wrong, what was seen and what to write instead.
"""


class McoverError(ValueError):
    """Bad input, found at the boundary. It is a ``ValueError``, so ordinary handlers catch it."""


class TooLargeError(McoverError):
    """The request would not fit in memory; raised before anything is allocated."""


class UnreachableError(McoverError):
    """No permutation has positive weight under the given topology."""


class McoverWarning(UserWarning):
    """What was asked for does less than its name says, or may not be what was meant."""
