"""The smooth stand-ins: tanh for the sign of a hidden unit, f_γ for the count of errors.

With fields F_k = J_k·x, output o = K^-½ Σ_k tanh(β F_k/√N) and z = y·o, the loss of a pattern is

    f_γ(z) = log(1 + exp(−2γz)) / (2γ)

which tends to max(0, −z) as γ grows. Both are written so that values and derivatives stay finite
and right in single precision however large β and γ are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# Above it log(1 + eˣ) is x to the last bit of a double.
_LINEAR = 40.0


def surrogate(output: Tensor, target: Tensor, gamma: float) -> Tensor:
    """Mean of f_γ(y·o) over the batch.

    Shape: output and target (...), the target ±1; the result is a scalar.

    >>> surrogate(torch.tensor([3.0, -3.0]), torch.tensor([1.0, 1.0]), gamma=1e8)
    tensor(1.5000)
    """
    return surrogates(output * target, gamma).mean()


def surrogates(z: Tensor, gamma: float) -> Tensor:
    """f_γ of each z."""
    return functional.softplus(z * (-2 * gamma), threshold=_LINEAR) / (2 * gamma)


def soft_sign(a: Tensor) -> Tensor:
    """tanh, with a derivative that is right where tanh itself has rounded to ±1.

    Torch has 1 − tanh², which loses all digits there, and β multiplies what is left.
    """
    return _SoftSign.apply(a)  # type: ignore[no-untyped-call]


def slope(a: Tensor) -> Tensor:
    """The derivative of tanh, 1/cosh² = 4e/(1 + e)² with e = exp(−2|a|)."""
    e = torch.exp(-2 * a.abs())
    return 4 * e / (1 + e) ** 2


class _SoftSign(torch.autograd.Function):
    generate_vmap_rule = True  # covers run under vmap

    @staticmethod
    def forward(a: Tensor) -> Tensor:
        return torch.tanh(a)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return grads[0] * slope(a)
