"""How to install the packages that an optional part of mcover needs.

mcover is on no package index, so every message that names an extra takes its words from here.
"""


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install -c constraints.txt '.[{extra}]' in a clone of mcover (docs/install.md)"


def missing(user: str, package: str | None, extra: str) -> ModuleNotFoundError:
    """The error of a part of mcover whose package is not installed.

    Args:
        user: what needs the package, e.g. ``mcover.optuna``.
        package: the missing package, by the name under which it is imported.
        extra: the extra of mcover that installs it.
    """
    message = f"{user} needs {package}, which is not installed; run {install(extra)}"
    return ModuleNotFoundError(message, name=package)
