"""Hugging Face: a Trainer for covered models, and the collapse of LoRA adapters.

The Trainer needs the extra ``hf``, adapters need ``peft``.
"""

from mcover.extras import missing

try:
    import accelerate  # noqa: F401 # Trainer needs it, but reports it only in its constructor
    import torch  # noqa: F401
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    if error.name not in ("accelerate", "torch", "transformers"):
        raise
    raise missing("mcover.hf", error.name, "hf") from error

from mcover.hf.adapters import CollapsedAdapters, collapse_adapters
from mcover.hf.trainer import CoverSeq2SeqTrainer, CoverTrainer

__all__ = ["CollapsedAdapters", "CoverSeq2SeqTrainer", "CoverTrainer", "collapse_adapters"]
