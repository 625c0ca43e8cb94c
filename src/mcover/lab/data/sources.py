"""Data sets by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from mcover.errors import McoverError
from mcover.lab.data.classes import binarize as binarized
from mcover.lab.data.classes import choose_classes
from mcover.lab.data.dataset import Dataset, Images, Labels
from mcover.lab.data.files import content
from mcover.lab.data.idx import parse_idx

NAMES = ("digits", "mnist", "fashion-mnist")
Binarize = Literal["median"]

# Mean and standard deviation of the training pixels, as everybody writes them.
_MOMENTS = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530)}
_SIDE = 28
_EVERY = 5  # of each class of the digits, every fifth image is for testing


def load(name: str, normalize: bool = False, binarize: Binarize | None = None) -> Dataset:
    """A data set by name, its pixels in [0, 1].

    Args:
        name: ``"digits"`` (8 x 8, from scikit-learn, no download), ``"mnist"`` or
            ``"fashion-mnist"`` (28 x 28; :mod:`mcover.lab.data.files` finds them);
            with a colon, some classes only, by number or name: ``"mnist:3,8"``,
            ``"fashion-mnist:dress,coat"``. Labels are then 0, 1, … in that order.
        normalize: shift and scale the pixels by the mean and the standard deviation of the
            training pixels (MNIST: 0.1307 and 0.3081; those of all classes).
        binarize: ``"median"`` makes each image ±1 by its own median: a pixel above it is +1, at
            it or below it −1, also where the median is 0.

    >>> print(load("digits"))
    digits: 1,442 training and 355 test images, 8 x 8, 10 classes
    >>> print(load("digits:3,8", binarize="median"))
    digits:3,8: 287 training and 70 test images, 8 x 8, 2 classes
    """
    base, colon, classes = name.partition(":")
    if base not in NAMES:
        raise McoverError(
            f"no data set {base!r}; write one of {', '.join(map(repr, NAMES))}, or some classes "
            "of one: 'mnist:3,8'."
        )
    if binarize not in (None, "median"):
        raise McoverError(f"binarize is {binarize!r}; write 'median' or None.")
    if normalize and binarize:
        raise McoverError("binarized pixels are ±1 already; leave normalize out.")
    found = _digits() if base == "digits" else _idx(base)
    if normalize:
        mean, spread = _MOMENTS.get(base) or (found.train_images.mean(), found.train_images.std())
        train, test = ((part - mean) / spread for part in (found.train_images, found.test_images))
        found = replace(
            found, train_images=train.astype(np.float32), test_images=test.astype(np.float32)
        )
    if colon:
        found = choose_classes(found, classes.split(","))
    return binarized(found) if binarize else found


def _digits() -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise McoverError(
            "'digits' come with scikit-learn, which is not installed: pip install 'mcover[data]'."
        ) from error
    given = load_digits()
    labels: Labels = given.target.astype(np.int64)
    images: Images = (given.images / 16).astype(np.float32)
    # The rank of an image within its class: a split without random numbers is the same everywhere.
    rank = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = labels == label
        rank[members] = np.arange(members.sum())
    test = rank % _EVERY == _EVERY - 1
    return Dataset("digits", images[~test], labels[~test], images[test], labels[test])


def _idx(name: str) -> Dataset:
    parts: list[Images | Labels] = []
    for part in ("train", "t10k"):
        images = _array(name, f"{part}-images-idx3-ubyte", 3)
        labels = _array(name, f"{part}-labels-idx1-ubyte", 1)
        if images.shape[1:] != (_SIDE, _SIDE):
            raise McoverError(
                f"{name} has images of {images.shape[1]} x {images.shape[2]}; they must be "
                f"{_SIDE} x {_SIDE}: put the published files there."
            )
        parts += [images.astype(np.float32) / np.float32(255), labels.astype(np.int64)]
    return Dataset(name, *parts)  # type: ignore[arg-type]


def _array(name: str, file: str, dimensions: int) -> Images | Labels:
    array = parse_idx(content(name, file), f"{name}/{file}")
    if array.ndim != dimensions:
        raise McoverError(
            f"{name}/{file} has {array.ndim} dimensions; it must have {dimensions}: are images and "
            "labels in each other's place?"
        )
    return array  # type: ignore[return-value]
