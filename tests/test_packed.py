"""±1 students on packed bits against plain matrix products."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcover.annealing.packed import pack_above, pack_signs, packed_fields, unpack_signs

SIZES = st.tuples(st.integers(1, 20), st.integers(1, 9), st.integers(1, 200))


def signs(rng, *shape):
    return (2 * rng.integers(0, 2, shape) - 1).astype(np.int8)


@given(SIZES, st.integers(0, 2**32))
def test_fields_are_the_matrix_product(sizes, seed):
    patterns, rows, inputs = sizes
    rng = np.random.default_rng(seed)
    x, w = signs(rng, patterns, inputs), signs(rng, rows, inputs)
    fields = packed_fields(pack_signs(x), pack_signs(w), inputs)
    np.testing.assert_array_equal(fields, x.astype(int) @ w.astype(int).T)


@given(SIZES, st.integers(0, 2**32))
def test_unpacking_gives_back_what_was_packed(sizes, seed):
    _, rows, inputs = sizes
    given_signs = signs(np.random.default_rng(seed), rows, inputs)
    packed = pack_signs(given_signs)
    assert packed.shape == (rows, -(-inputs // 64))
    np.testing.assert_array_equal(unpack_signs(packed, inputs), given_signs)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_bits_say_which_values_lie_above_their_cuts(dtype, order):
    rng = np.random.default_rng(0)
    values = np.asarray(rng.normal(size=(33, 5)).astype(dtype), order=order)
    columns = rng.integers(0, 5, 130)
    thresholds = np.append(rng.normal(size=128), [-np.inf, float(values[0, columns[129]])])
    above = unpack_signs(pack_above(values, columns, thresholds), 130) > 0
    np.testing.assert_array_equal(above, values[:, columns] > thresholds)
    assert above[:, 128].all()
    assert not above[0, 129]  # a value is not above itself
