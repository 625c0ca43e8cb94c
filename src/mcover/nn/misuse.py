"""Calls of a covered model by code that expects a single loss, where they can be recognised.

``F.cross_entropy(covered(x), y)`` without ``cover_loss`` is not: torch refuses it with an error of
its own, and ``F.mse_loss`` broadcasts with a warning. The outputs could be a subclass of Tensor
whose ``__torch_function__`` refuses losses. That was tried and dropped: code compiled by
``torch.compile`` takes no such subclass (torch 2.13 ends in "Multiple dispatch failed"), and a
covered model does not know who will use its outputs.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch

from mcover.errors import McoverError

_METHODS = ("compute_loss", "prediction_step")  # of a Trainer, around a call of the model


def check_trainer() -> None:
    """Refuses to run inside a ``transformers.Trainer`` that trains or evaluates one model.

    Its training would fail in the backward, which takes a scalar, and its evaluation would take the
    covers for samples. A Trainer with a loss of its own may take covers, as
    :class:`mcover.hf.CoverTrainer` does.
    """
    trainer: Any = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    if trainer is None or torch.compiler.is_compiling():  # compiled code has no frames to look at
        return
    frame = inspect.currentframe()
    while frame is not None:
        method = frame.f_code.co_name  # reading the locals of all is slow
        caller = frame.f_locals.get("self") if method in _METHODS else None
        if isinstance(caller, trainer):
            kind = type(caller)
            names = ("compute_loss", method)
            own = any(getattr(kind, name) is not getattr(trainer, name) for name in names)
            if not own and getattr(caller, "compute_loss_func", None) is None:
                raise McoverError(
                    f"{kind.__name__} takes one loss, and covers have one each; write "
                    "mcover.hf.CoverTrainer(covered, ...), which takes the same arguments."
                )
            return
        frame = frame.f_back
