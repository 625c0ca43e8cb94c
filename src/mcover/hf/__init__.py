"""Hugging Face: a Trainer for covered models, and the collapse of LoRA adapters.

The Trainer needs the extra ``hf``, adapters need ``peft``.
"""

from mcover.extras import require

with require("mcover.hf", "hf", "accelerate", "torch", "transformers"):
    import accelerate  # noqa: F401 # Trainer needs it, but reports it only in its constructor

    from mcover.hf.adapters import CollapsedAdapters, collapse_adapters
    from mcover.hf.trainer import CoverSeq2SeqTrainer, CoverTrainer

__all__ = ["CollapsedAdapters", "CoverSeq2SeqTrainer", "CoverTrainer", "collapse_adapters"]
