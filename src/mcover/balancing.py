"""Checks and balances kernels: rows and columns are scaled until they sum to 1.

Scaling a row or a column multiplies the weights of all permutations by the same factor, so
balancing does not change the law of the routes. It keeps the numbers in range, and it matters if
the kernel itself mixes messages.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.errors import McoverError, UnreachableError

Matrix = NDArray[np.float64]

_TOLERANCE = 1e-13  # of the logarithms of row sums
_SINKHORN, _NEWTON = 2_000, 10_000  # steps


def log_weights(matrix: ArrayLike) -> Matrix:
    """The logarithms of a kernel; refuses it unless square, finite, non-negative and not empty."""
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

    This is Sinkhorn's iteration on logarithms, after entries that lie on no permutation are set to
    zero, which does not change the law of the routes. It then converges geometrically, with the
    rate at which the balanced kernel mixes. If that is slow, Newton steps follow.

    Shape: (covers, covers) in and out. ``name`` is the name of the kernel in errors.
    """
    log_q = np.where(_on_a_permutation(np.isfinite(log_kernel), name), log_kernel, -np.inf)
    for step in range(_SINKHORN + _NEWTON):
        log_q -= _log_sum(log_q, axis=0)
        rows = _log_sum(log_q, axis=1)
        balanced = np.max(np.abs(rows)) < _TOLERANCE
        log_q -= rows if balanced or step < _SINKHORN else _newton_step(log_q, rows)
        if balanced:
            # A positive entry stays positive: it is not rounded down to zero.
            floor = np.where(np.isfinite(log_q), np.finfo(float).tiny, 0.0)
            return np.maximum(np.exp(log_q), floor)
    raise McoverError(
        f"{name} could not be balanced in {_SINKHORN} Sinkhorn and {_NEWTON} Newton steps (rows "
        f"are off by {np.max(np.abs(rows)):.1e}); its entries differ too much in size: widen it, "
        "or set the smallest entries to 0."
    )


def _newton_step(log_q: Matrix, rows: Matrix) -> Matrix:
    """The Newton step for the logarithms of row factors, (M, 1), if the columns sum to 1.

    It minimises Σ_β log Σ_α exp(log q + x_α) − Σ_α x_α, which is convex; the gradient is the row
    sums minus 1. The Hessian diag(q qᵀ 1) − q qᵀ is a Laplacian, computed here without differences
    of nearly equal numbers. The small multiple of the identity makes it regular; if it is not small
    compared with the Hessian, rows exchange less weight than the tolerance.
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
    """The positive entries that lie on at least one permutation of positive weight.

    Given one perfect matching, an entry lies on some perfect matching if and only if it is in the
    given one or closes an alternating cycle, that is, if it connects two nodes of one strongly
    connected component.
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
            f"its kernel leave no cover that cover {lost} can read. Allow more reads, e.g. by "
            "mixing in some Uniform(): mix(topology, Uniform(), weights=[0.99, 0.01])."
        )
    row_of = np.argsort(column_of)
    _, component = connected_components(csr_array(support[:, column_of]), connection="strong")
    return support & (component[:, None] == component[row_of][None, :])
