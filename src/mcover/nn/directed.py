"""The directed lift: whole virtual models, each weight gathered from its routed cover.

For destination p, context α reads weight q from cover ρ_{q→p}(α). It needs no knowledge of layers,
and with all destinations it is the exact M-cover of the loss as one factor over all weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mcover.errors import McoverError
from mcover.nn.settings import Granularity


def sources(shape: torch.Size, granularity: Granularity) -> int:
    """How many routes a tensor of one cover takes.

    >>> [sources(torch.Size([4, 3]), g) for g in ("weight", "unit", "tensor")]
    [12, 4, 1]
    """
    if granularity == "tensor" or not shape:
        return 1
    return shape[0] if granularity == "unit" else shape.numel()


def slices(stacks: Mapping[str, Tensor], granularity: Granularity) -> Iterator[tuple[str, slice]]:
    """Where each stacked tensor's routes lie in the bank's row of sources."""
    start = 0
    for name, stack in stacks.items():
        count = sources(stack.shape[1:], granularity)
        yield name, slice(start, start + count)
        start += count


def gather(
    stack: Tensor, index: Tensor, table: Tensor, inverse_table: Tensor, per: int
) -> tuple[Tensor, ...]:
    """The tensors of the M virtual models: element i of model α is ``stack[ρ_i(α), i]``.

    Each is a tensor of its own, free to be modified in place. Their gradients return along the
    inverse routes; only the indices and the tables are kept for that.

    >>> table = torch.tensor([[0, 1], [1, 0]], dtype=torch.uint8)  # stay, or swap the covers
    >>> index = torch.tensor([0, 1, 1], dtype=torch.uint8)
    >>> gather(torch.tensor([[1, 2, 3], [10, 20, 30]]), index, table, table, per=1)
    (tensor([ 1, 20, 30]), tensor([10,  2,  3]))

    Args:
        stack: all covers of one tensor, of any dtype, on any device.
        index: the row of each source's route in the tables, uint8 or uint16, on that device.
        table: permutations ρ, uint8 or wider; fastest with contiguous columns.
        inverse_table: their inverses, row by row.
        per: consecutive elements of a cover that share a source.

    Shape: stack (M, *shape), index (sources,) with sources · per elements in a shape, tables
    (K, M); M tensors (*shape).
    """
    return _Gather.apply(stack, index, table, inverse_table, per)  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    """A stack to M tensors along the table; what returns is a stack again, along the inverse."""

    @staticmethod
    def forward(
        stack: Tensor, index: Tensor, table: Tensor, inverse_table: Tensor, per: int
    ) -> tuple[Tensor, ...]:
        rows = stack.contiguous().unbind()
        out = tuple([torch.empty_like(row) for row in rows])
        _read_into(out, rows, index, table, per)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        # Not saved for backward but kept: constants, which a reentrant checkpoint reads repeatedly.
        _, *ctx.routes, ctx.per = inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        index, table, inverse_table = ctx.routes
        grad = _Return.apply(  # type: ignore[no-untyped-call]
            index, inverse_table, table, ctx.per, *grads
        )
        return grad, None, None, None, None


class _Return(torch.autograd.Function):
    """M tensors to a stack: the transpose of :class:`_Gather`, if the tables are swapped."""

    @staticmethod
    def forward(
        index: Tensor, table: Tensor, inverse_table: Tensor, per: int, *tensors: Tensor
    ) -> Tensor:
        out = tensors[0].new_empty((len(tensors), *tensors[0].shape))
        _read_into(out.unbind(), [t.contiguous() for t in tensors], index, table, per)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *ctx.routes, ctx.per = inputs[:4]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        index, table, inverse_table = ctx.routes
        return None, None, None, None, *gather(grads[0], index, inverse_table, table, ctx.per)


# ``apply`` binds its arguments to these in every call, and works them out anew where it finds none:
# a third of what the gather of a small tensor costs.
for _forward in (_Gather.forward, _Return.forward):
    vars(_forward)["__signature__"] = inspect.signature(_forward)


def _read_into(
    out: Sequence[Tensor], given: Sequence[Tensor], index: Tensor, table: Tensor, per: int
) -> None:
    """out[α] of source i = given[table[index[i], α]] of source i."""
    from mcover.nn import gathering  # compiled code is loaded when it is first needed

    if len(index) * per != given[0].numel():
        raise McoverError(
            f"{len(index)} routes of {per} elements were given for tensors of shape "
            f"{tuple(given[0].shape)}; write the bank's row at the tensor's slice, and per=1 for "
            "a route a weight."
        )
    if gathering.fits(given, index):
        gathering.move(given, out, index, table, per)
        return
    rows = torch.stack([t.reshape(len(index), per) for t in given])
    routes = table[index.long()].T.long().unsqueeze(-1)
    for row, target in zip(rows.gather(0, routes.expand(rows.shape)), out, strict=True):
        target.copy_(row.view(target.shape))
