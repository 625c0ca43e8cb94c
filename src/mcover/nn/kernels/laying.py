"""Numbers moved between tensors and strips, line by line (:mod:`mcover.nn.kernels.strips`)."""

from __future__ import annotations

from typing import Any

from numba import carray, njit

from mcover.nn.kernels.memory import itemsize, pointer


@njit(cache=True)
def clear(like: Any, at: int, count: int) -> None:
    """Zeros."""
    carray(pointer(at, like), (count,))[:] = 0


@njit(cache=True)
def lay(
    like: Any, lines: int, first: int, last: int, step: int, runs: int, covers: int, rows: int,
    of: int, of_run: int, of_cover: int, of_row: int,
    to: int, to_run: int, to_cover: int, to_row: int, room: int,
) -> None:  # fmt: skip
    """Lines of all rows, of all covers, of several samples into strips, of ``room`` numbers each.

    Every ``step``-th number of a line is taken. Operands are addresses, strides are in numbers.
    """
    size = itemsize(like)
    line = carray(pointer(lines, 0), (last, 3))
    for run in range(runs):
        for cover in range(covers):
            for row in range(rows):
                strip = to + (run * to_run + cover * to_cover + row * to_row) * size
                channel = of + (run * of_run + cover * of_cover + row * of_row) * size
                clear(like, strip, room)
                for k in range(first, last):
                    count = line[k, 2]
                    into = carray(pointer(strip + line[k, 0] * size, like), (count,))
                    numbers = carray(pointer(channel + line[k, 1] * size, like), (count * step,))
                    if step == 1:
                        for n in range(count):
                            into[n] = numbers[n]
                    else:
                        for n in range(count):
                            into[n] = numbers[n * step]


@njit(cache=True)
def add_out(
    like: Any, lines: int, first: int, last: int, step: int, runs: int, covers: int, rows: int,
    of: int, of_run: int, of_cover: int, of_row: int,
    to: int, to_run: int, to_cover: int, to_row: int,
) -> None:  # fmt: skip
    """Adds what lies in strips to where :func:`lay` takes it from."""
    size = itemsize(like)
    line = carray(pointer(lines, 0), (last, 3))
    for run in range(runs):
        for cover in range(covers):
            for row in range(rows):
                strip = of + (run * of_run + cover * of_cover + row * of_row) * size
                channel = to + (run * to_run + cover * to_cover + row * to_row) * size
                for k in range(first, last):
                    count = line[k, 2]
                    back = carray(pointer(strip + line[k, 0] * size, like), (count,))
                    numbers = carray(pointer(channel + line[k, 1] * size, like), (count * step,))
                    if step == 1:
                        for n in range(count):
                            numbers[n] += back[n]
                    else:
                        for n in range(count):
                            numbers[n * step] += back[n]


@njit(cache=True)
def take_out(
    like: Any, lines: int, first: int, last: int, covers: int, rows: int, bias: int, to_bias: int,
    of: int, of_cover: int, of_row: int, to: int, to_cover: int, to_row: int,
) -> None:  # fmt: skip
    """Lines of strips to their places in the result, with the bias of each cover and row if any."""
    size = itemsize(like)
    line = carray(pointer(lines, 0), (last, 3))
    for row in range(rows):
        for cover in range(covers):
            strip = of + (cover * of_cover + row * of_row) * size
            channel = to + (cover * to_cover + row * to_row) * size
            shift = like - like
            if bias:
                shift = carray(pointer(bias + cover * to_bias * size, like), (rows,))[row]
            for k in range(first, last):
                count = line[k, 2]
                numbers = carray(pointer(strip + line[k, 0] * size, like), (count,))
                into = carray(pointer(channel + line[k, 1] * size, like), (count,))
                for n in range(count):
                    into[n] = numbers[n] + shift


@njit(cache=True)
def add_shifted(
    like: Any, rows: int, columns: int, shifts: int, of: int, of_row: int, to: int
) -> None:
    """Adds each row to the strip of its tap."""
    shift = carray(pointer(shifts, 0), (rows,))
    for k in range(rows):
        row = carray(pointer(of + k * of_row * itemsize(like), like), (columns,))
        strip = carray(pointer(to + shift[k], like), (columns,))
        for n in range(columns):
            strip[n] += row[n]
