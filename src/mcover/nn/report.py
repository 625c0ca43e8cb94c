"""What a lift did to a model: how each module is treated, and what a step costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mcover import checks
from mcover.lifting import Settings
from mcover.nn.collapse import cover
from mcover.nn.state import CoverState
from mcover.tables import html_table, table
from mcover.topology import Facts

_HEADER = ["module", "layer", "treatment", "blocks", "parameters", "covered"]


@dataclass(frozen=True)
class ModuleReport:
    """One module with parameters of its own: how many, in the base and in the covered model.

    It is "mixed" (its block messages are mixed across covers), "routed" (its weights are gathered
    along routes), "copied" (one per cover, never mixed), "shared", or "frozen" (shared and not
    trained).
    """

    name: str
    kind: str
    treatment: str
    parameters: int
    covered: int
    blocks: int  # of its mixer; 0 where it does not mix


@dataclass(frozen=True)
class LiftReport:
    """What :meth:`mcover.nn.Covered.report` returns; printed, it is a table.

    Attributes:
        counted: whether the cost was counted on an example. Otherwise it is an estimate that uses
            each weight once and lets every mixing layer mix messages.
        trunk: modules that all covers share and that stand before all lifted ones.
        trunk_share: share of the base's multiply-adds that those take, estimated from the weights.
    """

    settings: Settings
    rows: tuple[ModuleReport, ...]
    parameters: int  # of the base model; a tied tensor counts once
    covered: int
    extra_bytes: int  # beyond the base: covers, mixers, routes
    cost: float  # multiply-adds of a step, relative to the base's
    counted: bool
    facts: Facts
    trunk: tuple[str, ...]
    trunk_share: float

    def __str__(self) -> str:
        return "\n".join([self._title(), table(_HEADER, self._rows(), left=3), *self._facts()])

    def _repr_html_(self) -> str:
        facts = "<br>".join(map(escape, self._facts()))
        return f"{html_table(self._title(), _HEADER, self._rows())}<p>{facts}</p>"

    def _title(self) -> str:
        how = self.settings
        return (
            f"{how.covers} covers, {how.topology!r}, routing={how.routing!r}, noise={how.noise!r}"
        )

    def _rows(self) -> list[list[str]]:
        """A line for each module that was lifted, and one for all others."""
        lines = []
        rest = [row for row in self.rows if row.treatment in ("shared", "frozen")]
        for row in self.rows:
            if row not in rest:
                sizes = f"{row.parameters:,}", f"{row.covered:,}"
                blocks = str(row.blocks or "")
                lines.append([row.name or "(model)", row.kind, row.treatment, blocks, *sizes])
        if rest:
            treatments = " and ".join(sorted({row.treatment for row in rest}))
            total = sum(row.parameters for row in rest), sum(row.covered for row in rest)
            lines.append([f"{len(rest)} more", "", treatments, "", *(f"{n:,}" for n in total)])
        return lines

    def _facts(self) -> list[str]:
        how = "counted on the example" if self.counted else "estimated from the weights"
        extra = checks.readable_bytes(self.extra_bytes)
        lines = [
            f"parameters: {self.parameters:,} in the base, {self.covered:,} covered",
            f"extra memory: {extra} for parameters, mixers and routes",
            f"cost of a step: {self.cost:.2f} times the base's multiply-adds, {how}",
            f"topology: spectral gap {self.facts.spectral_gap:.3f}, "
            f"drift {self.facts.drift:.3f}, effective width {self.facts.effective_width:.2f}",
        ]
        if self.trunk:
            names = f"{self.trunk[0]} to {self.trunk[-1]}" if self.trunk[1:] else self.trunk[0]
            once = self.cost * (1 - self.trunk_share) + self.trunk_share
            lines.append(
                f"{names} are shared, stand before all lifted modules, and run once for each "
                "cover; nn.Sequential(trunk, mcover.lift(head, ...)) runs them once, for "
                f"{once:.2f} times the base's multiply-adds"
            )
        return lines


def report(covered: CoverState, /, *args: Any, **kwargs: Any) -> LiftReport:
    """What was lifted, mixed, copied or shared, and what it costs; print it for a table.

    With an example of the model's inputs the cost is counted on it, otherwise estimated.
    """
    counted, base = bool(args or kwargs), cover(covered, 0)
    cost = _flops(covered, args, kwargs) / max(_flops(base, args, kwargs), 1) if counted else 0.0
    stacks = set(covered.stacks().values())
    blocks = _blocks(covered)
    rows: list[ModuleReport] = []
    for (name, module), own in zip(covered.net.named_modules(), base.modules(), strict=True):
        held = list(module.parameters(recurse=False))
        if not held:
            continue
        if not any(value in stacks for value in held):
            treatment = "shared" if any(value.requires_grad for value in held) else "frozen"
        elif covered.is_directed:
            treatment = "routed"
        else:
            treatment = "mixed" if module in blocks else "copied"
        sizes = _size(own.parameters(recurse=False)), _size(held)
        rows.append(
            ModuleReport(name, type(module).__name__, treatment, *sizes, blocks.get(module, 0))
        )
    used = sum(row.parameters for row in rows)
    if not counted:
        mixers = covered.mixers().values()
        crossing = sum(m.shape[-4] * m.shape[-3] * covered.covers**2 for m in mixers)
        cost = covered.passes * (covered.covers * used + crossing) / used
    trunk = _trunk(rows)
    return LiftReport(
        covered.settings,
        tuple(rows),
        _size(base.parameters()),
        _size(covered.parameters()),
        _bytes(covered) - _bytes(base),
        cost,
        counted,
        covered.settings.topology.facts(covered.covers),
        tuple(row.name or "(model)" for row in trunk),
        sum(row.parameters for row in trunk) / used,
    )


def _trunk(rows: Sequence[ModuleReport]) -> list[ModuleReport]:
    """The modules that are shared, if all of them stand before all that are lifted."""
    shared = [row.treatment in ("shared", "frozen") for row in rows]
    count = sum(shared)
    return [*rows[:count]] if all(shared[:count]) and count < len(rows) else []


def _blocks(covered: CoverState) -> dict[nn.Module, int]:
    """The most blocks of each module that mixes.

    Once the model has run, a layer whose covers never met does not count, whatever its kind.
    """
    found: dict[nn.Module, int] = {}
    for place, part, layer, mixer in covered._mixing():
        if covered._met and place not in covered._met:
            continue
        # Attention multiplies by its output projection itself.
        owner: Any = layer.out_proj if part == "out" else layer
        found[owner] = max(found.get(owner, 0), mixer.shape[-3])
        for child in owner.modules():  # e.g. a parametrization, which holds the weights
            found.setdefault(child, found[owner])
    return found


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _bytes(model: nn.Module) -> int:
    """Bytes of a model's tensors, a tied one once."""
    dense = [t for t in (*model.parameters(), *model.buffers()) if t.layout == torch.strided]
    return sum({t.data_ptr(): t.nbytes for t in dense if t.numel()}.values())


def _flops(model: nn.Module, args: Any, kwargs: Any) -> int:
    """Twice the multiply-adds of one forward in evaluation mode, which changes no state.

    It runs with gradients on: without them torch may take fused kernels, which are not counted.
    """
    training = [(module, module.training) for module in model.modules()]
    try:
        with FlopCounterMode(display=False) as counter, torch.enable_grad():
            model.eval()(*args, **kwargs)
    finally:
        for module, before in training:  # ``train()`` would change frozen parts in eval() too
            module.training = before
    return int(counter.get_total_flops())
