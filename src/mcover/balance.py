"""Sinkhorn balancing: from any workable non-negative matrix to a doubly stochastic one.

Done on logarithms, after entries on no permutation at all have been removed: on what is left the
iteration converges geometrically, and neither change touches the law of the routes.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover.errors import McoverError, UnreachableError

_TOLERANCE = 1e-13
_ITERATIONS = 100_000


def log_weights(matrix: ArrayLike) -> NDArray[np.float64]:
    """log of a kernel, refused unless it is square, finite, non-negative and not empty."""
    try:
        weights = np.asarray(matrix, dtype=float)
    except (TypeError, ValueError) as error:
        raise McoverError(f"a kernel must be an array of numbers: {error}.") from error
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1]:
        raise McoverError(f"a kernel must be square (covers, covers); got shape {weights.shape}.")
    if not weights.size:
        raise McoverError("a kernel needs at least one cover; got an empty matrix.")
    if not np.all(np.isfinite(weights)):
        raise McoverError("a kernel must be finite; replace its NaN or infinite entries.")
    if np.any(weights < 0):
        where = np.unravel_index(np.argmin(weights), weights.shape)
        raise McoverError(
            f"a kernel must not be negative; entry {tuple(map(int, where))} is {weights[where]:g}. "
            "Write 0 for a read that must not happen."
        )
    with np.errstate(divide="ignore"):
        result: NDArray[np.float64] = np.log(weights)
    return result


def balance(log_kernel: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Scales rows and columns of exp(log_kernel) until all of them sum to 1.

    Shape: (covers, covers) in and out. ``name`` is how an error calls the kernel.
    """
    log_q = np.where(_on_a_permutation(np.isfinite(log_kernel), name), log_kernel, -np.inf)
    for _ in range(_ITERATIONS):
        log_q -= _log_sum(log_q, axis=0)
        rows = _log_sum(log_q, axis=1)
        log_q -= rows
        if np.max(np.abs(rows)) < _TOLERANCE:
            # A read that is possible stays possible: it is never rounded down to an exact zero.
            floor = np.where(np.isfinite(log_q), np.finfo(float).tiny, 0.0)
            return np.maximum(np.exp(log_q), floor)
    raise McoverError(
        f"{name} could not be balanced in {_ITERATIONS} Sinkhorn steps (rows are off by "
        f"{np.max(np.abs(rows)):.1e}); its entries differ too much in size: widen it, or set "
        "the smallest entries to 0."
    )


def _log_sum(log_q: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    top = log_q.max(axis=axis, keepdims=True)
    result: NDArray[np.float64] = top + np.log(np.exp(log_q - top).sum(axis=axis, keepdims=True))
    return result


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
