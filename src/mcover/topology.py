"""Topologies: the mixing kernels Q that say from which covers a source may be read.

A topology is an immutable value. ``topology.matrix(covers)`` is its M×M kernel, balanced to be
doubly stochastic; row α is the cover that reads, column β the cover that is read. The paper's
kernel is :class:`GaussianRing`; :class:`Custom` takes any other matrix.

Scaling rows or columns multiplies every permutation's weight by the same factor, so it leaves the
law of the routes unchanged (see :mod:`mcover.permutations`). Balancing keeps the numbers in range,
and it matters where Q itself mixes messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.errors import McoverError, UnreachableError
from mcover.plain import Tagged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Matrix = NDArray[np.float64]

_LARGEST_SHIFT = 2.0**32  # a double of this size still tells a millionth of a cover
_SMALLEST_SIGMA = 1e-100  # the square of a displacement in such widths is still finite
_TOLERANCE = 1e-13  # of the logarithms of row sums
_SINKHORN, _NEWTON = 2_000, 10_000  # steps


@dataclass(frozen=True)
class Facts:
    """Three numbers that say how a topology mixes."""

    spectral_gap: float  # ``1 − |λ₂|``: how fast differences between covers fade; 0 is never
    drift: float  # circular mean of β − α: how many covers along the ring a message moves per read
    effective_width: float  # exp of the mean row entropy: from how many covers a source is read


@dataclass(frozen=True)
class Topology(Tagged):
    """Base of all topologies: a subclass says its kind and its log-kernel, the rest follows."""

    def _log_kernel(self, covers: int) -> Matrix:
        """Unbalanced log Q, shape (covers, covers); −inf where a read is impossible."""
        raise TypeError(f"{type(self).__name__} is not a topology: it has no kernel.")

    def matrix(self, covers: int) -> Matrix:
        """The balanced kernel Q, shape (covers, covers): rows and columns sum to 1.

        >>> Uniform().matrix(2)
        array([[0.5, 0.5],
               [0.5, 0.5]])
        """
        covers = checks.check_int("covers", covers, 1)
        # Five matrices at a time: the logarithms, their balance and what is made on the way.
        checks.check_memory(40 * covers**2, f"a kernel of {covers} covers", "take fewer covers")
        return balance(self._log_kernel(covers), repr(self))

    def facts(self, covers: int) -> Facts:
        """Spectral gap, drift and effective width at this number of covers."""
        matrix = self.matrix(covers)
        moduli = np.sort(np.abs(np.linalg.eigvals(matrix)))
        second = moduli[-2] if covers > 1 else 0.0
        turn = np.sum(matrix * np.exp(-2j * np.pi * _offsets(covers) / covers)) / covers
        drift = np.angle(turn) * covers / (2 * np.pi) if abs(turn) > 1e-9 else 0.0
        entropy = -np.sum(matrix * np.log(matrix, where=matrix > 0, out=np.zeros_like(matrix)))
        return Facts(float(max(1 - second, 0.0)), float(drift), float(np.exp(entropy / covers)))

    def plot(self, covers: int, seed: Any = 0) -> Figure:
        """Q, the marginals of its law, three routes drawn from it, and the spectrum of Q.

        A figure of matplotlib's, which is in the extra ``plot``: ``.plot(12).savefig("ring.png")``.
        A notebook shows it by itself. ``seed`` is that of the drawn routes.
        """
        from mcover.figures import topology_figure

        return topology_figure(self, checks.check_int("covers", covers, 1), seed)


@dataclass(frozen=True)
class GaussianRing(Topology, kind="ring"):
    """The paper's kernel: a Gaussian of width ``sigma`` around ``shift``, on a ring of covers.

    Q[α,β] ∝ exp(−d²/2σ²) with d the displacement β − α − shift wrapped to [−M/2, M/2). The paper
    calls the shift μ. ``sigma=inf`` is uniform.

    >>> round(GaussianRing(sigma=1.5, shift=2).facts(12).drift, 6)
    2.0
    """

    sigma: float = 1.5  # Width, in covers; inf is uniform.
    shift: float = 0.0  # Where a cover reads, in covers ahead of itself; may be fractional.

    def __post_init__(self) -> None:
        _check_sigma(self, self.sigma)
        name = "shift of GaussianRing"
        shift = checks.check_float(name, self.shift, -_LARGEST_SHIFT, _LARGEST_SHIFT)
        object.__setattr__(self, "shift", shift)

    def _log_kernel(self, covers: int) -> Matrix:
        # Wrapped to [−M/2, M/2): right for fractional shifts and odd M alike.
        ahead = -_offsets(covers).astype(np.float64) - self.shift + covers / 2
        return _log_gaussian(np.mod(ahead, covers) - covers / 2, self.sigma)


@dataclass(frozen=True)
class Uniform(Topology, kind="uniform"):
    """Every cover is read equally: all permutations are equally likely."""

    def _log_kernel(self, covers: int) -> Matrix:
        return np.zeros((covers, covers))


@dataclass(frozen=True)
class Identity(Topology, kind="identity"):
    """Each cover reads only itself: M independent models."""

    def _log_kernel(self, covers: int) -> Matrix:
        return log_weights(np.eye(covers))


@dataclass(frozen=True)
class Chain(Topology, kind="chain"):
    """A Gaussian ring cut open: the ends do not see each other.

    Spatial coupling without tail-biting. Rows at the ends have fewer entries, so balancing makes
    the covers there read themselves more than those in the middle. There is no shift: without the
    wrap-around it only scales rows and columns, which changes neither the law nor the balanced
    matrix.
    """

    sigma: float = 1.5  # Width, in covers.

    def __post_init__(self) -> None:
        _check_sigma(self, self.sigma)

    def _log_kernel(self, covers: int) -> Matrix:
        return _log_gaussian(-_offsets(covers).astype(float), self.sigma)


@dataclass(frozen=True, repr=False)
class Custom(Topology, kind="custom"):
    """Any non-negative square matrix under which some permutation is possible.

    >>> Custom([[1, 1], [1, 3]]) == Custom(np.array([[1.0, 1.0], [1.0, 3.0]]))
    True
    >>> Custom(np.eye(2)), Custom(np.ones((9, 9)))
    (Custom([[1.0, 0.0], [0.0, 1.0]]), Custom(<9 × 9 matrix>))
    """

    values: tuple[tuple[float, ...], ...]

    def __init__(self, values: ArrayLike) -> None:
        array = np.exp(log_weights(values))
        object.__setattr__(self, "values", tuple(tuple(row) for row in array.tolist()))
        self.matrix(len(self.values))  # an impossible topology is refused when it is made

    def __repr__(self) -> str:
        covers = len(self.values)
        small = [list(row) for row in self.values]
        return f"Custom({small if covers <= 4 else f'<{covers} × {covers} matrix>'})"

    def _log_kernel(self, covers: int) -> Matrix:
        if covers != len(self.values):
            raise McoverError(
                f"this Custom topology is for {len(self.values)} covers, {covers} were asked for; "
                f"write covers={len(self.values)}, or give another matrix."
            )
        return log_weights(self.values)


@dataclass(frozen=True)
class Mixture(Topology, kind="mixture"):
    """A convex mixture of topologies; made by :func:`mcover.mix`."""

    parts: tuple[Topology, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.parts or not all(isinstance(part, Topology) for part in self.parts):
            raise McoverError("mix takes topologies; write e.g. mix(GaussianRing(1.0), Uniform()).")
        share = checks.check_floats("weights", self.weights, ndim=1)
        with np.errstate(over="ignore"):
            total = share.sum()
            if abs(total - 1) > 1e-12:  # else they are shares already, to the last bit
                share = share / total
        if len(share) != len(self.parts) or not np.all(share > 0):
            raise McoverError(
                f"mix got weights {self.weights!r} for {len(self.parts)} topologies; "
                "write one positive number for each, and a finite sum."
            )
        object.__setattr__(self, "weights", tuple(share.tolist()))

    def _log_kernel(self, covers: int) -> Matrix:
        parts = zip(self.weights, self.parts, strict=True)
        return log_weights(sum(weight * part.matrix(covers) for weight, part in parts))


TOPOLOGIES: dict[str, type[Topology]] = {
    kind.kind: kind for kind in (Uniform, GaussianRing, Chain, Identity)
}
"""Topologies that have defaults, by the words that stand for them."""


def as_topology(topology: Any) -> Topology:
    """A topology as it is; its word or its class stands for its defaults.

    >>> as_topology("ring"), as_topology(Uniform)
    (GaussianRing(sigma=1.5, shift=0.0), Uniform())
    """
    if isinstance(topology, type) and topology in TOPOLOGIES.values():
        return topology()
    if isinstance(topology, str):
        return TOPOLOGIES[checks.check_choice("topology", topology, tuple(TOPOLOGIES))]()
    if isinstance(topology, np.ndarray | list | tuple):
        raise McoverError(f"topology is a {type(topology).__name__}; write mcover.Custom(matrix).")
    example = (
        f"{', '.join(map(repr, TOPOLOGIES))}, or a value such as mcover.GaussianRing(1.5, shift=2)"
    )
    return checks.check_instance("topology", topology, Topology, example)


def mix(*topologies: Topology, weights: ArrayLike | None = None) -> Topology:
    """The convex mixture Σ w_k Q_k of balanced kernels; equal weights unless given.

    >>> mix(Identity(), Uniform(), weights=[3, 1]).matrix(2)
    array([[0.875, 0.125],
           [0.125, 0.875]])
    """
    shares = np.ones(len(topologies)) if weights is None else weights
    return Mixture(topologies, shares)  # type: ignore[arg-type]


def _check_sigma(topology: Topology, sigma: float) -> None:
    name = f"sigma of {type(topology).__name__}"
    checks.check_float(name, sigma, above=0, infinite=True)
    sigma = checks.check_float(name, sigma, _SMALLEST_SIGMA, infinite=True)
    object.__setattr__(topology, "sigma", sigma)


def _offsets(covers: int) -> NDArray[np.int64]:
    """α − β, shape (covers, covers)."""
    index = np.arange(int(covers))
    return index[:, None] - index[None, :]


def _log_gaussian(displacement: Matrix, sigma: float) -> Matrix:
    """log of the Gaussian exp(−d²/2σ²), up to a constant for each row."""
    log_kernel = -0.5 * (displacement / sigma) ** 2
    # Each row is divided by its largest entry, so that no row underflows. The law is unchanged:
    # a factor common to a row is a factor common to all permutations.
    return np.asarray(log_kernel - log_kernel.max(axis=1, keepdims=True))


def log_weights(matrix: ArrayLike) -> Matrix:
    """log of a kernel, refused unless it is square, finite, non-negative and not empty."""
    given = checks.as_array("kernel", matrix)
    try:
        if given.dtype.kind not in "biufO":
            raise TypeError(f"its entries are of type {given.dtype}")
        weights = given.astype(float)
    except (TypeError, ValueError, OverflowError) as error:
        raise McoverError(f"a kernel must be an array of numbers: {error}.") from error
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1] or not weights.size:
        wanted = "square, (covers, covers), with at least one cover"
        raise McoverError(f"a kernel must be {wanted}; got shape {weights.shape}.")
    if not np.all(np.isfinite(weights)):
        raise McoverError("a kernel must be finite; replace its NaN or infinite entries.")
    if np.any(weights < 0):
        where = np.unravel_index(np.argmin(weights), weights.shape)
        raise McoverError(
            f"a kernel must not be negative; entry {tuple(map(int, where))} is {weights[where]:g}. "
            "Write 0 for a read that must not happen."
        )
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(weights))


def balance(log_kernel: Matrix, name: str) -> Matrix:
    """Scales rows and columns of exp(log_kernel) until all of them sum to 1.

    Sinkhorn's iteration, on logarithms, after entries on no permutation at all have been removed:
    on what is left it converges geometrically, and neither change touches the law of the routes.
    Its rate is that at which the balanced kernel mixes; where that is slow, Newton's steps follow.

    Shape: (covers, covers) in and out. ``name`` is how an error calls the kernel.
    """
    log_q = np.where(_on_a_permutation(np.isfinite(log_kernel), name), log_kernel, -np.inf)
    for step in range(_SINKHORN + _NEWTON):
        log_q -= _log_sum(log_q, axis=0)
        rows = _log_sum(log_q, axis=1)
        balanced = np.max(np.abs(rows)) < _TOLERANCE
        log_q -= rows if balanced or step < _SINKHORN else _newton_step(log_q, rows)
        if balanced:
            # A read that is possible stays possible: it is never rounded down to an exact zero.
            floor = np.where(np.isfinite(log_q), np.finfo(float).tiny, 0.0)
            return np.maximum(np.exp(log_q), floor)
    raise McoverError(
        f"{name} could not be balanced in {_SINKHORN} Sinkhorn and {_NEWTON} Newton steps (rows "
        f"are off by {np.max(np.abs(rows)):.1e}); its entries differ too much in size: widen it, "
        "or set the smallest entries to 0."
    )


def _newton_step(log_q: Matrix, rows: Matrix) -> Matrix:
    """What to subtract from the logarithms of the rows, (M, 1), once columns sum to 1.

    Minimises Σ_β log Σ_α exp(log q + x_α) − Σ_α x_α, which is convex; its gradient is the row sums
    less 1. Its Hessian diag(q qᵀ 1) − q qᵀ is a Laplacian, made here without differences of
    numbers that are nearly equal. The small multiple of the identity fixes what the columns undo;
    where it is not small, rows exchange less weight than the tolerance.
    """
    q = np.exp(log_q)
    exchange = q @ q.T
    np.fill_diagonal(exchange, 0.0)
    hessian = np.diag(exchange.sum(axis=1) + 0.1 * _TOLERANCE) - exchange
    step = np.linalg.solve(hessian, np.expm1(rows))
    return np.asarray(step / max(1.0, np.abs(step).max()))


def _log_sum(log_q: Matrix, axis: int) -> Matrix:
    top = log_q.max(axis=axis, keepdims=True)
    return np.asarray(top + np.log(np.exp(log_q - top).sum(axis=axis, keepdims=True)))


def _on_a_permutation(support: NDArray[np.bool_], name: str) -> NDArray[np.bool_]:
    """Which positive entries lie on at least one permutation of positive weight.

    With one perfect matching in hand, an entry lies on some other one just when it closes an
    alternating cycle, that is, when it joins two nodes of one strongly connected component.
    """
    if support.all():
        return support
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching

    column_of = maximum_bipartite_matching(csr_array(support), perm_type="column")
    if np.any(column_of < 0):
        lost = int(np.flatnonzero(column_of < 0)[0])
        raise UnreachableError(
            f"under {name} no permutation of the {len(support)} covers is possible: the zeros of "
            f"its kernel leave cover {lost} with nothing to read. Allow more reads, for example by "
            "mixing in a little Uniform(): mix(topology, Uniform(), weights=[0.99, 0.01])."
        )
    row_of = np.argsort(column_of)
    _, component = connected_components(csr_array(support[:, column_of]), connection="strong")
    return support & (component[:, None] == component[row_of][None, :])
