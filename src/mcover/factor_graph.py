"""The general M-cover of any sum of local losses, written directly from the paper's equations.

A base objective L(w) = Σ_a ℓ_a(w_∂a) becomes, for given routes ρ::

    L_M(W | ρ) = Σ_a 1/|∂a| Σ_{i∈∂a} Σ_α ℓ_{a→i}( w_i^(α), { w_j^(ρ_{a→i,j}(α)) : j ∈ ∂a∖i } ).

The three steps are the paper's eq:base_factorized_objective, eq:mlayer_routed_local_loss and
eq:mlayer_quenched_objective. The code is short and slow, and it is the oracle of the fast lifts.
Values may be spins, bits, floats, torch tensors, or any other arguments of the losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

from mcover import checks
from mcover.errors import McoverError
from mcover.permutations import Sampler
from mcover.routing import Bank, inverse
from mcover.seeds import Seed
from mcover.topology import Topology, as_topology


@dataclass(frozen=True)
class Factor:
    """One local loss ℓ_a over its variables ∂a.

    The incidence losses ℓ_{a→i} are ``directed[i]`` where given, with the arguments of ``loss``,
    and ``loss`` otherwise. Their mean over ∂a must be the loss.
    """

    loss: Callable[..., Any]  # called with the values of ``variables``, in that order
    variables: tuple[int, ...]  # indices, without repetition
    directed: Mapping[int, Callable[..., Any]] = field(default_factory=dict)


class FactorGraph:
    """An objective L(w) = Σ_a ℓ_a(w_∂a) over indexed variables, and its M-covers.

    Args:
        factors: :class:`~mcover.factor_graph.Factor` objects, or pairs ``(loss, variables)``.
        domains: the values of each variable for :func:`mcover.anneal`: the same for all of them,
            ``(-1, 1)`` by default, or a dict ``{variable: values}`` for variables with other
            values. The objectives accept any values.

    An Ising triangle, whose cover is an undirected graph again (``wiring="sym"``):

    >>> from mcover.topology import GaussianRing, Uniform
    >>> bond = lambda a, b: -a * b
    >>> ising = FactorGraph([(bond, (0, 1)), (bond, (1, 2)), (bond, (2, 0))])
    >>> lifted = ising.lift(Uniform(), covers=4, wiring="sym", seed=0)
    >>> lifted.objective([[1, 1, 1]] * 4)
    -12.0

    A 3-SAT formula of two clauses; the objective is the number of violated clauses, summed over
    covers:

    >>> formula = FactorGraph([
    ...     (lambda x, y, z: int(not (x or not y or z)), (0, 1, 2)),
    ...     (lambda y, z, t: int(not (not y or not z or t)), (1, 2, 3)),
    ... ])
    >>> covers = [[False, True, True, True], [True, True, False, False]]
    >>> [formula.objective(cover) for cover in covers]
    [0, 0]
    >>> formula.lift(GaussianRing(1.0, shift=1), covers=2, seed=0).objective(covers)
    1.666...
    """

    def __init__(
        self,
        factors: Iterable[Factor | tuple[Callable[..., Any], Sequence[int]]],
        domains: Sequence[Any] | Mapping[int, Sequence[Any]] = (-1, 1),
    ) -> None:
        try:
            self.factors = tuple(
                factor if isinstance(factor, Factor) else Factor(factor[0], tuple(factor[1]))
                for factor in factors
            )
        except Exception as error:  # a user's iterable may raise anything
            example = "[(loss, (0, 1)), ...]"
            raise McoverError(f"factors cannot be read: {error}; write {example}.") from error
        if not self.factors:
            raise McoverError("a factor graph needs factors; write [(loss, (0, 1)), ...].")
        for index, factor in enumerate(self.factors):
            _check_factor(index, factor)
        self.variables = 1 + max(i for factor in self.factors for i in factor.variables)
        self.domains = _domains(domains, self.variables)

    def __repr__(self) -> str:
        widest = max(len(factor.variables) for factor in self.factors)
        return (
            f"<FactorGraph: {len(self.factors)} factors of up to {widest} of {self.variables} "
            "variables>"
        )

    def objective(self, values: Sequence[Any]) -> Any:
        """The base objective L(w), for ``values`` indexed by variable."""
        check_length("values", values, self.variables, "one value for each variable")
        return sum(factor.loss(*(values[i] for i in factor.variables)) for factor in self.factors)

    def lift(
        self,
        topology: Topology,
        covers: int,
        wiring: Literal["asym", "sym"] = "asym",
        seed: Seed = None,
    ) -> GraphCover:
        """The exact directed M-cover: one route for each incidence a→i and each source j.

        ``wiring="sym"`` (for factors of at most two variables) sets ρ_{a→j,i} = ρ_{a→i,j}⁻¹, so
        that both directions of a factor use the same edges: an ordinary M-cover of the graph.
        """
        topology = as_topology(topology)
        covers = checks.check_int("covers", covers, 1)
        checks.check_choice("wiring", wiring, ("asym", "sym"))
        widest = max(len(factor.variables) for factor in self.factors)
        if wiring == "sym" and widest > 2:
            raise McoverError(
                f"wiring='sym' is for pairwise models, this graph has a factor of {widest} "
                "variables; write wiring='asym'."
            )
        edges = {a: factor.variables for a, factor in enumerate(self.factors)}
        keys = [(a, i, j) for a, of in edges.items() for i in of for j in of if i != j]
        drawn = Sampler(topology.matrix(covers)).sample(len(keys), seed)
        routes = dict(zip(keys, drawn, strict=True))
        if wiring == "sym":
            for a, of in edges.items():
                if len(of) == 2:
                    routes[a, *of[::-1]] = inverse(routes[a, *of])
        return GraphCover(self, covers, edges, routes)


@dataclass(frozen=True, repr=False)
class GraphCover:
    """A factor graph on M covers, for one realisation of the routes.

    ``values[α][j]`` is copy α of variable j: nested lists, or an array of shape (M, variables).
    """

    graph: FactorGraph
    covers: int
    destinations: Mapping[int, tuple[int, ...]]  # the retained destinations of each factor
    routes: Mapping[tuple[int, int, int], Sequence[int]]  # ρ_{a→i,j} by (a, i, j)

    def __repr__(self) -> str:
        return f"<GraphCover: {self.covers} covers of {self.graph!r}, {len(self.routes)} routes>"

    def context(self, incidence: tuple[int, int], cover: int, values: Any) -> list[Any]:
        """The values that ℓ_{a→i}, the incidence (a, i), reads for w_i^(α), by variable of a."""
        a, i = incidence
        return [
            values[cover if j == i else int(self.routes[a, i, j][cover])][j]
            for j in self.graph.factors[a].variables
        ]

    def objective(self, values: Any) -> Any:
        """L_M(W | ρ), the sum over covers of the routed local losses."""
        check_length("values", values, self.covers, "values[cover][variable], covers first")
        for of_cover in values:
            check_length("the values of a cover", of_cover, self.graph.variables, "one a variable")
        total: Any = 0
        for a, factor in enumerate(self.graph.factors):
            share = 1 / len(self.destinations[a])
            for i in self.destinations[a]:
                loss = factor.directed.get(i, factor.loss)
                for cover in range(self.covers):
                    total = total + share * loss(*self.context((a, i), cover, values))
        return total


def _countable(values: Any) -> bool:
    try:
        return len(values) > 0
    except TypeError:
        return False


def _domains(domains: Any, variables: int) -> tuple[tuple[Any, ...], ...]:
    """The values of each variable as tuples."""
    given = domains if isinstance(domains, Mapping) else dict.fromkeys(range(variables), domains)
    for variable, values in given.items():
        checks.check_int("a variable of domains", variable, 0, variables - 1)
        if isinstance(values, str | bytes) or not _countable(values) or _repeats(values):
            raise McoverError(
                f"the domain of variable {variable} is {checks.shown(values)}; write its values, "
                "each once, such as (-1, 1) or range(3)."
            )
    return tuple(tuple(given.get(variable, (-1, 1))) for variable in range(variables))


def _repeats(values: Any) -> bool:
    try:
        return len(set(values)) < len(values)
    except TypeError:  # unhashable values, such as lists
        return True


def lift_bank(graph: FactorGraph, bank: Bank) -> GraphCover:
    """The M-cover of a graph with a bank's destinations and routes, shared by all factors.

    Each retained incidence is exact. The mean over the destinations of a factor becomes the mean
    over those in the bank. A full bank is the exact directed lift.
    """
    if bank.sources < graph.variables:
        raise McoverError(
            f"the bank has {bank.sources} sources, the graph {graph.variables} variables; "
            f"write draw_bank(..., sources={graph.variables}, ...)."
        )
    slot = {int(p): s for s, p in enumerate(bank.destinations)}
    of = {a: factor.variables for a, factor in enumerate(graph.factors)}
    kept = {a: tuple(i for i in variables if i in slot) for a, variables in of.items()}
    lost = [a for a, destinations in kept.items() if not destinations]
    if lost:
        raise McoverError(
            f"no destination of the bank is in factor {lost[0]} (and {len(lost) - 1} more), so "
            "they would drop out of the objective; draw a larger bank, or anneal with bank=None."
        )
    keys = [(a, i, j) for a in of for i in kept[a] for j in of[a] if j != i]
    routes = {(a, i, j): bank.routes[slot[i], j] for a, i, j in keys}
    return GraphCover(graph, bank.covers, kept, routes)


def check_length(name: str, values: Any, length: int, example: str) -> None:
    """Refuses anything but a sequence of this length."""
    checks.check_unmasked(name, values)
    try:
        seen = None if isinstance(values, str | bytes | Mapping | Set) else len(values)
    except Exception:  # no length, or a user's class that raises
        seen = None
    if seen is None:
        raise McoverError(f"{name} is {checks.shown(values)}; write a list: {example}.")
    if seen != length:
        raise McoverError(f"{name} has {seen} entries instead of {length}; write {example}.")


def _check_factor(index: int, factor: Factor) -> None:
    if not callable(factor.loss):
        raise McoverError(f"factor {index} has a loss that cannot be called: {factor.loss!r}.")
    if not factor.variables or len(set(factor.variables)) < len(factor.variables):
        raise McoverError(
            f"factor {index} has the variables {factor.variables}; write each variable once."
        )
    for i in factor.variables:
        checks.check_int(f"a variable of factor {index}", i, 0)
    foreign = set(factor.directed) - set(factor.variables)
    if foreign:
        raise McoverError(
            f"factor {index} has directed losses for {foreign}; write them for its own variables, "
            f"{factor.variables}."
        )
