"""Training of multilayer perceptrons as M routed copies, for both network estimators.

Training is AdamW on :func:`mcover.cover_loss` of a :func:`mcover.lift`, in the precision of X.
Features are not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from mcover import McoverError, checks, cover_loss, lift
from mcover.nn import Covered
from mcover.sklearn.batched import BatchedCovers, Objective, few_threads
from mcover.sklearn.callbacks import CallbackSupportMixin, with_callbacks
from mcover.sklearn.validation import random_state, reading
from mcover.topology import Topology

_FLOATS = (np.float64, np.float32)
_ACTIVATIONS = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "logistic": nn.Sigmoid,
    "identity": nn.Identity,
}


class Network(CallbackSupportMixin, BaseEstimator):
    """The layers, the lift, and the training loop; subclasses define targets, loss and score."""

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
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.covers = covers
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
        """Trains from new weights.

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
                if not score <= best:  # also if the score is not a number
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
        """One more epoch, on these samples."""
        if self.early_stopping:
            raise McoverError("partial_fit holds out no samples; write early_stopping=False.")
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
        """Makes weights, covers, optimizer and history."""
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
        how: dict[str, Any] = {
            "topology": self.topology,
            "routing": self.routing,
            "noise": self.noise,
        }
        self.covers_ = lift(net, self.covers, **how, seed=lift_seed)
        kind = BatchedCovers if BatchedCovers.fits(self.covers_) else _OneByOne
        self._trainer = kind(self.covers_, _ACTIVATIONS[activation](), self._objective, lr, decay)
        self._work = self.covers_.covers * batch * sum(value.numel() for value in net.parameters())
        self._order, self._dtype = np.random.default_rng(order_seed), X.dtype
        self.history_: dict[str, list[float]] = {"loss": []}
        if self.early_stopping:
            self.history_["validation_score"] = []
        self.n_iter_ = 0

    def _epoch(self, X: NDArray[Any], target: NDArray[Any], weight: NDArray[Any]) -> None:
        """One pass over the samples, in a new order."""
        order = self._order.permutation(len(X))
        # Weights are scaled to mean 1, so that the size of a step does not depend on their unit.
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

    # Defined by subclasses.
    _target_checks: ClassVar[dict[str, Any]]
    _outputs: Any
    _objective: Any

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


class _OneByOne:
    """Trains the covers through the covered model, for lifts that :class:`BatchedCovers` lacks."""

    def __init__(
        self, covered: Covered, activation: nn.Module, objective: Objective, lr: float, decay: float
    ) -> None:
        self.covered, self.objective = covered, objective
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
        """Nothing to do: the covered model itself is trained."""

    def _weighted(self, output: Tensor, wanted: tuple[Tensor, Tensor]) -> Tensor:
        target, weight = wanted
        return (self.objective(output, target)[0] * weight).mean()


def _layers(sizes: list[int], activation: type[nn.Module], dtype: Any, seed: int) -> nn.Sequential:
    """Linear layers with torch's default initialisation, from a separate seed."""
    rng = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        kind = {"dtype": getattr(torch, np.dtype(dtype).name)}
        layer = torch.nn.utils.skip_init(nn.Linear, inputs, outputs, **kind)
        for value in layer.parameters():
            nn.init.uniform_(value, -(inputs**-0.5), inputs**-0.5, generator=rng)
        layers += [layer, activation()]
    return nn.Sequential(*layers[:-1])
