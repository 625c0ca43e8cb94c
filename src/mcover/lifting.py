"""The options of a lift, as frozen dataclasses that do not need torch."""

from dataclasses import dataclass, field
from typing import Any, Literal

from mcover import checks
from mcover.errors import McoverError
from mcover.plain import OMITTED, Tagged
from mcover.topology import TOPOLOGIES, Topology, as_topology

Mixer = Literal["sampled", "exact"]
Granularity = Literal["weight", "unit", "tensor"]

_LOUDEST = 1e6  # the largest noise that is accepted


@dataclass(frozen=True)
class Messages(Tagged, kind="messages"):
    """The message lift: the messages of blocks of a layer's inputs are mixed across covers."""

    blocks: int | None = 8
    """Input blocks G of each mixing layer, at most one per input; None is one per input."""
    draws: int = 10  # Permutations averaged into each mixer Q̂.
    block_channels: int = 8  # Minimum number of input channels in a block of a convolution.
    mixer: Mixer = "sampled"  # Mixers Q̂ from drawn routes, or the kernel Q itself.
    streams: int | None = None
    """S activation streams per cover along drawn routes, instead of their average Q̂."""
    redraw_every: int | None = None
    """Training forwards between redraws of the routes; None never redraws."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "draws", "block_channels")
        checks.check_count_fields(self, "blocks", "streams", "redraw_every", optional=True)
        checks.check_choice("mixer", self.mixer, ("sampled", "exact"))
        if self.streams is not None and self.mixer == "exact":
            raise McoverError("streams follow drawn routes; write mixer='sampled' or streams=None.")


@dataclass(frozen=True)
class Directed(Tagged, kind="directed"):
    """The directed lift: each weight of a virtual model is read from its routed cover.

    By default routes are redrawn every ten steps. This needs no knowledge of the data; whether
    redraws reduce the error is open (see the study ``league``). The bank then keeps no more
    destinations than are evaluated between redraws. ``Directed(redraw_every=None)`` never redraws,
    as in the paper.
    """

    bank: int | None = 8  # Destinations whose routes are kept; None is all: the exact lift.
    destinations: int | None = 1
    """Destinations that each forward evaluates, in rotation; None evaluates the whole bank."""
    granularity: Granularity = "weight"
    """The unit of routing: each weight, each output unit with its weights, or each tensor."""
    redraw_every: int | None = field(default=10, metadata={OMITTED: None})
    """Training forwards between redraws of the routes; None never redraws."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "bank", "destinations", "redraw_every", optional=True)
        checks.check_choice("granularity", self.granularity, ("weight", "unit", "tensor"))


Routing = Messages | Directed


def input_blocks(routing: Messages, inputs: int, channels: bool) -> int:
    """The number of input blocks of a mixer: at most one per input, fewer for convolutions.

    >>> [input_blocks(Messages(), 32, channels) for channels in (False, True)]
    [8, 4]
    """
    most = max(1, inputs // routing.block_channels) if channels else inputs
    return min(routing.blocks or inputs, most)


@dataclass(frozen=True)
class Settings:
    """The settings of a lift, which reports show and files store."""

    covers: int
    topology: Topology  # the kernel Q of the law of the routes
    routing: Routing  # the kind of lift and its options
    noise: float | str
    """The noise that separates the covers at the start: a standard deviation, or a share of each
    tensor's own."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "covers")
        _check_order(self.topology, self.routing)
        object.__setattr__(self, "topology", as_topology(self.topology))
        object.__setattr__(self, "routing", as_routing(self.routing))
        object.__setattr__(self, "noise", check_noise(self.noise))

    @property
    def mixes(self) -> bool:
        """Whether any cover can read from another."""
        if self.covers == 1:
            return False
        matrix = self.topology.matrix(self.covers)
        return bool((matrix != 0).sum() > self.covers or matrix.trace() < self.covers)

    def noise_std(self, own: float) -> float:
        """The standard deviation of the noise for a tensor with standard deviation ``own``.

        >>> from mcover import Uniform
        >>> [Settings(2, Uniform(), Directed(), at).noise_std(0.2) for at in (0.01, "10%")]
        [0.01, 0.020000000000000004]
        """
        if isinstance(self.noise, str):
            return float(self.noise[:-1]) / 100 * own
        return self.noise


def check_noise(noise: Any) -> float | str:
    """A standard deviation, or a share of each tensor's own."""
    is_share = isinstance(noise, str) and noise.endswith("%")
    try:
        size = checks.check_float("noise", float(noise[:-1]) if is_share else noise, 0, _LOUDEST)
    except ValueError:
        raise McoverError(
            f"noise is {checks.shown(noise)}; write 'auto', a standard deviation, 0 or more, or a "
            "share of each tensor's own, e.g. '10%'."
        ) from None
    return str(noise) if is_share else size


_ROUTINGS: dict[str, type[Routing]] = {"directed": Directed, "messages": Messages}


def as_routing(routing: Any) -> Routing:
    """A routing; its name or its class stands for its defaults.

    >>> as_routing("directed") == as_routing(Directed) == Directed()
    True
    """
    if isinstance(routing, type) and routing in _ROUTINGS.values():
        return routing()
    if isinstance(routing, str):
        return _ROUTINGS[checks.check_choice("routing", routing, tuple(_ROUTINGS))]()
    example = "'directed', 'messages', mcover.Directed(...) or mcover.Messages(...)"
    kinds: tuple[type[Routing], ...] = (Directed, Messages)
    return checks.check_instance("routing", routing, kinds, example)


def _check_order(topology: Any, routing: Any) -> None:
    """Refuses a routing as topology, and a topology as routing."""
    routings, topologies = (Directed, Messages, *_ROUTINGS), (Topology, *TOPOLOGIES)
    if _is_one_of(topology, routings):
        name = getattr(topology, "__name__", repr(topology))
        raise McoverError(f"topology is {name}, which is a routing; write routing={name}.")
    if _is_one_of(routing, topologies):
        name = getattr(routing, "__name__", repr(routing))
        raise McoverError(f"routing is {name}, which is a topology; write topology={name}.")


def _is_one_of(value: Any, known: tuple[Any, ...]) -> bool:
    """Whether a value is one of some words, an instance of some classes, or such a class."""
    if isinstance(value, str):
        return value in known
    kinds = tuple(one for one in known if isinstance(one, type))
    return issubclass(value if isinstance(value, type) else type(value), kinds)
