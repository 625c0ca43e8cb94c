"""Multilayer perceptrons trained as M routed copies; fitted, they are one network of plain size.

The parameters that scikit-learn's MLPClassifier has too mean the same here. Training is AdamW on
:func:`mcover.cover_loss` of a :func:`mcover.lift`, in the precision of X. Features are taken as
they are: put a scaler in front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from mcover import GaussianRing, McoverError, checks, cover_loss, lift
from mcover.nn import Covered
from mcover.sklearn.batched import BatchedCovers, few_threads
from mcover.sklearn.callbacks import CallbackSupportMixin, with_callbacks
from mcover.sklearn.validation import class_weights, random_state, reading
from mcover.topology import Topology

_FLOATS = (np.float64, np.float32)
_ACTIVATIONS = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "logistic": nn.Sigmoid,
    "identity": nn.Identity,
}


class _Network(CallbackSupportMixin, BaseEstimator):
    """What both have in common: layers, the lift, and the training loop."""

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] | int = (100,),
        *,
        activation: str = "relu",
        covers: int = 4,
        sigma: float = math.inf,
        topology: Topology | None = None,
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
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.covers = covers
        self.sigma = sigma
        self.topology = topology
        self.routing = routing
        self.noise = noise
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.random_state = random_state

    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Any:
        """Trains from fresh weights.

        Args:
            X: features, shape (samples, features).
            y: classes (samples,); or values, (samples,) or (samples, outputs).
            sample_weight: weights of the samples in the loss, shape (samples,).
        """
        epochs = checks.check_int("max_iter", self.max_iter, 1)
        patience = checks.check_int("n_iter_no_change", self.n_iter_no_change, 1)
        tol = checks.check_float("tol", self.tol, 0)
        checks.check_float("validation_fraction", self.validation_fraction, above=0, below=1)
        X, y, weight = self._checked(X, y, sample_weight, reset=True)
        X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
        metadata = None if sample_weight is None else {"sample_weight": weight}
        about = {"estimator": self, "X": X, "y": y, "metadata": metadata}
        context = self._init_callback_context(max_subtasks=epochs)
        context.call_on_fit_task_begin(**about)

        target, held = self._first_targets(y), None
        parts = [X, target, weight * self._class_weights(y)]
        if checks.check_bool("early_stopping", self.early_stopping):
            split = self._split(*parts)
            parts, held = split[::2], split[1::2]
        self._begin(parts[0])
        best, since = -math.inf, 0
        for _ in range(epochs):
            task = context.subcontext(task_name="epoch")
            task.call_on_fit_task_begin(**about)
            self._epoch(*parts)
            if held is not None:
                net = self._collapse()
                score = self._score(net, *held)
                self.history_["validation_score"].append(score)
                since = 0 if score > best + tol else since + 1
                if not score <= best:  # also where it is no number
                    best, self.collapsed_ = score, net
            stop = task.call_on_fit_task_end(
                **about, reconstruction_attributes=lambda: {"collapsed_": self._collapse()}
            )
            if stop or since >= patience:
                break
        if held is None:
            self.collapsed_ = self._collapse()
        context.call_on_fit_task_end(**about, reconstruction_attributes={})
        return self

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Any:
        """One epoch more, on these samples."""
        if self.early_stopping:
            raise McoverError("partial_fit holds no samples back; write early_stopping=False.")
        first = not hasattr(self, "covers_")
        X, y, weight = self._checked(X, y, sample_weight, reset=first)
        target = self._first_targets(y, classes) if first else self._more_targets(y, classes)
        weight = weight * self._class_weights(y)
        if not weight.sum() > 0:
            raise McoverError("all samples have weight 0; give some that count.")
        if first:
            self._begin(X)
        self._epoch(X, target, weight)
        self.collapsed_ = self._collapse()
        return self

    def _begin(self, X: NDArray[Any]) -> None:
        """Fresh weights, covers, optimizer and history."""
        random = random_state(self.random_state)
        weights_seed, lift_seed, order_seed = random.randint(2**31, size=3).tolist()
        kinds = int, np.integer, Sequence, np.ndarray
        checks.check_instance("hidden_layer_sizes", self.hidden_layer_sizes, kinds, "e.g. (100,)")
        given = np.atleast_1d(checks.as_array("hidden_layer_sizes", self.hidden_layer_sizes))
        sizes = [checks.check_int("hidden_layer_sizes", size, 1) for size in given.tolist()]
        activation = checks.check_choice("activation", self.activation, tuple(_ACTIVATIONS))
        batch = checks.check_int("batch_size", self.batch_size, 1)
        lr = checks.check_float("learning_rate_init", self.learning_rate_init, above=0)
        decay = checks.check_float("alpha", self.alpha, 0)
        sizes = [X.shape[1], *sizes, self._outputs]
        # Weights, their gradients and AdamW's two moments, for each cover.
        count = sum(outputs * (inputs + 1) for inputs, outputs in pairwise(sizes))
        needed = 4 * count * X.dtype.itemsize * checks.check_int("covers", self.covers, 1)
        checks.check_memory(needed, f"layers of {sizes} units", "write smaller hidden_layer_sizes")
        net = _layers(sizes, _ACTIVATIONS[activation], X.dtype, weights_seed)
        topology = GaussianRing(self.sigma) if self.topology is None else self.topology
        how: dict[str, Any] = {"topology": topology, "routing": self.routing, "noise": self.noise}
        self.covers_ = lift(net, self.covers, **how, seed=lift_seed)
        kind = BatchedCovers if BatchedCovers.fits(self.covers_) else _OneByOne
        self._trainer = kind(self.covers_, _ACTIVATIONS[activation](), self._losses, lr, decay)
        self._work = self.covers_.covers * batch * sum(value.numel() for value in net.parameters())
        self._order, self._dtype = np.random.default_rng(order_seed), X.dtype
        self.history_: dict[str, list[float]] = {"loss": []}
        if self.early_stopping:
            self.history_["validation_score"] = []
        self.n_iter_ = 0

    def _epoch(self, X: NDArray[Any], target: NDArray[Any], weight: NDArray[Any]) -> None:
        """One pass over the samples, in a fresh order."""
        order = self._order.permutation(len(X))
        # Weights of mean one, so that the size of a step does not depend on their unit.
        columns = [X.astype(self._dtype), target, (weight / weight.mean()).astype(self._dtype)]
        batches = [torch.from_numpy(c[order]).split(self.batch_size) for c in columns]
        self.covers_.train()
        total = 0.0
        with few_threads(self._work):
            for x, *wanted in zip(*batches, strict=True):
                total += self._trainer.step(x, *wanted) * len(x)
        self._trainer.write()
        self.n_iter_ += 1
        self.history_["loss"].append(total / (len(X) * self.covers_.covers))
        if not math.isfinite(total):
            raise McoverError(
                f"training diverged in epoch {self.n_iter_}: the loss is {total}. Scale the "
                "features, e.g. with StandardScaler, or write a smaller learning_rate_init."
            )

    def _collapse(self) -> nn.Module:
        return self.covers_.collapse().eval()

    def _run(self, net: nn.Module, X: NDArray[Any]) -> Tensor:
        with torch.no_grad():
            return net(torch.from_numpy(X.astype(self._dtype)))

    def _predicted(self, X: Any) -> Tensor:
        """Outputs of the collapse."""
        check_is_fitted(self)
        with reading(X=X):
            X = validate_data(self, X, dtype=_FLOATS, reset=False)
        return self._run(self.collapsed_, X)

    # What an estimator says about its targets.
    _target_checks: ClassVar[dict[str, Any]]
    _outputs: Any

    def _checked(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> tuple[Any, Any, Any]:
        with reading(X=X, y=y, sample_weight=sample_weight):
            X, y = validate_data(self, X, y, dtype=_FLOATS, reset=reset, **self._target_checks)
            weight = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
        if not np.all(np.isfinite(weight)) or not np.any(weight):
            raise McoverError(
                "sample_weight is not finite, or zero for all samples; write weights."
            )
        return X, y, weight

    def _split(self, *parts: NDArray[Any], stratify: NDArray[Any] | None = None) -> list[Any]:
        share = checks.check_float(
            "validation_fraction", self.validation_fraction, above=0, below=1
        )
        seed = random_state(self.random_state).randint(2**31)
        return train_test_split(*parts, test_size=share, random_state=seed, stratify=stratify)


class MCoverMLPClassifier(ClassifierMixin, _Network):
    """A multilayer perceptron with a softmax, trained as M routed copies.

    Args:
        hidden_layer_sizes: units of each hidden layer.
        activation: "relu", "tanh", "logistic" or "identity".
        covers: copies M; one cover is ordinary training.
        sigma: width of the ring of covers that routes are drawn from; infinite is uniform.
        topology: any topology of mcover, in place of ``sigma``.
        routing: :class:`mcover.Directed`, :class:`mcover.Messages`, or "directed" or "messages" for
            their defaults.
        noise: what separates the covers at the start, as in :func:`mcover.lift`.
        alpha: weight decay of the matrices, as AdamW has it.
        batch_size: samples in a gradient step.
        learning_rate_init: of AdamW.
        max_iter: epochs.
        early_stopping: whether to hold samples back, and to keep the collapse that does best on
            them; training ends once it has not improved for a while.
        validation_fraction: share of the samples that is held back.
        n_iter_no_change: epochs without improvement that end an early-stopped training.
        tol: what counts as improvement.
        class_weight: weights of classes in the loss, as a dict, or "balanced".
        random_state: seed of weights, noise, routes and batches.

    Attributes:
        classes_: the classes, sorted.
        collapsed_: the network, a ``torch.nn.Sequential``.
        covers_: its covers, as :func:`mcover.lift` returns them.
        history_: "loss" of each epoch, per cover and sample; "validation_score" of the collapse,
            where training is stopped early.
        n_iter_: epochs done.
        n_features_in_: number of features; ``feature_names_in_`` their names, where X had some.

    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_wine(return_X_y=True)
    >>> model = MCoverMLPClassifier((16,), max_iter=20, random_state=0).fit(scale(X), y)
    >>> model.predict_proba(scale(X)).shape
    (178, 3)
    """

    _target_checks: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        hidden_layer_sizes: tuple[int, ...] | int = (100,),
        *,
        activation: str = "relu",
        covers: int = 4,
        sigma: float = math.inf,
        topology: Topology | None = None,
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
            sigma=sigma,
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
        """One epoch on these samples; the first call needs all ``classes`` that may come."""
        if classes is None and not hasattr(self, "covers_"):
            raise McoverError(
                "the first call of partial_fit needs classes, all that may come; write "
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

    def _losses(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, reduction="none")

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
        strange = np.setdiff1d(y, self.classes_)
        if strange.size:
            raise McoverError(
                f"y has the classes {strange.tolist()[:5]}, which were not among the classes "
                f"{self.classes_.tolist()}; give them all to the first call of partial_fit."
            )
        return np.searchsorted(self.classes_, y)

    def _split(self, *parts: NDArray[Any], stratify: NDArray[Any] | None = None) -> list[Any]:
        return super()._split(*parts, stratify=parts[1])

    def _score(self, net: nn.Module, X: Any, target: Any, weight: Any) -> float:
        guess = self._run(net, X).argmax(dim=1).numpy()
        return float(accuracy_score(target, guess, sample_weight=weight))


class MCoverMLPRegressor(RegressorMixin, _Network):
    """A multilayer perceptron for one or several values, trained as M routed copies.

    The loss is half the squared error, the mean over outputs. Values are taken as they are: scale
    them, e.g. with :class:`sklearn.compose.TransformedTargetRegressor`, if they are far from unit
    size.

    Args:
        hidden_layer_sizes: and all others as in :class:`MCoverMLPClassifier`, which has the
            attributes too; there are no classes.
    """

    _target_checks: ClassVar[dict[str, Any]] = {"multi_output": True, "y_numeric": True}

    def partial_fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Any:
        """One epoch on these samples."""
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> NDArray[Any]:
        """Values, shape (samples,) or (samples, outputs) as y had it."""
        values = self._predicted(X).numpy()
        return values.reshape(len(values), *self._shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @property
    def _outputs(self) -> int:
        return math.prod(self._shape)

    def _losses(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target.to(output)).square().mean(dim=1) / 2

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


class _OneByOne:
    """Trains covers by their own forwards, as any other module; for lifts that nothing batches."""

    def __init__(
        self, covered: Covered, activation: nn.Module, losses: Any, lr: float, decay: float
    ) -> None:
        self.covered, self.losses = covered, losses
        groups = covered.parameter_groups(lr=lr, weight_decay=decay)
        self.optimizer = torch.optim.AdamW(groups)

    def step(self, x: Tensor, target: Tensor, weight: Tensor) -> float:
        """One step of the optimizer; the loss is summed over covers."""
        loss = cover_loss(self._weighted, self.covered(x), (target, weight))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def write(self) -> None:
        """Nothing: the covered model is what is trained."""

    def _weighted(self, output: Tensor, wanted: tuple[Tensor, Tensor]) -> Tensor:
        target, weight = wanted
        return (self.losses(output, target) * weight).mean()


def _layers(sizes: list[int], activation: type[nn.Module], dtype: Any, seed: int) -> nn.Sequential:
    """Linear layers with torch's own first weights, from a seed of their own."""
    rng = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        kind = {"dtype": getattr(torch, np.dtype(dtype).name)}
        layer = torch.nn.utils.skip_init(nn.Linear, inputs, outputs, **kind)
        for value in layer.parameters():
            nn.init.uniform_(value, -(inputs**-0.5), inputs**-0.5, generator=rng)
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])
