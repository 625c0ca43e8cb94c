"""How a module is lifted: the options of each routing, as frozen values that need no torch."""

from dataclasses import dataclass
from typing import Any, Literal

from mcover import checks
from mcover.errors import McoverError
from mcover.plain import Tagged
from mcover.topology import Topology, as_topology

Mixer = Literal["sampled", "exact"]
Granularity = Literal["weight", "unit", "tensor"]

_LOUDEST = 1e6  # noise beyond it leaves nothing of the weights


@dataclass(frozen=True)
class Messages(Tagged, kind="messages"):
    """The message lift: messages of blocks of a layer's inputs are mixed across covers."""

    blocks: int | None = 8
    """Input blocks G of each mixing layer, at most one per input; None is one per input."""
    draws: int = 10  # Permutations averaged into each mixer Q̂.
    block_channels: int = 8  # Input channels that a block of a convolution has at least.
    mixer: Mixer = "sampled"  # Mixers Q̂ from drawn routes, or the kernel Q itself.
    streams: int | None = None
    """S activation streams per cover along drawn routes, instead of their average Q̂."""
    redraw_every: int | None = None
    """Training forwards between fresh routes; None keeps them for good."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "draws", "block_channels")
        checks.check_count_fields(self, "blocks", "streams", "redraw_every", optional=True)
        checks.check_choice("mixer", self.mixer, ("sampled", "exact"))
        if self.streams is not None and self.mixer == "exact":
            raise McoverError("streams follow drawn routes; write mixer='sampled' or streams=None.")


@dataclass(frozen=True)
class Directed(Tagged, kind="directed"):
    """The directed lift: each weight of a whole virtual model is read from its routed cover.

    With ``redraw_every`` the bank keeps no more destinations than are visited.
    """

    bank: int | None = 8  # Destinations whose routes are kept; None is all: the exact lift.
    destinations: int | None = 1
    """How many of the bank each forward evaluates, in turn; None evaluates all."""
    granularity: Granularity = "weight"
    """What has a route of its own: a weight, an output unit with all its weights, or a tensor."""
    redraw_every: int | None = None
    """Training forwards between fresh routes; None keeps them for good."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "bank", "destinations", "redraw_every", optional=True)
        checks.check_choice("granularity", self.granularity, ("weight", "unit", "tensor"))


Routing = Messages | Directed


def input_blocks(routing: Messages, inputs: int, channels: bool) -> int:
    """Input blocks of a mixer: at most one per input, and thick ones for convolutions.

    >>> [input_blocks(Messages(), 32, channels) for channels in (False, True)]
    [8, 4]
    """
    most = max(1, inputs // routing.block_channels) if channels else inputs
    return min(routing.blocks or inputs, most)


@dataclass(frozen=True)
class Settings:
    """How a model was lifted: what reports show and saved files hold."""

    covers: int
    topology: Topology  # the kernel Q that routes are drawn from
    routing: Routing = Messages()  # what is routed, and how; a word stands for its defaults
    noise: float | str = "10%"
    """What separates the covers at the start: a standard deviation, or a share of each tensor's
    own."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "covers")
        as_topology(self.topology)
        object.__setattr__(self, "routing", routing_of(self.routing))
        object.__setattr__(self, "noise", _noise(self.noise))

    @property
    def mixes(self) -> bool:
        """Whether any cover can read from another."""
        if self.covers == 1:
            return False
        matrix = self.topology.matrix(self.covers)
        return bool((matrix != 0).sum() > self.covers or matrix.trace() < self.covers)

    def noise_std(self, own: float) -> float:
        """The noise's standard deviation for a tensor whose own is given.

        >>> from mcover import Uniform
        >>> [Settings(2, Uniform(), noise=noise).noise_std(0.2) for noise in (0.01, "10%")]
        [0.01, 0.020000000000000004]
        """
        if isinstance(self.noise, str):
            return float(self.noise[:-1]) / 100 * own
        return self.noise


def _noise(noise: Any) -> float | str:
    is_share = isinstance(noise, str) and noise.endswith("%")
    try:
        size = checks.check_float("noise", float(noise[:-1]) if is_share else noise, 0, _LOUDEST)
    except ValueError:
        raise McoverError(
            f"noise is {checks.shown(noise)}; write a standard deviation, 0 or more, or a share "
            "of each tensor's own, e.g. '10%'."
        ) from None
    return str(noise) if is_share else size


def routing_of(routing: Any) -> Routing:
    """A routing; "messages" and "directed" stand for the defaults.

    >>> routing_of("directed")
    Directed(bank=8, destinations=1, granularity='weight', redraw_every=None)
    """
    if isinstance(routing, str) and routing in ("messages", "directed"):
        return Messages() if routing == "messages" else Directed()
    example = "'messages', 'directed', mcover.Messages(...) or mcover.Directed(...)"
    kinds: tuple[type[Routing], ...] = (Messages, Directed)
    return checks.check_instance("routing", routing, kinds, example)
