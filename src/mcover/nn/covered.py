"""The covered model: M covers of one base model, run as one module."""

from __future__ import annotations

import inspect
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from types import MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor, nn

from mcover import checks
from mcover.errors import McoverError
from mcover.lifting import Directed, Messages, Settings
from mcover.nn import directed, trees
from mcover.nn.collapse import collapse, cover, ensemble
from mcover.nn.copies import Override
from mcover.nn.files import save
from mcover.nn.layers import draw_mixer
from mcover.nn.meetings import Across, Shape, Site
from mcover.nn.report import report
from mcover.nn.running import Runner
from mcover.announce import announced
from mcover.routing import BYTE_COVERS, draw_indexed_bank
from mcover.seeds import seed_sequence

_PAGE = 512  # bytes


class NextRoutes(NamedTuple):
    """What one evaluation of a directed lift reads from where.

    Attributes:
        bank: :attr:`Covered.routes`, the same array until the routes are drawn anew.
        destinations: those to evaluate, as indices into the bank.
    """

    bank: NDArray[Any]
    destinations: tuple[int, ...]


class _Forward:
    """``covered.forward`` runs all covers on the same inputs, with the base model's signature.

    Like any method it can be replaced on one model, as accelerate does for mixed precision; and a
    copy of the model gets it bound to the copy.
    """

    def __init__(self, base: Callable[..., Any] | None = None) -> None:
        self._base = base

    def __get__(self, covered: Any, owner: Any = None) -> Any:
        if covered is None:
            return self

        def forward(covered: Any, /, *args: Any, **kwargs: Any) -> Any:
            return covered._runner.forward(args, kwargs, each=False)

        # The signature is made when someone asks, and not for each call.
        forward.__wrapped__ = _Forward(Override.of(covered.net))  # type: ignore[attr-defined]
        return MethodType(forward, covered)

    def __call__(self, covered: Any, /, *args: Any, **kwargs: Any) -> Any:
        return covered._runner.forward(args, kwargs, each=False)

    @property
    def __signature__(self) -> inspect.Signature:
        base = inspect.signature(self._base or self.__call__)
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        return base.replace(parameters=[own, *base.parameters.values()])


class Covered(nn.Module):
    """What :func:`mcover.lift` returns: an input of shape (B, ...) gives outputs (M, B, ...).

    Several streams or destinations lie along the batch: (M, S·B, ...), stream by stream. Outputs
    in tuples, dicts, dataclasses and the like come in the same form, with the covers first in every
    tensor.

    Attributes:
        net: the base model's modules; lifted tensors hold all covers, ``(M, *shape)``. It is not
            called itself: each cover runs on a private copy of it.
        settings: what was asked for.
        lifted: names of the lifted parameters in ``net``.
        state: names of the buffers that each cover keeps for itself.
        seed: where all routes come from.
        steps: training forwards so far.
        redraws: how often the routes were drawn anew.
    """

    # Functions of a covered model, whose stories have files of their own.
    collapse, cover, ensemble = collapse, cover, ensemble
    report, save = report, save

    across: Across | None = None  # the processes that hold the other covers, if there are any
    route_bytes: Tensor
    route_table: Tensor
    route_inverse: Tensor

    def __init__(
        self,
        net: nn.Module,
        settings: Settings,
        lifted: tuple[str, ...],
        state: tuple[str, ...],
        seed: SeedSequence,
    ) -> None:
        super().__init__()
        self.net = net
        self.settings = settings
        self.lifted = lifted
        self.state = state
        self.seed = seed
        self.steps = 0
        self.redraws = 0
        self._drawn = -1  # which draw the routes in force are
        self._runner = Runner(self)
        self.draw(0)

    forward = _Forward()

    def each(self, *args: Any, **kwargs: Any) -> Any:
        """Runs each cover on inputs of its own; outputs are (M, B, ...) as of a common input.

        It takes what the base model takes, every tensor with the covers first, (M, B, ...). Where
        covers mix, the messages of cover α come from its own inputs; in the directed lift, context
        α sees the inputs of cover α.
        """
        count = len(self.held)
        trees.check_covers_first((args, kwargs), count, "each", "covered(x) for inputs")
        return self._runner.forward(args, kwargs, each=True)

    @property
    def covers(self) -> int:
        """M."""
        return self.settings.covers

    @property
    def held(self) -> range:
        """The covers that run in this process: all of them, but for :mod:`mcover.distributed`."""
        return range(self.covers)

    @property
    def route_index(self) -> Tensor:
        """Of the directed lift: the row in the table of each source's route, (S, sources)."""
        return self.route_bytes.view(torch.uint8 if self.covers <= BYTE_COVERS else torch.uint16)

    @property
    def is_directed(self) -> bool:
        """Whether weights are routed, and not messages."""
        return isinstance(self.settings.routing, Directed)

    @property
    def passes(self) -> int:
        """Passes over the M covers in each forward, one a stream or destination."""
        how = self.settings.routing
        if isinstance(how, Messages):
            return how.streams or 1
        return min(how.destinations or len(self.route_index), len(self.route_index))

    @property
    def routes(self) -> NDArray[Any]:
        """The cover that α reads source j from in the directed lift, shape (S, sources, M)."""
        if not self.is_directed:
            raise McoverError("routes belong to routing='directed'; see covered.mixers().")
        runner = self._runner
        if runner.bank is None:
            runner.bank = self.route_table.cpu().numpy()[self.route_index.cpu().numpy()]
            runner.bank.setflags(write=False)
        return runner.bank

    def next_routes(self) -> NextRoutes | None:
        """The routes of the next evaluation, for a model that is evaluated by other code.

        It does to the counters what a forward does: in training mode the bank is gone through in
        turn, and drawn anew where it is time to. None in the message lift, which mixes activations.

        >>> import mcover
        >>> how = mcover.Directed(bank=3, destinations=2)
        >>> covered = mcover.lift(nn.Linear(4, 2), 5, mcover.Uniform(), how, seed=0)
        >>> [covered.next_routes().destinations for _ in range(3)], covered.steps
        ([(0, 1), (2, 0), (1, 2)], 3)
        >>> covered.next_routes().bank.shape
        (3, 10, 5)
        """
        with self._runner.lock:
            step, number = self._runner.advance()
            self.draw(number)
            if not self.is_directed:
                return None
            return NextRoutes(self.routes, tuple(self._runner.turn(step)))

    def rows(self, which: int) -> list[Sequence[Tensor]]:
        """The tensors that covers run with in one pass, stack by stack."""
        how, stacks = self.settings.routing, self.stacks()
        if not isinstance(how, Directed):
            return [stack.unbind() for stack in stacks.values()]
        tables = self.route_table, self.route_inverse
        return directed.virtual_models(stacks, how.granularity, self.route_index[which], *tables)

    def stacks(self) -> dict[str, Tensor]:
        """The lifted parameters by name, covers first."""
        return self._held(self.lifted)

    def state_stacks(self) -> dict[str, Tensor]:
        """The buffers that each cover keeps for itself, covers first."""
        return self._held(self.state)

    def _held(self, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Tensors of ``net``, also those that ``torch.func.functional_call`` put in place."""
        paths = {name: name.rpartition(".") for name in names}
        return {n: getattr(self.net.get_submodule(at), key) for n, (at, _, key) in paths.items()}

    def mixers(self) -> dict[str, Tensor]:
        """Q̂ of each layer that mixes, by the layer's name: (units, blocks, M, M)."""
        return {place: mixer for place, _, _, mixer in self.mixing()}

    def mixing(self) -> list[tuple[str, str, nn.Module, Tensor]]:
        """Place, part, layer and mixer, wherever covers meet."""
        return [
            (site.place(part), part, self.net.get_submodule(site.name), getattr(self, f"mixer_{n}"))
            for n, (site, part, _) in enumerate(self._meetings())
        ]

    @property
    def met(self) -> dict[str, int]:
        """How often covers met at each layer since the model was made or loaded."""
        return self._runner.current.met

    def _meetings(self) -> list[tuple[Site, str, Shape]]:
        """Layer, part and shape of every mixer."""
        sites = self._runner.sites.values()
        return [(site, part, shape) for site in sites for part, shape in site.shapes.items()]

    def redraw(self) -> None:
        """Fresh routes from the same topology, reproducible from the seed given to ``lift``."""
        self.redraws += 1
        self.draw(self.redraws)

    def parameter_groups(self, **options: Any) -> list[dict[str, Any]]:
        """Parameters and options for an optimizer that decays matrices but not biases and norms.

        A stack has one axis more than the base's parameter, so that the usual test "decay if
        ndim >= 2" would decay biases too. Here it is made on the base's shape.

        >>> import mcover
        >>> covered = mcover.lift(nn.Linear(4, 2), 3, mcover.Uniform(), seed=0)
        >>> groups = covered.parameter_groups(lr=1e-3, weight_decay=0.1)  # of torch.optim.AdamW
        >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
        [(1, 0.1), (1, 0.0)]
        """
        stacked = {id(stack) for stack in self.stacks().values()}
        groups = [options | {"params": []}, options | {"params": [], "weight_decay": 0.0}]
        for value in self.parameters():
            if value.requires_grad:
                groups[value.ndim - (id(value) in stacked) < 2]["params"].append(value)
        return groups

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clips the gradient of each cover by its own norm, and returns the norms, shape (M,).

        ``torch.nn.utils.clip_grad_norm_`` takes a single norm over all covers, about √M times that
        of one model; this does to each cover what it does to one model. What covers share counts
        in all of them, and is clipped as in the one with the largest norm.
        """
        max_norm = checks.check_float("max_norm", max_norm, 0, infinite=True)
        grads = {id(p): p.grad for p in self.parameters() if p.grad is not None}
        own = [grads.pop(id(s)) for s in self.stacks().values() if id(s) in grads]
        squares = [grad.flatten(1).abs().square().sum(1) for grad in own]
        rows = len(next(iter(self.stacks().values())))
        squares += [grad.abs().square().sum().expand(rows) for grad in grads.values()]
        if not squares:
            return torch.zeros(rows)
        norms = torch.stack(squares).sum(0).sqrt()
        scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
        for grad in own:
            grad.mul_(scale.to(grad.dtype).view(-1, *(1,) * (grad.ndim - 1)))
        for grad in grads.values():
            grad.mul_(self._least(scale).to(grad.dtype))
        return norms

    def _least(self, scale: Tensor) -> Tensor:
        return scale.min()

    def get_extra_state(self) -> Tensor:
        """The seed, and how far the routes have been gone through: part of ``state_dict``."""
        entropy: Any = self.seed.entropy
        state = {
            "steps": self.steps,
            "redraws": self.redraws,
            "entropy": entropy if isinstance(entropy, int) else [int(word) for word in entropy],
            "spawn_key": list(self.seed.spawn_key),
            "checksum": self._checksum(),
        }
        text = json.dumps(state)
        # Whole pages, so that a checkpoint's tensor fits that of a model with other counters.
        text = text.ljust(-(-len(text) // _PAGE) * _PAGE)
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Seed and counters of another model; refused, if its routes cannot be drawn again."""
        before = self.seed, self.steps, self.redraws
        try:
            given = json.loads(bytes(state.tolist()))
            entropy, key = given["entropy"], tuple(given["spawn_key"])
            seed_sequence([*([entropy] if isinstance(entropy, int) else entropy), *key])  # checks
            seed = SeedSequence(entropy, spawn_key=key)
            steps, redraws = (
                checks.check_int(name, given[name], 0) for name in ("steps", "redraws")
            )
            checksum = given["checksum"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise McoverError(f"this is not the state of a covered model: {error!r}.") from error
        self._restart(seed, steps, redraws)
        if self._checksum() != checksum:
            self._restart(*before)
            raise McoverError(
                "the routes of this state cannot be drawn again: either the model was lifted with "
                "other settings, or this version of mcover or NumPy draws others from its seed."
            )

    def _restart(self, seed: SeedSequence, steps: int, redraws: int) -> None:
        self.seed, self.steps, self.redraws, self._drawn = seed, steps, redraws, -1
        self.draw(redraws)

    def draw(self, number: int) -> None:
        """Routes of draw ``number``, each layer from its own stream."""
        if number == self._drawn:
            return
        count = sum(stack.numel() // len(stack) for stack in self.stacks().values())
        with announced(f"drawing routes for {count:,} parameters of {self.covers} covers"):
            drawn = self._drawn_anew(number)
        for name, tensor in drawn.items():
            # A new tensor, not new values: the backward of earlier forwards reads the old one.
            self.register_buffer(name, tensor, persistent=False)
        self._drawn, self._runner.bank = number, None

    def _drawn_anew(self, number: int) -> dict[str, Tensor]:
        """Routes or mixers of a draw, by the names of their buffers."""
        root = SeedSequence(self.seed.entropy, spawn_key=(*self.seed.spawn_key, 1, number))
        like = next(iter(self.stacks().values()))
        how, topology = self.settings.routing, self.settings.topology
        if isinstance(how, Messages):
            shapes = [shape for _, _, shape in self._meetings()]
            pairs = zip(shapes, root.spawn(len(shapes)), strict=True)
            drawn = [draw_mixer(self.covers, topology, how, *pair) for pair in pairs]
            to = like.device, like.dtype
            return {f"mixer_{n}": mixer.to(*to) for n, mixer in enumerate(drawn)}
        *_, (_, last) = directed.slices(self.stacks(), how.granularity)
        size = min(how.bank or last.stop, last.stop)
        if how.redraw_every is not None and how.destinations is not None:
            # More than are visited before the next draw would never be looked at.
            size = min(size, how.redraw_every * how.destinations)
        bank = draw_indexed_bank(topology, self.covers, last.stop, size, root)
        # As bytes: process groups that broadcast buffers do not know numbers of two.
        index = bank.index.view(np.uint8)
        arrays = {"bytes": index, "table": bank.table, "inverse": bank.inverse_table}
        return {f"route_{k}": torch.from_numpy(v).to(like.device) for k, v in arrays.items()}

    def _checksum(self) -> int:
        drawn = [self.route_index, self.route_table] if self.is_directed else self.mixers().values()
        return checksum(drawn)


def checksum(drawn: Iterable[Tensor]) -> int:
    """CRC-32 of drawn routes or mixers."""
    total = 0
    for tensor in drawn:
        exact = tensor if tensor.dtype in (torch.uint8, torch.uint16) else tensor.double()
        total = zlib.crc32(exact.cpu().numpy().tobytes(), total)
    return total
