"""Topologies: mixing kernels Q, which determine from which covers a source is read.

A topology is an immutable object. ``topology.matrix(covers)`` is its M×M kernel, balanced to be
doubly stochastic; row α is the cover that reads, column β the cover that is read. The paper's
kernel is :class:`GaussianRing`; :class:`Custom` is for any other matrix.

Scaling a row or a column multiplies the weights of all permutations by the same factor, so it does
not change the law of the routes (see :mod:`mcover.permutations`). Balancing keeps the numbers in
range, and it matters if Q itself mixes messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.balancing import Matrix, balance, log_weights
from mcover.errors import McoverError
from mcover.permutations import TABLE_COVERS, Sampler
from mcover.plain import Tagged
from mcover.seeds import streams

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LARGEST_SHIFT = 2.0**32  # a double of this size still resolves a millionth of a cover
_SMALLEST_SIGMA = 1e-100  # the square of a displacement over this width is still finite
_SAMPLED_MARGINALS = 20_000  # routes, if there are too many covers for exact marginals


@dataclass(frozen=True)
class Facts:
    """Three numbers that describe how a topology mixes."""

    spectral_gap: float  # ``1 − |λ₂|``, the rate at which differences between covers decay
    drift: float  # circular mean of β − α, the covers along the ring that a message moves per read
    effective_width: float  # exp of the mean row entropy, the number of covers that are read


@dataclass(frozen=True)
class Topology(Tagged):
    """Base class of topologies; a subclass defines its kind and its log-kernel."""

    def _log_kernel(self, covers: int) -> Matrix:
        """Unbalanced log Q, shape (covers, covers); −inf for impossible reads."""
        raise TypeError(f"{type(self).__name__} is not a topology: it has no kernel.")

    def matrix(self, covers: int) -> Matrix:
        """The balanced kernel Q, shape (covers, covers): rows and columns sum to 1.

        >>> Uniform().matrix(2)
        array([[0.5, 0.5],
               [0.5, 0.5]])
        """
        covers = checks.check_int("covers", covers, 1)
        # Five matrices at a time: the logarithms, their balance, and intermediate results.
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
        """Plots Q, the marginals of its law, three routes, and the spectrum of Q.

        It returns a matplotlib figure, e.g. for ``.plot(12).savefig("ring.png")``; matplotlib is in
        the extra ``plot``. Notebooks display the figure. ``seed`` draws the routes.
        """
        from mcover.figures import topology_figure

        covers = checks.check_int("covers", covers, 1)
        matrix = self.matrix(covers)
        sampler = Sampler(matrix)
        for_marginals, for_routes = streams(seed, 2)
        if covers <= TABLE_COVERS:
            marginals, source = sampler.marginals, "exact"
        else:
            drawn = sampler.sample(_SAMPLED_MARGINALS, for_marginals)
            marginals = np.stack([np.mean(drawn == beta, axis=0) for beta in range(covers)], axis=1)
            source = f"{_SAMPLED_MARGINALS:,} routes"
        routes = sampler.sample(3, for_routes)
        return topology_figure(f"{self!r}, {covers} covers", matrix, marginals, source, routes)


@dataclass(frozen=True)
class GaussianRing(Topology, kind="ring"):
    """The paper's kernel: a Gaussian of width ``sigma`` around ``shift``, on a ring of covers.

    Q[α,β] ∝ exp(−d²/2σ²) with d the displacement β − α − shift wrapped to [−M/2, M/2). The paper
    calls the shift μ. ``sigma=inf`` is uniform.

    >>> round(GaussianRing(sigma=1.5, shift=2).facts(12).drift, 6)
    2.0
    """

    sigma: float = 1.5  # Width, in covers; inf is uniform.
    shift: float = 0.0  # Displacement of the kernel's centre, in covers; may be fractional.

    def __post_init__(self) -> None:
        _check_sigma(self, self.sigma)
        name = "shift of GaussianRing"
        shift = checks.check_float(name, self.shift, -_LARGEST_SHIFT, _LARGEST_SHIFT)
        object.__setattr__(self, "shift", shift)

    def _log_kernel(self, covers: int) -> Matrix:
        # Wrapped to [−M/2, M/2), also for fractional shifts and odd M.
        ahead = -_offsets(covers).astype(np.float64) - self.shift + covers / 2
        return _log_gaussian(np.mod(ahead, covers) - covers / 2, self.sigma)


@dataclass(frozen=True)
class Uniform(Topology, kind="uniform"):
    """All covers are read equally, and all permutations are equally likely."""

    def _log_kernel(self, covers: int) -> Matrix:
        return np.zeros((covers, covers))


@dataclass(frozen=True)
class Identity(Topology, kind="identity"):
    """Each cover reads only itself: M independent models."""

    def _log_kernel(self, covers: int) -> Matrix:
        return log_weights(np.eye(covers))


@dataclass(frozen=True)
class Chain(Topology, kind="chain"):
    """An open Gaussian ring, whose ends are not neighbours.

    This is spatial coupling without tail-biting. Rows at the ends have fewer entries, so after
    balancing the covers at the ends read themselves more than those in the middle. There is no
    shift: without wrap-around it only scales rows and columns, which changes neither the law nor
    the balanced matrix.
    """

    sigma: float = 1.5  # Width, in covers.

    def __post_init__(self) -> None:
        _check_sigma(self, self.sigma)

    def _log_kernel(self, covers: int) -> Matrix:
        return _log_gaussian(-_offsets(covers).astype(float), self.sigma)


@dataclass(frozen=True, repr=False)
class Custom(Topology, kind="custom"):
    """Any non-negative square matrix for which some permutation is possible.

    >>> Custom([[1, 1], [1, 3]]) == Custom(np.array([[1.0, 1.0], [1.0, 3.0]]))
    True
    >>> Custom(np.eye(2)), Custom(np.ones((9, 9)))
    (Custom([[1.0, 0.0], [0.0, 1.0]]), Custom(<9 × 9 matrix>))
    """

    values: tuple[tuple[float, ...], ...]

    def __init__(self, values: ArrayLike) -> None:
        array = np.exp(log_weights(values))
        object.__setattr__(self, "values", tuple(tuple(row) for row in array.tolist()))
        self.matrix(len(self.values))  # refuses an impossible topology here

    def __repr__(self) -> str:
        covers = len(self.values)
        small = [list(row) for row in self.values]
        return f"Custom({small if covers <= 4 else f'<{covers} × {covers} matrix>'})"

    def _log_kernel(self, covers: int) -> Matrix:
        if covers != len(self.values):
            raise McoverError(
                f"this Custom topology is for {len(self.values)} covers, but {covers} were "
                f"requested; write covers={len(self.values)}, or give another matrix."
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
            if abs(total - 1) > 1e-12:  # otherwise the weights are shares already
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
"""Topologies with default options, by name."""


def as_topology(topology: Any) -> Topology:
    """A topology; its name or its class stands for its defaults.

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
    # Each row is divided by its largest entry, so that no row underflows. This does not change the
    # law, because a factor of a row is a factor of all permutations.
    return np.asarray(log_kernel - log_kernel.max(axis=1, keepdims=True))
