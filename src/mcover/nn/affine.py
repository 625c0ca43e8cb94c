"""Affine maps whose block messages are mixed: what linear and attention layers share."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mcover.errors import McoverError
from mcover.nn.across import across
from mcover.nn.mixing import mix_common, mix_linear


def routed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, mixer: Tensor | None) -> Tensor:
    """x W^T + b with block messages mixed across covers; b stays in its own cover."""
    if mixer is None:
        return F.linear(x, weight, bias)
    if x.shape[-1:] != weight.shape[-1:]:
        raise McoverError(
            f"a linear layer was given inputs of shape {tuple(x.shape)}: the last axis should have "
            f"{weight.shape[-1]} numbers."
        )
    if x.ndim == 1:
        return routed_linear(x.unsqueeze(0), weight, bias, mixer).squeeze(0)
    x, weight, mixer = autocast(x, weight, mixer)
    bias = None if bias is None else bias.to(weight.dtype)
    y: Tensor = across(_linear_rule, x, weight, mixer, bias)
    return y


def _linear_rule(
    common: tuple[bool, ...], x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None
) -> Tensor:
    if common[0]:
        y = mix_common(x.reshape(-1, x.shape[-1]), weight, mixer, bias)
        return y.unflatten(1, x.shape[:-1])
    y = mix_linear(x.flatten(1, -2), weight, mixer, bias)
    return y.unflatten(1, x.shape[1:-1])


def autocast(x: Tensor, weight: Tensor, mixer: Tensor | None) -> tuple[Tensor, Tensor, Any]:
    """What autocast would do to a matrix product; autograd functions are not seen by it."""
    device = weight.device.type
    if torch.is_autocast_enabled(device):
        to = torch.get_autocast_dtype(device)
        return x.to(to), weight.to(to), None if mixer is None else mixer.to(to)
    return x, weight, mixer
