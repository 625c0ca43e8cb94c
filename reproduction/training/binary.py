"""Trials of networks of ±1 weights, judged under every policy of collapse in one run."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from mcover import checks
from mcover.errors import McoverError
from reproduction.data import Dataset, Images, Labels, holdout
from reproduction.training import options
from reproduction.training.options import SGD, BinaryMethod, Lifted, Training
from reproduction.training.trials import _Trial

if TYPE_CHECKING:
    from torch import nn

    from reproduction.binary_models import BinaryArchitecture

BinaryModel = Literal["binary-mlp", "binary-conv"]
Policy = Literal["latents", "signs", "best"]

_SHARE = 10  # one of so many training images is held out
_TRAINING = Training(60, batch=90, lr=0.01, optimizer="adam", lr_schedule="cosine")
_PLAIN = SGD()


@dataclass(frozen=True)
class BinaryTrial(_Trial):
    """A network of ±1 weights, inputs and hidden units on images.

    A tenth of the training images is held out in every trial, for the policy that picks a cover by
    its error on them. Norms are computed anew for whatever is evaluated, on 10,000 of the others.
    """

    kind: ClassVar[str] = "binary-network"
    methods: ClassVar[tuple[type[BinaryMethod], ...]] = options.BINARY_METHODS

    training: Training = _TRAINING
    """How to train."""
    method: BinaryMethod = _PLAIN
    """What moves the latent weights; SGD() is plain straight-through training, by whichever
    optimizer."""
    model: BinaryModel = "binary-mlp"
    """Three hidden layers, or convolutions of 16 and 32 channels."""
    hidden: int = 256
    """Units of each hidden layer of binary-mlp."""
    latents: float = 0.05
    """Latent weights are drawn uniformly from ± this."""
    policy: Policy = "latents"
    """What one model takes from the covers for ``error``: the signs of the mean of latents, the
    majority of signs, or the cover that is best on held-out images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_choice("model", self.model, get_args(BinaryModel))
        checks.check_count_fields(self, "hidden", most=options.MOST)
        checks.check_float_fields(self, "latents", above=0, most=1)
        checks.check_choice("policy", self.policy, get_args(Policy))
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
        """The images of the trial without those held out, and the latter with their labels."""
        found = super().images_of(seed)
        drawn = seed if self.subset_seed is None else self.subset_seed
        parts = holdout(found, max(1, len(found.train_labels) // _SHARE), drawn)
        data = replace(found, train_images=parts.train_images, train_labels=parts.train_labels)
        return data, parts.test_images, parts.test_labels

    def run(self, seed: int) -> dict[str, float]:
        """Trains with one seed on one thread, and evaluates what each policy makes of the covers.

        Raises:
            KeyboardInterrupt: on Ctrl-C; a part of a trial is no outcome.
        """
        from reproduction.models import one_thread

        begin, parts = time.process_time(), self.parts_of(seed)
        with one_thread():
            model = self.build(parts[0], seed)
            history = self.train(seed, data=parts[0], model=model)
            if history.interrupted:
                raise KeyboardInterrupt
            found = _judged(model, *parts)
        if isinstance(self.method, Lifted) and history.routed_error is not None:
            found["routed_error"] = float(history.routed_error[-1].mean())
        return {
            "error": found[f"error_{self.policy}"],
            **found,
            "train_loss": float(history.train_loss[-1]),
            "gradients": float(history.gradients[-1]),
            "core_seconds": round(time.process_time() - begin, 3),
        }


def _judged(model: nn.Module, data: Dataset, images: Images, labels: Labels) -> dict[str, float]:
    """Test errors under each policy, and of covers by themselves; of a plain model all are its."""
    from torch.optim.swa_utils import update_bn

    from mcover.nn import binary
    from reproduction.training.objectives import calibration, covers_of, is_covered, objective_of

    objective = objective_of(model)
    batches = calibration(objective.tensors(data.train_images, data.train_labels)[0])
    test = objective.tensors(data.test_images, data.test_labels)

    def error(one: nn.Module) -> float:
        return float(objective.judge(one, *test, "covers")[1][0])

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
