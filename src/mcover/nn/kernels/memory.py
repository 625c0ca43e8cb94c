"""Memory by its address, in compiled code: copied, turned, counted up; and the size of a vector."""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

WIDE = bool(binding.get_host_cpu_features().get("avx512f"))
BYTES = 64 if WIDE else 32  # of one vector
INT = ir.IntType(64)


@njit(cache=True)
def pad(count: int, width: int) -> int:
    """Up to whole vectors of ``width`` numbers.

    >>> pad(17, 16)
    32
    """
    return -(-count // width) * width


@intrinsic
def itemsize(context: Any, like: Any) -> Any:
    """Bytes of a number."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return ir.Constant(INT, signature.args[0].bitwidth // 8)

    return types.int64(like), code


@intrinsic
def pointer(context: Any, address: Any, like: Any) -> Any:
    """The address as a pointer to numbers, for ``numba.carray``."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(types.int64, like), code


@intrinsic
def copy(context: Any, to: Any, of: Any, count: Any, like: Any) -> Any:
    """Copies so many numbers from one address to another."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        to, of, count = given[:3]
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(to, byte),
            builder.inttoptr(of, byte),
            count,
            ir.Constant(INT, signature.args[3].bitwidth // 8),
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, like), code


@njit(cache=True)
def turn(
    like: Any, rows: int, columns: int, of: int, of_row: int, of_column: int, to: int, to_row: int
) -> None:
    """to[n, i] = of[i, n], from any strides to rows of neighbours, a square of vectors at a time.

    Args:
        like: a number of the type that both are of.
        rows: of what is turned.
        columns: of what is turned.
        of: address of its first number.
        of_row: from one of its rows to the next, in numbers.
        of_column: from one of its columns to the next.
        to: address of the result.
        to_row: from one row of the result to the next.
    """
    size = itemsize(like)
    width = BYTES // size
    if of_row == 1:
        for n in range(columns):
            copy(to + n * to_row * size, of + n * of_column * size, rows, like)
        return
    for n in range(0, columns, width):
        for i in range(0, rows, width):
            source = of + (i * of_row + n * of_column) * size
            into = to + (n * to_row + i) * size
            if of_column == 1 and rows - i >= width and columns - n >= width:
                _turn_square(like, source, of_row, into, to_row)
                continue
            into_rows = carray(pointer(into, like), ((width - 1) * to_row + width,))
            column = carray(pointer(source, like), (width * (of_row + of_column),))
            for k in range(min(width, columns - n)):
                for j in range(min(width, rows - i)):
                    into_rows[k * to_row + j] = column[j * of_row + k * of_column]


@intrinsic
def _turn_square(context: Any, like: Any, of: Any, of_row: Any, to: Any, to_row: Any) -> Any:
    """:func:`turn` of as many rows as a vector has numbers, of neighbours."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        size = signature.args[0].bitwidth // 8
        width = BYTES // size
        vector = ir.VectorType(context.get_value_type(signature.args[0]), width)
        _, of, of_row, to, to_row = given

        def spot(base: Any, row: Any, index: int) -> Any:
            offset = builder.mul(row, ir.Constant(INT, index * size))
            return builder.inttoptr(builder.add(base, offset), vector.as_pointer())

        rows = [builder.load(spot(of, of_row, i), align=size) for i in range(width)]
        step = 1
        while step < width:  # swaps squares of this size off the diagonal
            for i in (i for i in range(width) if not i & step):
                low, high = rows[i], rows[i + step]
                for into, shift in ((i, 0), (i + step, step)):
                    order = [
                        j + shift if not j & step else width + j - step + shift
                        for j in range(width)
                    ]
                    mask = ir.Constant(ir.VectorType(ir.IntType(32), width), order)
                    rows[into] = builder.shuffle_vector(low, high, mask)
            step *= 2
        for n, row in enumerate(rows):
            builder.store(row, spot(to, to_row, n), align=size)
        return context.get_dummy_value()

    whole = [types.int64] * 4
    return types.void(like, *whole), code


@intrinsic
def take(context: Any, integers: Any, index: Any) -> Any:
    """Adds one to an integer and returns what it was, whoever else does the same."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        one = ir.Constant(INT, 1)
        return builder.atomic_rmw("add", builder.gep(given[0], [given[1]]), one, "seq_cst")

    return types.int64(types.CPointer(types.int64), types.int64), code
