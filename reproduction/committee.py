"""The committee machine: the majority of K hidden signs, and its smooth surrogate.

With fields F_k = J_k·x, output o = K^-½ Σ_k tanh(β F_k/√N) and z = y·o, the loss of a pattern is

    f_γ(z) = log(1 + exp(−2γz)) / (2γ)

which tends to max(0, −z) as γ grows. Values and derivatives stay finite and accurate in single
precision for any β and γ.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mcover import McoverError
from reproduction.checks import check_type
from reproduction.training.options import FAST, SLOW, Sharpening

__all__ = ["FAST", "SLOW", "CommitteeMachine", "Sharpening", "collapse", "machine_of", "surrogate"]


class CommitteeMachine(nn.Module):
    """Classifies by sign Σ_k sign F_k with fields F_k = J_k·x; learns through a smooth surrogate.

    A call returns the soft output. :meth:`classify` returns the hard output, ±1, which does not
    depend on β or on the norms of the rows. Fields of exactly zero and tied votes count as +1; an
    odd K has no ties.

    β and γ are plain attributes that all covers of a lift share and a collapse keeps. They are not
    part of ``state_dict``; the schedule sets them, see :meth:`sharpen`.

    Args:
        inputs: N.
        hidden: K.
        schedule: how β and γ grow.
        seed: draws Gaussian weights, which are scaled to ‖J_k‖ = √N.

    >>> machine = CommitteeMachine(4, hidden=3, seed=0)
    >>> machine(torch.ones(2, 4)).shape, machine.classify(torch.ones(2, 4)).tolist()
    (torch.Size([2]), [1.0, 1.0])
    """

    def __init__(
        self,
        inputs: int,
        hidden: int = 9,
        *,
        schedule: Sharpening = SLOW,
        seed: int | Sequence[int] | np.random.SeedSequence = 0,
    ) -> None:
        super().__init__()
        check_type("schedule", schedule, Sharpening, "Sharpening(beta=0.5, beta_growth=1e-3)")
        self.schedule = schedule
        self.beta, self.gamma = schedule.at(0)
        rng = np.random.default_rng(seed)
        drawn = torch.from_numpy(rng.standard_normal((hidden, inputs)))
        self.J = nn.Parameter(unit_rows(drawn).to(torch.get_default_dtype()))

    def forward(self, x: Tensor) -> Tensor:
        """The soft output o = K^-½ Σ_k tanh(β F_k/√N), (B, ...) with N numbers each to (B,)."""
        hidden, inputs = self.J.shape[-2:]
        soft = SoftSign.apply(self.fields(x) * (self.beta / math.sqrt(inputs)))  # type: ignore[no-untyped-call]
        return cast(Tensor, soft.sum(-1) / math.sqrt(hidden))

    def fields(self, x: Tensor) -> Tensor:
        """F_k, shape (B, ...) to (B, K)."""
        return x.flatten(1) @ self.J.mT

    def classify(self, x: Tensor) -> Tensor:
        """The hard output, ±1, shape (B, ...) to (B,)."""
        return majority(self.fields(x))

    def predict(self, x: Tensor) -> Tensor:
        """The hard output as labels, 0 for −1 and 1 for +1."""
        return (self.classify(x) > 0).long()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean f_γ of soft outputs against ±1 targets: the criterion of this machine.

        For covers write ``mcover.cover_loss(machine_of(covered).loss, covered(x), y)``.
        """
        return surrogate(output, target, self.gamma)

    def sharpen(self, epoch: float) -> None:
        """Sets β and γ to their values in an epoch of the schedule."""
        self.beta, self.gamma = self.schedule.at(epoch)

    @torch.no_grad()
    def rescale_rows(self) -> None:
        """Scales the rows of every cover back to ‖J_k‖ = √N."""
        self.J.copy_(unit_rows(self.J))

    def extra_repr(self) -> str:
        hidden, inputs = self.J.shape[-2:]
        return f"inputs={inputs}, hidden={hidden}, schedule={self.schedule}"


def majority(fields: Tensor) -> Tensor:
    """sign Σ_k sign F_k, where zero counts as +1, shape (..., K) to (...)."""
    return torch.where(2 * (fields >= 0).sum(-1) >= fields.shape[-1], 1.0, -1.0).to(fields.dtype)


def unit_rows(rows: Tensor) -> Tensor:
    """Rows scaled to norm √N, shape (..., N); a row of zeros is unchanged."""
    norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    return rows * (math.sqrt(rows.shape[-1]) / norm.clamp_min(torch.finfo(rows.dtype).tiny))


def machine_of(model: nn.Module) -> CommitteeMachine:
    """The machine, or the machine inside a covered model, which holds β and γ of all covers."""
    machine = getattr(model, "net", model)
    if not isinstance(machine, CommitteeMachine):
        raise McoverError(
            f"a committee machine, or covers of one, was expected; got {type(machine).__name__}."
        )
    return machine


def collapse(model: nn.Module) -> CommitteeMachine:
    """A new machine: the mean of the covers with rows scaled to norm √N."""
    machine = machine_of(model)
    one = copy.deepcopy(machine) if model is machine else machine_of(cast(Any, model).collapse())
    one.rescale_rows()
    return one.eval()


def surrogate(output: Tensor, target: Tensor, gamma: float) -> Tensor:
    """Mean of f_γ(y·o) over the batch; targets are ±1.

    >>> surrogate(torch.tensor([3.0, -3.0]), torch.tensor([1.0, 1.0]), gamma=1e8)
    tensor(1.5000)
    """
    return surrogates(output * target, gamma).mean()


def surrogates(z: Tensor, gamma: float) -> Tensor:
    """f_γ of each z."""
    # Above the threshold log(1 + eˣ) rounds to x in double precision.
    return functional.softplus(z * (-2 * gamma), threshold=40.0) / (2 * gamma)


class SoftSign(torch.autograd.Function):
    """tanh, with a derivative that stays accurate if tanh itself rounds to ±1.

    Torch computes 1 − tanh², which then loses all digits, and β multiplies the remaining error.
    This computes 1/cosh² = 4e/(1 + e)² with e = exp(−2|a|).
    """

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        return torch.tanh(a)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        e = torch.exp(-2 * a.abs())
        return grads[0] * (4 * e / (1 + e) ** 2)
