"""How a module is lifted: the options of each routing, as frozen values that need no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mcover import checks
from mcover.errors import McoverError

Mixer = Literal["sampled", "exact"]
Granularity = Literal["weight", "unit", "tensor"]


@dataclass(frozen=True)
class Messages:
    """The message lift: messages of blocks of a layer's inputs are mixed across covers.

    Attributes:
        blocks: input blocks G of each mixing layer, at most one per input; None is one per input.
        draws: permutations averaged into each mixer Q̂.
        block_channels: input channels that a block of a convolution has at least.
        mixer: Q̂ from drawn routes, or the kernel Q itself.
        streams: S activation streams per cover along drawn routes, instead of their average Q̂.
        redraw_every: training forwards between fresh routes; None keeps them for good.
    """

    kind: ClassVar[str] = "messages"

    blocks: int | None = 8
    draws: int = 10
    block_channels: int = 8
    mixer: Mixer = "sampled"
    streams: int | None = None
    redraw_every: int | None = None

    def __post_init__(self) -> None:
        checks.counts(self, "draws", "block_channels")
        checks.counts(self, "blocks", "streams", "redraw_every", optional=True)
        checks.choice("mixer", self.mixer, ("sampled", "exact"))
        if self.streams is not None and self.mixer == "exact":
            raise McoverError("streams follow drawn routes; write mixer='sampled' or streams=None.")


@dataclass(frozen=True)
class Directed:
    """The directed lift: each weight of a whole virtual model is read from its routed cover.

    Attributes:
        bank: destinations whose routes are kept; None keeps all of them, which is the exact lift.
            With ``redraw_every``, no more than are visited.
        destinations: how many of the bank each forward evaluates, in turn; None evaluates all.
        granularity: what has a route of its own: each "weight", the weights of an output "unit"
            together, or each "tensor".
        redraw_every: training forwards between fresh routes; None keeps them for good.
    """

    kind: ClassVar[str] = "directed"

    bank: int | None = 8
    destinations: int | None = 1
    granularity: Granularity = "weight"
    redraw_every: int | None = None

    def __post_init__(self) -> None:
        checks.counts(self, "bank", "destinations", "redraw_every", optional=True)
        checks.choice("granularity", self.granularity, ("weight", "unit", "tensor"))


Routing = Messages | Directed


def routing_of(routing: Routing | str) -> Routing:
    """A routing; "messages" and "directed" stand for the defaults.

    >>> routing_of("directed")
    Directed(bank=8, destinations=1, granularity='weight', redraw_every=None)
    """
    if isinstance(routing, Messages | Directed):
        return routing
    named = {cls.kind: cls for cls in (Messages, Directed)}
    if isinstance(routing, str) and routing in named:
        return named[routing]()
    raise McoverError(
        f"routing is {routing!r}; write 'messages', 'directed', mcover.Messages(...) or "
        "mcover.Directed(...)."
    )
