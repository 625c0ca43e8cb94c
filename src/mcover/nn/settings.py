"""How a model is lifted: one frozen value that Python, reports and saved files all read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from mcover import checks
from mcover.errors import McoverError
from mcover.plain import from_plain, to_plain
from mcover.topology import Topology

Routing = Literal["messages", "weights"]
Mixer = Literal["sampled", "exact"]
Granularity = Literal["weight", "unit", "tensor"]


@dataclass(frozen=True)
class Settings:
    """What :func:`mcover.lift` was asked for.

    Attributes:
        covers: M.
        topology: where routes are drawn from.
        routing: "messages" mixes block messages between layers, "weights" gathers whole models.
        blocks: input blocks G of each mixing layer (at most one per input; None is one per input).
        draws: permutations averaged into each mixer Q̂.
        block_channels: input channels that a block of a convolution has at least.
        noise: what separates the covers at the start: a standard deviation, or a share of each
            tensor's own, written "10%".
        mixer: Q̂ from drawn routes, or the kernel Q itself.
        streams: None is the collapse into Q̂; S keeps S routed activation streams per cover.
        bank: destinations kept by the directed lift; None keeps all of them.
        destinations: how many of the bank each forward evaluates, in turn; None evaluates all.
        granularity: what has a route of its own in the directed lift.
        redraw_every: training forwards between fresh routes; None keeps them for good.
    """

    covers: int
    topology: Topology
    routing: Routing = "messages"
    blocks: int | None = 8
    draws: int = 10
    block_channels: int = 8
    noise: float | str = "10%"
    mixer: Mixer = "sampled"
    streams: int | None = None
    bank: int | None = 8
    destinations: int | None = 1
    granularity: Granularity = "weight"
    redraw_every: int | None = None

    def __post_init__(self) -> None:
        checks.whole("covers", self.covers, 1)
        if not isinstance(self.topology, Topology):
            raise McoverError(
                f"topology is {self.topology!r}; write e.g. mcover.GaussianRing(1.5, shift=2)."
            )
        for name, choices in (("routing", Routing), ("mixer", Mixer), ("granularity", Granularity)):
            if getattr(self, name) not in get_args(choices):
                allowed = " or ".join(repr(choice) for choice in get_args(choices))
                raise McoverError(f"{name} is {getattr(self, name)!r}; write {allowed}.")
        whole = {"draws": self.draws, "block_channels": self.block_channels}
        optional = ("blocks", "streams", "bank", "destinations", "redraw_every")
        whole |= {name: getattr(self, name) for name in optional if getattr(self, name) is not None}
        for name, count in whole.items():
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise McoverError(f"{name} is {count!r}; write a whole number of at least 1.")
        self.spread(1.0)
        if self.streams is not None and self.routing != "messages":
            raise McoverError("streams are for routing='messages'; for 'weights' write bank=S.")
        if self.streams is not None and self.mixer == "exact":
            raise McoverError("streams follow drawn routes; write mixer='sampled' or streams=None.")

    @property
    def mixes(self) -> bool:
        """Whether any cover can read from another."""
        if self.covers == 1:
            return False
        matrix = self.topology.matrix(self.covers)
        return bool((matrix != 0).sum() > self.covers or matrix.trace() < self.covers)

    def spread(self, own: float) -> float:
        """The noise's standard deviation for a tensor whose own is given.

        >>> from mcover import Uniform
        >>> [Settings(2, Uniform(), noise=noise).spread(0.2) for noise in (0.01, "10%")]
        [0.01, 0.020000000000000004]
        """
        try:
            share = isinstance(self.noise, str) and self.noise.endswith("%")
            value = float(str(self.noise)[:-1]) / 100 if share else float(self.noise)
        except (TypeError, ValueError):
            value = float("nan")
        odd = isinstance(self.noise, bool) or (isinstance(self.noise, str) and not share)
        if not 0 <= value < float("inf") or odd:
            raise McoverError(
                f"noise is {self.noise!r}; write a standard deviation, 0 or more, or a share of "
                "each tensor's own, e.g. '10%'."
            )
        return value * own if share else value

    def blocks_of(self, inputs: int, channels: bool) -> int:
        """Input blocks of a mixer: at most one per input, and thick ones for convolutions."""
        most = max(1, inputs // self.block_channels) if channels else inputs
        return min(self.blocks or inputs, most)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for a JSON file; :meth:`from_dict` reads them back."""
        plain = {name: value for name, value in asdict(self).items() if name != "topology"}
        return plain | {"topology": to_plain(self.topology)}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Settings:
        return cls(**plain | {"topology": from_plain(Topology, plain["topology"])})
