"""What moves between ranks that hold the covers of one model, forward and backward.

R ranks hold M/R covers each. Bytes below are those that one rank sends, with b bytes an element.

**Meetings** (message lift). A layer gives N elements a cover. Each rank makes the contributions of
its own covers to all M, and a reduce-scatter adds them up where they are wanted: (1 − 1/R)·M·N·b.
The gradients of the results go to all ranks, by an all-gather: as much again. Where covers share
the input, weights are mixed instead of messages if a cover has fewer of them than N.

**Virtual models** (directed lift). Two layouts; P is a cover's lifted elements, D the destinations
of a step (of all its forwards, where gradients are accumulated), and f the share of reads
that cross ranks, 1 − 1/R for uniform routes:

- "routed" gathers the routed weights: each forward an all-to-all brings those elements
  that this rank's virtual models read from elsewhere, and each backward returns their gradients,
  2·D·f·(M/R)·P·b. A rank keeps the weights and the optimizer state of M/R covers.
- "whole" keeps all that virtual models read on every rank, and sums gradients by an all-reduce,
  2·(1 − 1/R)·M·P·b whatever D is. A rank keeps M covers.

So "routed" moves fewer bytes while D·f < R − 1, and keeps R times less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from mcover.compiled import njit
from mcover.distributed.ranks import failing_together
from mcover.nn.directed import WORDS, fits_loops
from mcover.nn.mixing import Covers, Product, Rules, mix_weights

Layout = Literal["routed", "whole"]


class Exchange:
    """Collectives among the ranks that hold the covers of one model.

    Attributes:
        group: their process group.
        covers: M.
        own: how many of them each rank holds, M/R.
        sent: bytes that this rank has sent in meetings and for virtual models, by the formulas.
    """

    def __init__(self, group: Any, covers: int) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.covers, self.own = covers, covers // self.size
        self.sent = 0

    @property
    def held(self) -> range:
        return self.of(self.rank)

    def of(self, rank: int) -> range:
        """The covers of a rank."""
        return range(rank * self.own, (rank + 1) * self.own)

    def complete(self, sums: Covers) -> Covers:
        """M partial sums, added over ranks; returns those of the covers held here."""
        return _apply(_SumScatter, self, *sums)

    def sum_scatter(self, sums: Sequence[Tensor]) -> Covers:
        """Without gradients.

        The reduce-scatter of gloo is an all-reduce inside, which moves twice the bytes: there an
        all-to-all and a sum do the same.
        """
        stack = torch.stack(list(sums))
        self.sent += stack.nbytes * (self.size - 1) // self.size
        with failing_together("a meeting of covers"):
            if stack.is_cpu:  # gloo's, whatever else the group has for other devices
                received = torch.empty_like(stack)
                dist.all_to_all_single(received, stack, group=self.group)
                by_rank = received.unflatten(0, (self.size, self.own))
                return tuple(by_rank[:, k].sum(0) for k in range(self.own))
            out = torch.empty_like(stack[: self.own])
            dist.reduce_scatter(out, list(stack.split(self.own)), group=self.group)
        return tuple(own.clone() for own in out)  # tensors of their own, as of any meeting

    def all_gather(self, rows: Sequence[Tensor]) -> Covers:
        """What all ranks have of M/R covers each, as M tensors; without gradients."""
        own = torch.stack(list(rows))
        self.sent += own.nbytes * (self.size - 1)
        everyone = [torch.empty_like(own) for _ in range(self.size)]
        with failing_together("a meeting of covers"):
            dist.all_gather(everyone, own, group=self.group)
        return tuple(row for part in everyone for row in part)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, as a new tensor; without gradients."""
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        self.sent += 2 * total.nbytes * (self.size - 1) // self.size
        with failing_together("the sum of the gradients that covers share"):
            dist.all_reduce(total, group=self.group)
        return total

    def swap(self, chunks: Sequence[Sequence[Tensor]], counts: Sequence[int]) -> Tensor:
        """Sends flat chunks to each rank, and receives so many elements from each."""
        sizes = [sum(chunk.numel() for chunk in to) for to in chunks]
        outgoing = torch.cat([chunk for to in chunks for chunk in to])
        incoming = outgoing.new_empty(sum(counts))
        self.sent += (sum(sizes) - sizes[self.rank]) * outgoing.element_size()
        with failing_together("the exchange of routed weights"):
            dist.all_to_all_single(incoming, outgoing, list(counts), sizes, group=self.group)
        return incoming


class RankRules(Rules):
    """The rules of meetings, wrapped for covers on several ranks.

    Every sum at a meeting runs over the covers that are read. The mixers of a rank have the columns
    of its own covers only, so the wrapped rule gives M partial sums, and one collective adds them
    up and leaves each rank those of its own covers. Biases are added after that: a bias belongs to
    the cover that reads, and would be counted once for each rank before.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def product(
        self,
        product: Product,
        xs: Covers | Tensor,
        weight: Tensor,
        mixer: Tensor,
        bias: Tensor | None,
    ) -> Covers:
        """Completes mixed weights where covers share the input, and mixed messages otherwise."""
        biases = [None] * len(weight) if bias is None else bias.unbind()
        if isinstance(xs, Tensor) and self._mixes_weights(xs, weight):
            mixed = zip(self.exchange.complete(mix_weights(weight, mixer)), biases, strict=True)
            return tuple(product.of_one_cover(xs, w, b) for w, b in mixed)
        xs = (xs,) * len(weight) if isinstance(xs, Tensor) else xs
        sums = self.exchange.complete(super().product(product, xs, weight, mixer, None))
        outs = zip(sums, biases, strict=True)
        return tuple(y if b is None else product.add_bias(y, b) for y, b in outs)

    def lookup(self, slices: Sequence[Tensor], mixer: Tensor) -> Covers:
        """Completes what covers looked up."""
        return self.exchange.complete(super().lookup(slices, mixer))

    def _mixes_weights(self, x: Tensor, weight: Tensor) -> bool:
        """Whether mixed weights are fewer than results, for covers that share ``x``.

        A rank with a single cover cannot know that the others have the same input.
        """
        inputs = weight.shape[2] if weight.ndim == 3 else x.shape[1]
        return self.exchange.own > 1 and weight[0, 0].numel() <= x.numel() // max(1, inputs)


class _SumScatter(torch.autograd.Function):
    """M tensors to those of the covers held here; gradients return by an all-gather."""

    @staticmethod
    def forward(exchange: Exchange, *sums: Tensor) -> Covers:
        return exchange.sum_scatter(sums)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Covers) -> None:
        ctx.exchange = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_apply(_AllGather, ctx.exchange, *grads)


class _AllGather(_SumScatter):
    @staticmethod
    def forward(exchange: Exchange, *rows: Tensor) -> Covers:
        return exchange.all_gather(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_apply(_SumScatter, ctx.exchange, *grads)


# --- virtual models whose weights are elsewhere ---------------------------------------------------


class Reads:
    """Which elements of one stack the virtual models of each rank read from which rank.

    For context α and a rank that holds covers: the sources that it reads there, in order, and the
    cover of each among those that the rank holds. Reader and owner find the same ones by
    themselves, since all ranks know all routes.

    Shape: index (sources,); table (K, M).
    """

    def __init__(self, exchange: Exchange, index: Tensor, table: Tensor, shape: torch.Size) -> None:
        self.exchange, self.shape = exchange, shape
        self.index, self.table = index, table
        self._per = shape.numel() // max(1, len(index))  # elements of a source

    def take(self, tensor: Tensor, alpha: int, owner: int) -> Tensor:
        """The elements that context α reads from a rank, in order, as one flat tensor.

        Out of that rank's stack (M/R, *shape), or out of what α has of it, (*shape).
        """
        flat = tensor.new_empty(self.elements(alpha, owner))
        self._move(tensor.contiguous(), flat, alpha, owner, into=False)
        return flat

    def insert(self, flat: Tensor, tensor: Tensor, alpha: int, owner: int) -> None:
        """Writes such elements to their places; the transpose of :meth:`take`."""
        self._move(tensor, flat.contiguous(), alpha, owner, into=True)

    def _move(self, tensor: Tensor, flat: Tensor, alpha: int, owner: int, into: bool) -> None:
        if not flat.numel():
            return
        column, held = self.table[:, alpha], self.exchange.of(owner)
        by_source = tensor.reshape(-1, len(self.index), self._per)
        if fits_loops([tensor, flat], self.index):
            word = WORDS[tensor.element_size()]
            arrays = [np.from_dlpack(t.detach().view(word)) for t in (by_source, flat)]
            index, rows = self.index.contiguous().numpy(), column.contiguous().numpy()
            _move(*arrays, index, rows, held.start, held.stop, into)
            return
        cover = column[self.index.long()].long() - held.start
        (source,) = ((cover >= 0) & (cover < len(held))).nonzero(as_tuple=True)
        row = cover[source] if len(by_source) > 1 else torch.zeros_like(source)
        if into:
            by_source[row, source] = flat.view(-1, self._per)
        else:
            flat.copy_(by_source[row, source].flatten())

    @cached_property
    def _uses(self) -> Tensor:
        """How many sources have each route of the table."""
        return torch.bincount(self.index.long(), minlength=len(self.table))

    def elements(self, alpha: int, owner: int) -> int:
        """How many elements context α reads from a rank."""
        there = self.table[:, alpha].long() // self.exchange.own == owner
        return int(self._uses[there].sum()) * self._per


def routed_models(plans: Sequence[Reads], stacks: Sequence[Tensor]) -> list[Covers]:
    """The tensors of this rank's virtual models, stack by stack.

    Shape: stacks (M/R, *shape) of the covers held here, to M/R tensors (*shape) of the contexts
    held here.
    """
    own = plans[0].exchange.own
    result: list[Covers] = [()] * len(stacks)
    for dtype in dict.fromkeys(stack.dtype for stack in stacks):
        which = [k for k, stack in enumerate(stacks) if stack.dtype == dtype]
        flat = _apply(_Gather, [plans[k] for k in which], *[stacks[k] for k in which])
        for position, k in enumerate(which):
            result[k] = flat[position * own : (position + 1) * own]
    return result


class _Gather(torch.autograd.Function):
    """Stacks of covers to the tensors of virtual models."""

    @staticmethod
    def forward(plans: Sequence[Reads], *stacks: Tensor) -> Covers:
        exchange = plans[0].exchange
        chunks = [
            [plans[k].take(stacks[k], alpha, exchange.rank) for k, alpha in slots]
            for slots in _slots(exchange, len(plans), to_readers=True)
        ]
        outs = [
            [stack.new_empty(plan.shape) for _ in exchange.held]
            for plan, stack in zip(plans, stacks, strict=True)
        ]
        into = [
            _Place(plans[k], alpha, owner, outs[k][alpha - exchange.held.start])
            for owner, slots in enumerate(_slots(exchange, len(plans), to_readers=False))
            for k, alpha in slots
        ]
        _receive(exchange, chunks, into)
        return tuple(out for row in outs for out in row)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Covers) -> None:
        ctx.plans = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_apply(_Return, ctx.plans, *grads)


class _Return(_Gather):
    """The transpose: each element goes back to where it was read, and was read once."""

    @staticmethod
    def forward(plans: Sequence[Reads], *rows: Tensor) -> Covers:
        exchange = plans[0].exchange
        start, own = exchange.held.start, exchange.own
        chunks = [
            [plans[k].take(rows[k * own + alpha - start], alpha, owner) for k, alpha in slots]
            for owner, slots in enumerate(_slots(exchange, len(plans), to_readers=False))
        ]
        outs = [rows[k * own].new_empty(own, *plan.shape) for k, plan in enumerate(plans)]
        into = [
            _Place(plans[k], alpha, exchange.rank, outs[k])
            for slots in _slots(exchange, len(plans), to_readers=True)
            for k, alpha in slots
        ]
        _receive(exchange, chunks, into)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_apply(_Gather, ctx.plans, *grads)


def _slots(exchange: Exchange, stacks: int, *, to_readers: bool) -> Iterator[list[tuple[int, int]]]:
    """For each other rank, stack by stack, the contexts there that read from here, or those here
    that read from there.
    """
    for rank in range(exchange.size):
        contexts = exchange.of(rank) if to_readers else exchange.held
        yield [(k, alpha) for k in range(stacks) for alpha in contexts]


class _Place(NamedTuple):
    """Where elements go that context α reads from a rank: into its own tensor, or, on the way
    back, into the stack of that rank.
    """

    plan: Reads
    alpha: int
    owner: int
    target: Tensor


def _receive(
    exchange: Exchange, chunks: Sequence[Sequence[Tensor]], into: Sequence[_Place]
) -> None:
    """Exchanges chunks, and writes what arrives to its places, rank by rank.

    Nothing is kept of the places: indices of all would take more than the weights.
    """
    sizes = [place.plan.elements(place.alpha, place.owner) for place in into]
    per_rank = len(into) // exchange.size
    counts = [sum(sizes[k : k + per_rank]) for k in range(0, len(sizes), per_rank)]
    received = exchange.swap(chunks, counts).split(sizes)
    for (plan, alpha, owner, target), values in zip(into, received, strict=True):
        plan.insert(values, target, alpha, owner)


@njit()
def _move(
    by_source: NDArray[Any],
    flat: NDArray[Any],
    index: NDArray[Any],
    column: NDArray[Any],
    start: int,
    stop: int,
    into: bool,
) -> None:
    """Elements of sources that are read from covers start to stop, to or from a flat array.

    Shape: by_source (covers or 1, sources, elements of each); index (sources,); column (K,), the
    cover that each route of the table reads from.
    """
    count, per, k = by_source.shape[0], by_source.shape[2], 0
    for i in range(len(index)):
        cover = column[index[i]]
        if start <= cover < stop:
            row = cover - start if count > 1 else 0
            for j in range(per):
                if into:
                    by_source[row, i, j] = flat[k]
                else:
                    flat[k] = by_source[row, i, j]
                k += 1


def _apply(function: Any, *given: Any) -> Covers:
    outs: Covers = function.apply(*given)
    return outs
