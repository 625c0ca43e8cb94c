"""Messages about packages that optional parts of mcover need.

mcover is not on a package index, so all messages take the command to install an extra from here.
"""


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
