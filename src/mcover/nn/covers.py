"""What a covered model holds: the stacked tensors, the routes, and where they stand."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from numpy.random import SeedSequence
from torch import Tensor, nn

from mcover.nn.layers import COVER, is_covered, mixers_of
from mcover.nn.settings import Settings
from mcover.routing import inverse


class Covers(nn.Module):
    """M covers of one base model, before anything is done with them.

    Attributes:
        net: the base model's modules; lifted tensors hold all covers, shape (M, *shape).
        settings: what was asked for.
        lifted: names of the lifted parameters in ``net``.
        state: names of the buffers that each cover keeps for itself.
        seed: where all routes come from.
        steps: training forwards so far.
        redraws: how often the routes were drawn anew.
    """

    routes: Tensor
    back: Tensor

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
        if settings.routing == "weights":
            self.register_buffer("routes", torch.empty(0, dtype=torch.uint8))
            self.register_buffer("back", torch.empty(0, dtype=torch.uint8), persistent=False)

    @property
    def covers(self) -> int:
        """M."""
        return self.settings.covers

    @property
    def passes(self) -> int:
        """Passes over the M covers in each forward: streams, or destinations."""
        if self.settings.routing == "messages":
            return self.settings.streams or 1
        return min(self.settings.destinations or len(self.routes), len(self.routes))

    def stacks(self) -> dict[str, Tensor]:
        """The lifted parameters by name, covers first."""
        return {name: self._held(name) for name in self.lifted}

    def state_stacks(self) -> dict[str, Tensor]:
        """The buffers that each cover keeps for itself, covers first."""
        named = {name: self._held(name) for name in self.state}
        return {name: value for name, value in named.items() if not name.endswith(COVER)}

    def _held(self, name: str) -> Tensor:
        """A tensor by its name, also one that ``torch.func.functional_call`` put in place."""
        prefix, _, own = name.rpartition(".")
        held: Tensor = getattr(self.net.get_submodule(prefix), own)
        return held

    def mixers(self) -> Iterator[tuple[str, Tensor, int, int]]:
        """Name, tensor, units and inputs of every mixer."""
        for prefix, layer in self.net.named_modules():
            for name, units, inputs in mixers_of(layer) if is_covered(layer) else []:
                if getattr(layer, name) is not None:
                    yield f"{prefix}.{name}".lstrip("."), getattr(layer, name), units, inputs

    def invert_routes(self) -> None:
        """Renews the inverse routes, along which errors return."""
        back = inverse(self.routes.cpu().numpy())
        self.back = torch.from_numpy(back).to(self.routes.device)

    def get_extra_state(self) -> Tensor:
        """How far the routes have been gone through: part of ``state_dict``."""
        return torch.tensor([self.steps, self.redraws])

    def set_extra_state(self, state: Tensor) -> None:
        self.steps, self.redraws = (int(count) for count in state)
        if self.settings.routing == "weights":
            self.invert_routes()
