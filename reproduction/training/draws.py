"""Random draws of a training: the order of the images, and noise and masks on the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from numpy.random import SeedSequence
from torch import Tensor, nn

_GATHER_BYTES = 1 << 25  # up to this size, all images of a pass are gathered at once, for speed


def generator(seed: SeedSequence, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator seeded from a seed sequence."""
    return torch.Generator(device).manual_seed(int(seed.generate_state(1)[0]))


class Batches:
    """An endless stream of minibatches; the order of the images is redrawn for every pass.

    All covers share a batch, or each of ``each`` covers has its own. In that case the order of the
    first cover is that of a plain training with the same seed.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, size: int, seed: SeedSequence, each: int | None
    ) -> None:
        self.images, self.labels, self.size, self.each = images, labels, size, each
        seeds = [seed, *(seed.spawn(each - 1) if each else ())]
        self._orders = [generator(one) for one in seeds]
        self.taken = 0
        self.length = -(-len(labels) // size)  # batches in a pass
        self._gathered = (each or 1) * images.nbytes <= _GATHER_BYTES

    @property
    def passes(self) -> float:
        """Passes over the images so far."""
        return self.taken / self.length

    def next(self) -> tuple[Tensor, Tensor]:
        """Images (B, ...) and labels (B,); (M, B, ...) and (M, B) if covers have their own."""
        number = self.taken % self.length
        if not number:
            drawn = [torch.randperm(len(self.labels), generator=one) for one in self._orders]
            self._order = torch.stack(drawn) if self.each else drawn[0]
            if self._gathered:
                self._pass = self.images[self._order], self.labels[self._order]
        self.taken += 1
        span = slice(number * self.size, (number + 1) * self.size)
        if self._gathered:
            cut = (slice(None), span) if self.each else (span,)
            return self._pass[0][cut], self._pass[1][cut]
        chosen = self._order[..., span]
        return self.images[chosen], self.labels[chosen]


@contextmanager
def noisy(parameters: list[nn.Parameter], scale: float, rng: torch.Generator) -> Iterator[None]:
    """Adds Gaussian noise to all parameters inside the block, and restores them bit for bit."""
    if not scale:
        yield
        return
    kept = [one.detach().clone() for one in parameters]
    with torch.no_grad():
        for one in parameters:
            noise = torch.randn(one.shape, generator=rng, device=one.device, dtype=one.dtype)
            one.add_(noise, alpha=scale)
    try:
        yield
    finally:
        with torch.no_grad():
            for one, before in zip(parameters, kept, strict=True):
                one.copy_(before)


@contextmanager
def dropped(parameters: list[nn.Parameter], share: float, rng: torch.Generator) -> Iterator[None]:
    """Sets a share of all parameters to 0 and scales the others, within the block (DropConnect).

    At the end, parameters are restored and their gradients are multiplied by the mask. This is the
    chain rule from masked to original parameters.
    """
    if not share:
        yield
        return
    kept = [one.detach().clone() for one in parameters]
    masks = []
    with torch.no_grad():
        for one in parameters:
            drawn = torch.rand(one.shape, generator=rng, device=one.device, dtype=one.dtype)
            masks.append((drawn >= share).to(one.dtype).div_(1 - share))
            one.mul_(masks[-1])
    try:
        yield
    finally:
        with torch.no_grad():
            for one, before, mask in zip(parameters, kept, masks, strict=True):
                one.copy_(before)
                if one.grad is not None:
                    one.grad.mul_(mask)
