"""Calls of a covered model by code that expects a single loss, where they can be recognised."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch

from mcover.errors import McoverError


def check_trainer() -> None:
    """Refuses to run inside a ``transformers.Trainer`` that computes the loss of one model.

    It would fail in its backward, which takes a scalar. A Trainer with a loss of its own may take
    covers, as :class:`mcover.hf.CoverTrainer` does.
    """
    trainer: Any = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    if trainer is None or torch.compiler.is_compiling():  # compiled code has no frames to look at
        return
    frame = inspect.currentframe()
    while frame is not None:
        is_loss = frame.f_code.co_name == "compute_loss"  # reading the locals of all is slow
        caller = frame.f_locals.get("self") if is_loss else None
        if isinstance(caller, trainer):
            kind = type(caller)
            own = kind.compute_loss is not trainer.compute_loss
            if not own and getattr(caller, "compute_loss_func", None) is None:
                raise McoverError(
                    f"{kind.__name__} takes one loss, and covers have one each; write "
                    "mcover.hf.CoverTrainer(covered, ...), which takes the same arguments."
                )
            return
        frame = frame.f_back
