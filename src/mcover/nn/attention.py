"""``nn.MultiheadAttention`` on covers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mcover.nn.affine import routed_linear


def attention(
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``nn.MultiheadAttention`` with its four projections mixed; what lies between is per cover."""
    single = query.ndim == 2
    q, k, v = (t.unsqueeze(0) if single else t for t in (query, key, value))
    if not single and not layer.batch_first:
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    if layer._qkv_same_embed_dim:
        weights = layer.in_proj_weight.chunk(3)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    mixers = (layer.mixer_q, layer.mixer_k, layer.mixer_v)
    projected = [
        routed_linear(t, *rest).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for t, *rest in zip((q, k, v), weights, biases, mixers, strict=True)
    ]
    mask = _attention_mask(attn_mask, key_padding_mask, q, layer.num_heads)
    dropout = layer.dropout if layer.training else 0.0
    scores = None
    q, k, v = projected
    if need_weights:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        scores = torch.softmax(scores if mask is None else scores + mask, -1)
        scores = F.dropout(scores, dropout, layer.training)
        heads = scores @ v
        scores = scores.mean(1) if average_attn_weights else scores
        scores = scores.squeeze(0) if single else scores
    else:
        causal = is_causal and mask is None
        heads = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
    joined = heads.transpose(1, 2).flatten(-2)
    y = routed_linear(joined, layer.out_proj.weight, layer.out_proj.bias, layer.mixer_out)
    if single:
        return y.squeeze(0), scores
    return (y if layer.batch_first else y.transpose(0, 1)), scores


def _attention_mask(
    mask: Tensor | None, padding: Tensor | None, like: Tensor, heads: int
) -> Tensor | None:
    """Both masks of ``nn.MultiheadAttention`` as one additive mask that broadcasts to scores."""
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
