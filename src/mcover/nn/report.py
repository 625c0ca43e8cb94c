"""What a lift did to a model, in a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from mcover.facts import Facts
from mcover.nn.covers import Covers
from mcover.nn.layers import mixers_of

Treatment = Literal["mixed", "gathered", "copied", "shared"]


@dataclass(frozen=True)
class Entry:
    """One module with parameters of its own.

    Attributes:
        name: in the base model; "" is the model itself.
        kind: its class.
        treatment: messages "mixed" across covers, weights "gathered" along routes, one copy for
            each cover ("copied"), or one for all ("shared").
        parameters: of one cover; tied parameters count where they come first.
        mixer_bytes: taken by its mixers.
        cost: products per sample and position relative to the base layer's.
    """

    name: str
    kind: str
    treatment: Treatment
    parameters: int
    mixer_bytes: int
    cost: float


@dataclass(frozen=True)
class Report:
    """What was lifted, what it takes and how the topology mixes; ``print`` shows a table.

    Attributes:
        covers: M.
        entries: one for each module with parameters.
        base_parameters: of the base model.
        parameters: of the covered model.
        extra_bytes: memory beyond the base model: parameters, per-cover buffers, mixers, routes.
        cost: cost of a step relative to the base, weighted by parameters: an estimate that counts
            products and leaves out what depends on the machine.
        facts: spectral gap, drift and width of the topology.
    """

    covers: int
    entries: tuple[Entry, ...]
    base_parameters: int
    parameters: int
    extra_bytes: int
    cost: float
    facts: Facts

    def __str__(self) -> str:
        rows = [("module", "class", "treatment", "parameters", "mixers")]
        rows += [
            (e.name or "(model)", e.kind, e.treatment, f"{e.parameters:,}", f"{e.mixer_bytes:,} B")
            for e in self.entries
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows
        ]
        f = self.facts
        lines += [
            f"{self.covers} covers: {self.parameters:,} parameters "
            f"(base {self.base_parameters:,}), "
            f"{self.extra_bytes:,} bytes beyond the base, about {self.cost:.2f} base steps a step",
            f"topology: spectral gap {f.spectral_gap:.3f}, drift {f.drift:.2f}, "
            f"reads from {f.effective_width:.2f} covers",
        ]
        return "\n".join(lines)


def report(covered: Covers) -> Report:
    """The report of a covered model; see :meth:`Covered.report`."""
    settings = covered.settings
    stacked = {id(stack) for stack in covered.stacks().values()}
    seen: set[int] = set()
    entries = [
        _entry(covered, name, module, stacked, seen)
        for name, module in covered.net.named_modules()
        if module._parameters and not name.endswith(".out_proj")
    ]
    base = sum(e.parameters for e in entries)
    total = sum(value.numel() for value in covered.net.parameters())
    held = {id(t): t for t in [*covered.parameters(), *covered.buffers()]}
    here = sum(t.numel() * t.element_size() for t in held.values())
    stacks = [*covered.stacks().values(), *covered.state_stacks().values()]
    mixers = sum(e.mixer_bytes for e in entries)
    routes = sum(t.numel() * t.element_size() for t in covered._buffers.values() if t is not None)
    copies = sum(t.numel() * t.element_size() for t in stacks)
    extra = copies - copies // settings.covers + mixers + routes
    passes = covered.passes
    weighted = sum(e.cost * e.parameters for e in entries) / max(base, 1)
    facts = settings.topology.facts(settings.covers)
    return Report(settings.covers, tuple(entries), base, total, min(extra, here), weighted * passes,
                  facts)  # fmt: skip


def _entry(
    covered: Covers, name: str, module: nn.Module, stacked: set[int], seen: set[int]
) -> Entry:
    covers = covered.covers
    deep = isinstance(module, nn.MultiheadAttention)  # its projection has no forward of its own
    own = [p for p in module.parameters(recurse=deep) if p is not None]
    lifted = [p for p in own if id(p) in stacked]
    count = 0
    for value in own:
        if id(value) not in seen:
            seen.add(id(value))
            count += value.numel() // (covers if id(value) in stacked else 1)
    names = [n for n in module._buffers if n.startswith("mixer") and module._buffers[n] is not None]
    kind = getattr(module, "plain", type(module)).__name__
    if names:
        mixers = [getattr(module, n) for n in names]
        size = sum(m.numel() * m.element_size() for m in mixers)
        # M products, and M² of one number for each block where M · inputs stood.
        share = [
            m.shape[-3] / inputs
            for m, (_, _, inputs) in zip(mixers, mixers_of(module), strict=True)
        ]
        cost = covers * (1 + covers * sum(share) / len(share))
        return Entry(name, kind, "mixed", count, size, cost)
    if not lifted:
        return Entry(name, kind, "shared", count, 0, 1.0)
    gathered = covered.settings.routing == "weights"
    return Entry(name, kind, "gathered" if gathered else "copied", count, 0, float(covers))
