"""Data sets by name."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from mcover.data.dataset import Dataset, Images, Labels
from mcover.data.files import content
from mcover.data.idx import parse_idx
from mcover.errors import McoverError

Name = Literal["digits", "mnist", "fashion-mnist"]
NAMES: tuple[str, ...] = get_args(Name)

# Mean and standard deviation of the training pixels, as everybody writes them.
_MOMENTS = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530)}
_SIDE = 28
_EVERY = 5  # of each class of the digits, every fifth image is for testing


def load(name: Name, normalize: bool = False) -> Dataset:
    """A data set by name, its pixels in [0, 1].

    Args:
        name: ``"digits"`` (8 x 8, from scikit-learn, no download), ``"mnist"`` or
            ``"fashion-mnist"`` (28 x 28; see :mod:`mcover.data.files` for where they are found).
        normalize: shift and scale the pixels by the mean and the standard deviation of the
            training pixels (MNIST: 0.1307 and 0.3081).

    >>> print(load("digits"))
    digits: 1,442 training and 355 test images, 8 x 8, 10 classes
    """
    if name not in NAMES:
        raise McoverError(f"no data set {name!r}; write one of {', '.join(map(repr, NAMES))}.")
    plain = _digits() if name == "digits" else _idx(name)
    if not normalize:
        return plain
    known = _MOMENTS.get(name)
    mean, spread = known or (plain.train_images.mean(), plain.train_images.std())
    train, test = ((part - mean) / spread for part in (plain.train_images, plain.test_images))
    return Dataset(
        name,
        train.astype(np.float32),
        plain.train_labels,
        test.astype(np.float32),
        plain.test_labels,
    )


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
