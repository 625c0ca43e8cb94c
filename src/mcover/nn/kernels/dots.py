"""Sums along neighbours in memory: rows times other rows, held in registers while they run."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from mcover.nn.kernels.memory import BYTES, INT, WIDE, itemsize, pad
from mcover.nn.kernels.tiles import even

TAPS = 6 if WIDE else 2  # at a time, for four rows: they fill the registers


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
            choice.add_case(ir.Constant(INT, taps), block)
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
        return builder.mul(count, ir.Constant(INT, step))

    none = ir.Constant(vector, None)
    sums = [[cgutils.alloca_once_value(builder, none) for _ in range(taps)] for _ in range(4)]
    shifts = [builder.load(at(table, ir.Constant(INT, 8 * t), INT)) for t in range(taps)]
    left = [builder.add(a, times(a_row, i)) for i in range(4)]
    right = [builder.add(b, shift) for shift in shifts]
    with cgutils.for_range(builder, runs) as run:
        own = [builder.add(base, builder.mul(run.index, a_run)) for base in left]
        others = [builder.add(base, builder.mul(run.index, b_run)) for base in right]
        zero, step = ir.Constant(INT, 0), ir.Constant(INT, BYTES)
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
        builder.store(totals, builder.gep(room, [ir.Constant(INT, k)]), align=size)
    totals = builder.bitcast(room, number.as_pointer())
    for n in range(len(every)):
        i, t = divmod(n, taps)
        spot = at(builder.add(c, times(c_row, i)), ir.Constant(INT, t * size), number)
        last = builder.load(builder.gep(totals, [ir.Constant(INT, n)]), align=size)
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
