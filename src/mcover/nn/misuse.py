"""Calls of a covered model by code that expects a single loss, where they can be recognised."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from mcover.errors import McoverError


def check_trainer() -> None:
    """Refuses to run inside a ``transformers.Trainer`` that computes the loss of one model.

    It would fail in its backward, which takes a scalar. A Trainer with a loss of its own may take
    covers, as :class:`mcover.hf.CoverTrainer` does.
    """
    trainer: Any = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    frame = inspect.currentframe() if trainer is not None else None
    while frame is not None:
        caller = frame.f_locals.get("self")
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
