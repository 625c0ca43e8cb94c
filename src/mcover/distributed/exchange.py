"""What moves between ranks that hold the covers of one model, forward and backward.

R ranks hold M/R covers each. Bytes below are those that one rank sends, with b bytes an element.

**Meetings** (message lift). A layer has N output elements for each cover. Each rank computes what
its own covers contribute to all M, and a reduce-scatter leaves each rank the sums of its own
covers: (1 − 1/R)·M·N·b. In the backward an all-gather sends the gradients of the results to all
ranks: the same number of bytes. If covers share the input, weights are mixed instead of messages
where a cover has fewer than N of them.

**Virtual models** (directed lift). Two layouts; P is a cover's lifted elements, D the destinations
of a step (of all its forwards, where gradients are accumulated), and f the share of reads that
cross ranks, 1 − 1/R for uniform routes:

- "routed": in each forward an all-to-all brings the elements that this rank's virtual models read
  on other ranks, and each backward returns their gradients, 2·D·f·(M/R)·P·b. A rank keeps the
  weights and the optimizer state of M/R covers.
- "whole": every rank keeps all M covers, and an all-reduce sums the gradients, 2·(1 − 1/R)·M·P·b
  for any D.

So "routed" moves fewer bytes if D·f < R − 1, and keeps R times less.

:mod:`mcover.distributed.virtual_models` exchanges the weights of virtual models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mcover.distributed.ranks import failing_together
from mcover.nn.contributions import Covers
from mcover.nn.mixing import (
    Product,
    Rules,
    apply,
    mix_weights,
    multiply_shared,
    with_biases,
)


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
        return apply(_SumScatter, self, *sums)

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
        return tuple(own.clone() for own in out)  # results of a meeting are not views of one tensor

    def all_gather(self, rows: Sequence[Tensor]) -> Covers:
        """Gathers the tensors of all M covers, M/R from each rank; without gradients."""
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
    the cover that reads, and each rank would add it once if it were part of the partial sums.
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
        if isinstance(xs, Tensor) and self._mixes_weights(xs, weight):
            mixed = self.exchange.complete(mix_weights(weight, mixer))
            return multiply_shared(product, xs, mixed, bias)
        xs = (xs,) * len(weight) if isinstance(xs, Tensor) else xs
        sums = self.exchange.complete(super().product(product, xs, weight, mixer, None))
        return with_biases(product, sums, bias)

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
        return None, *apply(_AllGather, ctx.exchange, *grads)


class _AllGather(_SumScatter):
    @staticmethod
    def forward(exchange: Exchange, *rows: Tensor) -> Covers:
        return exchange.all_gather(rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *apply(_SumScatter, ctx.exchange, *grads)
