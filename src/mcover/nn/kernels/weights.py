"""Mixed weights: W_eff[r, β] = Σ_α Q̂[r,g,β,α] W[α, r] on block g, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import carray, njit
from torch import Tensor

from mcover.nn.kernels.memory import BYTES, itemsize, pointer, take
from mcover.nn.kernels.regions import region, start
from mcover.nn.kernels.tiles import product


def mix_rows(mixer: Tensor, weight: Tensor, rows: Tensor, edges: Sequence[int], back: bool) -> None:
    """Fills ``rows`` with the mixed weights; ``back``, ``weight`` with their gradient from rows.

    Shape:
        mixer (units, blocks, M, M); weight (M, units, inputs) and rows (units, M, inputs), both
        contiguous.
    """
    work = weight.numel() * len(weight)
    start(_mix_rows, edges, (mixer.contiguous(), weight, rows), (*weight.shape, back), work)


@region
def _mix_rows(kind: Any) -> Callable[[Any], None]:
    """A piece of work is a unit."""

    def body(given: Any) -> None:
        mixer, weight, rows = given[4], given[5], given[6]
        covers, units, inputs, back = given[7], given[8], given[9], given[10]
        size = itemsize(kind(0))
        while True:
            r = take(given, 1)
            if r >= units:
                break
            mix_unit(
                kind(0), covers, units, inputs, given[2], given[3] - 1, r,
                mixer, weight, rows + r * covers * inputs * size, inputs, back != 0,
            )  # fmt: skip

    return body


@njit(cache=True)
def mix_unit(
    like: Any, covers: int, units: int, inputs: int, edges: int, blocks: int, r: int,
    mixer: int, weight: int, rows: int, length: int, back: bool,
) -> None:  # fmt: skip
    """Mixed weights of unit r to rows of ``length`` numbers, or back; operands are addresses."""
    size = itemsize(like)
    bounds = carray(pointer(edges, 0), (blocks + 1,))
    for g in range(blocks):
        low, columns = bounds[g], bounds[g + 1] - bounds[g]
        q = mixer + (r * blocks + g) * covers * covers * size
        own = weight + (r * inputs + low) * size
        mixed = rows + low * size
        if back:
            mix(like, covers, columns, q, 1, covers, mixed, length, own, units * inputs)
        else:
            mix(like, covers, columns, q, covers, 1, own, units * inputs, mixed, length)


@njit(cache=True, fastmath={"contract"})
def mix(
    like: Any, covers: int, columns: int, q: int, q_row: int, q_step: int,
    b: int, b_step: int, c: int, c_row: int,
) -> None:  # fmt: skip
    """C[i] = Σ_k Q[i, k] B[k]: whole vectors as a product, and what is left one by one.

    For memory that ends with the last column; addresses and strides as in ``product``.
    """
    whole = columns - columns % (BYTES // itemsize(like))
    if whole:
        product(like, covers, whole, covers, q, q_row, q_step, b, b_step, c, c_row, False)
    if whole < columns:
        factors = carray(pointer(q, like), (covers * covers,))
        source = carray(pointer(b, like), ((covers - 1) * b_step + columns,))
        result = carray(pointer(c, like), ((covers - 1) * c_row + columns,))
        for i in range(covers):
            for n in range(whole, columns):
                total = factors[i * q_row] * source[n]
                for k in range(1, covers):
                    total += factors[i * q_row + k * q_step] * source[k * b_step + n]
                result[i * c_row + n] = total
