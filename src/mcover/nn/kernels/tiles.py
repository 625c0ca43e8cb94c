"""Small dense products as compiled code: the inner loop of every mixing kernel on a processor.

A tile is a few rows times one or two vectors of a product, held in the processor's registers while
the summed index runs. Its strides are free, so that what a kernel multiplies need not be copied
into another layout first, and its operands are addresses, as memory is handed out by the caller.
Numba has no vectors of its own, so a tile is written in LLVM's language.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_WIDE = bool(binding.get_host_cpu_features().get("avx512f"))
BYTES = 64 if _WIDE else 32  # of one vector
ROWS = 12 if _WIDE else 6  # of the largest tile: with two vectors each, they fill the registers
TAPS = 6 if _WIDE else 2  # at a time in sums along neighbours, for four rows
_INT = ir.IntType(64)


@njit(cache=True)
def pad(count: int, width: int) -> int:
    """Up to whole vectors of ``width`` numbers.

    >>> pad(17, 16)
    32
    """
    return -(-count // width) * width


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


@njit(cache=True)
def dots(
    like: Any, rows: int, taps: int, runs: int, columns: int, a: int, a_row: int, a_run: int,
    b: int, table: int, b_run: int, c: int, c_row: int,
) -> None:  # fmt: skip
    """C[i, t] += Σ_s Σ_n A[i, s, n] B[t, s, n], where n runs along neighbours in memory.

    Rows are read and written up to a multiple of four, columns up to the next whole vector, of
    which one of the two has zeros.

    Args:
        like: a number of the type that all three are of.
        rows: of A and C.
        taps: rows of B.
        runs: how many s.
        columns: how many n.
        a: address of A[0, 0, 0].
        a_row: from one row of A to the next, in numbers.
        a_run: from one s to the next in A.
        b: an address; B[t] stands ``table[t]`` bytes after it.
        table: an address.
        b_run: from one s to the next in B.
        c: address of C[0, 0].
        c_row: from one row of C to the next.
    """
    size = itemsize(like)
    tall = even(taps, TAPS)
    for i in range(0, rows, 4):
        for t in range(0, taps, tall):
            _dots(
                like, min(tall, taps - t), runs, pad(columns, BYTES // size) * size,
                a + i * a_row * size, a_row * size, a_run * size,
                b, table + t * 8, b_run * size,
                c + (i * c_row + t) * size, c_row * size,
            )  # fmt: skip


@intrinsic
def itemsize(context: Any, like: Any) -> Any:
    """Bytes of a number."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return ir.Constant(_INT, signature.args[0].bitwidth // 8)

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
            ir.Constant(_INT, signature.args[3].bitwidth // 8),
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
            offset = builder.mul(row, ir.Constant(_INT, index * size))
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
        one = ir.Constant(_INT, 1)
        return builder.atomic_rmw("add", builder.gep(given[0], [given[1]]), one, "seq_cst")

    return types.int64(types.CPointer(types.int64), types.int64), code


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
            shape = builder.add(builder.mul(rows, ir.Constant(_INT, 2)), vectors)
            done = builder.append_basic_block("tiled")
            choice = builder.switch(shape, done)
            for height in range(1, ROWS + 1):
                for across in (1, 2):
                    block = builder.append_basic_block(f"tile.{height}.{across}")
                    choice.add_case(ir.Constant(_INT, 2 * height + across), block)
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


@intrinsic
def _dots(
    context: Any, like: Any, taps: Any, runs: Any, reach: Any, a: Any, a_row: Any, a_run: Any,
    b: Any, table: Any, b_run: Any, c: Any, c_row: Any,
) -> Any:  # fmt: skip
    """:func:`dots` of four rows and 1 … TAPS taps; all strides in bytes."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        number = context.get_value_type(signature.args[0])
        size = signature.args[0].bitwidth // 8
        done = builder.append_basic_block("dotted")
        choice = builder.switch(given[1], done)
        for taps in range(1, TAPS + 1):
            block = builder.append_basic_block(f"dots.{taps}")
            choice.add_case(ir.Constant(_INT, taps), block)
            with builder.goto_block(block):
                _one_dots(builder, number, size, taps, given[2:])
                builder.branch(done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    whole = [types.int64] * 11
    return types.void(like, *whole), code


def _one_dots(builder: Any, number: Any, size: int, taps: int, operands: Any) -> None:
    runs, reach, a, a_row, a_run, b, table, b_run, c, c_row = operands
    vector = ir.VectorType(number, BYTES // size)

    def at(base: Any, offset: Any, kind: Any) -> Any:
        return builder.inttoptr(builder.add(base, offset), kind.as_pointer())

    def times(count: Any, step: int) -> Any:
        return builder.mul(count, ir.Constant(_INT, step))

    none = ir.Constant(vector, None)
    sums = [[cgutils.alloca_once_value(builder, none) for _ in range(taps)] for _ in range(4)]
    shifts = [builder.load(at(table, ir.Constant(_INT, 8 * t), _INT)) for t in range(taps)]
    left = [builder.add(a, times(a_row, i)) for i in range(4)]
    right = [builder.add(b, shift) for shift in shifts]
    with cgutils.for_range(builder, runs) as run:
        own = [builder.add(base, builder.mul(run.index, a_run)) for base in left]
        others = [builder.add(base, builder.mul(run.index, b_run)) for base in right]
        zero, step = ir.Constant(_INT, 0), ir.Constant(_INT, BYTES)
        with cgutils.for_range_slice(builder, zero, reach, step) as (offset, _):
            rows = [builder.load(at(base, offset, vector), align=size) for base in own]
            for t, base in enumerate(others):
                values = builder.load(at(base, offset, vector), align=size)
                for i, row in enumerate(rows):
                    term = builder.fmul(row, values, flags=("contract",))
                    before = builder.load(sums[i][t])
                    builder.store(builder.fadd(before, term, flags=("contract",)), sums[i][t])
    every = [builder.load(total) for row in sums for total in row]
    room = cgutils.alloca_once(builder, vector, size=-(-len(every) // vector.count))
    for k, totals in enumerate(_added_up(builder, every, 16 // size)):
        builder.store(totals, builder.gep(room, [ir.Constant(_INT, k)]), align=size)
    totals = builder.bitcast(room, number.as_pointer())
    for n in range(len(every)):
        i, t = divmod(n, taps)
        spot = at(builder.add(c, times(c_row, i)), ir.Constant(_INT, t * size), number)
        last = builder.load(builder.gep(totals, [ir.Constant(_INT, n)]), align=size)
        builder.store(builder.fadd(builder.load(spot, align=size), last), spot, align=size)


def _added_up(builder: Any, vectors: list[Any], lane: int) -> list[Any]:
    """The sums of vectors, as numbers of as few vectors; ``lane`` numbers shuffle without delay.

    Two vectors become one that has the sums of neighbours of both, until neighbours are no more:
    first numbers within a lane of 128 bits, then lanes.
    """
    width = vectors[0].type.count
    none = ir.Constant(vectors[0].type, None)
    neighbours = [(lane, 1)] * (lane.bit_length() - 1)
    neighbours += [(width, lane)] * ((width // lane).bit_length() - 1)
    for group, unit in neighbours:
        halves = []
        for odd in (0, 1):
            order = [
                which * width + start + k + n
                for start in range(0, width, group)
                for which in (0, 1)
                for k in range(odd * unit, group, 2 * unit)
                for n in range(unit)
            ]
            halves.append(ir.Constant(ir.VectorType(ir.IntType(32), width), order))
        pairs = zip(vectors[::2], [*vectors[1::2], none], strict=False)
        vectors = [
            builder.fadd(*(builder.shuffle_vector(one, other, half) for half in halves))
            for one, other in pairs
        ]
    return vectors


def _one_tile(
    builder: Any, number: Any, size: int, height: int, across: int, depth: Any, operands: Any,
    tabled: bool,
) -> None:  # fmt: skip
    a, a_row, a_step, b, b_step, c, c_row, keep = operands  # b_step is a table if there is one
    vector = ir.VectorType(number, BYTES // size)

    def at(base: Any, offset: Any, kind: Any) -> Any:
        return builder.inttoptr(builder.add(base, offset), kind.as_pointer())

    def times(count: Any, step: int) -> Any:
        return builder.mul(count, ir.Constant(_INT, step))

    down = [times(times(c_row, size), i) for i in range(height)]
    over = [ir.Constant(_INT, BYTES * v) for v in range(across)]
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
        next_b = builder.add(where_b, ir.Constant(_INT, 8) if tabled else times(b_step, size))
        if tabled:
            where_b = builder.add(b, builder.load(builder.inttoptr(where_b, _INT.as_pointer())))
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
