"""Loss and gradient of all virtual machines of a step at once, without autograd.

A lift with S destinations makes V = M·S virtual machines of K·N weights each. They are gathered
into one matrix, multiplied with the batch in one product, go through the surrogate together, and
their errors come back in a second product and along the inverse routes. One machine, or M machines
side by side, are the same with nothing to gather. Equation by equation it is what the general
directed lift computes, which is its oracle.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mcover.committee.kernels import gather, scatter
from mcover.committee.surrogate import surrogates
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
        self._buffers: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self._virtual: dict[int, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def __call__(
        self, x: Tensor, y: Tensor, beta: float, gamma: float, paths: Paths | None = None
    ) -> Tensor:
        """Fills ``gradient``, shape (M, K, N), and returns the loss of each cover, shape (M,).

        Shape:
            x: (B, N) for a batch that all covers see, (M, B, N) for one each; y: (B,) or (M, B),
            ±1.
        """
        _, hidden, inputs = self.stack.shape
        passes = 1 if paths is None else len(paths.chosen)
        weights, errors = self._machines(passes, paths is None)
        if paths is not None:
            gather(_flat(self.stack), paths.routes, paths.chosen, _flat(weights))
        batch = y.shape[-1]
        fields, hyper, output = self._spaces(passes, batch)
        _product(weights, x.mT, fields)

        fields.mul_(beta / math.sqrt(inputs))
        torch.tanh(fields, out=hyper)
        torch.sum(hyper, -2, out=output)
        target = y if y.ndim == 1 else y.unsqueeze(1)
        output.mul_(target).mul_(1 / math.sqrt(hidden))
        loss = surrogates(output, gamma).mean((1, 2))

        # −f'(z) = σ(−2γz); what is left of the chain rule is constant in k but for the slope.
        # Numbers below `tiny` are nothing beside the weights, and very slow to compute with.
        tiny = math.sqrt(torch.finfo(fields.dtype).tiny)
        output.mul_(-2 * gamma).sigmoid_()
        torch.threshold_(output, tiny, 0.0)
        output.mul_(target).mul_(-4 * beta / math.sqrt(inputs * hidden) / (passes * batch))
        fields.abs_().mul_(-2).exp_()  # e, and the slope of tanh is 4e/(1 + e)²
        torch.threshold_(fields, tiny, 0.0)
        torch.add(fields, 1.0, out=hyper)
        fields.div_(hyper.square_()).mul_(output.unsqueeze(-2))

        _product(fields, x, errors)
        if paths is not None:
            scatter(_flat(errors), paths.back, paths.chosen, _flat(self.gradient))
        return loss

    def _machines(self, passes: int, direct: bool) -> tuple[Tensor, Tensor]:
        """Weights of the virtual machines and their gradients, shape (M, S, K, N)."""
        if direct:
            return self.stack.unsqueeze(1), self.gradient.unsqueeze(1)
        if passes not in self._virtual:
            covers, hidden, inputs = self.stack.shape
            shape = (covers, passes, hidden, inputs)
            self._virtual[passes] = self.stack.new_empty(shape), self.stack.new_empty(shape)
        return self._virtual[passes]

    def _spaces(self, passes: int, batch: int) -> tuple[Tensor, ...]:
        """Two of the shape of the fields, (M, S, K, B), and one of that of the outputs."""
        key = passes, batch
        if key not in self._buffers:
            covers, hidden, _ = self.stack.shape
            fields = self.stack.new_empty((covers, passes, hidden, batch))
            output = self.stack.new_empty((covers, passes, batch))
            self._buffers[key] = fields, torch.empty_like(fields), output
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
