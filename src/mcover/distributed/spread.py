"""Covers of one model on several ranks: each runs some of them, and a meeting is a collective."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from mcover import checks
from mcover.distributed.exchange import Exchange, Layout, RankRules, Reads, routed_models
from mcover.distributed.ranks import DIMENSIONS, agree, facts, failing_together, groups_of, in_step
from mcover.errors import McoverError
from mcover.lifting import Directed
from mcover.nn import directed, trees
from mcover.nn.covered import Covered
from mcover.nn.modules import without_graph


def spread(
    covered: Covered,
    mesh: DeviceMesh,
    *,
    layout: Layout | Literal["auto"] = "auto",
    check: bool = True,
) -> Spread:
    """The part of a covered model that this rank runs; called by all ranks of the mesh.

    Every rank lifts the same model with the same seed, and keeps M/R of its covers. A forward gives
    the outputs of those, (M/R, B, ...), so that ``cover_loss`` and the optimizer are the usual
    ones; gradients are those of the sum over all M covers. Where the mesh has several ranks along
    "data", wrap the result for them::

        mesh = mcover.distributed.start(cover_ranks=4)
        covered = mcover.lift(model, covers=8, topology=mcover.Uniform(), seed=0)
        part = mcover.distributed.spread(covered, mesh)
        wrapped = DistributedDataParallel(part, process_group=mesh.get_group("data"))

    Args:
        covered: what ``lift`` or ``load`` returned, the same on all ranks. It is left as it is.
        mesh: of :func:`start`, or any with dimensions named "covers" and "data".
        layout: of the directed lift: "routed" gathers weights along the routes, "whole" keeps all
            covers on each rank and sums gradients; "auto" takes the one that moves fewer bytes
            (formulas: the page on scaling).
        check: whether every forward makes sure that ranks are in step, which costs a small
            collective and a checksum of the inputs.

    Raises:
        McoverError: on all ranks, if the covered model is not the same on all of them, or its
            covers cannot be divided among them.
    """
    problem, told = "", {}
    try:
        told = _checked(covered, mesh, layout, check)
    except McoverError as error:
        problem = str(error)
    agree(told, groups_of(mesh) if isinstance(mesh, DeviceMesh) else [None], problem)
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
    """Some of the covers of a model, in step with the ranks that hold the others.

    Attributes:
        mesh: covers × data.
        layout: how the directed lift is laid out: "routed" or "whole"; None for messages.
        exchange: the collectives, and the bytes they have sent so far, ``exchange.sent``.
    """

    def __init__(self, covered: Covered, mesh: DeviceMesh, layout: str, check: bool) -> None:
        self.mesh, self.check = mesh, check
        self.exchange = Exchange(mesh.get_group("covers"), covered.covers)
        self.layout = _layout(covered, self.exchange, layout)
        memo = without_graph(covered.net)
        held = slice(self.exchange.held.start, self.exchange.held.stop)
        divided = covered.state_stacks() | ({} if self.layout == "whole" else covered.stacks())
        for stack in divided.values():
            own = stack.detach()[held].clone()
            trained = isinstance(stack, nn.Parameter)
            memo[id(stack)] = nn.Parameter(own, stack.requires_grad) if trained else own
        net = copy.deepcopy(covered.net, memo)
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
        """Runs each cover of this rank on inputs of its own, (M/R, B, ...)."""
        if self.check:
            in_step(self, trees.tensors((args, kwargs)), False, self.exchange.group)
        return super().each(*args, **kwargs)

    def _slices(self, which: int) -> list[Sequence[Tensor]]:
        how, stacks = self.settings.routing, self.stacks()
        if self.layout is None or not isinstance(how, Directed):
            return super()._slices(which)
        if self.layout == "whole":
            return [own[self.held.start : self.held.stop] for own in super()._slices(which)]
        index, table = self.route_index[which], self.route_table
        plans = [
            Reads(self.exchange, index[span], table, stacks[name].shape[1:])
            for name, span in directed.spans(stacks, how.granularity)
        ]
        return list(routed_models(plans, list(stacks.values())))

    @torch.no_grad()
    def total(self, loss: Tensor) -> Tensor:
        """A loss of this rank's covers and batch as it is reported: summed over all covers, and
        averaged over the ranks along "data".
        """
        checks.check_instance("loss", loss, Tensor, "the loss of this rank, a tensor")
        value = loss.detach().clone()
        with failing_together("the sum of the loss"):
            dist.all_reduce(value, group=self.mesh.get_group("covers"))
            dist.all_reduce(value, group=self.mesh.get_group("data"))
        return value / self.mesh.size(1)

    @torch.no_grad()
    def gather(self) -> Covered:
        """All covers as an ordinary covered model on every rank; called by all along "covers".

        It is what ``lift`` returned, with the weights, state, routes and counters of now: to save,
        collapse or evaluate. What the model keeps in plain attributes is as it was before.
        """
        memo = without_graph(self.net)
        for stack in self._split():
            full = torch.stack(self.exchange.all_gather(stack.detach().unbind()))
            trained = isinstance(stack, nn.Parameter)
            memo[id(stack)] = nn.Parameter(full, stack.requires_grad) if trained else full
        net = copy.deepcopy(self.net, memo)
        for value in net.parameters():
            value.grad = None
        covered = Covered(net, self.settings, self.lifted, self.state, self.seed)
        covered.steps, covered.redraws = self.steps, self.redraws
        covered._draw(self.redraws)
        return covered.train(self.training)

    def sharded_state_dict(self) -> dict[str, Tensor]:
        """The state as ``torch.distributed.checkpoint`` takes it: names of an ordinary covered
        model, and stacks as DTensors whose memory is that of this model.
        """
        state = self.state_dict(keep_vars=True)
        return {name: self.sharded(name, value) for name, value in state.items()}

    def sharded(self, name: str, value: Tensor) -> Tensor:
        """A tensor of this model, or one of its shape that an optimizer keeps, as a DTensor."""
        path, _, key = name.rpartition(".")
        own = getattr(self.get_submodule(path), key, None)
        is_split = any(own is stack for stack in self._split())
        if not is_split or own is None or value.shape != own.shape:
            return value.detach()
        placements = [Shard(0), Replicate()]
        return DTensor.from_local(value.detach(), self.mesh, placements, run_check=False)

    def _gather_first(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise McoverError(
            "this rank holds some of the covers only; write part.gather(), on all ranks, for an "
            "ordinary covered model that can be collapsed, saved and evaluated."
        )

    collapse = cover = ensemble = report = save = _gather_first  # loss is of the covers held

    def _draw_routes(self, number: int) -> dict[str, Tensor]:
        """Routes of all; of mixers only the columns of the covers that are read here."""
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


def _layout(covered: Covered, across: Exchange, asked: str) -> Layout | None:
    """The layout of the directed lift that moves fewer bytes, unless one was asked for."""
    if not covered.is_directed:
        return None
    if asked in ("routed", "whole"):
        return asked  # type: ignore[return-value]
    routed, whole = traffic(covered, across.size)
    return "routed" if routed <= whole else "whole"


def traffic(covered: Covered, ranks: int) -> tuple[float, float]:
    """Elements that a rank sends in a step of the directed lift, laid out "routed" and "whole".

    2·D·f·(M/R)·P with the share f of the routes in force, and 2·(1 − 1/R)·M·P.
    """
    checks.check_instance("covered", covered, Covered, "what mcover.lift returned")
    how = covered.settings.routing
    if not isinstance(how, Directed):
        raise McoverError("routes are crossed in the directed lift; lift with routing='directed'.")
    ranks = checks.check_int("ranks", ranks, 1, covered.covers)
    if covered.covers % ranks:
        raise McoverError(f"ranks is {ranks}; write a divisor of the {covered.covers} covers.")
    table = covered.route_table.long()
    own = covered.covers // ranks
    crossing = (table // own != torch.arange(covered.covers, device=table.device) // own).sum(1)
    elements, crossed = 0, 0.0
    stacks = covered.stacks()
    for name, span in directed.spans(stacks, how.granularity):
        count = stacks[name][0].numel()
        index = covered.route_index[:, span].long()
        elements += count
        crossed += float(crossing[index].double().mean()) * count
    return 2 * covered.passes * crossed / ranks, 2 * (1 - 1 / ranks) * covered.covers * elements
