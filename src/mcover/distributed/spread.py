"""Covers of one model on several ranks: each runs some of them, and meetings are collectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from mcover import checks
from mcover.distributed.exchange import Exchange, RankRules
from mcover.distributed.ranks import DIMENSIONS, agree, facts, failing_together, groups_of, in_step
from mcover.distributed.virtual_models import Reads, returned_to_stacks, routed_models
from mcover.errors import McoverError
from mcover.lifting import Directed
from mcover.nn import directed, trees
from mcover.nn.covered import Covered
from mcover.nn.modules import copied_with


def spread(
    covered: Covered,
    mesh: DeviceMesh,
    *,
    layout: Literal["auto", "routed", "whole"] = "auto",
    check: bool = True,
) -> Spread:
    """Returns the part of a covered model for this rank; called by all ranks of the mesh.

    Every rank lifts the same model with the same seed, and keeps M/R of its covers. A forward
    returns the outputs of those, (M/R, B, ...), so ``cover_loss`` and the optimizer work as usual.
    Gradients are those of the sum over all M covers. If the mesh has several ranks along "data",
    wrap the result::

        mesh = mcover.distributed.start(cover_ranks=4)
        covered = mcover.lift(model, covers=8, topology=mcover.Uniform(), seed=0)
        part = mcover.distributed.spread(covered, mesh)
        wrapped = DistributedDataParallel(part, process_group=mesh.get_group("data"))

    Args:
        covered: a covered model from ``lift`` or ``load``, the same on all ranks. It is not
            changed.
        mesh: the mesh of :func:`start`, or any with the dimensions "covers" and "data".
        layout: the layout of the directed lift: "routed" gathers weights along the routes, "whole"
            keeps all covers on each rank and sums gradients; "auto" is the one that moves fewer
            bytes (the page on scaling has the formulas).
        check: whether every forward checks that ranks are in step, by a small collective and a
            checksum of the inputs.

    Raises:
        McoverError: on all ranks, if the covered model is not the same on all of them, or its
            covers cannot be divided among them.
    """
    problem, own = "", {}
    try:
        own = _checked(covered, mesh, layout, check)
    except McoverError as error:
        problem = str(error)
    agree(own, groups_of(mesh) if isinstance(mesh, DeviceMesh) else [None], problem)
    return Spread(covered, mesh, layout, check)


def _checked(given: object, mesh: Any, layout: Any, check: Any) -> dict[str, Any]:
    covered = checks.check_instance("covered", given, Covered, "what mcover.lift returned")
    if isinstance(covered, Spread):
        raise McoverError("the covers are spread already; spread what part.gather() returns.")
    if not isinstance(mesh, DeviceMesh) or mesh.mesh_dim_names != DIMENSIONS:
        raise McoverError(
            f"mesh is {checks.shown(mesh)}; write mcover.distributed.start(...), or a DeviceMesh "
            "of two dimensions named 'covers' and 'data'."
        )
    checks.check_choice("layout", layout, ("auto", "routed", "whole"))
    ranks = mesh.size(0)
    if covered.covers % ranks:
        fitting = [k for k in range(1, covered.covers + 1) if covered.covers % k == 0]
        raise McoverError(
            f"{covered.covers} covers cannot be divided evenly among {ranks} ranks; take "
            f"cover_ranks from {fitting}, or {ranks * -(-covered.covers // ranks)} covers."
        )
    return facts(covered) | {"layout": layout, "check": checks.check_bool("check", check)}


class Spread(Covered):
    """Some of the covers of a model; other ranks hold the others and run at the same time.

    Attributes:
        mesh: covers × data.
        layout: the layout of the directed lift, "routed" or "whole"; None for messages.
        exchange: the collectives, and the bytes they have sent so far, ``exchange.sent``.
    """

    def __init__(self, covered: Covered, mesh: DeviceMesh, layout: str, check: bool) -> None:
        self.mesh, self.check = mesh, check
        self.exchange = Exchange(mesh.get_group("covers"), covered.covers)
        self.layout = _layout(covered, self.exchange.size, layout)
        held = slice(self.exchange.held.start, self.exchange.held.stop)
        divided = covered.state_stacks() | ({} if self.layout == "whole" else covered.stacks())
        own = {stack: stack.detach()[held].clone() for stack in divided.values()}
        net = copied_with(covered.net, own)
        rules = RankRules(self.exchange)
        super().__init__(net, covered.settings, covered.lifted, covered.state, covered.seed, rules)
        self.steps, self.redraws = covered.steps, covered.redraws
        self._draw(self.redraws)
        self.train(covered.training)
        split = set(self._split())
        for value in self.parameters():
            if value.requires_grad and value not in split:
                value.register_hook(self.exchange.sum)

    @property
    def held(self) -> range:
        """The covers that this rank runs."""
        return self.exchange.held

    def _split(self) -> list[Tensor]:
        """Stacks that hold the covers of this rank only."""
        lifted = {} if self.layout == "whole" else self.stacks()
        return [*lifted.values(), *self.state_stacks().values()]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.check:
            objective = self._execution.objective
            same = objective is None or not objective.each
            in_step(self, trees.tensors((args, kwargs)), same, self.exchange.group)
        return super().__call__(*args, **kwargs)

    def each(self, *args: Any, **kwargs: Any) -> Any:
        """Runs each cover of this rank on its own inputs, (M/R, B, ...)."""
        if self.check:
            in_step(self, trees.tensors((args, kwargs)), False, self.exchange.group)
        return super().each(*args, **kwargs)

    def _slices(self, which: int) -> list[Sequence[Tensor]]:
        how, stacks = self.settings.routing, self.stacks()
        if self.layout is None or not isinstance(how, Directed):
            return super()._slices(which)
        if self.layout == "whole":
            return [own[self.held.start : self.held.stop] for own in super()._slices(which)]
        return list(routed_models(self._reads(which, how), list(stacks.values())))

    @torch.no_grad()
    def _returned(self, which: int, grads: dict[str, list[Tensor]]) -> dict[str, Tensor]:
        how, stacks = self.settings.routing, self.stacks()
        if self.layout != "routed" or not isinstance(how, Directed):
            # Covers of other ranks have no gradient here; an all-reduce adds theirs afterwards.
            before, after = self.held.start, self.covers - self.held.stop
            for values in grads.values():
                zero = torch.zeros_like(values[0])
                values[:] = [zero] * before + values + [zero] * after
            return super()._returned(which, grads)
        # All ranks exchange all stacks, even those without a gradient on this rank.
        rows = [
            grads.pop(name, []) or [torch.zeros_like(own) for own in stack]
            for name, stack in stacks.items()
        ]
        return dict(zip(stacks, returned_to_stacks(self._reads(which, how), rows), strict=True))

    def _reads(self, which: int, how: Directed) -> list[Reads]:
        """The elements of each stack that the virtual models of this destination read."""
        index, stacks = self._route_index[which], self.stacks()
        return [
            Reads(self.exchange, index[span], self.route_table, stacks[name].shape[1:])
            for name, span in directed.spans(stacks, how.granularity)
        ]

    @torch.no_grad()
    def total(self, loss: Tensor) -> Tensor:
        """The loss to report: summed over all covers, averaged over the ranks along "data"."""
        checks.check_instance("loss", loss, Tensor, "the loss of this rank, a tensor")
        value = loss.detach().clone()
        with failing_together("the sum of the loss"):
            dist.all_reduce(value, group=self.mesh.get_group("covers"))
            dist.all_reduce(value, group=self.mesh.get_group("data"))
        return value / self.mesh.size(1)

    @torch.no_grad()
    def gather(self) -> Covered:
        """Gathers all covers to an ordinary covered model; called by all ranks along "covers".

        It has the current weights, state, routes and counters, and can be saved, collapsed and
        evaluated. Plain attributes of modules are those of ``net``, which forwards do not change.
        """
        gathered = {
            stack: torch.stack(self.exchange.all_gather(stack.detach().unbind()))
            for stack in self._split()
        }
        net = copied_with(self.net, gathered)
        for value in net.parameters():
            value.grad = None
        covered = Covered(net, self.settings, self.lifted, self.state, self.seed)
        covered.steps, covered.redraws = self.steps, self.redraws
        covered._draw(self.redraws)
        return covered.train(self.training)

    def sharded_state_dict(self) -> dict[str, Tensor]:
        """The state for ``torch.distributed.checkpoint``, under the names of an ordinary model.

        Stacks are DTensors that share the memory of this model.
        """
        state = self.state_dict(keep_vars=True)
        return {name: self.sharded(name, value) for name, value in state.items()}

    def sharded(self, name: str, value: Tensor) -> Tensor:
        """A tensor of this model, or of an optimizer's state for it, as a DTensor."""
        path, _, key = name.rpartition(".")
        own = getattr(self.get_submodule(path), key, None)
        is_split = any(own is stack for stack in self._split())
        if not is_split or own is None or value.shape != own.shape:
            return value.detach()
        placements = [Shard(0), Replicate()]
        return DTensor.from_local(value.detach(), self.mesh, placements, run_check=False)

    def _gather_first(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise McoverError(
            "this rank holds only some of the covers; write part.gather(), on all ranks, for an "
            "ordinary covered model that can be collapsed, saved and evaluated."
        )

    # ``loss`` is inherited: it is the sum over the covers of this rank.
    collapse = cover = ensemble = report = save = _gather_first

    def _draw_routes(self, number: int) -> dict[str, Tensor]:
        """All routes; for mixers, only the columns of the covers that this rank holds."""
        drawn = super()._draw_routes(number)
        if self.is_directed:
            return drawn
        held = slice(self.held.start, self.held.stop)
        return {name: mixer[..., held].contiguous() for name, mixer in drawn.items()}

    def _least(self, scale: Tensor) -> Tensor:
        least = super()._least(scale)
        with failing_together("the clipping of gradients"):
            dist.all_reduce(least, dist.ReduceOp.MIN, group=self.exchange.group)
        return least


def _layout(covered: Covered, ranks: int, asked: str) -> str | None:
    """The requested layout of the directed lift, or the one that moves fewer bytes."""
    how = covered.settings.routing
    if not isinstance(how, Directed):
        return None
    if asked != "auto":
        return asked
    routed, whole = traffic(covered, how, ranks)
    return "routed" if routed <= whole else "whole"


def traffic(covered: Covered, how: Directed, ranks: int) -> tuple[float, float]:
    """The elements that a rank sends in a step of the directed lift, "routed" and "whole".

    2·D·f·(M/R)·P, where f is the share of reads that cross ranks, and 2·(1 − 1/R)·M·P.
    """
    table = covered.route_table.long()
    own = covered.covers // ranks
    crossing = (table // own != torch.arange(covered.covers, device=table.device) // own).sum(1)
    elements, crossed = 0, 0.0
    stacks = covered.stacks()
    for name, span in directed.spans(stacks, how.granularity):
        count = stacks[name][0].numel()
        index = covered._route_index[:, span].long()
        elements += count
        crossed += float(crossing[index].double().mean()) * count
    return 2 * covered.passes * crossed / ranks, 2 * (1 - 1 / ranks) * covered.covers * elements
