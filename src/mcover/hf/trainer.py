"""Hugging Face's Trainer for covered models.

Covers are trained; their collapse, which has the base's class, is evaluated and saved. A checkpoint
contains the files that Trainer writes for the base, and a file with the covers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn
from transformers import Seq2SeqTrainer, Trainer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from mcover import McoverError, checks, cover_loss
from mcover.hf.adapters import collapse_adapters
from mcover.nn import Covered, load

COVERS = "covers.safetensors"  # in each checkpoint, with the collapse
How = Literal["mean", "sign", "product"] | Callable[[Tensor], Tensor]


class CoverTrainer(Trainer):
    """A ``Trainer`` for ``mcover.lift(model, ...)`` in place of the model.

    All other arguments are those of Trainer. The loss is summed over covers, so that each has
    gradients of the base's size; the mean over covers is logged. Gradients are clipped for each
    cover by its own norm. Evaluation, ``predict`` and checkpoints use the collapse: predictions
    have the base's shapes, and ``from_pretrained`` reads a checkpoint. Resuming and
    ``load_best_model_at_end`` restore the covers from the checkpoint's ``covers.safetensors``,
    which :func:`mcover.nn.load` reads too. ``trainer.model`` is the covered model.

    For another kind of trainer write ``class MyTrainer(CoverTrainer, OtherTrainer)``.

    Args:
        model: the covered model; or give ``model_init``, which returns one.
        args: Trainer's arguments, followed by its other parameters.
        how: how to collapse, as for ``covered.collapse``; or "product" for LoRA adapters, which
            uses :func:`mcover.hf.collapse_adapters` and adds its error to the metrics.
        evaluate_covers: whether to evaluate each cover too, and to report the mean of each metric
            over covers, e.g. "eval_cover_loss" in addition to "eval_loss".
    """

    model: Any  # the covered model; see _instead
    model_wrapped: Any

    def __init__(
        self,
        model: Covered | None = None,
        args: Any = None,
        *more: Any,
        how: How = "mean",
        evaluate_covers: bool = False,
        **options: Any,
    ) -> None:
        self.how: How = how
        self.evaluate_covers = checks.check_bool("evaluate_covers", evaluate_covers)
        self._covered = None if model is None else _checked(model)
        # Trainer reads the model's class, config and signature, which are the base's.
        super().__init__(None if model is None else model.net, args, *more, **options)
        self._refuse_what_covers_cannot()
        self._set_signature_columns_if_needed()  # of the base, also inside of a PeftModel
        covered, self._covered = self._covered, None
        if self.place_model_on_device:
            self._move_model_to_device(covered, self.args.device)
        self.model = self.model_wrapped = self.callback_handler.model = covered

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new covered model, or its base during Trainer's ``__init__``."""
        covered = _checked(super().call_model_init(trial))
        if isinstance(getattr(self, "model", None), Covered):
            return covered
        self._covered = covered
        return covered.net

    def _refuse_what_covers_cannot(self) -> None:
        args = self.args
        # transformers 5.23 renamed gradient checkpointing.
        kind = "activation" if hasattr(args, "activation_checkpointing") else "gradient"
        refused = {
            f"{kind} checkpointing": (
                getattr(args, f"{kind}_checkpointing"),
                f"call model.{kind}_checkpointing_enable() before mcover.lift(model, ..., "
                "routing='directed')",
            ),
            "NEFTune": (self.neftune_noise_alpha is not None, "leave it out"),
            "DeepSpeed or FSDP": (
                self.is_deepspeed_enabled or self.is_fsdp_enabled,
                "leave it out",
            ),
            "torch.nn.DataParallel": (args.n_gpu > 1, "show one device, or start with torchrun"),
        }
        for what, (asked, remedy) in refused.items():
            if asked:
                raise McoverError(
                    f"CoverTrainer does not support {what} of a covered model; {remedy}."
                )

    # Training

    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """Trainer's step; the logged loss is the mean over covers."""
        return super().training_step(model, *args, **kwargs) / self.model.covers

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The sum over covers of the loss that Trainer computes for one model."""
        covered = self.accelerator.unwrap_model(model)
        if not isinstance(covered, Covered):  # the collapse, which is evaluated
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        items, given = num_items_in_batch, dict(inputs)
        if "use_cache" in self._signature_columns:
            given.setdefault("use_cache", self.args.use_cache)
        outside = self.compute_loss_func or self.label_smoother
        labels = given.pop("labels", None) if outside else None
        if self.model_accepts_loss_kwargs and items is not None:
            given["num_items_in_batch"] = items
        function: Any = _loss_of_the_model
        if self.compute_loss_func is not None or labels is not None:
            # Such a loss gets all passes at once, and each pass has all of the items.
            options = {"num_items_in_batch": None if items is None else items * covered.passes}
            if self.compute_loss_func is None and self._is_causal(covered):
                options["shift_labels"] = True
            function = functools.partial(outside, **options)
        outputs = None
        if covered.is_directed and not return_outputs:  # activations of one model at a time
            scaler = self.accelerator.scaler
            scale = 1.0 if scaler is None else scaler.get_scale()
            loss = covered.loss(function, given, labels, scale=scale, through=model)
        else:
            outputs = model(**given)
            loss = cover_loss(function, outputs, labels, passes=covered.passes)
        scaled = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if self.args.average_tokens_across_devices and scaled and items is not None:
            loss = loss * self.accelerator.num_processes  # gradients are averaged over processes
        return (loss, outputs) if return_outputs else loss

    @staticmethod
    def _is_causal(covered: Covered) -> bool:
        base: Any = covered.net
        base = base.get_base_model() if hasattr(base, "get_base_model") else base
        return type(base).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        """Clips each cover by its own norm, and returns the mean norm, which is logged."""
        return self._clipped(self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return self._clipped(float("inf")) if grad_norm is None else grad_norm

    def _clipped(self, max_norm: float) -> Tensor:
        self.accelerator.unscale_gradients()
        return self.model.clip_grad_norm_(max_norm).mean()

    # Evaluation

    def collapse(self) -> nn.Module:
        """The model of the base's class that is evaluated and saved."""
        return self._collapsed()[0]

    def _collapsed(self) -> tuple[nn.Module, dict[str, float]]:
        if self.how != "product":
            return self.model.collapse(self.how), {}
        made = collapse_adapters(self.model)
        return made.model, {"product_error": made.error}

    @contextlib.contextmanager
    def _instead(self, model: nn.Module) -> Iterator[None]:
        """In this context Trainer uses another model in place of the covered one."""
        shown = self.model, self.model_wrapped
        self.model = self.model_wrapped = model
        try:
            yield
        finally:
            self.model, self.model_wrapped = shown

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> Any:
        """Evaluates the collapse, and with ``evaluate_covers`` each cover too."""

        def run(model: nn.Module) -> Any:
            # The forward of a model that accelerate prepared enters autocast; these models are not
            # prepared.
            with self._instead(model), self.accelerator.autocast():
                return super(CoverTrainer, self).evaluation_loop(
                    *args, metric_key_prefix=metric_key_prefix, **kwargs
                )

        model, more = self._collapsed()
        output = run(model)
        if self.evaluate_covers:
            covers = self.model.covers
            each = [run(self.model.cover(index)).metrics for index in range(covers)]
            for key in each[0].keys() - {f"{metric_key_prefix}_model_preparation_time"}:
                if all(isinstance(metrics[key], int | float) for metrics in each):
                    name = key.removeprefix(f"{metric_key_prefix}_")
                    more[f"cover_{name}"] = sum(metrics[key] for metrics in each) / covers
        output.metrics.update({f"{metric_key_prefix}_{k}": more[k] for k in sorted(more)})
        return output

    # Checkpoints

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Saves the collapse as Trainer saves the base, and the covers beside it."""
        if not self.args.should_save:
            return
        folder = self.args.output_dir if output_dir is None else output_dir
        with self._instead(self.collapse()):
            super()._save(folder)
        # Checkpoints of PEFT leave the frozen model out, and so does the file of the covers.
        is_adapter = hasattr(self.model.net, "peft_config")
        self.model.save(Path(folder) / COVERS, frozen_too=not is_adapter)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        """Loads covers, routes and counters from a checkpoint."""
        saved = load(Path(resume_from_checkpoint) / COVERS, self.model.cover(0))
        has, wants = ((one.covers, set(one.lifted)) for one in (saved, self.model))
        if has != wants:
            raise McoverError(
                f"{resume_from_checkpoint} has {has[0]} covers of {len(has[1])} tensors, and the "
                f"model {wants[0]} of {len(wants[1])}; lift it as it was lifted then."
            )
        self.model.load_state_dict(saved.state_dict())

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(self.state.best_model_checkpoint)


class CoverSeq2SeqTrainer(CoverTrainer, Seq2SeqTrainer):
    """``Seq2SeqTrainer`` for covered models; the collapse generates."""


def _loss_of_the_model(outputs: Any, _: Any) -> Tensor:
    """The loss that the base model returned, averaged over several passes."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs[0]
    if not isinstance(loss, Tensor):
        raise McoverError(
            "the model returned no loss; give it labels, or write compute_loss_func=... for "
            "CoverTrainer."
        )
    return loss.mean()


def _checked(model: Any) -> Covered:
    if not isinstance(model, Covered):
        raise McoverError(
            f"CoverTrainer needs a covered model, and got {type(model).__name__}; write "
            "CoverTrainer(mcover.lift(model, ...), ...), or use transformers.Trainer."
        )
    return model
