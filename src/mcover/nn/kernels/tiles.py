"""Small dense products as compiled code: the inner loop of every mixing kernel on a processor.

A tile is a few rows times one or two vectors of a product, held in the processor's registers while
the summed index runs. Its strides are free, so that what a kernel multiplies need not be copied
into another layout first, and its operands are addresses, as memory is handed out by the caller.
Numba has no vectors of its own, so a tile is written in LLVM's language.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from mcover.nn.kernels.memory import BYTES, INT, WIDE, itemsize

ROWS = 12 if WIDE else 6  # of the largest tile: with two vectors each, they fill the registers


@njit(cache=True)
def even(count: int, most: int) -> int:
    """The size of parts of near-equal size, none of more than ``most``.

    >>> even(32, 12)
    11
    """
    return count if count <= most else -(-count // -(-count // most))


@njit(cache=True)
def product(
    like: Any,
    rows: int,
    columns: int,
    depth: int,
    a: int,
    a_row: int,
    a_step: int,
    b: int,
    b_step: int,
    c: int,
    c_row: int,
    keep: bool,
) -> None:
    """C[i, j] = Σ_k A[i, k] B[k, j], or C += …, over whole vectors of columns.

    B and C are read and written up to the next whole vector; columns of B and C are neighbours in
    memory.

    Args:
        like: a number of the type that all three are of.
        rows: of A and C.
        columns: of B and C.
        depth: of the sum.
        a: address of A[0, 0].
        a_row: from one row of A to the next, in numbers.
        a_step: from one k to the next.
        b: address of B[0, 0].
        b_step: from one k to the next.
        c: address of C[0, 0].
        c_row: from one row of C to the next.
        keep: adds to C instead of filling it.
    """
    size = itemsize(like)
    tall = even(rows, ROWS)
    for j in range(0, columns, 2 * BYTES // size):
        vectors = 2 if columns - j > BYTES // size else 1
        for i in range(0, rows, tall):
            _tile(
                like, min(tall, rows - i), vectors, depth,
                a + i * a_row * size, a_row, a_step,
                b + j * size, b_step, c + (i * c_row + j) * size, c_row, keep,
            )  # fmt: skip


@njit(cache=True)
def product_at(
    like: Any, rows: int, columns: int, depth: int, a: int, a_row: int, a_step: int,
    b: int, table: int, c: int, c_row: int, keep: bool,
) -> None:  # fmt: skip
    """:func:`product` where B[k] stands ``table[k]`` bytes after b; the table is an address too."""
    size = itemsize(like)
    tall = even(rows, ROWS)
    for j in range(0, columns, 2 * BYTES // size):
        vectors = 2 if columns - j > BYTES // size else 1
        for i in range(0, rows, tall):
            _tile_at(
                like, min(tall, rows - i), vectors, depth,
                a + i * a_row * size, a_row, a_step,
                b + j * size, table, c + (i * c_row + j) * size, c_row, keep,
            )  # fmt: skip


def _tiles(tabled: bool) -> Any:
    """:func:`product` of 1 … ROWS rows and one or two vectors: one loop for each shape."""

    def shapes(
        context: Any, like: Any, rows: Any, vectors: Any, depth: Any, a: Any, a_row: Any,
        a_step: Any, b: Any, b_step: Any, c: Any, c_row: Any, keep: Any,
    ) -> Any:  # fmt: skip
        def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            number = context.get_value_type(signature.args[0])
            bits = signature.args[0].bitwidth
            rows, vectors, depth, *operands = given[1:]
            shape = builder.add(builder.mul(rows, ir.Constant(INT, 2)), vectors)
            done = builder.append_basic_block("tiled")
            choice = builder.switch(shape, done)
            for height in range(1, ROWS + 1):
                for across in (1, 2):
                    block = builder.append_basic_block(f"tile.{height}.{across}")
                    choice.add_case(ir.Constant(INT, 2 * height + across), block)
                    with builder.goto_block(block):
                        _one_tile(
                            builder, number, bits // 8, height, across, depth, operands, tabled
                        )
                        builder.branch(done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        whole = [types.int64] * 10
        return types.void(like, *whole, types.boolean), code

    return intrinsic(shapes)


_tile = _tiles(tabled=False)
_tile_at = _tiles(tabled=True)


def _one_tile(
    builder: Any, number: Any, size: int, height: int, across: int, depth: Any, operands: Any,
    tabled: bool,
) -> None:  # fmt: skip
    a, a_row, a_step, b, b_step, c, c_row, keep = operands  # b_step is a table if there is one
    vector = ir.VectorType(number, BYTES // size)

    def at(base: Any, offset: Any, kind: Any) -> Any:
        return builder.inttoptr(builder.add(base, offset), kind.as_pointer())

    def times(count: Any, step: int) -> Any:
        return builder.mul(count, ir.Constant(INT, step))

    down = [times(times(c_row, size), i) for i in range(height)]
    over = [ir.Constant(INT, BYTES * v) for v in range(across)]
    spots = [[at(builder.add(c, row), column, vector) for column in over] for row in down]
    first = [times(times(a_row, size), i) for i in range(height)]
    none = ir.Constant(vector, None)
    sums = [[cgutils.alloca_once_value(builder, none) for _ in row] for row in spots]
    with builder.if_then(keep):
        for row, places in zip(sums, spots, strict=True):
            for total, spot in zip(row, places, strict=True):
                builder.store(builder.load(spot, align=size), total)
    left, right = (
        cgutils.alloca_once_value(builder, start) for start in (a, b_step if tabled else b)
    )
    with cgutils.for_range(builder, depth):
        where_a, where_b = builder.load(left), builder.load(right)
        next_b = builder.add(where_b, ir.Constant(INT, 8) if tabled else times(b_step, size))
        if tabled:
            where_b = builder.add(b, builder.load(builder.inttoptr(where_b, INT.as_pointer())))
        b_row = [builder.load(at(where_b, column, vector), align=size) for column in over]
        for row, offset in zip(sums, first, strict=True):
            factor = builder.load(at(where_a, offset, number), align=size)
            spread = builder.shuffle_vector(
                builder.insert_element(
                    ir.Constant(vector, ir.Undefined), factor, ir.Constant(ir.IntType(32), 0)
                ),
                ir.Constant(vector, ir.Undefined),
                ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None),
            )
            for total, values in zip(row, b_row, strict=True):
                term = builder.fmul(spread, values, flags=("contract",))
                builder.store(builder.fadd(builder.load(total), term, flags=("contract",)), total)
        builder.store(builder.add(where_a, times(a_step, size)), left)
        builder.store(next_b, right)
    for row, places in zip(sums, spots, strict=True):
        for total, spot in zip(row, places, strict=True):
            builder.store(builder.load(total), spot, align=size)
