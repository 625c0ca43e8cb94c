"""Patterns with dependent or biased entries, labelled by a planted teacher of ±1 weights.

The number of inputs (and of hidden units) is odd, so that no teacher is ever undecided. An instance
has the seeds (seed, 0): equal patterns and seeds give the same instance for every method.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mcover import Committee, McoverError, Perceptron
from mcover.annealing import Problem
from reproduction import data
from reproduction.checks import check_choice, check_counts, check_numbers

Signs = NDArray[np.int8]
Family = Literal["iid", "biased", "ar1", "low-rank", "digits", "mnist", "fashion-mnist"]
_IMAGES = ("digits", "mnist", "fashion-mnist")


@dataclass(frozen=True)
class Patterns:
    """Patterns of a family, labelled by a random teacher: one instance per seed."""

    family: Family
    """Independent entries, "iid" or "biased"; the signs of a stationary Gaussian sequence, "ar1",
    or of a sum of few factors and noise, "low-rank"; or pixels of images, each image ±1 by its own
    median, of a data set's training part."""
    n: int
    """Inputs N, odd. For images, the pixels that vary most."""
    alpha: float
    """Patterns per weight."""
    strength: float = 0.0
    """Mean of an entry, "biased"; correlation ρ of neighbours before the sign, "ar1"; number of
    factors, with the same variance as the noise, "low-rank"."""
    hidden: int = 1
    """Hidden units K of a committee machine, odd; 1 is a perceptron."""
    flipped: float = 0.0
    """Share of flipped labels."""

    def __post_init__(self) -> None:
        check_choice("family", self.family, get_args(Family))
        check_counts(self, "n", "hidden")
        check_numbers(self, "alpha", above=0)
        check_numbers(self, "flipped", least=0, most=0.5)
        limits: Any = {"biased": {"most": 1 - 1e-6}, "ar1": {"most": 1 - 1e-6}}
        check_numbers(self, "strength", least=0, **limits.get(self.family, {}))
        if self.n % 2 == 0 or self.hidden % 2 == 0:
            raise McoverError(
                f"n is {self.n} and hidden {self.hidden}; write odd numbers, so that the teacher "
                "is never undecided."
            )
        if self.family == "low-rank" and not (self.strength >= 1 and self.strength % 1 == 0):
            raise McoverError(f"strength is {self.strength!r}; write the number of factors.")
        if self.family not in ("biased", "ar1", "low-rank") and self.strength:
            raise McoverError(
                f"strength is {self.strength!r}, and {self.family} patterns have none; leave it "
                "out."
            )

    def prepare(self) -> None:
        """Loads the images, if the family has any."""
        if self.family in _IMAGES:
            _pixels(self.family, self.n)

    def problem(self, seed: int) -> Problem:
        """The instance of a seed."""
        teacher_rng, patterns_rng, labels_rng = map(
            np.random.default_rng, np.random.SeedSequence([seed, 0]).spawn(3)
        )
        count = round(self.alpha * self.n * self.hidden)
        teacher: Signs = teacher_rng.choice(np.array([-1, 1], np.int8), self.n * self.hidden)
        patterns = self._drawn(patterns_rng, count)
        units = teacher.reshape(self.hidden, self.n).astype(np.float32)
        votes = np.sign(patterns.astype(np.float32) @ units.T).sum(axis=1)
        labels = np.sign(votes).astype(np.int8)
        labels[labels_rng.permutation(count)[: round(self.flipped * count)]] *= -1
        if self.hidden == 1:
            return Perceptron(patterns, labels, teacher)
        return Committee(patterns, labels, self.hidden, teacher)

    def _drawn(self, rng: np.random.Generator, count: int) -> Signs:
        """``count`` patterns, shape (count, n)."""
        shape = count, self.n
        if self.family in ("iid", "biased"):
            return _signs(rng.random(shape) < (1 + self.strength) / 2)
        if self.family == "ar1":
            noise = rng.normal(size=shape)
            noise[:, 1:] *= np.sqrt(1 - self.strength**2)
            for i in range(1, self.n):
                noise[:, i] += self.strength * noise[:, i - 1]
            return _signs(noise > 0)
        if self.family == "low-rank":
            rank = int(self.strength)
            factors = rng.normal(size=(rank, self.n)) / np.sqrt(rank)
            return _signs(rng.normal(size=(count, rank)) @ factors + rng.normal(size=shape) > 0)
        pixels = _pixels(self.family, self.n)
        if count > len(pixels):
            raise McoverError(
                f"{count} patterns of {len(pixels)} images of {self.family}; write an alpha of at "
                f"most {len(pixels) / (self.n * self.hidden):.3g}."
            )
        return np.asarray(pixels[rng.choice(len(pixels), count, replace=False)])


def _signs(positive: NDArray[np.bool_]) -> Signs:
    return np.where(positive, np.int8(1), np.int8(-1))


@lru_cache(maxsize=4)
def _pixels(name: str, n: int) -> Signs:
    """The n pixels that vary most over all training images, shape (images, n)."""
    images = data.load(name, binarize="median").train_images
    flat = images.reshape(len(images), -1)
    if n > flat.shape[1]:
        raise McoverError(f"n is {n}; an image of {name} has {flat.shape[1]} pixels.")
    # The variance of ±1 pixels is 1 − mean²; the order of equal variances is fixed.
    kept = np.sort(np.argsort(np.abs(flat.mean(axis=0)), kind="stable")[:n])
    return np.ascontiguousarray(flat[:, kept]).astype(np.int8)
