"""The result of :func:`mcover.solve`: a student and how it was found."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover.annealing.options import AnnealOptions
from mcover.annealing.problems import Signs, as_patterns
from mcover.errors import McoverError


@dataclass(frozen=True, eq=False)
class Solution:
    """A student with one or a few bits per weight, checked on every pattern.

    ``errors`` and ``margin`` are recomputed from patterns and weights before :func:`mcover.solve`
    returns, so a bug in the compiled search cannot appear as a solution.
    """

    weights: NDArray[np.int16]  # integers, ±1 if bits is 1, (sites,)
    bits: int  # bits per weight
    hidden: int  # number K of hidden units
    classes: tuple[Any, Any]  # the labels that stand for -1 and +1
    solved: bool  # whether errors is 0
    errors: int  # number of misclassified patterns
    patterns: int
    margin: float
    """The smallest margin of a pattern: y w·x / ‖w‖ of a perceptron, votes / √K of a committee."""
    restarts: int  # finished restarts that count for the outcome; 0 if none was finished
    restart: int  # the number of the restart that found the student
    readout: str  # how the student was chosen: "majority", "cover 3", "polish", or "sum of 7"
    options: AnnealOptions  # method and schedule of that restart
    seconds: float  # from the call to the return
    core_seconds: float  # CPU time of the restarts that count
    proposals: int
    interrupted: bool  # by Ctrl-C or ``interrupt``

    def __repr__(self) -> str:
        state = "solved" if self.solved else f"{self.errors:,} errors"
        method, sweeps = self.options.method, len(self.options.schedule.temperatures())
        shown = {"covers": method.covers, "bank": method.bank, "coupling": method.coupling}
        known = {one.name for one in fields(method)}
        named = ", ".join(f"{name}={of}" for name, of in shown.items() if of and name in known)
        unit = f"{self.hidden} hidden units of " if self.hidden > 1 else ""
        per = self.weights.size // self.hidden
        lines = [
            f"Solution: {state} on {self.patterns:,} patterns",
            f"  student   {unit}{per:,} inputs, {self.bits} bit{'s' * (self.bits > 1)} per weight",
            f"  margin    {self.margin:.4g}",
            f"  found by  {type(method).__name__}({named}), {sweeps:,} sweeps, {self.readout}",
            f"  effort    {self.restarts} restart{'s' * (self.restarts != 1)}, "
            f"{self.seconds:.2f} s, {self.core_seconds:.2f} core seconds",
        ]
        if self.classes != (-1, 1):
            minus, plus = self.classes
            lines.append(f"  labels    {minus!r} is -1, {plus!r} is +1")
        if self.interrupted:
            lines.append("  interrupted: the best so far")
        return "\n".join(lines)

    @cached_property
    def packed(self) -> NDArray[np.uint64]:
        """The weights as packed bits, shape (bits, K, words); plane b has the weight 2^b."""
        from mcover.annealing.packed import pack_signs

        planes = bit_planes(self.weights, self.bits).reshape(self.bits * self.hidden, -1)
        return pack_signs(planes).reshape(self.bits, self.hidden, -1)

    def fields(self, patterns: ArrayLike) -> NDArray[np.int64]:
        """The integer fields w·x of the units, (P, K), by popcounts of packed bits."""
        from mcover.annealing.packed import pack_signs, packed_fields

        inputs = self.weights.size // self.hidden
        signs = as_patterns(patterns)
        if signs.shape[1] != inputs:
            raise McoverError(f"patterns have {signs.shape[1]} inputs; write {inputs} of them.")
        rows = self.packed.reshape(self.bits * self.hidden, -1)
        fields = packed_fields(pack_signs(signs), rows, inputs).astype(np.int64)
        planes = fields.reshape(len(signs), self.bits, self.hidden)
        return np.asarray(np.einsum("pbk,b->pk", planes, 2 ** np.arange(self.bits)))

    def predict(self, patterns: ArrayLike) -> NDArray[Any]:
        """The class of each pattern; a field or a vote of zero gives the first class."""
        right = 2 * (self.fields(patterns) > 0).sum(axis=1) > self.hidden
        return np.array(self.classes)[right.astype(int)]


def bit_planes(weights: NDArray[np.int16], bits: int) -> Signs:
    """Odd integers between ±(2^bits − 1) as ±1 planes with Σ_b 2^b plane_b = weights.

    >>> bit_planes(np.array([-3, -1, 1, 3], dtype=np.int16), 2).tolist()
    [[-1, 1, -1, 1], [-1, -1, 1, 1]]
    """
    # w + 2^bits - 1 is even, and half of it has that many bits; a set bit is +1.
    number = (weights.astype(np.int64) + 2**bits - 1) // 2
    planes = (number[None] >> np.arange(bits)[:, None]) & 1
    return (2 * planes - 1).astype(np.int8)
