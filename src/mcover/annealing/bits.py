"""Operations on 512 bits at a time, and counters built from them, for compiled code.

A `Lanes` value is an LLVM ``<8 x i64>``: one register with AVX-512; for other CPUs LLVM splits it.
Numba has no vector type, and by default LLVM vectorises such loops with 256-bit registers only.
Inside compiled functions lanes combine with ``&``, ``|``, ``^`` and ``+`` (eight separate 64-bit
sums); `load` and `store` move them to and from flat uint64 arrays, whose indices count words and
are not checked.

A **counter** holds one small number for each of 512 patterns. Its **planes** are the bits of these
numbers in two's complement, lowest first, each plane one Lanes value.

Why planes: a flip of a weight changes the margin of every pattern by one step up or down, so all
512 numbers change by ±1. With one bit of every number in a register, that is a ripple-carry
addition, plane by plane: ``new = bit ^ carry``, and the carry propagates where the bit was 1
(addition) or 0 (subtraction). It takes about log₂ N steps instead of 512 additions.

Counters are offset so that a pattern is misclassified exactly if its number is negative. The
highest plane holds the sign bits, so it is the error mask without any comparison, and a popcount of
it counts errors. This breaks if a counter overflows its planes: `counter_depth` is the smallest
depth that holds every possible value, and each flip of a weight must be followed by exactly one
step in every context that reads it.
"""

# mypy: disable-error-code="misc, no-untyped-call, unused-ignore"
# (numba's extension interface has no types)

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic as _intrinsic
from numba.extending import lower_builtin, models, register_model
from numpy.typing import NDArray

from mcover.compiled import njit

WORDS = 8  # uint64 words in one Lanes value
ONES = np.uint64(0xFFFFFFFFFFFFFFFF)

_I64 = ir.IntType(64)
_VECTOR = ir.VectorType(_I64, WORDS)

Words = NDArray[np.uint64]

intrinsic: Any = _intrinsic  # its type demands typingctx, which callers do not pass


class Lanes(types.Type):
    """The numba type of 512 bits."""


lanes = Lanes(name="Lanes")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, fe_type: Any) -> None:
        super().__init__(manager, fe_type, _VECTOR)


def _operator(function: Any, method: str) -> None:
    @infer_global(function)
    class _Template(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            return signature(lanes, lanes, lanes) if args == (lanes, lanes) else None

    @lower_builtin(function, lanes, lanes)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, method)(*args)


_operator(operator.and_, "and_")
_operator(operator.or_, "or_")
_operator(operator.xor, "xor")
_operator(operator.add, "add")


def _pointer(context: Any, builder: Any, sig: Any, array: Any, index: Any) -> Any:
    data = cgutils.create_struct_proxy(sig.args[0])(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


def _call(name: str, result: Any) -> Any:
    """Code that calls one of LLVM's vector intrinsics."""
    kind = ir.FunctionType(result, [_VECTOR])

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        function = cgutils.get_or_insert_function(builder.module, kind, f"{name}.v{WORDS}i64")
        return builder.call(function, args)

    return codegen


@intrinsic
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """The 512 bits at words index..index+7 of a flat uint64 array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        # Only 8-byte alignment is assumed, so that copied or unpickled arrays work too.
        return builder.load(_pointer(context, builder, sig, *args), align=8)

    return lanes(array, types.intp), codegen


@intrinsic
def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Write 512 bits to words index..index+7 of a flat uint64 array."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(context, builder, sig, *args[:2]), align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), codegen


@intrinsic
def broadcast(typingctx: Any, word: Any) -> Any:
    """Eight copies of one 64-bit word."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        one = builder.insert_element(undefined, args[0], _I64(0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), WORDS), [0] * WORDS)
        return builder.shuffle_vector(one, undefined, zeros)

    return lanes(types.uint64), codegen


@intrinsic
def count(typingctx: Any, value: Any) -> Any:
    """The number of ones in each of the eight words, as lanes."""
    return lanes(lanes), _call("llvm.ctpop", _VECTOR)


@intrinsic
def total(typingctx: Any, value: Any) -> Any:
    """The sum of the eight words, as int64."""
    return types.int64(lanes), _call("llvm.vector.reduce.add", _I64)


@intrinsic
def ones_in(typingctx: Any, word: Any) -> Any:
    """The number of ones in one 64-bit word, as int64."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


def aligned(words: int) -> Words:
    """A flat array of zeros that starts on a cache line, so that no load straddles two."""
    raw = np.zeros(words + WORDS, dtype=np.uint64)
    skip = (-raw.ctypes.data // 8) % WORDS
    return raw[skip : skip + words]


def counter_depth(terms: int) -> int:
    """Planes that hold n - ⌊terms/2⌋ - 1 for every n in 0..terms.

    >>> counter_depth(1), counter_depth(2), counter_depth(1000)
    (1, 2, 10)
    """
    return (terms // 2).bit_length() + 1


@njit()
def clear_counter(planes: Words, at: int, depth: int, terms: int) -> None:
    """Set the counter at word `at` to -⌊terms/2⌋ - 1, that is n = 0, for all patterns."""
    start = -(terms // 2) - 1
    for i in range(depth):
        store(planes, at + i * WORDS, broadcast(ONES if (start >> i) & 1 else np.uint64(0)))


@njit(forceinline=True)
def _step_plane(planes: Words, at: int, d: Any, carry: Any, lower: Any, mixed: Any) -> Any:
    """Add the carry to one plane; returns the plane, the carry, and where planes differ so far."""
    bit = load(planes, at)
    # An addition carries from a 1, a subtraction borrows from a 0: bit ^ d covers both.
    plane = bit ^ carry
    store(planes, at, plane)
    return plane, carry & (bit ^ d), mixed | (plane ^ lower)


@njit(forceinline=True)
def step_counter(planes: Words, at: int, depth: int, carry: Any, d: Any) -> Any:
    """Add -1 (where d) or +1 (elsewhere) to the counter at word `at`, in the patterns of `carry`.

    Other patterns do not change. With an empty `carry` the call only computes the three masks.

    Returns:
        Three lanes: the patterns whose counter is < 0, = 0 and = -1 after the step.
    """
    mixed = broadcast(np.uint64(0))
    plane, carry, _ = _step_plane(planes, at, d, carry, mixed, mixed)
    i, end = at + WORDS, at + depth * WORDS
    while i + 3 * WORDS < end:  # unrolled, because flips spend most of their time here
        plane, carry, mixed = _step_plane(planes, i, d, carry, plane, mixed)
        plane, carry, mixed = _step_plane(planes, i + WORDS, d, carry, plane, mixed)
        plane, carry, mixed = _step_plane(planes, i + 2 * WORDS, d, carry, plane, mixed)
        plane, carry, mixed = _step_plane(planes, i + 3 * WORDS, d, carry, plane, mixed)
        i += 4 * WORDS
    while i < end:
        plane, carry, mixed = _step_plane(planes, i, d, carry, plane, mixed)
        i += WORDS
    # The last plane is the sign. All planes are equal for the numbers 0 and -1 only.
    return plane, (mixed | plane) ^ broadcast(ONES), plane & (mixed ^ broadcast(ONES))
