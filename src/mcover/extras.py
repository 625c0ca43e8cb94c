"""Messages about packages that optional parts of mcover need.

mcover is not on a package index, so all messages take the command to install an extra from here.
"""

from collections.abc import Iterator
from contextlib import contextmanager


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install -c constraints.txt '.[{extra}]' in a clone of mcover (docs/install.md)"


def missing(user: str, package: str | None, extra: str) -> ModuleNotFoundError:
    """The error of a part of mcover whose package is not installed.

    Args:
        user: the part that needs the package, e.g. ``mcover.optuna``.
        package: the missing package, under its import name.
        extra: the extra of mcover that installs it.
    """
    message = f"{user} needs {package}, which is not installed; run {install(extra)}"
    return ModuleNotFoundError(message, name=package)


@contextmanager
def require(user: str, extra: str, *packages: str) -> Iterator[None]:
    """Around imports: where one of these packages is not installed, the error names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise missing(user, error.name, extra) from error
