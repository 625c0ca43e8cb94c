"""``F.multi_head_attention_forward`` with its four projections mixed across covers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def attention(
    site: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """The projections meet; what lies between them is a cover's own.

    Shape: query (L, N, E), key and value (T, N, ...), or without N; as in torch.
    """
    if static_k is not None or static_v is not None:
        return NotImplemented
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    single = query.ndim == 2
    given = [t.unsqueeze(1) if single else t for t in (query, key, value)]
    if use_separate_proj_weight:
        weights: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
    elif in_proj_weight is not None:
        weights = in_proj_weight.chunk(3)
    biases: Any = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (
        site.linear(t, weight, bias, part).unflatten(-1, (num_heads, -1)).permute(1, 2, 0, 3)
        for t, weight, bias, part in zip(given, weights, biases, "qkv", strict=True)
    )
    mask = _mask(attn_mask, key_padding_mask, q, num_heads)
    dropout = dropout_p if training else 0.0
    scores = None
    if need_weights:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        scores = torch.softmax(scores if mask is None else scores + mask, -1)
        scores = F.dropout(scores, dropout, training)
        heads = scores @ v
        scores = scores.mean(1) if average_attn_weights else scores
        scores = scores.squeeze(0) if single else scores
    else:
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    joined = heads.permute(2, 0, 1, 3).flatten(-2)
    y = site.linear(joined, out_proj_weight, out_proj_bias, "out")
    return (y.squeeze(1) if single else y), scores


def _mask(mask: Tensor | None, padding: Tensor | None, like: Tensor, heads: int) -> Tensor | None:
    """Both masks as one additive mask that broadcasts to scores (N, heads, L, T)."""
    mask, padding = (_additive(m, like) for m in (mask, padding))
    if mask is not None and mask.ndim == 3:
        mask = mask.unflatten(0, (-1, heads))
    if padding is None:
        return mask
    padding = padding.view(-1, 1, 1, padding.shape[-1])
    return padding if mask is None else mask + padding


def _additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
