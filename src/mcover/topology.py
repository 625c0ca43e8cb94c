"""Topologies: the mixing kernels Q that say from which covers a source may be read.

A topology is an immutable value. ``topology.matrix(covers)`` is its M×M kernel, balanced to be
doubly stochastic; row α is the cover that reads, column β the cover that is read. Scaling rows or
columns leaves the law of the routes unchanged (see :mod:`mcover.permutations`); balancing
conditions the numbers, and matters where Q itself mixes messages.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover.balance import balance, log_weights
from mcover.errors import McoverError
from mcover.facts import Facts, facts

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Topology:
    """Base of all topologies: a subclass says its log-kernel, the rest follows."""

    kinds: ClassVar[dict[str, type[Topology]]] = {}

    def __init_subclass__(cls, kind: str | None = None) -> None:
        if kind is not None:
            cls.kind = kind
            Topology.kinds[kind] = cls

    kind: ClassVar[str]

    def log_kernel(self, covers: int) -> Matrix:
        """Unbalanced log Q, shape (covers, covers); −inf where a read is impossible."""
        raise TypeError(f"{type(self).__name__} is not a topology: it has no kernel.")

    def matrix(self, covers: int) -> Matrix:
        """The balanced kernel Q, shape (covers, covers): rows and columns sum to 1.

        >>> Uniform().matrix(2)
        array([[0.5, 0.5],
               [0.5, 0.5]])
        """
        check_covers(covers)
        return balance(self.log_kernel(covers), repr(self))

    def facts(self, covers: int) -> Facts:
        """Spectral gap, drift and effective width at this number of covers."""
        return facts(self.matrix(covers))

    def to_dict(self) -> dict[str, Any]:
        """A plain dict for configs and result tables; :func:`from_dict` reads it back."""
        return {"kind": self.kind} | asdict(self)


@dataclass(frozen=True)
class GaussianRing(Topology, kind="ring"):
    """The paper's kernel: a Gaussian of width ``sigma`` around ``shift``, on a ring of covers.

    Q[α,β] ∝ exp(−d²/2σ²) with d the displacement β − α − shift wrapped to [−M/2, M/2). The paper
    calls the shift μ. ``sigma=inf`` is uniform. ``skew`` in (−1, 1) makes it two-sided: the width
    is σ(1 + skew) ahead (d > 0) and σ(1 − skew) behind.

    >>> round(GaussianRing(sigma=1.5, shift=2).facts(12).drift, 6)
    2.0
    """

    sigma: float = 1.5
    """Width, in covers; inf is uniform."""
    shift: float = 0.0
    """Where a cover reads, in covers ahead of itself; may be fractional."""
    skew: float = 0.0
    """Wider ahead (positive) or behind (negative); between -1 and 1."""

    def __post_init__(self) -> None:
        _check_gaussian(self, self.sigma, self.skew, self.shift)

    def log_kernel(self, covers: int) -> Matrix:
        return _log_gaussian(_ring_displacement(covers, self.shift), self.sigma, self.skew)


@dataclass(frozen=True)
class Uniform(Topology, kind="uniform"):
    """Every cover is read equally: all permutations are equally likely."""

    def log_kernel(self, covers: int) -> Matrix:
        return np.zeros((covers, covers))


@dataclass(frozen=True)
class Identity(Topology, kind="identity"):
    """Each cover reads only itself: M independent models."""

    def log_kernel(self, covers: int) -> Matrix:
        return log_weights(np.eye(covers))


@dataclass(frozen=True)
class Band(Topology, kind="band"):
    """Equal reads within ``width`` steps on the ring, both ways or (``one_sided``) ahead only."""

    width: int = 1
    """Steps that are reached."""
    one_sided: bool = False
    """Reach ahead only."""

    def __post_init__(self) -> None:
        if self.width < 0 or self.width != int(self.width):
            raise McoverError(f"Band width is {self.width}; write a whole number of at least 0.")

    def log_kernel(self, covers: int) -> Matrix:
        ahead = (-_offsets(covers)) % covers
        near = ahead <= self.width
        if not self.one_sided:
            near |= covers - ahead <= self.width
        return log_weights(near)


@dataclass(frozen=True)
class Chain(Topology, kind="chain"):
    """A Gaussian ring cut open: the ends do not see each other.

    Spatial coupling without tail-biting. Balancing makes room at the ends, so the covers there
    read themselves more than those in the bulk. There is no shift: off the ring it would be a
    scaling of rows and columns, which neither the law nor the balanced matrix can see.
    """

    sigma: float = 1.5
    """Width, in covers."""
    skew: float = 0.0
    """Wider ahead (positive) or behind (negative); between -1 and 1."""

    def __post_init__(self) -> None:
        _check_gaussian(self, self.sigma, self.skew)

    def log_kernel(self, covers: int) -> Matrix:
        return _log_gaussian(-_offsets(covers).astype(float), self.sigma, self.skew)


@dataclass(frozen=True)
class Blocks(Topology, kind="blocks"):
    """A Gaussian ring over ``count`` equal blocks of covers, uniform inside a block."""

    count: int = 2
    """Number of blocks; it divides the number of covers."""
    sigma: float = 1.0
    """Width, in blocks."""
    shift: float = 0.0
    """Where a block reads, in blocks ahead."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.count != int(self.count):
            raise McoverError(f"Blocks count is {self.count}; write a whole number of at least 1.")
        _check_gaussian(self, self.sigma, 0.0, self.shift)

    def log_kernel(self, covers: int) -> Matrix:
        size, rest = divmod(covers, self.count)
        if rest or not size:
            raise McoverError(
                f"{self!r} cannot split {covers} covers into {self.count} equal blocks; "
                f"write covers={max(size + bool(rest), 1) * self.count}, or a count that divides."
            )
        ring = GaussianRing(self.sigma, self.shift).log_kernel(self.count)
        return np.repeat(np.repeat(ring, size, axis=0), size, axis=1)


@dataclass(frozen=True)
class Torus(Topology, kind="torus"):
    """Covers on a ``rows`` × ``cols`` torus, row by row; a Gaussian read in both directions."""

    rows: int = 2
    """Covers along the first direction."""
    cols: int = 2
    """Covers along the second direction."""
    sigma: float = 1.0
    """Width in both directions, in covers."""
    row_shift: float = 0.0
    """Where a cover reads along the first direction."""
    col_shift: float = 0.0
    """Where a cover reads along the second direction."""

    def __post_init__(self) -> None:
        if min(self.rows, self.cols) < 1:
            raise McoverError(f"{self!r} has an empty side; write rows and cols of at least 1.")
        _check_gaussian(self, self.sigma, 0.0, self.row_shift, self.col_shift)

    def log_kernel(self, covers: int) -> Matrix:
        if covers != self.rows * self.cols:
            raise McoverError(
                f"{self!r} holds {self.rows * self.cols} covers, {covers} were asked for; "
                f"write covers={self.rows * self.cols}, or other rows and cols."
            )
        along_rows = GaussianRing(self.sigma, self.row_shift).log_kernel(self.rows)
        along_cols = GaussianRing(self.sigma, self.col_shift).log_kernel(self.cols)
        # log of a Kronecker product: every pair of row and column displacements adds up.
        total = along_rows[:, None, :, None] + along_cols[None, :, None, :]
        return total.reshape(covers, covers)


@dataclass(frozen=True, repr=False)
class Custom(Topology, kind="custom"):
    """Any non-negative square matrix under which some permutation is possible.

    >>> Custom([[1, 1], [1, 3]]) == Custom(np.array([[1.0, 1.0], [1.0, 3.0]]))
    True
    >>> Custom(np.eye(2)), Custom(np.ones((9, 9)))
    (Custom([[1.0, 0.0], [0.0, 1.0]]), Custom(<9 × 9 matrix>))
    """

    values: tuple[tuple[float, ...], ...]

    def __init__(self, matrix: ArrayLike) -> None:
        array = np.exp(log_weights(matrix))
        object.__setattr__(self, "values", tuple(tuple(row) for row in array.tolist()))
        self.matrix(len(self.values))  # an impossible topology is refused when it is made

    def __repr__(self) -> str:
        covers = len(self.values)
        shown = (
            [list(row) for row in self.values] if covers <= 4 else f"<{covers} × {covers} matrix>"
        )
        return f"Custom({shown})"

    def log_kernel(self, covers: int) -> Matrix:
        if covers != len(self.values):
            raise McoverError(
                f"this Custom topology is for {len(self.values)} covers, {covers} were asked for; "
                f"write covers={len(self.values)}, or give another matrix."
            )
        return log_weights(self.values)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "matrix": [list(row) for row in self.values]}


@dataclass(frozen=True)
class Mixture(Topology, kind="mixture"):
    """A convex mixture of topologies; made by :func:`mix`."""

    parts: tuple[Topology, ...]
    weights: tuple[float, ...]

    def log_kernel(self, covers: int) -> Matrix:
        parts = zip(self.weights, self.parts, strict=True)
        return log_weights(sum(weight * part.matrix(covers) for weight, part in parts))

    def to_dict(self) -> dict[str, Any]:
        parts = [part.to_dict() for part in self.parts]
        return {"kind": self.kind, "parts": parts, "weights": list(self.weights)}


def mix(*topologies: Topology, weights: ArrayLike | None = None) -> Topology:
    """The convex mixture Σ w_k Q_k of balanced kernels; equal weights unless given.

    >>> mix(Identity(), Uniform(), weights=[3, 1]).matrix(2)
    array([[0.875, 0.125],
           [0.125, 0.875]])
    """
    if not topologies or not all(isinstance(part, Topology) for part in topologies):
        raise McoverError("mix takes topologies; write e.g. mix(GaussianRing(1.0), Uniform()).")
    share = np.ones(len(topologies)) if weights is None else np.asarray(weights, dtype=float)
    if share.shape != (len(topologies),) or not np.all(np.isfinite(share)) or np.any(share <= 0):
        raise McoverError(
            f"mix got weights {weights!r} for {len(topologies)} topologies; "
            "write one positive number for each."
        )
    return Mixture(tuple(topologies), tuple((share / share.sum()).tolist()))


def from_dict(plain: dict[str, Any]) -> Topology:
    """Reads back what :meth:`Topology.to_dict` wrote.

    >>> from_dict({"kind": "ring", "sigma": 1.5, "shift": 2.0})
    GaussianRing(sigma=1.5, shift=2.0, skew=0.0)
    """
    values = dict(plain)
    kind = values.pop("kind", None)
    cls = Topology.kinds.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise McoverError(f"no topology of kind {kind!r}; write one of {sorted(Topology.kinds)}.")
    if cls is Mixture:
        parts = [from_dict(part) for part in values.get("parts", [])]
        return mix(*parts, weights=values.get("weights"))
    known = ["matrix"] if cls is Custom else [field.name for field in fields(cls)]
    unknown = set(values) - set(known)
    if unknown or (cls is Custom and not values):
        raise McoverError(f"topology {kind!r} has the fields {known}; got {sorted(values)}.")
    return cls(**values)


def check_covers(covers: int) -> None:
    """Refuses a number of covers that is not a whole number of at least 1."""
    if not isinstance(covers, int | np.integer) or covers < 1:
        raise McoverError(f"covers is {covers!r}; write a whole number of at least 1.")


def _offsets(covers: int) -> NDArray[np.int64]:
    """α − β, shape (covers, covers)."""
    index = np.arange(covers)
    return index[:, None] - index[None, :]


def _ring_displacement(covers: int, shift: float) -> Matrix:
    """β − α − shift wrapped to [−M/2, M/2): right for fractional shifts and odd M alike."""
    ahead = -_offsets(covers).astype(np.float64) - shift
    wrapped: Matrix = np.mod(ahead + covers / 2, covers) - covers / 2
    return wrapped


def _log_gaussian(displacement: Matrix, sigma: float, skew: float) -> Matrix:
    """log of the two-piece Gaussian exp(−d²/2σ²) with σ(1 ± skew) ahead and behind."""
    width = sigma * np.where(displacement > 0, 1 + skew, 1 - skew)
    # Measured from the best column of each row, so that no row underflows; the law is unchanged.
    log_kernel = -0.5 * (displacement / width) ** 2
    result: Matrix = log_kernel - log_kernel.max(axis=1, keepdims=True)
    return result


def _check_gaussian(topology: Topology, sigma: float, skew: float, *shifts: float) -> None:
    if not sigma > 0:
        raise McoverError(f"{topology!r}: sigma must be positive; inf is the uniform limit.")
    if not -1 < skew < 1:
        raise McoverError(f"{topology!r}: skew must lie between -1 and 1, both excluded.")
    if not all(math.isfinite(shift) for shift in shifts):
        raise McoverError(f"{topology!r}: a shift must be a finite number of covers.")
