"""Images with labels: MNIST and Fashion-MNIST from their IDX files, digits from scikit-learn."""

from mcover.lab.data.dataset import Dataset, holdout, subset
from mcover.lab.data.idx import read_idx
from mcover.lab.data.sources import NAMES, load

__all__ = ["NAMES", "Dataset", "holdout", "load", "read_idx", "subset"]
