"""Reads problems from .npz files (named arrays), and .npy and .csv files (labels last)."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from mcover import checks
from mcover.annealing.problems import Committee, Perceptron, Problem
from mcover.errors import McoverError, TooLargeError

_DELIMITERS = ",;\t"
_BYTES = 40  # of memory for each byte of a .csv file


def load_problem(path: str | Path, hidden: int = 1) -> Problem:
    """Reads a problem from a file of two-valued patterns and labels.

    Args:
        path: an .npz file with the arrays ``patterns`` (P, N), ``labels`` (P,) and optionally
            ``teacher``; an .npy file of one array (P, N + 1) with the labels in the last column; or
            a .csv file of that form, with or without a line of names, separated by comma, semicolon
            or tab.
        hidden: hidden units K; 1 is a perceptron.
    """
    path = checks.check_path("path", path)
    ending, teacher = path.suffix.lower(), None
    if ending == ".npz":
        arrays = read_arrays(path)
        if not {"patterns", "labels"} <= set(arrays):
            needed = "it needs 'patterns' and 'labels': np.savez(path, patterns=..., labels=...)"
            raise McoverError(f"{path} holds the arrays {sorted(arrays)}; {needed}.")
        patterns, labels, teacher = arrays["patterns"], arrays["labels"], arrays.get("teacher")
    elif ending == ".npy":
        patterns, labels = _read_npy(path)
    elif ending == ".csv":
        patterns, labels = _read_csv(path)
    else:
        raise McoverError(f"cannot read {path}; write a file that ends in .npz, .npy or .csv.")
    hidden = checks.check_int("hidden", hidden, 1)
    if hidden == 1:
        return Perceptron(patterns, labels, teacher)
    return Committee(patterns, labels, hidden, teacher)


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name; refuses pickled objects and files beyond memory."""
    path = checks.check_path("path", path)
    try:
        with ZipFile(_regular(path)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        checks.check_memory(size, f"{path}", "split the file")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except TooLargeError:
        raise
    except Exception as error:  # damaged files raise anything
        raise McoverError(f"cannot read {path} as an .npz file: {error}.") from error


def _regular(path: str | Path) -> str | Path:
    """Refuses anything but a regular file, since a device or a pipe might not end."""
    if not Path(path).is_file():
        there = Path(path).exists()
        raise McoverError("it is not a file" if there else "there is no such file")
    return path


def _read_npy(path: str | Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Patterns, and labels from the last column."""
    try:
        checks.check_memory(2 * os.path.getsize(_regular(path)), f"{path}", "split the file")
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise McoverError("it holds several arrays; name it .npz")
    except TooLargeError:
        raise
    except Exception as error:  # damaged files raise anything
        raise McoverError(f"cannot read {path} as an .npy file: {error}.") from error
    if array.ndim != 2 or array.shape[1] < 2:
        raise McoverError(
            f"{path} holds an array of shape {array.shape}; write one of shape (P, N + 1), with "
            "the labels in the last column."
        )
    return array[:, :-1], array[:, -1]


def _read_csv(path: str | Path) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Patterns as numbers, and labels as numbers, or as text if they are not numbers."""
    try:
        checks.check_memory(
            _BYTES * os.path.getsize(_regular(path)), f"{path}", "write an .npz file"
        )
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            delimiter = max(_DELIMITERS, key=first.count)
            file.seek(0)
            lines = [
                (number, [cell.strip() for cell in cells])
                for number, cells in enumerate(csv.reader(file, delimiter=delimiter), 1)
                if any(cell.strip() for cell in cells)
            ]
    except TooLargeError:
        raise
    except (OSError, ValueError, McoverError, csv.Error) as error:
        raise McoverError(f"cannot read {path} as a .csv file: {error}.") from error
    if lines and _numbers(lines[0][1][:-1]) is None:
        del lines[0]  # names of the columns
    if not lines or len(lines[0][1]) < 2:
        raise McoverError(
            f"{path} has no patterns; write one line per pattern, separated by commas, with the "
            "label in the last column."
        )
    patterns, labels = [], []
    for number, cells in lines:
        values = _numbers(cells[:-1])
        if values is None or len(cells) != len(lines[0][1]):
            raise McoverError(
                f"line {number} of {path} is {checks.shown(cells)}; write {len(lines[0][1]) - 1} "
                "numbers and a label, as in the lines before."
            )
        patterns.append(values)
        labels.append(cells[-1])
    numbers = _numbers(labels)
    return np.array(patterns), np.array(labels if numbers is None else numbers)


def _numbers(cells: list[str]) -> list[float] | None:
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return None
