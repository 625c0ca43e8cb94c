"""The state of a covered model: stacks, routes and counters, and how they are saved.

Nothing here runs a cover. :mod:`mcover.nn.execution` imports this module, never the reverse, so
state can be copied, saved and collapsed without a forward.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor, nn

from mcover import checks
from mcover.announce import announced
from mcover.errors import McoverError
from mcover.lifting import Directed, Messages, Settings
from mcover.nn import directed
from mcover.nn.layers import MixingLayer, Shape, draw_mixer, mixing_layers
from mcover.routing import BYTE_COVERS, draw_indexed_bank
from mcover.seeds import seed_sequence

_PAGE = 512  # bytes
_LARGEST_STATE = 2**20  # bytes; a real one has one page or two


class CoverState(nn.Module):
    """The tensors and counters of M covers.

    :class:`mcover.nn.Covered` adds the execution, and documents the attributes.
    """

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
        self._drawn = -1  # the number of the draw that made the current routes
        self._bank: NDArray[Any] | None = None  # the current routes, computed on first use
        self._mixer_checksum = 0  # of the mixers before they were rounded to the layers' dtype
        self._met: dict[str, int] = {}  # number of meetings at each place, for the report
        self._draw(0)

    def __getstate__(self) -> dict[str, Any]:
        """Everything except caches and the counts of meetings."""
        return {**self.__dict__, "_bank": None, "_met": {}}

    @property
    def covers(self) -> int:
        """M."""
        return self.settings.covers

    @property
    def held(self) -> range:
        """The covers that this process runs, all M except with :mod:`mcover.distributed`."""
        return range(self.covers)

    @property
    def is_directed(self) -> bool:
        """Whether the lift is directed (routes of weights) rather than by messages."""
        return isinstance(self.settings.routing, Directed)

    # --- stacks -----------------------------------------------------------------------------------

    def stacks(self) -> dict[str, Tensor]:
        """The lifted parameters by name, covers first."""
        return self._tensors(self.lifted)

    def state_stacks(self) -> dict[str, Tensor]:
        """The buffers of which each cover has its own, covers first."""
        return self._tensors(self.state)

    def _tensors(self, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Tensors of ``net``, or those by which ``torch.func.functional_call`` replaced them."""
        paths = {name: name.rpartition(".") for name in names}
        return {n: getattr(self.net.get_submodule(at), key) for n, (at, _, key) in paths.items()}

    def _slices(self, which: int) -> list[Sequence[Tensor]]:
        """The slices of each lifted stack for one pass, stack by stack.

        ``which`` is a destination in the bank. It is checked here because compiled loops read the
        routes without bounds checks.
        """
        how, stacks = self.settings.routing, self.stacks()
        if not isinstance(how, Directed):
            return [stack.unbind() for stack in stacks.values()]
        which = checks.check_int("destination", which, 0, len(self._route_index) - 1)
        tables = self.route_table, self.route_inverse
        return directed.virtual_models(stacks, how.granularity, self._route_index[which], *tables)

    @torch.no_grad()
    def _returned(self, which: int, grads: dict[str, list[Tensor]]) -> dict[str, Tensor]:
        """The gradients of the stacks from those of slices, by name; empties ``grads``."""
        how = self.settings.routing
        if not isinstance(how, Directed):
            raise TypeError("gradients return along routes in the directed lift only")
        tables = self.route_table, self.route_inverse
        index = self._route_index[which]
        return directed.returned(self.stacks(), grads, how.granularity, index, *tables)

    def _cover_module(self, cover: int, values: Mapping[Tensor, Tensor]) -> nn.Module:
        """The base model with the attributes of one cover and with these values for its tensors.

        Execution implements this, because forwards set attributes on its copies of the modules.
        """
        raise NotImplementedError

    # --- routes and counters ----------------------------------------------------------------------

    @property
    def _route_index(self) -> Tensor:
        """The row of each source's route in the table of the directed lift, (S, sources)."""
        return self.route_bytes.view(torch.uint8 if self.covers <= BYTE_COVERS else torch.uint16)

    @property
    def passes(self) -> int:
        """Number of passes over the M covers in each forward, one per stream or destination."""
        how = self.settings.routing
        if isinstance(how, Messages):
            return how.streams or 1
        return min(how.destinations or len(self._route_index), len(self._route_index))

    @property
    def routes(self) -> NDArray[Any]:
        """The cover from which α reads source j in the directed lift, shape (S, sources, M)."""
        if not self.is_directed:
            raise McoverError("routes belong to routing='directed'; see covered.mixers().")
        if self._bank is None:
            self._bank = self.route_table.cpu().numpy()[self._route_index.cpu().numpy()]
            self._bank.setflags(write=False)
        return self._bank

    def mixers(self) -> dict[str, Tensor]:
        """Q̂ of each layer that mixes, by the name of the layer: (units, blocks, M, M)."""
        return {place: mixer for place, _, _, mixer in self._mixing()}

    def _mixing(self) -> list[tuple[str, str, nn.Module, Tensor]]:
        """Place, part, layer and mixer of every meeting."""
        return [
            (of.place(part), part, self.net.get_submodule(of.name), getattr(self, f"mixer_{n}"))
            for n, (of, part, _) in enumerate(self._mixer_shapes())
        ]

    @functools.cached_property
    def _mixing_layers(self) -> dict[str, MixingLayer]:
        """The layers that mix, by name."""
        return mixing_layers(self.net, self.lifted, self.settings)

    def _mixer_shapes(self) -> list[tuple[MixingLayer, str, Shape]]:
        """Layer, part and shape of every mixer."""
        layers = self._mixing_layers.values()
        return [(layer, part, shape) for layer in layers for part, shape in layer.shapes.items()]

    def redraw(self) -> None:
        """Redraws the routes from the same topology; the seed of ``lift`` determines the result."""
        self.redraws += 1
        self._draw(self.redraws)

    def _advance(self) -> tuple[int, int]:
        """Step and draw of the next evaluation; in training mode the step is counted."""
        if not self.training:
            return self.steps, self.redraws
        every = self.settings.routing.redraw_every
        if every is not None and self.steps and self.steps % every == 0:
            self.redraws += 1
        self.steps += 1
        return self.steps - 1, self.redraws

    def _passes_of(self, step: int) -> list[int]:
        """The streams or destinations of a forward; destinations cycle through the bank."""
        count = self.passes
        size = len(self._route_index) if self.is_directed else count
        return [(step * count + k) % size for k in range(count)]

    def _draw(self, number: int) -> None:
        """Makes the routes of draw ``number`` the current ones."""
        if number == self._drawn:
            return
        count = sum(stack.numel() // len(stack) for stack in self.stacks().values())
        with announced(
            f"drawing routes for {count:,} parameters of {self.covers} covers", count * self.covers
        ):
            drawn = self._draw_routes(number)
        for name, tensor in drawn.items():
            # A new tensor instead of new values: backwards of earlier forwards read the old one.
            self.register_buffer(name, tensor, persistent=False)
        self._drawn, self._bank = number, None

    def _draw_routes(self, number: int) -> dict[str, Tensor]:
        """Routes or mixers of a draw, by the names of their buffers; a seed for each layer."""
        root = SeedSequence(self.seed.entropy, spawn_key=(*self.seed.spawn_key, 1, number))
        like = next(iter(self.stacks().values()))
        how, topology = self.settings.routing, self.settings.topology
        if isinstance(how, Messages):
            places = self._mixer_shapes()
            seeds = root.spawn(len(places))
            drawn = [
                draw_mixer(self.covers, topology, how, shape, seed)
                for (_, _, shape), seed in zip(places, seeds, strict=True)
            ]
            # The checksum uses the exact values, because the dtype that rounds them may change.
            self._mixer_checksum = crc32(mixer.double() for mixer in drawn)
            return {
                f"mixer_{n}": mixer.to(like.device, self._dtype_of(layer))
                for n, (mixer, (layer, _, _)) in enumerate(zip(drawn, places, strict=True))
            }
        *_, (_, last) = directed.spans(self.stacks(), how.granularity)
        size = min(how.bank or last.stop, last.stop)
        if how.redraw_every is not None and how.destinations is not None:
            # Further destinations would be redrawn before they are evaluated.
            size = min(size, how.redraw_every * how.destinations)
        bank = draw_indexed_bank(topology, self.covers, last.stop, size, root)
        # As bytes, because process groups cannot broadcast buffers of 16-bit integers.
        index = bank.index.view(np.uint8)
        arrays = {"bytes": index, "table": bank.table, "inverse": bank.inverse_table}
        return {f"route_{k}": torch.from_numpy(v).to(like.device) for k, v in arrays.items()}

    def _dtype_of(self, layer: MixingLayer) -> torch.dtype:
        """The dtype of a layer's lifted weights, which is also that of its mixers."""
        stacks = set(self.stacks().values())  # tied weights have another layer's name
        own = self.net.get_submodule(layer.name).parameters()
        return next(weight.dtype for weight in own if weight in stacks)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Casts and moves tensors as torch does; redraws mixers whose dtype changed.

        Mixers that were only cast would keep the rounding of the earlier dtype, and differ from
        those of a model that is loaded from a checkpoint.
        """
        before = [mixer.dtype for mixer in self.mixers().values()]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if [mixer.dtype for mixer in self.mixers().values()] != before:
            drawn, self._drawn = self._drawn, -1
            self._draw(drawn)
        return self

    # --- optimizers -------------------------------------------------------------------------------

    def parameter_groups(self, **options: Any) -> list[dict[str, Any]]:
        """Parameters and options for an optimizer that decays matrices but not biases and norms.

        A stack has one axis more than the base's parameter, so the usual test "decay if ndim >= 2"
        would decay biases too. This method tests the base's shape.

        >>> import mcover
        >>> covered = mcover.lift(nn.Linear(4, 2), 3, mcover.Uniform(), seed=0)
        >>> groups = covered.parameter_groups(lr=1e-3, weight_decay=0.1)  # of torch.optim.AdamW
        >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
        [(1, 0.1), (1, 0.0)]
        """
        stacked = set(self.stacks().values())
        groups = [options | {"params": []}, options | {"params": [], "weight_decay": 0.0}]
        for value in self.parameters():
            if value.requires_grad:
                groups[value.ndim - (value in stacked) < 2]["params"].append(value)
        return groups

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clips the gradient of each cover by its own norm, and returns the norms, shape (M,).

        ``torch.nn.utils.clip_grad_norm_`` computes one norm over all covers, about √M times that of
        one model. This method clips each cover as that function clips one model. The gradient of a
        shared parameter counts in the norm of each cover, and is scaled as in the cover with the
        largest norm.
        """
        max_norm = checks.check_float("max_norm", max_norm, 0, infinite=True)
        grads = {p: p.grad for p in self.parameters() if p.grad is not None}
        own = [grads.pop(s) for s in self.stacks().values() if s in grads]  # type: ignore[call-overload]
        squares = [grad.reshape(len(grad), -1).abs().square().sum(1) for grad in own]
        covers = len(next(iter(self.stacks().values())))
        squares += [grad.abs().square().sum().expand(covers) for grad in grads.values()]
        if not squares:
            return torch.zeros(covers)
        norms = torch.stack(squares).sum(0).sqrt()
        scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
        for grad in own:
            grad.mul_(scale.to(grad.dtype).view(-1, *(1,) * (grad.ndim - 1)))
        for grad in grads.values():
            grad.mul_(self._least(scale).to(grad.dtype))
        return norms

    def _least(self, scale: Tensor) -> Tensor:
        return scale.min()

    # --- saving -----------------------------------------------------------------------------------

    def get_extra_state(self) -> Tensor:
        """The seed and the counters, as part of ``state_dict``."""
        entropy: Any = self.seed.entropy
        state = {
            "steps": self.steps,
            "redraws": self.redraws,
            "entropy": entropy if isinstance(entropy, int) else [int(word) for word in entropy],
            "spawn_key": list(self.seed.spawn_key),
            "checksum": self._checksum(),
        }
        text = json.dumps(state)
        # Padded, so that the shape of this tensor does not depend on the values of the counters.
        text = text.ljust(-(-len(text) // _PAGE) * _PAGE)
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Sets seed and counters; refuses them if they do not reproduce the routes."""
        is_bytes = isinstance(state, Tensor) and state.dtype == torch.uint8 and state.ndim == 1
        if not is_bytes or state.is_meta or state.is_sparse or state.numel() > _LARGEST_STATE:
            raise McoverError("this is not the state of a covered model, a tensor of bytes.")
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
                "the routes of this state cannot be reproduced: either the model was lifted with "
                "other settings, or this version of mcover or NumPy draws other routes from its "
                "seed. Use the settings and the versions of the model that was saved."
            )

    def _restart(self, seed: SeedSequence, steps: int, redraws: int) -> None:
        self.seed, self.steps, self.redraws, self._drawn = seed, steps, redraws, -1
        self._draw(redraws)

    def _checksum(self) -> int:
        if self.is_directed:
            return crc32([self._route_index, self.route_table])
        return self._mixer_checksum


def crc32(tensors: Iterable[Tensor], total: int = 0) -> int:
    """CRC-32 of the bytes of dense tensors, which continues ``total``; others do not count."""
    for tensor in tensors:
        if tensor.layout == torch.strided:
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            total = zlib.crc32(flat.view(torch.uint8).numpy().data, total)
    return total
