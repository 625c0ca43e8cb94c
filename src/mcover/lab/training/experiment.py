"""A whole experiment but its seed, as one frozen value: data, model, covers and training.

Python, the command line and result tables read the same one. Options that are None take the
default of the model and the method; options of another model or method are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mcover.errors import McoverError
from mcover.lab.training.settings import Training
from mcover.lifting import Directed, Messages
from mcover.topology import GaussianRing, Identity, Topology, Uniform

COVERED = ("mcover", "rsgd", "elastic")  # methods that act on covers

_COMMITTEE_ONLY = ("hidden", "schedule", "free_norms")
_RING_ONLY = ("sigma", "shift")
_MESSAGES_ONLY = ("blocks", "draws", "mixer", "streams")
_WEIGHTS_ONLY = ("bank", "destinations", "granularity")
_ROUTES = ("routing", "topology", *_RING_ONLY, *_MESSAGES_ONLY, *_WEIGHTS_ONLY, "redraw_every")
_COVERS_ONLY = ("start", "noise")
PAPER_NOISE = 1e-2


@dataclass(frozen=True)
class Experiment:
    """What is learned by what, and how."""

    training: Training
    """How to train."""
    data: str = "digits"
    """What to learn: digits (no download), mnist or fashion-mnist; or some classes of one, by
    number or name: digits:3,8 or fashion-mnist:dress,coat."""
    model: Literal["mlp", "small-mlp", "conv", "committee"] = "mlp"
    """Hidden layers of 512-512 units, the paper's; of 256-256; convolutions of 16 and 32 channels;
    or a committee machine."""
    pixels: Literal["normalized", "median"] | None = None
    """Pixels of mean 0 and variance 1, or ±1 by the median of each image; None is
    normalized, for a committee median."""
    images: int | None = None
    """Train on so many images only, as many of each class; None is all."""
    subset_seed: int | None = None
    """Draws these images; None is the seed of the training."""
    validation: int | None = None
    """Hold so many training images out, and test on them instead of the test images."""
    covers: int | None = None
    """Number of covers M; 1 is the plain model; None is 4, with routed messages 5."""
    start: Literal["common", "independent"] | None = None
    """Whether covers start from one model plus noise, or each from its own; None is
    common, for a committee independent."""
    noise: float | str | None = None
    """Gaussian noise that sets covers of a common start apart: a number, or a share of each
    tensor's own standard deviation, such as 150%; None is 0.05 where weights are routed, 0.02 of
    convolutions, else 0.01."""
    routing: Literal["messages", "weights"] | None = None
    """What is routed: single weights, the directed lift, or messages between layers; None is
    weights, which does better on networks (see the study low-data)."""
    topology: Literal["ring", "uniform", "identity"] | None = None
    """From which covers a source is read; None is uniform for weights, ring for messages."""
    sigma: float | None = None
    """Width of the ring; None is 1.5."""
    shift: float | None = None
    """Shift of the ring; None is 2."""
    blocks: int | None = None
    """Messages: blocks of a layer's inputs that are routed together; None is 8."""
    draws: int | None = None
    """Messages: routes averaged into each mixer; None is 10."""
    mixer: Literal["sampled", "exact"] | None = None
    """Messages: mixers of sampled routes, or the exact kernel; None is sampled."""
    streams: int | None = None
    """Messages: streams along single routes instead of mixers; None is none."""
    bank: int | None = None
    """Weights: destinations that are kept; None is 8, for a committee 10."""
    destinations: int | None = None
    """Weights: destinations that a step evaluates, in turn; None is 1, for a committee all."""
    granularity: Literal["weight", "unit", "tensor"] | None = None
    """Weights: what has a route of its own; None is weight."""
    redraw_every: int | None = None
    """Draw new routes after so many gradients, 0 is never; None is after each epoch where weights
    of a network are routed, else never."""
    dropout: float = 0.0
    """Share of hidden units that are dropped in training, with convolutions only before the last
    layer; not for the committee."""
    hidden: int | None = None
    """Committee: hidden units K; an odd number has no ties; None is 9."""
    schedule: str | None = None
    """Committee: how β and γ grow, slow or fast (both unverified), or first β, its growth an
    epoch, first γ, its growth: 0.5,1e-3,0.5,1e-3; None is slow."""
    free_norms: bool = False
    """Committee: let the norms of the rows go, instead of keeping them at √N."""

    def __post_init__(self) -> None:
        self._refuse(not self.committee, _COMMITTEE_ONLY, "is for model 'committee'")
        if self.committee and self.dropout:
            raise McoverError("a committee machine has no dropout; leave dropout out.")
        if self.committee and self.routing == "messages":
            raise McoverError("a committee machine routes weights; leave routing out.")
        method = self.training.method
        text = f"is for methods on covers, {', '.join(COVERED)}; the method is {method!r}"
        self._refuse(method not in COVERED, _COVERS_ONLY, text)
        self._refuse(method not in COVERED and self.covers != 1, ("covers",), text)
        self._refuse(method != "mcover", _ROUTES, f"is for method 'mcover'; it is {method!r}")
        self._refuse(self.kernel != "ring", _RING_ONLY, f"is for a ring; it is {self.kernel!r}")
        routing = self.kind_of_routing
        for other, own in (("messages", _MESSAGES_ONLY), ("weights", _WEIGHTS_ONLY)):
            text = f"is for routing {other!r}; it is {routing!r}"
            self._refuse(routing != other, own, text)
        if self.redraw_every is not None and self.redraw_every < 0:
            raise McoverError(f"redraw_every is {self.redraw_every}; write 0 for never, or more.")
        if self.noise is not None and self.common_start is False:
            raise McoverError("noise is for covers of a common start; they start independent.")

    @property
    def committee(self) -> bool:
        return self.model == "committee"

    @property
    def count(self) -> int:
        """M, where 1 is a plain model."""
        if self.training.method not in COVERED:
            return 1
        if self.covers is not None:
            return self.covers
        return 5 if self.training.method == "mcover" and self.kind_of_routing == "messages" else 4

    @property
    def kernel(self) -> str:
        """The topology by name."""
        if self.training.method != "mcover":
            return "identity"
        return self.topology or ("uniform" if self.kind_of_routing == "weights" else "ring")

    @property
    def kind_of_routing(self) -> str:
        """What is routed."""
        return self.routing or "weights"

    @property
    def common_start(self) -> bool:
        """Whether covers start from one model plus noise."""
        return not self.committee if self.start is None else self.start == "common"

    def topology_value(self) -> Topology:
        """The topology of the covers."""
        if self.kernel == "ring":
            return GaussianRing(
                1.5 if self.sigma is None else self.sigma, 2.0 if self.shift is None else self.shift
            )
        return Uniform() if self.kernel == "uniform" else Identity()

    def lift_options(self, steps: int) -> dict[str, Any]:
        """What :func:`mcover.lift` is given beside the model, the covers and the seed.

        Args:
            steps: gradients in an epoch.
        """
        given = {
            name: getattr(self, name)
            for name in ("noise", *_MESSAGES_ONLY, *_WEIGHTS_ONLY, "redraw_every")
            if getattr(self, name) is not None
        }
        own: dict[str, Any] = {"topology": self.topology_value(), "noise": PAPER_NOISE}
        if self.training.method == "mcover":
            own["routing"] = self.kind_of_routing
            if self.kind_of_routing == "messages":
                own["block_channels"] = 1  # as in the rows that were stored: blocks may be thin
            if self.committee:
                own |= {"bank": 10, "destinations": None}
            elif self.kind_of_routing == "weights":
                own |= {"noise": 0.02 if self.model == "conv" else 0.05, "redraw_every": steps}
        whole = own | given
        whole["redraw_every"] = whole.get("redraw_every") or None
        how = Messages if whole.pop("routing", "messages") == "messages" else Directed
        plain = {name: whole.pop(name) for name in ("topology", "noise")}
        return plain | {"routing": how(**whole)}

    def _refuse(self, wrong: bool, names: tuple[str, ...], text: str) -> None:
        for name in names if wrong else ():
            if getattr(self, name) not in (None, False):
                raise McoverError(f"{name} {text}; leave it out.")


COMMITTEE_TRAINING = Training(
    epochs=20_000,
    batch=100,
    lr=10.0,
    momentum=0.0,
    evaluate_every=50,
    stop_loss=1e-7,
    stop_error=0.0,
)
"""The paper's for its committee machines, where it says; the lr was chosen on held-out images."""


def committee(training: Training | None = None, **changes: Any) -> Experiment:
    """The paper's committee machine: dress against coat, 500 images, K = 9.

    >>> from dataclasses import replace
    >>> one = committee(replace(COMMITTEE_TRAINING, method="mcover"), bank=4)
    >>> one.count, one.kernel, one.images
    (4, 'uniform', 500)
    """
    own = {"data": "fashion-mnist:dress,coat", "images": 500, "subset_seed": 0}
    return Experiment(training or COMMITTEE_TRAINING, model="committee", **own | changes)  # type: ignore[arg-type]
