"""The directed lift: virtual models, whose weights are gathered from covers along routes.

For destination p, context α reads weight q from cover ρ_{q→p}(α). This requires no knowledge of
layers. With all destinations it is the exact M-cover of the loss as one factor of all weights.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mcover.compiled import njit
from mcover.errors import McoverError
from mcover.lifting import Granularity

_TILE = 1024  # elements of a cover at a time; those of a few covers fit the first-level cache
_CHOICES = 8  # up to this many covers, :func:`_choose` is used
_PART = 2**20  # elements of all covers for each thread, at least: about a millisecond
# The loops move bits, so they are compiled for each element size and not for each dtype.
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Arrays = tuple[NDArray[Any], ...]


def sources(shape: torch.Size, granularity: Granularity) -> int:
    """The number of routes for a tensor of one cover.

    >>> [sources(torch.Size([4, 3]), g) for g in ("weight", "unit", "tensor")]
    [12, 4, 1]
    """
    if granularity == "tensor" or not shape:
        return 1
    return shape[0] if granularity == "unit" else shape.numel()


def spans(stacks: Mapping[str, Tensor], granularity: Granularity) -> Iterator[tuple[str, slice]]:
    """The slice of each stack's sources in a row of the bank."""
    start = 0
    for name, stack in stacks.items():
        count = sources(stack.shape[1:], granularity)
        yield name, slice(start, start + count)
        start += count


def virtual_models(
    stacks: Mapping[str, Tensor],
    granularity: Granularity,
    index: Tensor,
    table: Tensor,
    inverse_table: Tensor,
) -> list[Sequence[Tensor]]:
    """The weights of the M virtual models of one destination, stack by stack.

    Shape: index (sources,) of all stacks, tables (K, M); for each stack M tensors (*shape).
    """
    slices: list[Sequence[Tensor]] = []
    for name, span in spans(stacks, granularity):
        stack, own = stacks[name], index[span]
        slices.append(
            gather(stack, own, table, inverse_table, stack[0].numel() // max(1, len(own)))
        )
    return slices


def returned(
    stacks: Mapping[str, Tensor],
    grads: dict[str, list[Tensor]],
    granularity: Granularity,
    index: Tensor,
    table: Tensor,
    inverse_table: Tensor,
) -> dict[str, Tensor]:
    """Gradients of the stacks, by name: the transpose of :func:`virtual_models`, without a graph.

    ``grads`` has M tensors for each stack with a gradient. It is emptied stack by stack, so that
    both forms are never in memory in full.
    """
    found = {}
    for name, span in spans(stacks, granularity):
        if name in grads:
            own, per = index[span], stacks[name][0].numel() // max(1, span.stop - span.start)
            found[name] = _Return.forward(own, inverse_table, table, per, *grads.pop(name))
    return found


def gather(
    stack: Tensor, index: Tensor, table: Tensor, inverse_table: Tensor, per: int
) -> tuple[Tensor, ...]:
    """One tensor for each of the M virtual models: element i of model α is ``stack[ρ_i(α), i]``.

    The tensors own their memory and may be modified in place. Gradients return along the inverse
    routes, for which only the indices and the tables are kept. Each source is ``per`` consecutive
    elements.

    >>> table = torch.tensor([[0, 1], [1, 0]], dtype=torch.uint8)  # stay, or swap the covers
    >>> index = torch.tensor([0, 1, 1], dtype=torch.uint8)
    >>> gather(torch.tensor([[1, 2, 3], [10, 20, 30]]), index, table, table, per=1)
    (tensor([ 1, 20, 30]), tensor([10,  2,  3]))

    Shape: stack (M, *shape); index (sources,), the row of each source's route in the tables (K, M),
    which are fastest with contiguous columns. Returns M tensors (*shape).
    """
    if not torch.is_grad_enabled():  # ``apply`` costs as much as gathering a small tensor
        return _Gather.forward(index, table, inverse_table, per, stack)
    return _Gather.apply(index, table, inverse_table, per, stack)  # type: ignore[no-untyped-call]


class _Routed(torch.autograd.Function):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        # Attributes instead of saved tensors, because a reentrant checkpoint reads them twice.
        index, table, inverse_table, ctx.per = inputs[:4]
        ctx.transposed = [index, inverse_table, table]


class _Gather(_Routed):
    """Reads M tensors from a stack along the table."""

    @staticmethod
    def forward(
        index: Tensor, table: Tensor, inverse_table: Tensor, per: int, stack: Tensor
    ) -> tuple[Tensor, ...]:
        stack = stack.contiguous()
        out = tuple([torch.empty_like(row) for row in stack.unbind()])
        _read_into(out, stack, index, table, per)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        to_stack = _Return.apply(*ctx.transposed, ctx.per, *grads)  # type: ignore[no-untyped-call]
        return None, None, None, None, to_stack


class _Return(_Routed):
    """Reads a stack from M tensors: with swapped tables, the transpose of :class:`_Gather`."""

    @staticmethod
    def forward(
        index: Tensor, table: Tensor, inverse_table: Tensor, per: int, *tensors: Tensor
    ) -> Tensor:
        out = tensors[0].new_empty((len(tensors), *tensors[0].shape))
        _read_into(out.unbind(), [t.contiguous() for t in tensors], index, table, per)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        index, table, inverse_table = ctx.transposed
        return None, None, None, None, *gather(grads[0], index, table, inverse_table, ctx.per)


# ``apply`` binds its arguments to the signature of ``forward`` in every call. Unless the signature
# is set here, it is computed each time: a third of the cost of gathering a small tensor.
for _forward in (_Gather.forward, _Return.forward):
    vars(_forward)["__signature__"] = inspect.signature(_forward)


def _read_into(
    out: Sequence[Tensor], given: Tensor | Sequence[Tensor], index: Tensor, table: Tensor, per: int
) -> None:
    """out[α] of source i = given[table[index[i], α]] of source i; all tensors are contiguous."""
    if len(index) * per != given[0].numel():
        raise McoverError(
            f"{len(index)} routes of {per} elements were given for tensors of shape "
            f"{tuple(given[0].shape)}; write the bank's row at the tensor's slice, and per=1 for "
            "one route per weight."
        )
    if fits_loops([given] if isinstance(given, Tensor) else given, index):
        each = np.repeat(index.numpy(), per) if per > 1 else index.contiguous().numpy()
        move(words(given), words(out), each, table.T.contiguous().numpy())
        return
    stacked = torch.stack([t.reshape(len(index), per) for t in given])
    routes = table[index.long()].T.long().unsqueeze(-1)
    for row, target in zip(stacked.gather(0, routes.expand(stacked.shape)), out, strict=True):
        target.copy_(row.view(target.shape))


def fits_loops(tensors: Sequence[Tensor], index: Tensor) -> bool:
    """Whether compiled loops can read these tensors: plain tensors in the memory of the CPU."""
    first = tensors[0]
    return (
        first.is_cpu
        and first.element_size() in WORDS
        and not first.is_complex()  # a conjugate is lazy: its memory is not conjugated
        and {type(t) for t in (*tensors, index)} <= {Tensor, torch.nn.Parameter}
        and not any(t.is_neg() for t in tensors)
    )


def words(tensors: Tensor | Sequence[Tensor]) -> Arrays:
    """Tensors, or the rows of a stack, as arrays of integers that share their memory.

    A stack is read through DLPack, because ``Tensor.numpy`` forbids later resizes of the storage,
    and FSDP frees a gathered parameter by resizing it.
    """
    word = WORDS[tensors[0].element_size()]
    if isinstance(tensors, Tensor):
        return tuple(
            np.from_dlpack(tensors.detach().view(word)).reshape(len(tensors), tensors[0].numel())
        )
    return tuple([t.detach().view(word).numpy().reshape(-1) for t in tensors])


def move(read: Arrays, written: Arrays, index: NDArray[Any], columns: NDArray[Any]) -> None:
    """written[α][i] = read[columns[α, index[i]]][i], on several threads if there are many elements.

    Shape: M arrays (elements,) each to read and to write; index (elements,); columns (M, K).
    """
    loop = _choose if len(read) <= _CHOICES else _look_up
    work = partial(loop, read, written, index, columns)
    parts = max(1, min(torch.get_num_threads(), len(index) * len(read) // _PART))
    ends = [len(index) * part // parts for part in range(parts + 1)]
    others = [
        _pool(parts - 1, os.getpid()).submit(work, start, stop)
        for start, stop in pairwise(ends[1:])
    ]
    work(0, ends[1])
    for other in others:
        other.result()


@cache
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process; they are cached by process, because a fork does not inherit them."""
    return ThreadPoolExecutor(workers, thread_name_prefix="mcover")


@njit()
def _choose(
    read: Arrays, written: Arrays, index: NDArray[Any], columns: NDArray[Any], start: int, stop: int
) -> None:
    """As :func:`_look_up`, for up to eight covers.

    It reads the elements of all covers and selects one by the three bits of its number, which
    compiles to vector instructions: three times as fast as a look-up for each element, and for up
    to four covers nearly as fast as a copy. A route is packed into one number, with three bits for
    each context. All elements are read before any is selected: conditional reads would not be
    vectorized. ``len(read)`` is known to the compiler, so few covers need few selections.
    """
    covers, rows = columns.shape
    packed = np.zeros(rows, dtype=np.uint32)
    for alpha in range(covers):
        for row in range(rows):
            packed[row] |= np.uint32(columns[alpha, row]) << np.uint32(3 * alpha)
    routes, zero = np.empty(_TILE, dtype=np.uint32), np.uint32(0)
    for first in range(start, stop, _TILE):
        last = min(first + _TILE, stop)
        here = index[first:last]
        for i in range(last - first):
            routes[i] = packed[here[i]]
        own_0, own_1 = read[0][first:last], read[1 % covers][first:last]
        own_2, own_3 = read[2 % covers][first:last], read[3 % covers][first:last]
        own_4, own_5 = read[4 % covers][first:last], read[5 % covers][first:last]
        own_6, own_7 = read[6 % covers][first:last], read[7 % covers][first:last]
        for alpha in range(covers):
            out = written[alpha][first:last]
            # Bits are shifted outside the loop: inside, shifts would use 64 bits and half the
            # lanes.
            bit_0, bit_1 = np.uint32(1 << 3 * alpha), np.uint32(2 << 3 * alpha)
            bit_2 = np.uint32(4 << 3 * alpha)
            for i in range(last - first):
                odd = np.uint32(routes[i] & bit_0)
                a, b = own_0[i], own_1[i]
                value = b if odd != zero else a
                if len(read) > 2:
                    upper = np.uint32(routes[i] & bit_1)
                    c, d = own_2[i], own_3[i]
                    pair = d if odd != zero else c
                    value = pair if upper != zero else value
                if len(read) > 4:
                    last_four = np.uint32(routes[i] & bit_2)
                    e, f, g, h = own_4[i], own_5[i], own_6[i], own_7[i]
                    low = f if odd != zero else e
                    high = h if odd != zero else g
                    pair = high if upper != zero else low
                    value = pair if last_four != zero else value
                out[i] = value


@njit()
def _look_up(
    read: Arrays, written: Arrays, index: NDArray[Any], columns: NDArray[Any], start: int, stop: int
) -> None:
    """written[α][i] = read[columns[α, index[i]]][i] for the elements i from start to stop.

    Shape: M arrays (elements,) each to read and to write; index (elements,); columns (M, K).
    """
    covers = len(read)
    near = np.empty((covers, _TILE), dtype=read[0].dtype)
    for first in range(start, stop, _TILE):
        last = min(first + _TILE, stop)
        for cover in range(covers):
            near[cover, : last - first] = read[cover][first:last]
        here = index[first:last]
        for alpha in range(covers):
            column, out = columns[alpha], written[alpha][first:last]
            for k in range(last - first):
                i = np.uintp(k)  # unsigned, so that no code for negative indices is compiled
                out[i] = near[column[here[i]], i]
