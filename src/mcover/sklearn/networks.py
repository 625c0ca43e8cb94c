"""Multilayer perceptrons trained as M routed copies; fitted, they are one ordinary network.

Parameters that scikit-learn's MLPClassifier also has mean the same here. Features are not scaled;
use a scaler before the estimator.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F  # noqa: N812
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor, nn

from mcover import McoverError, checks
from mcover.sklearn.training import Network
from mcover.sklearn.validation import class_weights
from mcover.topology import Topology


class MCoverMLPClassifier(ClassifierMixin, Network):
    """A multilayer perceptron with a softmax, trained as M routed copies.

    Args:
        hidden_layer_sizes: units of each hidden layer.
        activation: "relu", "tanh", "logistic" or "identity".
        covers: copies M; one cover is ordinary training.
        topology: the law of the routes, as in :func:`mcover.lift`.
        routing: :class:`mcover.Directed`, :class:`mcover.Messages`, or "directed" or "messages" for
            their defaults.
        noise: the noise that separates the covers at the start, as in :func:`mcover.lift`.
        alpha: weight decay of the matrices, as in AdamW.
        batch_size: samples in a gradient step.
        learning_rate_init: learning rate of AdamW.
        max_iter: number of epochs.
        early_stopping: whether to hold out samples, to keep the collapse with the best score on
            them, and to stop when the score no longer improves.
        validation_fraction: share of the samples that are held out.
        n_iter_no_change: number of epochs without improvement after which training stops early.
        tol: the smallest improvement that counts.
        class_weight: weights of classes in the loss, as a dict, or "balanced".
        random_state: seed of weights, noise, routes and batches.

    Attributes:
        classes_: the classes, sorted.
        collapsed_: the network, a ``torch.nn.Sequential``.
        covers_: the covers, a covered model of :func:`mcover.lift`.
        history_: "loss" of each epoch, per cover and sample; "validation_score" of the collapse,
            with early stopping.
        n_iter_: epochs done.
        n_features_in_: number of features; ``feature_names_in_`` are their names, if X had names.

    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_wine(return_X_y=True)
    >>> model = MCoverMLPClassifier((16,), max_iter=20, random_state=0).fit(scale(X), y)
    >>> model.predict_proba(scale(X)).shape
    (178, 3)
    """

    _target_checks: ClassVar[dict[str, Any]] = {}

    # Repeated here because scikit-learn reads parameters from the signature of each class.
    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] | int = (100,),
        *,
        activation: str = "relu",
        covers: int = 4,
        topology: Topology | str = "uniform",
        routing: Any = "directed",
        noise: float | str = "auto",
        alpha: float = 1e-4,
        batch_size: int = 64,
        learning_rate_init: float = 1e-3,
        max_iter: int = 100,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        tol: float = 1e-4,
        class_weight: dict[Any, float] | str | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            hidden_layer_sizes,
            activation=activation,
            covers=covers,
            topology=topology,
            routing=routing,
            noise=noise,
            alpha=alpha,
            batch_size=batch_size,
            learning_rate_init=learning_rate_init,
            max_iter=max_iter,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            tol=tol,
            random_state=random_state,
        )
        self.class_weight = class_weight

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Any:
        """One epoch on these samples; the first call needs all possible ``classes``."""
        if classes is None and not hasattr(self, "covers_"):
            raise McoverError(
                "the first call of partial_fit needs all possible classes; write "
                "partial_fit(X, y, classes=numpy.unique(all_labels))."
            )
        return self._partial_fit(X, y, sample_weight, classes)

    def predict_log_proba(self, X: Any) -> NDArray[Any]:
        """Logarithms of the probabilities, shape (samples, classes)."""
        return F.log_softmax(self._predicted(X), dim=1).numpy()

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Probabilities of the classes, shape (samples, classes)."""
        return F.softmax(self._predicted(X), dim=1).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each sample."""
        best = self._predicted(X).argmax(dim=1)
        return self.classes_[best.numpy()]

    @property
    def _outputs(self) -> int:
        return len(self.classes_)

    def _objective(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        logs = F.log_softmax(output, dim=1)
        chosen = target.unsqueeze(1)
        errors = logs.exp()
        return -logs.gather(1, chosen).squeeze(1), errors.scatter_add_(
            1, chosen, errors.new_tensor(-1.0).expand_as(chosen)
        )

    def _class_weights(self, y: NDArray[Any]) -> NDArray[np.float64]:
        return class_weights(self.class_weight, y, self.classes_)

    def _first_targets(self, y: NDArray[Any], classes: Any = None) -> NDArray[Any]:
        check_classification_targets(y)
        if classes is not None:
            classes = checks.as_array("classes", classes)
        self.classes_ = np.unique(y if classes is None else classes)
        return self._more_targets(y)

    def _more_targets(self, y: NDArray[Any], classes: Any = None) -> NDArray[Any]:
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise McoverError(f"classes are {classes!r}; the first call said {self.classes_!r}.")
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise McoverError(
                f"y has the classes {unknown.tolist()[:5]}, which were not among the classes "
                f"{self.classes_.tolist()}; give them all to the first call of partial_fit."
            )
        return np.searchsorted(self.classes_, y)

    def _split(self, *parts: NDArray[Any], stratify: NDArray[Any] | None = None) -> list[Any]:
        return super()._split(*parts, stratify=parts[1])

    def _score(self, net: nn.Module, X: Any, target: Any, weight: Any) -> float:
        guess = self._run(net, X).argmax(dim=1).numpy()
        return float(accuracy_score(target, guess, sample_weight=weight))


class MCoverMLPRegressor(RegressorMixin, Network):
    """A multilayer perceptron for one or several values, trained as M routed copies.

    The loss is half the squared error, the mean over outputs. Values are not scaled: if they are
    far from unit size, use e.g. :class:`sklearn.compose.TransformedTargetRegressor`.

    Args:
        hidden_layer_sizes: see :class:`MCoverMLPClassifier`, also for all other parameters and the
            attributes; there are no classes.
    """

    _target_checks: ClassVar[dict[str, Any]] = {"multi_output": True, "y_numeric": True}

    def partial_fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Any:
        """One epoch on these samples."""
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> NDArray[Any]:
        """Values, shape (samples,) or (samples, outputs) like y."""
        values = self._predicted(X).numpy()
        return values.reshape(len(values), *self._shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @property
    def _outputs(self) -> int:
        return math.prod(self._shape)

    def _objective(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        errors = output - target.to(output)
        return errors.square().mean(dim=1) / 2, errors / output.shape[1]

    def _class_weights(self, y: NDArray[Any]) -> NDArray[np.float64]:
        return np.ones(len(y))

    def _first_targets(self, y: NDArray[Any], classes: None = None) -> NDArray[Any]:
        self._shape = y.shape[1:]
        return y.reshape(len(y), -1).astype(np.float64)

    def _more_targets(self, y: NDArray[Any], classes: None = None) -> NDArray[Any]:
        if y.shape[1:] != self._shape:
            raise McoverError(
                f"y has shape {y.shape}; the first call had (samples, *{self._shape})."
            )
        return y.reshape(len(y), -1).astype(np.float64)

    def _score(self, net: nn.Module, X: Any, target: Any, weight: Any) -> float:
        return float(r2_score(target, self._run(net, X).numpy(), sample_weight=weight))
