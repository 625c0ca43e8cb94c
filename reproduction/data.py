"""Images with labels: MNIST and Fashion-MNIST as published, and scikit-learn's digits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mcover import McoverError
from reproduction import published

Images = NDArray[np.float32]
Labels = NDArray[np.int64]

# Mean and standard deviation of the training pixels, rounded as usual.
_MOMENTS = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530)}
_MISLABEL = 1  # second word of the seed of wrong labels; separates it from the images' stream
_CLOTHES = "t-shirt trouser pullover dress coat sandal shirt sneaker bag boot"
_NAMED = {"fashion-mnist": tuple(_CLOTHES.split())}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images with their labels.

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
            images, labels = (getattr(self, f"{part}_{what}") for what in ("images", "labels"))
            if images.ndim != 3 or labels.shape != images.shape[:1]:
                raise McoverError(
                    f"{self.name}: {part} images and labels have shapes {images.shape} and "
                    f"{labels.shape}; write (n, height, width) and (n,), one label for each image."
                )
            if labels.size and not 0 <= labels.min() <= labels.max() < self.classes:
                raise McoverError(
                    f"{self.name}: {part} labels run from {labels.min()} to {labels.max()}; "
                    f"with {self.classes} classes they must lie in 0 … {self.classes - 1}."
                )

    @property
    def inputs(self) -> int:
        """Pixels of an image."""
        return int(np.prod(self.train_images.shape[1:]))

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.train_labels):,} training and {len(self.test_labels):,} test "
            f"images, {' x '.join(map(str, self.train_images.shape[1:]))}, {self.classes} classes"
        )


def load(name: str, normalize: bool = False, binarize: Literal["median"] | None = None) -> Dataset:
    """A data set by name, its pixels in [0, 1].

    Args:
        name: ``"digits"`` (8 x 8, from scikit-learn, no download), ``"mnist"`` or
            ``"fashion-mnist"`` (28 x 28); after a colon, a selection of classes by number or name:
            ``"mnist:3,8"``, ``"fashion-mnist:dress,coat"``. Labels are then 0, 1, … in that order.
        normalize: shift and scale the pixels by mean and standard deviation of the training
            pixels of all classes (MNIST: 0.1307 and 0.3081).
        binarize: ``"median"`` makes each image ±1 by its own median (:func:`signs`).

    >>> print(load("digits"))
    digits: 1,442 training and 355 test images, 8 x 8, 10 classes
    >>> print(load("digits:3,8", binarize="median"))
    digits:3,8: 287 training and 70 test images, 8 x 8, 2 classes
    """
    base, numbers = split_name(name)
    if normalize and binarize:
        raise McoverError("binarized pixels are ±1; write normalize=False.")
    found = _digits() if base == "digits" else _published(base)
    if normalize:
        mean, std = _MOMENTS.get(base) or (found.train_images.mean(), found.train_images.std())
        found = _with_pixels(found, lambda images: ((images - mean) / std).astype(np.float32))
    if numbers is not None:
        found = _choose_classes(found, numbers)
    return _with_pixels(found, signs) if binarize else found


def split_name(name: str) -> tuple[str, tuple[int, ...] | None]:
    """Splits a name into that of the data set and the numbers of its classes, if any.

    >>> split_name("fashion-mnist:Dress,4")
    ('fashion-mnist', (3, 4))
    """
    example = "'digits', 'mnist' or 'fashion-mnist', or some classes of one: 'mnist:3,8'"
    base, colon, words = name.partition(":")
    if base not in ("digits", *published.ADDRESSES):
        raise McoverError(f"there is no data set {base!r}; write {example}.")
    if not colon:
        return base, None
    given = words.split(",")
    numbers = tuple(_class_number(base, word.strip().lower()) for word in given)
    same = [word for word, n in zip(given, numbers, strict=True) if numbers.count(n) > 1]
    if same:
        raise McoverError(
            f"{base}: {' and '.join(map(repr, same))} are one class; name different ones."
        )
    if len(numbers) < 2:
        raise McoverError(f"{name} is one class; name two or more, e.g. {base}:3,8.")
    return base, numbers


def _class_number(dataset: str, word: str) -> int:
    names = _NAMED.get(dataset, ())
    for number in range(10):
        if word == str(number) or word in names[number : number + 1]:
            return number
    listed = f", or {', '.join(names)}" if names else ""
    raise McoverError(f"{dataset} has no class {word!r}; write a number from 0 to 9{listed}.")


def _choose_classes(dataset: Dataset, numbers: Sequence[int]) -> Dataset:
    """Training and test images of some classes; labels are 0, 1, … in the order of ``numbers``."""
    names = _NAMED.get(dataset.name, range(10))
    place = np.full(dataset.classes, -1)
    place[list(numbers)] = np.arange(len(numbers))
    train, test = (np.isin(of, numbers) for of in (dataset.train_labels, dataset.test_labels))
    return Dataset(
        f"{dataset.name}:{','.join(str(names[n]) for n in numbers)}",
        dataset.train_images[train],
        place[dataset.train_labels[train]],
        dataset.test_images[test],
        place[dataset.test_labels[test]],
        len(numbers),
    )


def signs(images: Images) -> Images:
    """Each image binarized by its own median: pixels above the median are +1, others −1.

    With an even number of pixels the median is the mean of the two middle ones. The median is 0
    if at least half of the pixels are black; then every pixel that is not black is +1.
    """
    median = np.median(images, axis=(1, 2), keepdims=True)
    return np.where(images > median, np.float32(1), np.float32(-1))


def _with_pixels(dataset: Dataset, change: Callable[[Images], Images]) -> Dataset:
    train, test = change(dataset.train_images), change(dataset.test_images)
    return replace(dataset, train_images=train, test_images=test)


def subset(dataset: Dataset, count: int, seed: int) -> Dataset:
    """A data set with ``count`` training images, balanced over classes, and the same test set.

    The seed draws the images, their order, and the classes with one image more.
    """
    kept, _ = _balanced(dataset, count, seed)
    images, labels = dataset.train_images[kept], dataset.train_labels[kept]
    return replace(dataset, train_images=images, train_labels=labels)


def holdout(dataset: Dataset, count: int, seed: int) -> Dataset:
    """A data set whose test part is ``count`` of the training images, balanced over classes.

    It is for validation: the result has no test images, and no image in both parts.
    """
    taken, rest = _balanced(dataset, count, seed)
    if not len(rest):
        raise McoverError(
            f"holding out {count} images of {dataset.name} leaves none to train on; hold out fewer."
        )
    images, labels = dataset.train_images, dataset.train_labels
    parts = images[rest], labels[rest], images[taken], labels[taken]
    return Dataset(dataset.name, *parts, dataset.classes)


def mislabel(dataset: Dataset, share: float, seed: int, both: bool = False) -> Dataset:
    """A data set in which a share of the training labels is replaced by random other classes.

    The seed selects the labels; their number is the rounded share. With ``both``, the test part has
    the same share of wrong labels, like a validation part split from images with noisy labels.
    """
    rng = np.random.default_rng([seed, _MISLABEL])
    changed = {}
    for part in ("train_labels", "test_labels")[: 1 + both]:
        labels = getattr(dataset, part).copy()
        wrong = rng.permutation(len(labels))[: round(share * len(labels))]
        labels[wrong] += rng.integers(1, dataset.classes, len(wrong))
        changed[part] = labels % dataset.classes
    return replace(dataset, **changed)


def pooled(dataset: Dataset, size: int) -> Dataset:
    """A data set of smaller images: each pixel is the mean of a ``size`` x ``size`` square."""
    height, width = dataset.train_images.shape[1:]
    if height % size or width % size:
        raise McoverError(
            f"pool is {size}, and images of {dataset.name} are {height} x {width}; write a divisor "
            "of both."
        )
    cut = (-1, height // size, size, width // size, size)
    return _with_pixels(dataset, lambda images: images.reshape(cut).mean((2, 4)))


def _balanced(dataset: Dataset, count: int, seed: int) -> tuple[Labels, Labels]:
    """Indices of ``count`` training images, balanced over classes, and of the other images."""
    labels = dataset.train_labels
    if not 1 <= count <= len(labels):
        raise McoverError(f"{count} images of {dataset.name}; write 1 to {len(labels)}.")
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
    return taken, np.setdiff1d(np.arange(len(labels)), taken)


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    given = load_digits()
    labels: Labels = given.target.astype(np.int64)
    images: Images = (given.images / 16).astype(np.float32)
    # The split uses the rank of an image within its class, and no random numbers.
    is_of_class = labels[:, None] == np.arange(10)
    test = is_of_class.cumsum(axis=0)[is_of_class] % 5 == 0  # every fifth of each class
    return Dataset("digits", images[~test], labels[~test], images[test], labels[test])


def _published(name: str) -> Dataset:
    """Four IDX files: the number of dimensions, the dimensions big-endian, then the bytes."""
    parts: list[Any] = []
    for file in published.FILES:
        content = published.content(name, file)
        shape = np.frombuffer(content, ">u4", content[3], offset=4)
        array = np.frombuffer(content, np.uint8, offset=4 + shape.nbytes).reshape(shape)
        parts.append(array / np.float32(255) if array.ndim == 3 else array.astype(np.int64))
    return Dataset(name, *parts)
