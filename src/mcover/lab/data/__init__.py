"""Images with labels: MNIST and Fashion-MNIST from their IDX files, digits from scikit-learn."""

from mcover.lab.data.files import read_idx
from mcover.lab.data.sources import NAMES, Dataset, holdout, load, split_name, subset

__all__ = ["NAMES", "Dataset", "holdout", "load", "read_idx", "split_name", "subset"]
