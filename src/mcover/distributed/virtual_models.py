"""Virtual models on several ranks: the exchange of routed weights, forward and backward.

Every rank knows all routes, so reader and owner find the elements to exchange separately and in the
same order, and no indices are sent. They are found again in each exchange, by a compiled loop,
because stored indices would take more memory than the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mcover.compiled import njit
from mcover.distributed.exchange import Exchange
from mcover.nn.contributions import Covers
from mcover.nn.directed import WORDS, fits_loops
from mcover.nn.mixing import apply


class Reads:
    """Which elements of one stack the virtual models of each rank read from which rank.

    For context α and a rank that holds covers: the sources that α reads there, in order, and for
    each of them the cover among those of that rank.

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
        flat = apply(_Gather, [plans[k] for k in which], *[stacks[k] for k in which])
        for position, k in enumerate(which):
            result[k] = flat[position * own : (position + 1) * own]
    return result


def returned_to_stacks(plans: Sequence[Reads], grads: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The transpose of :func:`routed_models`, without a graph: gradients of stacks.

    Shape: for each stack, M/R tensors (*shape) of the contexts held here, to (M/R, *shape).
    """
    result: list[Tensor] = [grads[0][0]] * len(grads)
    for dtype in dict.fromkeys(rows[0].dtype for rows in grads):
        which = [k for k, rows in enumerate(grads) if rows[0].dtype == dtype]
        flat = [row for k in which for row in grads[k]]
        for k, stack in zip(which, _Return.forward([plans[k] for k in which], *flat), strict=True):
            result[k] = stack
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
        return None, *apply(_Return, ctx.plans, *grads)


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
        return None, *apply(_Gather, ctx.plans, *grads)


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

    Places are not kept for the backward: their indices would take more memory than the weights.
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
