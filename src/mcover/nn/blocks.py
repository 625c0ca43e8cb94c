"""Layouts of blocks: how the inputs of a layer are divided, and how covers and blocks are arranged.

All blocks of a layer are multiplied in one batched product, so they need the same width. If the
inputs do not divide evenly, narrower blocks are padded with a zero, which adds nothing to a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def block_slices(inputs: int, blocks: int) -> list[slice]:
    """The inputs of each block: blocks of near-equal size, the first ones wider.

    >>> block_slices(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    size, wider = divmod(inputs, blocks)
    edges = [g * size + min(g, wider) for g in range(blocks + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def by_unit(mixer: Tensor) -> Tensor:
    """(units, M, M · blocks): a unit's mixer as one matrix, columns by cover and then by block."""
    return mixer.permute(0, 2, 3, 1).flatten(2).contiguous()


def split(t: Tensor, axis: int, blocks: int) -> Tensor:
    """Splits an axis of inputs into (blocks, width); narrower blocks are padded with a zero."""
    inputs = t.shape[axis]
    if inputs % blocks == 0:
        return t.unflatten(axis, (blocks, -1))
    shape = list(t.shape)
    shape[axis] = blocks * -(-inputs // blocks)
    padded = t.new_zeros(shape).index_copy(axis, _places(inputs, blocks, t.device), t)
    return padded.unflatten(axis, (blocks, -1))


def join(t: Tensor, axis: int, inputs: int) -> Tensor:
    """Undoes :func:`split`."""
    flat = t.flatten(axis, axis + 1)
    if flat.shape[axis] == inputs:
        return flat
    return flat.index_select(axis, _places(inputs, t.shape[axis], t.device))


def _places(inputs: int, blocks: int, device: torch.device) -> Tensor:
    """The positions of the inputs when all blocks are as wide as the first."""
    spans = block_slices(inputs, blocks)
    width = spans[0].stop
    places = [g * width + i for g, span in enumerate(spans) for i in range(length(span))]
    return torch.tensor(places, device=device)


def by_block(xs: Sequence[Tensor], blocks: int, groups: int) -> Tensor:
    """Channels of all covers as groups of one convolution, ordered by block and then by group."""
    own = [split(x.contiguous().unflatten(1, (groups, -1)), 2, blocks) for x in xs]
    return torch.cat([x.transpose(1, 2).flatten(1, 3) for x in own], 1)


def weights_by_block(weight: Tensor, blocks: int, groups: int) -> Tensor:
    """The weights for :func:`by_block`: (M · blocks · units, width, *kernel)."""
    w = split(weight.unflatten(1, (groups, -1)), 3, blocks)
    return w.movedim(3, 1).flatten(0, 3)


def length(part: slice) -> int:
    return int(part.stop - part.start)


def even_slices(count: int, most: int) -> list[slice]:
    """Slices of near-equal length, none longer than ``most``.

    >>> even_slices(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return block_slices(count, max(1, -(-count // most)))
