"""What lies between the two matrix products of a step, compiled: routes, surrogate, row norms.

Exponentials are polynomials here: calls into a library would keep the compiler from working on
eight or sixteen numbers at once, and interpreted array operations cost more than the arithmetic.
"""

import math
from typing import Any

from numba import njit

# Sums in any order and fused products; what is not a number or infinite is still respected.
_SAFE = {"contract", "reassoc"}


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


@njit(cache=True, nogil=True, inline="always")
def exp_of_negative(x: float) -> float:
    """exp(x) for x <= 0, to about 1e-12; below −44 it stays at 8e-20."""
    # (exp(x/1024))^1024, with Taylor's polynomial for the small exponent. Written out, without a
    # branch or a loop, since only so the loops around it are vectorised.
    x = -44.0 if x < -44.0 else x  # what is not a number stays so
    r = x * (1 / 1024)
    e = 1.0 + r * (1 / 8)
    e = 1.0 + r * e * (1 / 7)
    e = 1.0 + r * e * (1 / 6)
    e = 1.0 + r * e * (1 / 5)
    e = 1.0 + r * e * (1 / 4)
    e = 1.0 + r * e * (1 / 3)
    e = 1.0 + r * e * (1 / 2)
    e = 1.0 + r * e
    e = e * e
    e = e * e
    e = e * e
    e = e * e
    e = e * e
    e = e * e
    e = e * e
    e = e * e
    e = e * e
    return e * e


@njit(cache=True, nogil=True, inline="always")
def log_of_one_and(e: float) -> float:
    """log(1 + e) for 0 <= e <= 1, as 2 artanh(e / (2 + e)), to about 1e-12."""
    s = e / (2.0 + e)
    t = s * s
    total = 1 / 21 + t * (1 / 23)
    total = 1 / 19 + t * total
    total = 1 / 17 + t * total
    total = 1 / 15 + t * total
    total = 1 / 13 + t * total
    total = 1 / 11 + t * total
    total = 1 / 9 + t * total
    total = 1 / 7 + t * total
    total = 1 / 5 + t * total
    total = 1 / 3 + t * total
    return 2.0 * s * (1.0 + t * total)


@njit(cache=True, nogil=True, error_model="numpy", fastmath=_SAFE)
def surrogate_errors(
    fields: Any, target: Any, beta: float, gamma: float, inputs: int, passes: int, loss: Any,
    votes: Any,
) -> None:  # fmt: skip
    """Turns fields F into ∂/∂F of the loss, in place, and adds up the loss of each cover.

    Slopes below 1e-19 are zero: beside the weights they are nothing, and numbers at the end of the
    range are very slow to compute with.

    Shape: fields (M, S, K, B), target (1 or M, B), loss (M,), votes (B,) for work.
    """
    covers, _, hidden, batch = fields.shape
    scale = beta / math.sqrt(inputs)
    share = 1 / math.sqrt(hidden)
    tiny = 1e-19
    for alpha in range(covers):
        y = target[alpha if len(target) > 1 else 0]
        total = 0.0
        for s in range(passes):
            votes[:] = 0.0
            for k in range(hidden):
                row = fields[alpha, s, k]
                for b in range(batch):
                    a = scale * row[b]
                    e = exp_of_negative(-2 * abs(a))
                    soft = (1 - e) / (1 + e)
                    votes[b] += soft if a >= 0 else -soft
                    row[b] = 4 * e / ((1 + e) * (1 + e)) if e > tiny else 0.0
            for b in range(batch):
                # f_γ(z) = log(1 + exp(u)) / (2γ) with u = −2γz, and −f' is the sigmoid of u.
                u = -2 * gamma * share * y[b] * votes[b]
                e = exp_of_negative(-abs(u))
                total += (u if u > 0 else 0.0) + log_of_one_and(e)
                sigmoid = (1.0 if u >= 0 else e) / (1 + e)
                votes[b] = -sigmoid * y[b] * share * scale / (passes * batch)
            for k in range(hidden):
                row = fields[alpha, s, k]
                for b in range(batch):
                    error = row[b] * votes[b]
                    row[b] = error if abs(error) > tiny * tiny else 0.0
        loss[alpha] = total / (2 * gamma * passes * batch)


@njit(cache=True, nogil=True, fastmath=_SAFE)
def scale_rows(rows: Any) -> None:
    """Rows to norm √N, in place; a row of zeros stays one. Shape: (rows, N)."""
    for k in range(len(rows)):
        row = rows[k]
        total = 0.0
        for q in range(len(row)):
            total += float(row[q]) * float(row[q])
        if total > 0:
            factor = math.sqrt(len(row) / total)
            for q in range(len(row)):
                row[q] *= factor
