"""Loss and gradient of all virtual machines of a step at once, without autograd.

A lift with S destinations makes V = M·S virtual machines of K·N weights each. They are gathered
into one matrix, multiplied with the batch in one product, go through the surrogate together, and
their errors come back in a second product and along the inverse routes. One machine, or M machines
side by side, are the same with nothing to gather. Equation by equation it is what the general
directed lift computes, which is its oracle.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mcover.lab.committee.kernels import gather, scale_rows, scatter, surrogate_errors
from mcover.permutations import Routes


class Paths(NamedTuple):
    """Routes as the kernels read them, covers first: (M, S, K·N), and the S that are evaluated."""

    routes: Routes
    back: Routes
    chosen: NDArray[np.int64]


class FusedGradient:
    """The gradient of mean f_γ, summed over covers and averaged over destinations and batch.

    Buffers are kept between calls; what is returned is good until the next one.

    Args:
        stack: the weights, shape (M, K, N); read at every call.
    """

    def __init__(self, stack: Tensor) -> None:
        self.stack = stack.detach()
        self.gradient = torch.zeros_like(self.stack)
        self._buffers: dict[tuple[int, int], tuple[Tensor, NDArray[np.float64]]] = {}
        self._virtual: dict[int, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def __call__(
        self, x: Tensor, y: Tensor, beta: float, gamma: float, paths: Paths | None = None
    ) -> Tensor:
        """Fills ``gradient``, shape (M, K, N), and returns the loss of each cover, shape (M,).

        The surrogate is computed in double precision, whatever the weights are.

        Shape:
            x: (B, N) for a batch that all covers see, (M, B, N) for one each; y: (B,) or (M, B),
            ±1.
        """
        covers, _, inputs = self.stack.shape
        passes = 1 if paths is None else len(paths.chosen)
        weights, errors = self._machines(passes, paths is None)
        if paths is not None:
            gather(_flat(self.stack), paths.routes, paths.chosen, _flat(weights))
        fields, votes = self._spaces(passes, y.shape[-1])
        _product(weights, x.mT, fields)
        loss = np.empty(covers)
        target = y.reshape(-1, y.shape[-1]).contiguous().numpy()
        surrogate_errors(fields.numpy(), target, beta, gamma, inputs, passes, loss, votes)
        _product(fields, x, errors)
        if paths is not None:
            scatter(_flat(errors), paths.back, paths.chosen, _flat(self.gradient))
        return torch.from_numpy(loss)

    def settle(self) -> None:
        """Scales all rows of the weights to norm √N, in place."""
        scale_rows(self.stack.view(-1, self.stack.shape[-1]).numpy())

    def _machines(self, passes: int, direct: bool) -> tuple[Tensor, Tensor]:
        """Weights of the virtual machines and their gradients, shape (M, S, K, N)."""
        if direct:
            return self.stack.unsqueeze(1), self.gradient.unsqueeze(1)
        if passes not in self._virtual:
            covers, hidden, inputs = self.stack.shape
            shape = (covers, passes, hidden, inputs)
            self._virtual[passes] = self.stack.new_empty(shape), self.stack.new_empty(shape)
        return self._virtual[passes]

    def _spaces(self, passes: int, batch: int) -> tuple[Tensor, NDArray[np.float64]]:
        """Room for the fields of all machines, (M, S, K, B), and for the votes of one."""
        key = passes, batch
        if key not in self._buffers:
            covers, hidden, _ = self.stack.shape
            fields = self.stack.new_empty((covers, passes, hidden, batch))
            self._buffers[key] = fields, np.empty(batch)
        return self._buffers[key]


def _product(left: Tensor, right: Tensor, out: Tensor) -> None:
    """(M, S, K, i) times (i, j), or times (M, i, j) cover by cover, to (M, S, K, j)."""
    if right.ndim == 2:
        torch.mm(left.view(-1, left.shape[-1]), right, out=out.view(-1, out.shape[-1]))
    else:
        torch.bmm(left.flatten(1, 2), right, out=out.flatten(1, 2))


def _flat(tensor: Tensor) -> NDArray[np.floating]:
    """The same memory as an array, with K and N as one axis."""
    flat: NDArray[np.floating] = tensor.flatten(-2).numpy()
    return flat
