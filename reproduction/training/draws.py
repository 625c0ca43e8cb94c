"""What a training draws: the order of the images, and noise and masks on the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from numpy.random import SeedSequence
from torch import Tensor, nn

_WHOLE_BYTES = 1 << 25  # up to here all images of a pass are put in order at once: faster


def generator(seed: SeedSequence, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator of torch that follows the seed."""
    return torch.Generator(device).manual_seed(int(seed.generate_state(1)[0]))


class Batches:
    """The training images in minibatches, endlessly, in an order drawn anew for every pass.

    All covers share them, or each has its own; the first cover's order is then that of a plain
    training with the same seed.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, size: int, seed: SeedSequence, each: int | None
    ) -> None:
        self.images, self.labels, self.size, self.each = images, labels, size, each
        seeds = [seed, *(seed.spawn(each - 1) if each else ())]
        self._orders = [generator(one) for one in seeds]
        self.taken = 0
        self.length = -(-len(labels) // size)  # batches in a pass
        self._whole = (each or 1) * images.nbytes <= _WHOLE_BYTES

    @property
    def passes(self) -> float:
        """Passes over the images so far."""
        return self.taken / self.length

    def next(self) -> tuple[Tensor, Tensor]:
        """Images (B, ...) and labels (B,), with covers first where each has its own."""
        number = self.taken % self.length
        if not number:
            drawn = [torch.randperm(len(self.labels), generator=one) for one in self._orders]
            self._order = torch.stack(drawn) if self.each else drawn[0]
            if self._whole:
                self._pass = self.images[self._order], self.labels[self._order]
        self.taken += 1
        span = slice(number * self.size, (number + 1) * self.size)
        if self._whole:
            cut = (slice(None), span) if self.each else (span,)
            return self._pass[0][cut], self._pass[1][cut]
        chosen = self._order[..., span]
        return self.images[chosen], self.labels[chosen]


@contextmanager
def noisy(parameters: list[nn.Parameter], scale: float, rng: torch.Generator) -> Iterator[None]:
    """Inside, all parameters carry Gaussian noise; outside, they are what they were, bit by bit."""
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
    """Inside, a share of all parameters is 0 and the others are larger; outside, they are back.

    Gradients that are put in place inside are made those of the parameters as they were.
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
