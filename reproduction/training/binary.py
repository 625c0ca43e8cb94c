"""Trials of networks of ±1 weights; one run evaluates every policy of collapse."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from mcover import McoverError
from reproduction.checks import check_choice, check_counts, check_numbers
from reproduction.data import Dataset, Images, Labels, holdout
from reproduction.training import options
from reproduction.training.options import BinaryMethod, Lifted, Training
from reproduction.training.trials import ModelTrial

if TYPE_CHECKING:
    from torch import nn

    from reproduction.binary_models import BinaryArchitecture

BinaryModel = Literal["binary-mlp", "binary-conv"]
Policy = Literal["latents", "signs", "best"]

_HELD_OUT = 10  # one of this many training images is held out
_TRAINING = Training(60, batch=90, lr=0.01, optimizer="adam", lr_schedule="cosine")


@dataclass(frozen=True)
class BinaryTrial(ModelTrial):
    """A network with ±1 weights, inputs and hidden units on images.

    Every trial holds out a tenth of the training images, for the policy that selects the cover with
    the least error on them. Batch norms of every evaluated model are recomputed on up to 10,000 of
    the other images.
    """

    kind: ClassVar[str] = "binary-network"
    # 1: one committed row of each method was rerun, with equal results.
    revision: ClassVar[int] = 1
    methods: ClassVar[object] = BinaryMethod

    training: Training = _TRAINING
    """How to train."""
    method: BinaryMethod = options.PLAIN
    """How latent weights are updated; SGD() is plain straight-through training with the optimizer
    of ``training``."""
    model: BinaryModel = "binary-mlp"
    """MLP with three hidden layers, or convolutions with 16 and 32 channels."""
    hidden: int = 256
    """Units of each hidden layer of binary-mlp."""
    latents: float = 0.05
    """Latent weights are drawn uniformly from ± this."""
    policy: Policy = "latents"
    """How ``error`` collapses the covers: the signs of the mean latents, the majority of signs, or
    the cover that is best on held-out images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("model", self.model, get_args(BinaryModel))
        check_counts(self, "hidden")
        check_numbers(self, "latents", above=0, most=1)
        check_choice("policy", self.policy, get_args(Policy))
        if self.training.stop_loss is not None or self.training.stop_error is not None:
            raise McoverError(
                "binary networks are trained for all epochs; leave stop_loss and stop_error out."
            )

    def architecture(self, data: Dataset) -> BinaryArchitecture:
        from reproduction.binary_models import BinaryConv, BinaryMlp

        if self.model == "binary-conv":
            height, width = data.train_images.shape[1:]
            return BinaryConv((height, width), classes=data.classes, latents=self.latents)
        sizes = (data.inputs, self.hidden, self.hidden, self.hidden, data.classes)
        return BinaryMlp(sizes, self.latents)

    def images_of(self, seed: int) -> Dataset:
        return self.parts_of(seed)[0]

    def parts_of(self, seed: int) -> tuple[Dataset, Images, Labels]:
        """The images of the trial without the held-out ones; the held-out images; their labels."""
        found = super().images_of(seed)
        drawn = seed if self.subset_seed is None else self.subset_seed
        parts = holdout(found, max(1, len(found.train_labels) // _HELD_OUT), drawn)
        data = replace(found, train_images=parts.train_images, train_labels=parts.train_labels)
        return data, parts.test_images, parts.test_labels

    def run(self, seed: int) -> dict[str, float]:
        """Trains with one seed on one thread, and evaluates the collapse of each policy."""
        from reproduction.models import one_thread

        begin, parts = time.process_time(), self.parts_of(seed)
        with one_thread():
            model = self.build(parts[0], seed)
            history = self.train(seed, parts[0], model)
            found = _errors(model, *parts)
        if isinstance(self.method, Lifted) and history.routed_error is not None:
            found["routed_error"] = float(history.routed_error[-1].mean())
        return {
            "error": found[f"error_{self.policy}"],
            **found,
            "train_loss": float(history.train_loss[-1]),
            "gradients": float(history.gradients[-1]),
            "core_seconds": round(time.process_time() - begin, 3),
        }


def _errors(model: nn.Module, data: Dataset, images: Images, labels: Labels) -> dict[str, float]:
    """Test errors under each policy, and the mean of single covers; equal for a plain model."""
    from torch.optim.swa_utils import update_bn

    from mcover.nn import binary
    from reproduction.training.objectives import calibration, covers_of, is_covered, objective_of

    objective = objective_of(model)
    batches = calibration(objective.tensors(data.train_images, data.train_labels)[0])
    test = objective.tensors(data.test_images, data.test_labels)

    def error(one: nn.Module) -> float:
        return float(objective.evaluate(one, *test, "covers")[1][0])

    if not is_covered(model):
        update_bn(batches, one := copy.deepcopy(model))
        names = ("error_latents", "error_signs", "error_best", "cover_error")
        return dict.fromkeys(names, error(one))
    covered: Any = model
    held_out = {"best": [objective.tensors(images, labels)]}
    found = {}
    for policy in get_args(Policy):
        own = held_out.get(policy)
        one = binary.collapse(covered, policy, loader=batches, held_out=own)
        found[f"error_{policy}"] = error(one)
    covers = [covered.cover(index) for index in range(covers_of(model))]
    for one in covers:
        update_bn(batches, one)
    return found | {"cover_error": sum(map(error, covers)) / len(covers)}
