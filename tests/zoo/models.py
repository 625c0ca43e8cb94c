"""The zoo: every configuration by its name, in the order of the files that add them."""

import transformers_text  # noqa: F401  isort: skip
import transformers_senses  # noqa: F401

import ecosystem  # noqa: F401  isort: skip  adds LoRA to models of the first two
import torch_layers  # noqa: F401

import awkward  # noqa: F401  isort: skip
import awkward_outputs  # noqa: F401
from entry import ROUTINGS, ZOO, Entry

__all__ = ["ROUTINGS", "ZOO", "Entry"]
