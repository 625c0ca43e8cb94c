"""What a lift did to a model: which modules mix, what it costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mcover.lifting import Settings
from mcover.nn.collapse import cover
from mcover.topology import Facts


@dataclass(frozen=True)
class Row:
    """One module that holds parameters.

    Attributes:
        name: in the base model.
        kind: the layer's class.
        treatment: "mixed" (its block messages cross), "routed" (its weights are gathered along
            routes),
            "copied" (one per cover, which never meets the others), "shared", or "frozen" (shared
            and not trained).
        parameters: in the base model.
        covered: in the covered model.
        blocks: of its mixer; 0 where it does not mix.
    """

    name: str
    kind: str
    treatment: str
    parameters: int
    covered: int
    blocks: int


@dataclass(frozen=True)
class Report:
    """What :func:`report` returns; printed, it is a table.

    Attributes:
        settings: what was asked for.
        rows: one for each module with parameters of its own.
        parameters: of the base model; a tied tensor counts once.
        covered: of the covered model.
        extra_bytes: what the covered model keeps beyond the base: covers, mixers, routes.
        cost: multiply-adds of a step relative to the base's.
        counted: whether the cost was counted on an example. Otherwise it is an estimate that uses
            each weight once, runs shared layers once and lets every mixing layer mix messages.
        facts: of the topology.
    """

    settings: Settings
    rows: tuple[Row, ...]
    parameters: int
    covered: int
    extra_bytes: int
    cost: float
    counted: bool
    facts: Facts

    def __str__(self) -> str:
        header = ["module", "layer", "treatment", "blocks", "parameters", "covered"]
        lines = [
            [row.name or "(model)", row.kind, row.treatment, str(row.blocks or ""),
             f"{row.parameters:,}", f"{row.covered:,}"]
            for row in self.rows
        ]  # fmt: skip
        widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
        table = [
            "  ".join(
                cell.ljust(width) if i < 3 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in [header, *lines]
        ]
        how = "counted on the example" if self.counted else "estimated from the weights"
        return "\n".join([
            f"{self.settings.covers} covers, {self.settings.topology!r}, "
            f"routing={self.settings.routing!r}",
            *table,
            f"parameters: {self.parameters:,} in the base, {self.covered:,} covered",
            f"extra memory: {_readable(self.extra_bytes)} for parameters, mixers and routes",
            f"cost of a step: {self.cost:.2f} times the base's multiply-adds, {how}",
            f"topology: spectral gap {self.facts.spectral_gap:.3f}, "
            f"drift {self.facts.drift:.3f}, effective width {self.facts.effective_width:.2f}",
        ])  # fmt: skip


def report(covered: Any, /, *args: Any, **kwargs: Any) -> Report:
    """What was lifted, mixed, copied or shared, and what it costs; print it for a table.

    With an example of the model's inputs the cost is counted on it, otherwise estimated.
    """
    given = bool(args or kwargs)
    flops = _flops(covered, args, kwargs) if given else 0
    stacks = {id(stack) for stack in covered.stacks().values()}
    blocks = _blocks(covered)
    rows: list[Row] = []
    every: dict[int, Tensor] = {}
    products = 0
    for name, module in covered.net.named_modules():
        own = list(module.parameters(recurse=False))
        if not own:
            continue
        every |= {id(value): value for value in own}
        here = sum(_base_size(covered, value, stacks) for value in own)
        there = sum(value.numel() for value in own)
        lifted = any(id(value) in stacks for value in own)
        trained = any(value.requires_grad for value in own)
        treatment = _treatment(covered, lifted, trained, id(module) in blocks)
        rows.append(
            Row(name, type(module).__name__, treatment, here, there, blocks.get(id(module), 0))
        )
        products += there
    passes = covered.passes
    base = sum(_base_size(covered, value, stacks) for value in every.values())
    crossing = sum(m.shape[-4] * m.shape[-3] * covered.covers**2 for m in covered.mixers().values())
    cost = passes * (products + crossing) / sum(row.parameters for row in rows)
    if given:
        cost = flops / max(_flops(cover(covered, 0), args, kwargs), 1)
    return Report(
        covered.settings,
        tuple(rows),
        base,
        sum(value.numel() for value in every.values()),
        _bytes(_held(covered)) - _bytes(_held(cover(covered, 0))),
        cost,
        given,
        covered.settings.topology.facts(covered.covers),
    )


def _treatment(covered: Any, lifted: bool, trained: bool, mixes: bool) -> str:
    if not lifted:
        return "shared" if trained else "frozen"
    if covered.is_directed:
        return "routed"
    return "mixed" if mixes else "copied"


def _blocks(covered: Any) -> dict[int, int]:
    """The most blocks of each module that mixes, by its id.

    Once the model has run, a layer whose covers never met does not count, whatever its kind.
    """
    found: dict[int, int] = {}
    for place, part, layer, mixer in covered.mixing():
        if covered.met and place not in covered.met:
            continue
        # Attention multiplies by its output projection itself.
        owner = layer.out_proj if part == "out" else layer
        found[id(owner)] = max(found.get(id(owner), 0), mixer.shape[-3])
        for child in owner.modules():  # e.g. a parametrization, which holds the weights
            found.setdefault(id(child), found[id(owner)])
    return found


def _held(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _base_size(covered: Any, value: Tensor, stacks: set[int]) -> int:
    return value.numel() // covered.covers if id(value) in stacks else value.numel()


def _bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of these tensors, a tied one once."""
    dense = [t for t in tensors if t.layout == torch.strided and t.numel()]
    sizes: dict[int, int] = {t.data_ptr(): t.nbytes for t in dense}
    return sum(sizes.values())


def _flops(model: nn.Module, args: Any, kwargs: Any) -> int:
    """Multiply-adds (twice) of one forward in evaluation mode, which leaves no trace.

    With gradients: without, torch may take fused kernels whose operations it does not count.
    """
    training = model.training
    try:
        with FlopCounterMode(display=False) as counter, torch.enable_grad():
            model.eval()(*args, **kwargs)
    finally:
        model.train(training)
    return int(counter.get_total_flops())


def _readable(count: float) -> str:
    """Bytes for a person.

    >>> _readable(3_500_000)
    '3.5 MB'
    """
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
