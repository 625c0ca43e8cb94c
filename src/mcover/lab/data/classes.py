"""Some classes of a data set, by name or number, and pixels made ±1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mcover.errors import McoverError
from mcover.lab.data.dataset import Dataset, Images, Labels

# Each class of Fashion-MNIST with all the names it goes by; the first is the one that is shown.
FASHION = (
    ("t-shirt", "top", "t-shirt/top"),
    ("trouser", "trousers"),
    ("pullover",),
    ("dress",),
    ("coat",),
    ("sandal", "sandals"),
    ("shirt",),
    ("sneaker", "sneakers"),
    ("bag",),
    ("boot", "ankle-boot", "ankle boot"),
)
NAMED = {"fashion-mnist": FASHION}


def class_number(dataset: str, word: str, classes: int = 10) -> int:
    """The number of a class of a data set.

    >>> class_number("fashion-mnist", "Dress"), class_number("mnist", "8")
    (3, 8)
    """
    names = NAMED.get(dataset, ())
    wanted = word.strip().lower()
    for number, known in enumerate(names):
        if wanted in known:
            return number
    if wanted.isdecimal() and int(wanted) < classes:
        return int(wanted)
    listed = f", or {', '.join(known[0] for known in names)}" if names else ""
    raise McoverError(
        f"{dataset} has no class {word.strip()!r}; write a number from 0 to {classes - 1}{listed}."
    )


def choose_classes(dataset: Dataset, words: Sequence[str]) -> Dataset:
    """A data set of some classes only; labels are 0, 1, … in the order that the classes are named.

    The test images are those of the same classes.
    """
    numbers = [class_number(dataset.name, word, dataset.classes) for word in words]
    twice = [word for word, n in zip(words, numbers, strict=True) if numbers.count(n) > 1]
    if twice:
        raise McoverError(
            f"{dataset.name}: {' and '.join(map(repr, twice))} are one class; name different ones."
        )
    if len(numbers) < 2:
        raise McoverError(
            f"{dataset.name}:{words[0] if words else ''} is one class, which there is nothing to "
            f"tell apart from; name two or more, e.g. {dataset.name}:3,8."
        )
    names = NAMED.get(dataset.name)
    shown = ",".join(names[n][0] if names else str(n) for n in numbers)
    train = _only(dataset.train_images, dataset.train_labels, numbers)
    test = _only(dataset.test_images, dataset.test_labels, numbers)
    return Dataset(f"{dataset.name}:{shown}", *train, *test, classes=len(numbers))


def binarize(dataset: Dataset) -> Dataset:
    """Every image made ±1 by its own median: a pixel above it is +1, at it or below it −1.

    With an even number of pixels the median is the mean of the two middle ones. An image that is
    black in at least half of its pixels has median 0: then all that is not black is +1.
    """
    return replace(
        dataset,
        train_images=_signs(dataset.train_images),
        test_images=_signs(dataset.test_images),
    )


def _only(images: Images, labels: Labels, numbers: Sequence[int]) -> tuple[Images, Labels]:
    place = np.full(max(int(labels.max(initial=0)), *numbers) + 1, -1)
    place[list(numbers)] = np.arange(len(numbers))
    kept = place[labels] >= 0
    return images[kept], place[labels[kept]]


def _signs(images: Images) -> Images:
    if not len(images):
        return images
    median = np.median(images, axis=(1, 2), keepdims=True)
    return np.where(images > median, np.float32(1), np.float32(-1))
