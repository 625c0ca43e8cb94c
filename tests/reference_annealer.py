"""The annealer written directly from its definitions: the oracle of the compiled one.

Every proposal recomputes the whole lifted energy by its sums: no bits, no tables, no increments. It
consumes the same random numbers as mcover.annealing.kernels. Energies are integer sums of margins
and votes; `value` converts them to the physical energy.
"""

import math
from functools import partial
from typing import NamedTuple

import numpy as np

WORD = 2**64 - 1


class Xoshiro:
    """xoshiro256++ by Blackman and Vigna, in plain Python integers."""

    def __init__(self, state):
        self.state = [int(word) for word in state]

    def next64(self):
        a, b, c, d = self.state
        result = (_rotate((a + d) & WORD, 23) + a) & WORD
        c ^= a
        d ^= b
        b_new = b ^ c
        a_new = a ^ d
        c ^= (b << 17) & WORD
        self.state = [a_new, b_new, c, _rotate(d, 45)]
        return result

    def uniform(self):
        return (self.next64() >> 11) * 2.0**-53

    def randbelow(self, count):
        return ((self.next64() >> 32) * count) >> 32


def _rotate(word, by):
    return ((word << by) | (word >> (64 - by))) & WORD


def random_weights(rng, covers, sites):
    """64 weights from each draw, lowest bit first; every cover starts with a new draw."""
    weights = []
    for _ in range(covers):
        row = []
        while len(row) < sites:
            bits = rng.next64()
            row += [1 if (bits >> place) & 1 else -1 for place in range(64)]
        weights.append(row[:sites])
    return np.array(weights)


def margins(gauged, network, hidden):
    """The score of each pattern: the margin (perceptron) or the sum of votes (committee)."""
    inputs = gauged.shape[1]
    fields = [gauged @ network[k * inputs : (k + 1) * inputs] for k in range(hidden)]
    if hidden == 1:
        return [int(field) for field in fields[0]]
    # A field of zero votes against the label.
    return [sum(1 if field[mu] > 0 else -1 for field in fields) for mu in range(len(gauged))]


def network_energy(gauged, network, hidden, energy):
    """The integer energy of one network (K*N weights) over all patterns.

    The number of errors, or how far margins (perceptron) or votes (committee) lie below zero.
    """
    values = margins(gauged, network, hidden)
    if energy == "errors":
        return sum(1 for margin in values if margin <= 0)
    return sum(max(0, -margin) for margin in values)


def training_errors(problem, weights):
    """The number of patterns of a problem that a student gets wrong."""
    given = problem.gauged.astype(int), np.asarray(weights).astype(int), problem.hidden
    return network_energy(*given, "errors")


def context(routes, weights, s, alpha):
    """The virtual network (s, α)."""
    return np.array([weights[route[alpha], q] for q, route in enumerate(routes[s])])


def lifted_energy(gauged, routes, weights, hidden, energy):
    """Sum over destinations s and contexts α, before the mean over destinations."""
    result = 0
    for s in range(routes.shape[0]):
        for alpha in range(weights.shape[0]):
            network = context(routes, weights, s, alpha)
            result += network_energy(gauged, network, hidden, energy)
    return result


def value(integer, inputs, hidden, destinations, energy):
    """The physical lifted energy of an integer one."""
    if energy == "errors":
        return integer / destinations
    return integer / (destinations * math.sqrt(inputs if hidden == 1 else hidden))


def coupling(weights):
    """Σ_{a<b} w_a·w_b."""
    result = 0
    for b in range(weights.shape[0]):
        for a in range(b):
            result += int(weights[a] @ weights[b])
    return result


def probability(x, rule):
    """Acceptance of a move that changes -log(weight) by x."""
    if rule == "glauber":
        return 1.0 / (1.0 + math.exp(x)) if x < 700 else 0.0
    return 1.0 if x <= 0 else math.exp(-x)


def permutation(rng, count):
    """A uniform order of 0..count-1: each number swaps with an earlier one, or stays."""
    sequence = []
    for i in range(count):
        sequence.append(i)
        j = rng.randbelow(i + 1)
        sequence[i], sequence[j] = sequence[j], sequence[i]
    return sequence


def proposals_of(order, count, rng):
    """The indices of one sweep, drawn when they are needed."""
    if order == "random":
        return (rng.randbelow(count) for _ in range(count))
    return permutation(rng, count) if order == "permutation" else range(count)


class Walk(NamedTuple):
    """The results of each sweep that a run began, and whether the run ended."""

    accepted: list
    energies: list  # physical lifted energies
    proposals: list
    ended: bool


def walk(rule, gauged, routes, weights, hidden, energy, temperatures, gammas, order, improvement,
         rng):  # fmt: skip
    """One sweep at each temperature, by any rule.

    Args:
        rule: "glauber", "metropolis", "repair" or "descent".
        gauged: (P, N) of ±1, a wide integer type.
        routes: (S, K*N, M): context (s, α) reads weight q from cover routes[s, q, α].
        weights: (M, K*N) of ±1, a wide integer type; changed in place.
        hidden: K.
        energy: "linear" or "errors".
        temperatures: one per sweep; descent uses only their number.
        gammas: the coupling of the covers, one per sweep.
        order: "random", "sequential" or "permutation".
        improvement: "first" or "best", of descent.
        rng: a Xoshiro.
    """
    given = gauged, routes, weights, hidden, energy
    if rule == "descent":
        return descend(*given, gammas, order, improvement, rng)
    if rule == "repair":
        return repair(*given, temperatures, gammas, rng)
    return anneal(*given, temperatures, gammas, rule, order, rng)


def propose(given, now, q, beta, u, temperature, gamma, rule):
    """Flips one weight, and reverts a rejected flip; returns the resulting integer energy."""
    gauged, routes, weights, hidden, energy = given
    before = coupling(weights)
    weights[beta, q] = -weights[beta, q]
    then = lifted_energy(*given)
    x = value(then - now, gauged.shape[1], hidden, routes.shape[0], energy) / temperature
    x -= gamma / weights.shape[0] * (coupling(weights) - before)
    if u < probability(x, rule):
        return then, 1
    weights[beta, q] = -weights[beta, q]
    return now, 0


def anneal(gauged, routes, weights, hidden, energy, temperatures, gammas, rule, order, rng):
    given, (covers, sites) = (gauged, routes, weights, hidden, energy), weights.shape
    accepted, energies = [], []
    now = lifted_energy(*given)
    for temperature, gamma in zip(temperatures, gammas, strict=True):
        taken = 0
        for index in proposals_of(order, sites * covers, rng):
            u = rng.uniform()
            q, beta = index // covers, index % covers
            now, moved = propose(given, now, q, beta, u, temperature, gamma, rule)
            taken += moved
        accepted.append(taken)
        energies.append(value(now, gauged.shape[1], hidden, routes.shape[0], energy))
    return Walk(accepted, energies, [sites * covers] * len(accepted), False)


def unsatisfied(gauged, routes, weights, hidden, energy):
    """All (s, α, μ) that add to the energy."""
    result = []
    for s in range(routes.shape[0]):
        for alpha in range(weights.shape[0]):
            values = margins(gauged, context(routes, weights, s, alpha), hidden)
            for mu, margin in enumerate(values):
                if margin < 0 or (margin == 0 and energy == "errors"):
                    result.append((s, alpha, mu))
    return result


def repairing(gauged, routes, weights, hidden, s, alpha, mu):
    """The sites of context (s, α) whose flip helps pattern μ, or the vote of a unit against it."""
    network, inputs = context(routes, weights, s, alpha), gauged.shape[1]
    sites = []
    for q, w in enumerate(network):
        unit = network[q // inputs * inputs : (q // inputs + 1) * inputs]
        if w != gauged[mu, q % inputs] and gauged[mu] @ unit <= 0:
            sites.append(q)
    return sites


def repair(gauged, routes, weights, hidden, energy, temperatures, gammas, rng):
    """Focused Metropolis search."""
    given, (covers, sites) = (gauged, routes, weights, hidden, energy), weights.shape
    accepted, energies, proposals = [], [], []
    now = lifted_energy(*given)
    for temperature, gamma in zip(temperatures, gammas, strict=True):
        taken = made = 0
        while made < sites * covers and now > 0:
            made += 1
            pairs = unsatisfied(*given)
            s, alpha, mu = pairs[rng.randbelow(len(pairs))]
            candidates = repairing(gauged, routes, weights, hidden, s, alpha, mu)
            q = rng.randbelow(sites)
            while q not in candidates:
                q = rng.randbelow(sites)
            beta, u = routes[s, q, alpha], rng.uniform()
            now, moved = propose(given, now, q, beta, u, temperature, gamma, "metropolis")
            taken += moved
        accepted.append(taken)
        energies.append(value(now, gauged.shape[1], hidden, routes.shape[0], energy))
        proposals.append(made)
        if now == 0:
            break
    return Walk(accepted, energies, proposals, now == 0)


def cost(gauged, routes, weights, hidden, energy, gamma):
    """The objective of descent: the energy, then the loss of coupling."""
    size = lifted_energy(gauged, routes, weights, hidden, energy)
    return size, -int(np.sign(gamma)) * coupling(weights)


def flipped(weights, index):
    """A copy with one weight flipped."""
    other = weights.copy()
    other[index % weights.shape[0], index // weights.shape[0]] *= -1
    return other


def descend(gauged, routes, weights, hidden, energy, gammas, order, improvement, rng):
    """Finite differences at zero temperature: a sweep for each coupling, until no flip improves."""
    inputs, destinations, count = gauged.shape[1], routes.shape[0], weights.size
    accepted, energies, proposals, minimum = [], [], [], False

    for gamma in gammas:
        measure = partial(cost, gauged, routes, hidden=hidden, energy=energy, gamma=gamma)
        taken, made = 0, count
        if improvement == "best":
            costs = [measure(flipped(weights, index)) for index in range(count)]
            if min(costs) < measure(weights):
                weights[:] = flipped(weights, costs.index(min(costs)))
                taken = 1
        else:
            for index in proposals_of(order, count, rng):
                if measure(flipped(weights, index)) < measure(weights):
                    weights[:] = flipped(weights, index)
                    taken += 1
        minimum = taken == 0
        if minimum and improvement == "first" and order == "random":
            for index in range(count):
                made += 1
                if measure(flipped(weights, index)) < measure(weights):
                    minimum = False
                    break
        accepted.append(taken)
        energies.append(value(measure(weights)[0], inputs, hidden, destinations, energy))
        proposals.append(made)
        if minimum:
            break
    return Walk(accepted, energies, proposals, minimum)


def energy_from_scratch(state):
    """The energy of a compiled chain in its units, from the weights alone: no counters."""
    covers, sites = state.weights.shape
    bits = np.unpackbits(state.columns.view(np.uint8), bitorder="little")
    gauged = 2 * bits.reshape(state.inputs, -1)[:, : state.patterns].T.astype(int) - 1
    inverse = state.inverse.reshape(sites, covers, state.destinations)
    routes = np.argsort(inverse, axis=1).transpose(2, 1, 0)  # [s, α, q]
    networks = state.weights.astype(int)[routes, np.arange(sites)]
    units = networks.reshape(state.destinations, covers, state.hidden, state.inputs)
    fields = units @ gauged.T
    votes = np.where(fields > 0, 1, -1).sum(axis=2)
    margins = fields[:, :, 0] if state.hidden == 1 else votes
    if state.form == 0:  # errors
        return np.count_nonzero(margins <= 0)
    return np.maximum(0, -margins).sum() // (2 if state.form == 1 else 1)  # linear, L even or odd
