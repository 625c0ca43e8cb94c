"""Collapses LoRA adapters of M covers to the mean of products, not the product of means.

An adapter adds s·B·A to a frozen weight. If covers differ, the mean over covers of B·A has rank up
to M·r, while the product of the mean factors is another matrix, of rank r. Here the mean product is
truncated to the rank by a singular value decomposition, and the truncation error is reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mcover import McoverError, checks
from mcover.extras import require
from mcover.nn import Covered

_OTHERWISE = "take the mean of the factors, covered.collapse()"


class CollapsedAdapters(NamedTuple):
    """The result of :func:`collapse_adapters`.

    Attributes:
        model: of the base's class, in evaluation mode.
        error: ‖mean of products − product‖ / ‖mean of products‖ in the Frobenius norm, over all
            weights that adapters change: the truncation error of the rank.
        errors: the same for each adapted layer, by its name and the adapter's.
    """

    model: nn.Module
    error: float
    errors: dict[str, float]


def collapse_adapters(covered: Covered, rank: int | None = None) -> CollapsedAdapters:
    """One model with one adapter, the best approximation of the mean of B·A with its rank.

    Everything else is as in ``covered.collapse()``, which averages the factors. Scaling (``alpha``,
    rsLoRA) is kept, adapters that were not lifted are not changed, and PEFT's methods work on the
    result: ``save_pretrained``, ``merge_and_unload``.

    Args:
        covered: lifted from a ``PeftModel`` with LoRA on linear, convolution or embedding layers.
        rank: the rank of the collapsed adapters; None keeps the rank of each. M·r is exact.

    Raises:
        McoverError: there is no lifted LoRA adapter, or one is not a product (DoRA, AdaLoRA).
    """
    checks.check_instance("covered", covered, Covered, "what mcover.lift returned")
    if rank is not None:
        rank = checks.check_int("rank", rank, 1)
    model = covered.collapse()
    factors = list(_factors(covered, model))
    chosen = {one.adapter for one in factors if one.is_lifted}
    if not chosen:
        raise McoverError(
            "no LoRA adapter is lifted in this model; lift what peft.get_peft_model(model, "
            "LoraConfig(...)) returned, or write covered.collapse()."
        )
    errors, lost, total = {}, 0.0, 0.0
    for one in factors:
        if one.adapter not in chosen or not (one.is_lifted or rank):
            continue
        one.check()
        squares = one.set_product(rank or one.rank)
        errors[one.name] = math.sqrt(squares[0] / squares[1]) if squares[1] else 0.0
        lost, total = lost + squares[0], total + squares[1]
    if rank is not None:
        configs: Any = model.peft_config
        for adapter in chosen:
            configs[adapter].r, configs[adapter].rank_pattern = rank, {}
    return CollapsedAdapters(model, math.sqrt(lost / total) if total else 0.0, errors)


class _Factors:
    """A and B of one adapter of one layer: in the collapsed model, and for all covers.

    Convolutions are treated as matrices: the kernel belongs to A, and B mixes channels.
    """

    def __init__(self, place: str, layer: Any, covers: Any, adapter: str, parts: Any) -> None:
        self.name, self.layer, self.adapter = f"{place}.{adapter}", layer, adapter
        self.holders = [getattr(layer, part)[adapter] for part in parts]
        self.parts = parts
        self.own = [_weight(holder) for holder in self.holders]
        self.stacks = [_weight(getattr(covers, part)[adapter]) for part in parts]
        # A factor that is shared has no axis of covers.
        self.lifted = [s.ndim > o.ndim for s, o in zip(self.stacks, self.own, strict=True)]
        self.is_lifted = any(self.lifted)

    @property
    def rank(self) -> int:
        return len(self.own[0])

    def check(self) -> None:
        """Refuses adapters that are more than a product of two matrices."""
        variant = self.layer.lora_variant.get(self.adapter)
        kind = type(self.layer).__name__ if variant is None else type(variant).__name__
        grouped = getattr(self.holders[1], "groups", 1) > 1
        if variant is not None or grouped or kind == "ParamWrapper":
            raise McoverError(
                f"{self.name!r} is {'a grouped convolution' if grouped else kind}, whose adapter "
                f"is not the product of two matrices; {_OTHERWISE}."
            )

    @torch.no_grad()
    def set_product(self, rank: int) -> tuple[float, float]:
        """Sets the mean product; returns the squared norms of the error and of the product."""
        layer, adapter = self.layer, self.adapter
        a, b = (
            (stack.detach() if lifted else stack.detach()[None]).double().flatten(2)
            for stack, lifted in zip(self.stacks, self.lifted, strict=True)
        )
        covers = max(len(a), len(b))
        rows = a.expand(covers, -1, -1).flatten(0, 1)  # (M·r, inputs)
        columns = b.expand(covers, -1, -1).transpose(0, 1).flatten(1)  # (outputs, M·r)
        left, core = torch.linalg.qr(columns)
        right, other = torch.linalg.qr(rows.T)
        # The SVD of a product of thin matrices, from that of a small matrix.
        u, values, v = torch.linalg.svd(core @ other.T / covers)
        kept = min(rank, len(values))
        made_b = nn.functional.pad((left @ u)[:, :kept] * values[:kept], (0, rank - kept))
        made_a = nn.functional.pad((v @ right.T)[:kept], (0, 0, 0, rank - kept))
        before = layer.scaling[adapter]
        if rank != self.rank:
            root = math.sqrt(rank) if layer.use_rslora[adapter] else rank
            layer.r[adapter], layer.scaling[adapter] = rank, layer.lora_alpha[adapter] / root
        made_b *= before / layer.scaling[adapter]
        for part, made in zip((0, 1), (made_a, made_b), strict=True):
            self._replace(part, made, rank)
        squares = (before * values).square()
        return float(squares[kept:].sum()), float(squares.sum())

    def _replace(self, part: int, made: Tensor, rank: int) -> None:
        own, holder = self.own[part], self.holders[part]
        shape = (rank, *own.shape[1:]) if part == 0 else (own.shape[0], rank, *own.shape[2:])
        value = nn.Parameter(made.to(own).reshape(shape).contiguous(), own.requires_grad)
        if not isinstance(holder, nn.Module):  # an embedding's factors are bare parameters
            getattr(self.layer, self.parts[part])[self.adapter] = value
            return
        holder.weight = value
        side = "out" if part == 0 else "in"
        for size in (f"{side}_features", f"{side}_channels"):
            if hasattr(holder, size):
                setattr(holder, size, rank)


def _weight(holder: Any) -> Any:
    return holder.weight if isinstance(holder, nn.Module) else holder


def _factors(covered: Covered, model: nn.Module) -> Iterator[_Factors]:
    """All LoRA factors of a model."""
    with require("mcover.hf.collapse_adapters", "peft", "peft"):
        from peft.tuners.lora import LoraLayer
    stacked = dict(covered.net.named_modules())
    for name, layer in model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        if hasattr(layer, "lora_E"):
            raise McoverError(f"{name!r} has AdaLoRA's three factors, not two; {_OTHERWISE}.")
        for parts in (("lora_A", "lora_B"), ("lora_embedding_A", "lora_embedding_B")):
            for adapter in getattr(layer, parts[0]):
                yield _Factors(name, layer, stacked[name], adapter, parts)
