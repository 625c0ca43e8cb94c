"""At home in Hugging Face: a Trainer for covered models, and LoRA adapters through their product.

Extras: ``mcover[hf]`` for the Trainer, ``mcover[peft]`` for adapters.
"""

from mcover.hf.adapters import CollapsedAdapters, collapse_adapters
from mcover.hf.trainer import CoverSeq2SeqTrainer, CoverTrainer

__all__ = ["CollapsedAdapters", "CoverSeq2SeqTrainer", "CoverTrainer", "collapse_adapters"]
