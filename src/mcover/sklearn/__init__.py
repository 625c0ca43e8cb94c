"""Estimators for scikit-learn: annealed ±1 students, and networks trained as M routed copies.

>>> from sklearn.datasets import load_wine
>>> from mcover.sklearn import MCoverPerceptronClassifier
>>> X, y = load_wine(return_X_y=True)
>>> model = MCoverPerceptronClassifier(random_state=0).fit(X[::2], y[::2])
>>> bool(model.score(X[1::2], y[1::2]) > 0.9)
True
"""

from typing import TYPE_CHECKING, Any

from mcover.extras import missing, require

try:
    from sklearn.utils.validation import validate_data  # noqa: F401 (new in 1.6)
except ImportError as error:
    if error.name not in ("sklearn", "sklearn.utils.validation"):
        raise
    raise missing("mcover.sklearn", "scikit-learn 1.6 or newer", "sklearn") from error

from mcover.sklearn.signs import MCoverCommitteeClassifier, MCoverPerceptronClassifier

if TYPE_CHECKING:
    from mcover.sklearn.networks import MCoverMLPClassifier, MCoverMLPRegressor

__all__ = [
    "MCoverCommitteeClassifier",
    "MCoverMLPClassifier",
    "MCoverMLPRegressor",
    "MCoverPerceptronClassifier",
]


def __getattr__(name: str) -> Any:
    """Loads torch with the first use of a network; ±1 students do not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with require(f"mcover.sklearn.{name}", "sklearn", "torch"):
        from mcover.sklearn import networks
    return getattr(networks, name)
