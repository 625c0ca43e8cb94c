"""The zoo: every configuration by its name, in the order of the files that add them."""

# ruff: noqa: F401, I001  imported for what they add, in the order of the table

import transformers_text
import transformers_senses
import ecosystem
import torch_layers
import binarized
import awkward
import awkward_state
import awkward_layers
import awkward_outputs
from entry import ROUTINGS, ZOO, Entry

__all__ = ["ROUTINGS", "ZOO", "Entry"]
