"""Loss and gradient of all virtual committee machines of a step at once, without autograd.

The M·S virtual machines of a lift with S destinations are gathered into one matrix and multiplied
with the batch in one product. The surrogate replaces fields by their derivatives in place. A second
product gives the gradients of the virtual weights, which are summed along the inverse routes.
Machines without routes need no gather. The test oracle is autograd through the general directed
lift.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mcover import McoverError
from mcover.permutations import Routes

# Allows reordered sums and fused multiply-adds; infinities and NaN keep their meaning.
_SAFE = {"contract", "reassoc"}


class Paths(NamedTuple):
    """Routes and their inverses in the kernels' layout (M, S, K·N), and the destinations used."""

    routes: Routes
    back: Routes
    chosen: NDArray[np.int64]


def paths(routes: NDArray[Any], weights: int) -> Paths | None:
    """Routes of shape (S, sources, M), transposed and repeated to one route per weight.

    None if all routes are the identity. The kernels use routes as indices without bounds checks, so
    this function raises for anything but permutations.
    """
    size, sources, covers = routes.shape
    identity = np.arange(covers)
    if weights % sources or np.any(np.sort(routes, axis=-1) != identity):
        raise McoverError(
            f"routes of shape {routes.shape} are not permutations for {weights} weights; lift the "
            "model again."
        )
    if np.array_equal(routes, np.broadcast_to(identity, routes.shape)):
        return None
    wide = np.repeat(routes, weights // sources, axis=1)
    inverse = np.argsort(wide, axis=-1).astype(wide.dtype)
    first = [np.ascontiguousarray(one.transpose(2, 0, 1)) for one in (wide, inverse)]
    return Paths(first[0], first[1], np.arange(size))


class FusedGradient:
    """The gradient of mean f_γ, summed over covers and averaged over destinations and batch.

    Buffers are reused: ``gradient`` is valid until the next call.

    Args:
        weights: shape (M, K, N), or (K, N) of one machine; read at every call.
    """

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.gradient = torch.zeros_like(self.stack)
        self._buffers: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    @property
    def stack(self) -> Tensor:
        """The current weights, shape (M, K, N)."""
        return self.weights.detach().view(-1, *self.weights.shape[-2:])

    @torch.no_grad()
    def __call__(
        self, x: Tensor, y: Tensor, beta: float, gamma: float, paths: Paths | None = None
    ) -> Tensor:
        """Fills ``gradient``, shape (M, K, N), and returns the loss of each cover, shape (M,).

        The surrogate is computed in double precision for every dtype of the weights.

        Shape:
            x: (B, N) for a batch shared by all covers, (M, B, N) for one each; y: (B,) or (M, B),
            ±1.
        """
        stack = self.stack
        covers, hidden, inputs = stack.shape
        batch, passes = y.shape[-1], 1
        weights, errors = stack.unsqueeze(1), self.gradient.unsqueeze(1)
        if paths is not None:
            size, passes = paths.routes.shape[1], len(paths.chosen)
            fits = paths.routes.shape == paths.back.shape == (covers, size, hidden * inputs)
            if not fits or not np.all((paths.chosen >= 0) & (paths.chosen < size)):
                raise McoverError("the routes do not belong to this model; lift it again.")
            weights = self._buffer("weights", covers, passes, hidden, inputs)
            errors = self._buffer("errors", covers, passes, hidden, inputs)
            gather(_flat(stack), paths.routes, paths.chosen, _flat(weights))
        fields, votes = self._buffer("fields", covers, passes, hidden, batch), np.empty(batch)
        _product(weights, x.mT, fields)
        loss = np.empty(covers)
        target = y.reshape(-1, batch).contiguous().numpy()
        surrogate_errors(fields.numpy(), target, beta, gamma, inputs, passes, loss, votes)
        _product(fields, x, errors)
        if paths is not None:
            scatter(_flat(errors), paths.back, paths.chosen, _flat(self.gradient))
        return torch.from_numpy(loss)

    def rescale_rows(self) -> None:
        """Scales all rows of the weights to norm √N, in place."""
        scale_rows(self.weights.detach().view(-1, self.weights.shape[-1]).numpy())

    def _buffer(self, name: str, *shape: int) -> Tensor:
        if (name, shape) not in self._buffers:
            self._buffers[name, shape] = self.gradient.new_empty(shape)
        return self._buffers[name, shape]


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """(M, S, K, i) times (i, j), or times (M, i, j) for each cover, to (M, S, K, j)."""
    if right.ndim == 2:
        torch.mm(left.view(-1, left.shape[-1]), right, out=out.view(-1, out.shape[-1]))
    else:
        torch.bmm(left.flatten(1, 2), right, out=out.flatten(1, 2))


def _flat(tensor: Tensor) -> NDArray[np.floating]:
    """A view as an array, with K and N merged into one axis."""
    return cast(NDArray[np.floating], tensor.flatten(-2).numpy())


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def gather(stack: Any, routes: Any, chosen: Any, out: Any) -> None:
    """out[α, j, q] = stack[routes[α, s, q], q] with s = chosen[j].

    Shape: stack (M, Q), routes (M, S, Q), chosen (J,), out (M, J, Q).
    """
    for alpha in range(len(out)):
        for j in range(len(chosen)):
            read, row = routes[alpha, chosen[j]], out[alpha, j]
            for q in range(len(row)):
                row[q] = stack[read[q], q]


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def scatter(errors: Any, back: Any, chosen: Any, out: Any) -> None:
    """out[β, q] = Σ_j errors[back[β, s, q], j, q] with s = chosen[j]: the gradient of copy β.

    Shape: errors (M, J, Q), back (M, S, Q), chosen (J,), out (M, Q).
    """
    for beta in range(len(out)):
        row = out[beta]
        row[:] = 0
        for j in range(len(chosen)):
            reader = back[beta, chosen[j]]
            for q in range(len(row)):
                row[q] += errors[reader[q], j, q]


@numba.njit(cache=True, error_model="numpy", fastmath=_SAFE)  # type: ignore[untyped-decorator]
def surrogate_errors(
    fields: Any, target: Any, beta: float, gamma: float, inputs: int, passes: int, loss: Any,
    votes: Any,
) -> None:  # fmt: skip
    """Replaces fields F by ∂loss/∂F in place, and sums the loss of each cover.

    Slopes below 1e-19 are set to 0: they would not change a weight in the sum, and arithmetic on
    subnormal numbers is slow.

    Shape: fields (M, S, K, B), target (1 or M, B), loss (M,), votes (B,) is workspace.
    """
    covers, _, hidden, batch = fields.shape
    scale = beta / math.sqrt(inputs)
    share = 1 / math.sqrt(hidden)
    tiny = 1e-19
    for alpha in range(covers):
        y = target[alpha if len(target) > 1 else 0]
        total = 0.0
        for s in range(passes):
            votes[:] = 0.0
            for k in range(hidden):
                row = fields[alpha, s, k]
                for b in range(batch):
                    a = scale * row[b]
                    e = math.exp(-2 * abs(a))
                    soft = (1 - e) / (1 + e)
                    votes[b] += soft if a >= 0 else -soft
                    row[b] = 4 * e / ((1 + e) * (1 + e)) if e > tiny else 0.0
            for b in range(batch):
                # f_γ(z) = log(1 + exp(u)) / (2γ) with u = −2γz, and −f' is the sigmoid of u.
                u = -2 * gamma * share * y[b] * votes[b]
                e = math.exp(-abs(u))
                total += (u if u > 0 else 0.0) + math.log1p(e)
                sigmoid = (1.0 if u >= 0 else e) / (1 + e)
                votes[b] = -sigmoid * y[b] * share * scale / (passes * batch)
            for k in range(hidden):
                row = fields[alpha, s, k]
                for b in range(batch):
                    error = row[b] * votes[b]
                    row[b] = error if abs(error) > tiny * tiny else 0.0
        loss[alpha] = total / (2 * gamma * passes * batch)


@numba.njit(cache=True, fastmath=_SAFE)  # type: ignore[untyped-decorator]
def scale_rows(rows: Any) -> None:
    """Scales rows to norm √N in place; a row of zeros is kept. Shape: (rows, N)."""
    for k in range(len(rows)):
        row = rows[k]
        total = 0.0
        for q in range(len(row)):
            total += float(row[q]) * float(row[q])
        if total > 0:
            factor = math.sqrt(len(row) / total)
            for q in range(len(row)):
                row[q] *= factor
