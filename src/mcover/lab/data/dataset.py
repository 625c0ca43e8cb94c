"""A data set as a value, and smaller ones made from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mcover.errors import McoverError

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels to train on and to test on.

    Shape:
        train_images: (n, height, width), float32; train_labels: (n,), int64 in 0 … classes − 1.
        test_images, test_labels: likewise.
    """

    name: str
    train_images: Images
    train_labels: Labels
    test_images: Images
    test_labels: Labels
    classes: int = 10

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            images = getattr(self, f"{part}_images")
            labels = getattr(self, f"{part}_labels")
            if images.shape[1:] != self.train_images.shape[1:] or labels.shape != images.shape[:1]:
                raise McoverError(
                    f"{self.name}: {part} images of shape {images.shape} do not go with labels of "
                    f"shape {labels.shape} and training images of shape {self.train_images.shape}; "
                    "give one label to each image, all images of one size."
                )
            if labels.size and not 0 <= labels.min() <= labels.max() < self.classes:
                raise McoverError(
                    f"{self.name}: {part} labels run from {labels.min()} to {labels.max()}; "
                    f"with {self.classes} classes they must lie in 0 … {self.classes - 1}."
                )

    @property
    def inputs(self) -> int:
        """Numbers in one image."""
        return int(np.prod(self.train_images.shape[1:]))

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.train_labels):,} training and {len(self.test_labels):,} test "
            f"images, {' x '.join(map(str, self.train_images.shape[1:]))}, {self.classes} classes"
        )


def subset(dataset: Dataset, count: int, seed: int) -> Dataset:
    """A data set with only ``count`` training images, as many of each class; the test set stays.

    What does not divide goes to classes drawn by the seed. The order is drawn too.
    """
    kept, _ = _balanced(dataset, count, seed)
    return replace(
        dataset,
        train_images=dataset.train_images[kept],
        train_labels=dataset.train_labels[kept],
    )


def holdout(dataset: Dataset, count: int, seed: int) -> Dataset:
    """A data set whose test part is ``count`` of the training images, as many of each class.

    For choosing settings: the real test images are not in what is returned, and no image is on
    both sides.
    """
    taken, rest = _balanced(dataset, count, seed)
    if not len(rest):
        raise McoverError(
            f"holding out {count} images of {dataset.name} leaves none to train on; hold out fewer."
        )
    return replace(
        dataset,
        train_images=dataset.train_images[rest],
        train_labels=dataset.train_labels[rest],
        test_images=dataset.train_images[taken],
        test_labels=dataset.train_labels[taken],
    )


def _balanced(dataset: Dataset, count: int, seed: int) -> tuple[Labels, Labels]:
    """Indices of ``count`` training images with classes in equal shares, and of the others."""
    labels = dataset.train_labels
    if not 1 <= count <= len(labels):
        raise McoverError(
            f"{count} images of {dataset.name} were asked for; it has {len(labels)}: write a "
            f"number from 1 to {len(labels)}."
        )
    rng = np.random.default_rng(seed)
    share, extra = divmod(count, dataset.classes)
    wanted = np.full(dataset.classes, share)
    wanted[rng.permutation(dataset.classes)[:extra]] += 1
    have = np.bincount(labels, minlength=dataset.classes)
    if np.any(wanted > have):
        scarce = int(np.argmax(wanted > have))
        raise McoverError(
            f"{count} images of {dataset.name}, balanced, need {wanted[scarce]} of class {scarce}; "
            f"there are {have[scarce]}: write at most {int(have.min()) * dataset.classes}."
        )
    members = [
        rng.permutation(np.flatnonzero(labels == label))[:number]
        for label, number in enumerate(wanted)
    ]
    taken = rng.permutation(np.concatenate(members))
    rest = np.setdiff1d(np.arange(len(labels)), taken)
    return taken, rest
