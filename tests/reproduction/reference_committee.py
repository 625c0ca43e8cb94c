"""The routed committee machine as plain loops over the paper's sums: slow, and obviously right."""

import math

import torch


def routed_loss(stack, x, y, routes, beta, gamma):
    """Σ_α (1/S) Σ_s mean_μ f_γ(y_μ o_μ) of the virtual machines, and the loss of each cover.

    ``stack[α][k][i]`` are the weights, ``routes[s][q][α]`` with q = kN + i the cover that context
    α of destination s reads weight q from.
    """
    covers, hidden, inputs = stack.shape
    losses = []
    for alpha in range(covers):
        total = 0.0
        for route in routes:
            for pattern, label in zip(x, y, strict=True):
                output = 0.0
                for k in range(hidden):
                    field = 0.0
                    for i in range(inputs):
                        field = field + pattern[i] * stack[int(route[k * inputs + i][alpha]), k, i]
                    output = output + torch.tanh(beta * field / math.sqrt(inputs))
                z = label * output / math.sqrt(hidden)
                total = total + torch.log(1 + torch.exp(-2 * gamma * z)) / (2 * gamma)
        losses.append(total / (len(routes) * len(y)))
    return sum(losses), torch.stack([loss.detach() for loss in losses])


def votes(weights, pattern):
    """sign Σ_k sign F_k of one machine, zero counting as +1."""
    total = 0
    for row in weights:
        field = sum(float(a) * float(b) for a, b in zip(row, pattern, strict=True))
        total += 1 if field >= 0 else -1
    return 1 if total >= 0 else -1
