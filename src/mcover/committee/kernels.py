"""Reading weights along routes, and errors back along their inverses, compiled."""

from typing import Any

from numba import njit


@njit(cache=True, nogil=True)
def gather(stack: Any, routes: Any, chosen: Any, out: Any) -> None:
    """out[α, j, q] = stack[routes[α, s, q], q] with s = chosen[j].

    Shape: stack (M, Q), routes (M, S, Q), chosen (J,), out (M, J, Q).
    """
    for alpha in range(len(out)):
        for j in range(len(chosen)):
            read, row = routes[alpha, chosen[j]], out[alpha, j]
            for q in range(len(row)):
                row[q] = stack[read[q], q]


@njit(cache=True, nogil=True)
def scatter(errors: Any, back: Any, chosen: Any, out: Any) -> None:
    """out[β, q] = Σ_j errors[back[β, s, q], j, q] with s = chosen[j]: what copy β is told.

    Shape: errors (M, J, Q), back (M, S, Q), chosen (J,), out (M, Q).
    """
    for beta in range(len(out)):
        row = out[beta]
        row[:] = 0
        for j in range(len(chosen)):
            reader = back[beta, chosen[j]]
            for q in range(len(row)):
                row[q] += errors[reader[q], j, q]
