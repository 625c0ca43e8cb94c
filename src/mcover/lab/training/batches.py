"""The training images in minibatches, in an order drawn anew for every pass."""

from __future__ import annotations

import torch
from numpy.random import SeedSequence
from torch import Tensor

_WHOLE_BYTES = 1 << 25  # up to here a pass is put in order at once, which is faster


class Batches:
    """An endless row of batches, for all covers alike or for each its own.

    The first cover's order is that of a plain training with the same seed.

    Attributes:
        taken: batches so far.
        length: batches in a pass.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, size: int, seed: SeedSequence, each: int | None
    ) -> None:
        self.images, self.labels, self.size = images, labels, size
        self.each = each
        seeds = [seed, *(seed.spawn(each - 1) if each else ())]
        self._orders = [
            torch.Generator().manual_seed(int(one.generate_state(1)[0])) for one in seeds
        ]
        self.taken = 0
        self.length = -(-len(labels) // size)
        copies = each or 1
        self._whole = copies * images.nbytes <= _WHOLE_BYTES
        self.now: tuple[Tensor, Tensor] = images[:0], labels[:0]

    @property
    def passes(self) -> float:
        """Passes over the images so far, in parts too."""
        return self.taken / self.length

    def next(self) -> tuple[Tensor, Tensor]:
        """Images (B, ...) and labels (B,), with covers first where each has its own."""
        number = self.taken % self.length
        if not number:
            self._begin()
        span = slice(number * self.size, (number + 1) * self.size)
        if self._whole:
            # Each cover's rows are a slice of its own pass.
            cut = (slice(None), span) if self.each else (span,)
            self.now = self._images[cut], self._labels[cut]
        else:
            chosen = self._order[..., span]
            self.now = self.images[chosen], self.labels[chosen]
        self.taken += 1
        return self.now

    def _begin(self) -> None:
        drawn = [torch.randperm(len(self.labels), generator=one) for one in self._orders]
        order = torch.stack(drawn) if self.each else drawn[0]
        self._order = order
        if self._whole:
            self._images, self._labels = self.images[order], self.labels[order]
