"""Covers in Lightning: a callback that follows the collapse while the covers train.

A ``Trainer`` trains any ``LightningModule``, so covers need no module of their own: lift the
network inside of yours, and train it with :func:`mcover.cover_loss`. ::

    class Digits(lightning.LightningModule):
        def __init__(self, net):
            super().__init__()
            self.net = mcover.lift(net, covers=5, topology=mcover.GaussianRing(1.5, shift=2))

        def training_step(self, batch, index):
            x, y = batch
            return mcover.cover_loss(F.cross_entropy, self.net(x), y)

        def validation_step(self, batch, index):
            x, y = batch
            logits = self.net(x)  # (covers, batch, classes)
            self.log("error", (logits.argmax(-1) != y).float().mean())

    trainer = lightning.Trainer(callbacks=[CollapseCallback()])  # logs "collapse/error" too
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import mcover
from mcover import checks
from mcover.errors import McoverError, McoverWarning
from mcover.logs import HistoryLog, check_tensorboard


def _framework() -> Any:
    """Lightning under one of its two names: the one that is in use, or the one that is there."""
    names = ("lightning.pytorch", "pytorch_lightning")
    names_in_use_first = sorted(names, key=lambda name: name not in sys.modules)
    found = [name for name in names_in_use_first if find_spec(name.partition(".")[0])]
    return import_module((found or names)[0])


try:
    from safetensors.torch import save_model
    from torch import nn

    from mcover.nn import Covered

    _Callback: Any = _framework().Callback
    _METRICS: Any = attrgetter("Metric", "MetricCollection")(import_module("torchmetrics"))
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"mcover.lightning needs {error.name}, which is not installed; write "
        "pip install 'mcover[lightning]'.",
        name=error.name,
    ) from error

__all__ = ["CollapseCallback"]

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class CollapseCallback(_Callback):
    """Validates the collapse beside the covers, and keeps it in a file of its own.

    The module's own validation (and test) runs a second time, on a stand-in whose covered models
    are each replaced by their collapse as a single cover. So shapes are as the module knows them,
    with one cover, and whatever it logs is logged again with a prefix: "collapse/error" beside
    "error", which other callbacks may monitor. The module that trains and its checkpoints are as
    they are without the callback, and so is a training that goes on from one.

    In the folder are ``collapse.safetensors``, for ``safetensors.torch.load_model`` into a network
    of the base's class, and ``collapse.jsonl``, a line of metrics for each validation. Where a
    module has several covered models, their names are in the names of their files.

    Args:
        folder: for the files; None is where the trainer logs.
        prefix: of what is logged of the collapse.
        monitor: name of a metric; the file is then the best collapse so far, else the last one.
        mode: whether the least or the greatest is best.
        collapse: how the collapse is made, e.g. with batch norms that are computed anew:
            ``lambda covered: covered.collapse(loader=batches)``.
        tensorboard: whether ``collapse/`` in the folder gets TensorBoard events of the same
            metrics, for trainers whose own logger is another.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        prefix: str = "collapse/",
        monitor: str | None = None,
        mode: Literal["min", "max"] = "min",
        collapse: Callable[[Covered], nn.Module] = Covered.collapse,
        tensorboard: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(prefix, str) or not prefix:
            raise McoverError(f"prefix is {prefix!r}; write a text, e.g. 'collapse/'.")
        self.folder = None if folder is None else Path(folder)
        self.prefix = prefix
        self.monitor = monitor
        self.mode = checks.check_choice("mode", mode, ("min", "max"))
        self.collapse = collapse
        self.tensorboard = check_tensorboard(tensorboard)
        self.best: float | None = None
        """The monitored metric of the collapse in the file."""
        self._saved_at = -1
        self._stand_in: Any = None
        self._log: HistoryLog | None = None

    def state_dict(self) -> dict[str, Any]:
        return {} if self.best is None else {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict.get("best")

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        where = trainer.log_dir or trainer.default_root_dir  # asked on all ranks, or none
        self._folder = Path(where) if self.folder is None else self.folder

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        _covered_parts(pl_module)  # refuses a module without any before it is trained

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            path = self._folder / "collapse.jsonl"
            self._log = HistoryLog(path, self.tensorboard, after=trainer.global_step)

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._start(trainer, pl_module).on_validation_epoch_start()

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *place: int
    ) -> None:
        with trainer.precision_plugin.val_step_context():
            _call(self._stand_in.validation_step, batch, *place)

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._stand_in.on_validation_epoch_end()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._stand_in = None
        if self._log is None or trainer.sanity_checking or not trainer.is_global_zero:
            return
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self._log.write(trainer.global_step, {"epoch": trainer.current_epoch, **metrics})
        if self.monitor is None or self._is_best(metrics):
            self._save(trainer, pl_module)

    def on_test_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._start(trainer, pl_module).on_test_epoch_start()

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, *place: int
    ) -> None:
        with trainer.precision_plugin.test_step_context():
            _call(self._stand_in.test_step, batch, *place)

    def on_test_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._stand_in.on_test_epoch_end()
        self._stand_in = None

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        # After the last validation there may have been more steps, or there was none at all.
        if self.monitor is None and self._saved_at != trainer.global_step:
            self._save(trainer, pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._log is not None:
            self._log.close()
        self._log = self._stand_in = None

    def _start(self, trainer: Any, pl_module: Any) -> Any:
        """The module with a single cover, the collapse, in the place of the covers."""
        parts = _covered_parts(pl_module).values()
        made = {id(part): _single(self.collapse(part), part.lifted) for part in parts}
        self._stand_in = stand_in = _beside(pl_module, made)
        stand_in.trainer = trainer
        for name in ("forward", "validation_step", "test_step"):
            vars(stand_in).pop(name, None)  # compiled ones are bound to the module that trains
        named = {id(module): name for name, module in stand_in.named_modules()}

        def log(name: str, value: Any, *args: Any, **options: Any) -> None:
            if id(value) in named:  # a metric of torchmetrics, which Lightning wants the name of
                options.setdefault("metric_attribute", named[id(value)])
            pl_module.log(self.prefix + name, value, *args, **options)

        stand_in.log = log
        return stand_in

    def _is_best(self, metrics: dict[str, float]) -> bool:
        if self.monitor not in metrics:
            raise McoverError(
                f"monitor is {self.monitor!r}, which was not logged; write one of "
                f"{', '.join(sorted(metrics)) or 'those that validation_step logs'}."
            )
        value, sign = metrics[self.monitor], 1 if self.mode == "min" else -1
        if math.isnan(value) or (self.best is not None and sign * value >= sign * self.best):
            return False
        self.best = value
        return True

    def _save(self, trainer: Any, pl_module: Any) -> None:
        self._saved_at = trainer.global_step
        if not trainer.is_global_zero:
            return
        parts = _covered_parts(pl_module)
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            ending = f"-{name}" if len(parts) > 1 else ""
            path = self._folder / f"collapse{ending}.safetensors"
            with tempfile.TemporaryDirectory(dir=self._folder) as beside:
                whole = Path(beside) / path.name
                save_model(self.collapse(part), str(whole))
                whole.replace(path)  # a reader sees the old file or the new one


def _covered_parts(module: nn.Module) -> dict[str, Covered]:
    """The covered models inside a module, by name."""
    parts = {name: part for name, part in module.named_modules() if isinstance(part, Covered)}
    if not parts:
        raise McoverError(
            f"{type(module).__name__} holds no covered model; write self.net = mcover.lift(net, "
            "covers=..., topology=...) where it makes its network."
        )
    return parts


def _single(net: nn.Module, lifted: Sequence[str]) -> nn.Module:
    """A model as one cover, for code that knows covers."""
    known = {name for name, _ in net.named_parameters()}
    select = [name for name in lifted if name in known] or None  # also those that do not train
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", McoverWarning)  # said when the covers were made
        return mcover.lift(net, 1, mcover.Identity(), select=select, seed=0).eval()


def _call(step: Callable[..., Any], *given: Any) -> None:
    """Calls a step with batch, index of the batch and of its loader: as many as it takes."""
    kinds = [one.kind for one in inspect.signature(step).parameters.values()]
    rest = Parameter.VAR_POSITIONAL in kinds
    step(*given[: None if rest else sum(kind in _POSITIONAL for kind in kinds)])


def _beside(module: nn.Module, made: dict[int, nn.Module]) -> Any:
    """A module in the image of another, with other modules in the place of some.

    It shares tensors and all large things with the first one, but nothing that a validation leaves
    behind: lists and dicts are its own, and so are metrics.
    """
    if id(module) in made:
        return made[id(module)]
    if isinstance(module, _METRICS):
        made[id(module)] = metric = copy.deepcopy(module)
        metric.reset()
        return metric
    made[id(module)] = twin = copy.copy(module)
    vars(twin).update({key: _own(value) for key, value in vars(twin).items()})
    for name, child in module.named_modules(remove_duplicate=False):
        if name and "." not in name:
            setattr(twin, name, _beside(child, made))
    return twin


def _own(value: Any, depth: int = 3) -> Any:
    """Containers copied, what they contain shared."""
    if not isinstance(value, list | dict | set | deque) or not depth:
        return value
    made = copy.copy(value)
    if isinstance(made, list):
        made[:] = [_own(one, depth - 1) for one in made]
    elif isinstance(made, dict):
        made.update({key: _own(one, depth - 1) for key, one in made.items()})
    return made
