"""Evaluates ±1 students with packed bits: fields by popcount.

A field is ``w·x = N − 2·|x ⊕ w|``, where a set bit is +1 and the bars count ones. Bit i % 64 of
word i // 64 of a row is input i; the bits beyond N are zero in patterns and in weights.
"""

import numpy as np
from numpy.typing import NDArray

from mcover import checks
from mcover.annealing.bits import WORDS, Words, aligned, broadcast, count, load, store
from mcover.annealing.problems import Signs, as_signs
from mcover.compiled import njit
from mcover.errors import McoverError


def pack_signs(signs: Signs) -> Words:
    """Packs rows of ±1 into bits.

    >>> pack_signs(np.array([[1, -1, 1], [-1, -1, 1]])).tolist()
    [[5], [4]]

    Shape: (rows, N) → (rows, N/64 rounded up), uint64.
    """
    return pack_bits(as_signs("signs", signs, (None, None)) > 0)


def pack_bits(bits: NDArray[np.bool_]) -> Words:
    """Packs rows of truth values into bits, True for +1.

    >>> pack_bits(np.array([[True, False, True]])).tolist()
    [[5]]

    Shape: (rows, N) → (rows, N/64 rounded up), uint64.
    """
    padded = np.zeros((len(bits), _words(bits.shape[1]) * 64), dtype=np.bool_)
    padded[:, : bits.shape[1]] = bits
    return np.packbits(padded, axis=1, bitorder="little").view("<u8").astype(np.uint64, copy=False)


def unpack_signs(words: Words, inputs: int) -> Signs:
    """Unpacks rows of ±1.

    >>> unpack_signs(np.array([[5], [4]], dtype=np.uint64), 3).tolist()
    [[1, -1, 1], [-1, -1, 1]]

    Shape: (..., words) → (..., inputs), int8.
    """
    given = _rows("words", words, inputs)
    packed = np.ascontiguousarray(given, dtype="<u8").view(np.uint8)
    bits = np.unpackbits(packed, axis=-1, count=inputs, bitorder="little")
    return np.asarray(2 * bits.astype(np.int8) - 1, dtype=np.int8)


def pack_above(
    values: NDArray[np.floating], columns: NDArray[np.intp], thresholds: NDArray[np.float64]
) -> Words:
    """Packs rows of bits; bit i is values[:, columns[i]] > thresholds[i].

    >>> pack_above(np.array([[0.5], [2.5]]), np.array([0, 0]), np.array([1.0, 2.0])).tolist()
    [[0], [3]]

    Shape: values (P, features) of float32 or float64; columns and thresholds (N,) → uint64
    (P, words).
    """
    columns = np.asarray(columns, dtype=np.intp)
    thresholds = np.asarray(thresholds, dtype=np.float64)
    fits = values.ndim == 2 and columns.ndim == 1 and columns.shape == thresholds.shape
    if not fits or not columns.size:
        raise McoverError(
            f"values have shape {values.shape}, columns {columns.shape} and thresholds "
            f"{thresholds.shape}; write (P, features), and as many columns as thresholds."
        )
    if columns.min() < 0 or columns.max() >= values.shape[1]:
        raise McoverError(
            f"columns go from {columns.min()} to {columns.max()}; write numbers from 0 to "
            f"{values.shape[1] - 1}."
        )
    packed = np.empty((len(values), _words(len(thresholds))), dtype=np.uint64)
    _pack_above(np.ascontiguousarray(values), columns, thresholds, packed)
    return packed


def packed_fields(patterns: Words, weights: Words, inputs: int) -> NDArray[np.int32]:
    """The fields w·x of packed rows.

    >>> patterns, weights = np.array([[1, 1, -1], [1, -1, 1]]), np.array([[1, 1, 1]])
    >>> packed_fields(pack_signs(patterns), pack_signs(weights), inputs=3).tolist()
    [[1], [1]]

    Shape: patterns (P, words), weights (R, words) → (P, R).
    """
    patterns, weights = (
        np.ascontiguousarray(_rows(name, rows, inputs))
        for name, rows in (("patterns", patterns), ("weights", weights))
    )
    fields = np.empty((len(patterns), len(weights)), dtype=np.int32)
    _fields(patterns, weights, inputs, aligned(patterns.shape[1] * WORDS), aligned(WORDS), fields)
    return fields


def _words(inputs: int) -> int:
    return -(-inputs // 64)


def _rows(name: str, words: Words, inputs: int) -> Words:
    inputs = checks.check_int("inputs", inputs, 1)
    if words.dtype != np.uint64 or words.shape[-1:] != (_words(inputs),):
        raise McoverError(
            f"{name} are {words.dtype} of shape {words.shape}; {inputs} inputs take "
            f"{_words(inputs)} words of uint64 per row, as pack_signs makes them."
        )
    return words


@njit()
def _pack_above(
    values: NDArray[np.floating],
    columns: NDArray[np.intp],
    thresholds: NDArray[np.float64],
    packed: Words,
) -> None:
    for p in range(len(values)):
        for j in range(packed.shape[1]):
            word = np.uint64(0)
            for i in range(64 * j, min(64 * (j + 1), len(thresholds))):
                word |= np.uint64(values[p, columns[i]] > thresholds[i]) << np.uint64(i % 64)
            packed[p, j] = word


@njit()
def _fields(
    patterns: Words,
    weights: Words,
    inputs: int,
    tile: Words,
    counts: Words,
    fields: NDArray[np.int32],
) -> None:
    """Each lane of a register holds a word of another pattern, so that no sum crosses lanes."""
    words = patterns.shape[1]
    for start in range(0, len(patterns), WORDS):
        size = min(WORDS, len(patterns) - start)
        for p in range(size):
            for j in range(words):
                tile[j * WORDS + p] = patterns[start + p, j]
        for r in range(len(weights)):
            differ = broadcast(np.uint64(0))
            for j in range(words):
                differ = differ + count(load(tile, j * WORDS) ^ broadcast(weights[r, j]))
            store(counts, 0, differ)
            for p in range(size):
                fields[start + p, r] = inputs - 2 * np.int32(counts[p])
