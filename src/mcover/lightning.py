"""Covers in Lightning: the covers train; validation, tests and predictions use the collapse.

A ``Trainer`` trains any ``LightningModule``, so covers need no module of their own: lift the
network inside yours and train it with ``self.net.loss``, in the memory of one network (or with
:func:`mcover.cover_loss`, where covers meet). With the callback, every other step sees the
collapse, one ordinary network. ::

    class Digits(lightning.LightningModule):
        def __init__(self, net):
            super().__init__()
            self.net = mcover.lift(net, covers=4)

        def training_step(self, batch, index):
            x, y = batch
            return self.net.loss(F.cross_entropy, x, y)  # the sum over covers

        def validation_step(self, batch, index):
            x, y = batch
            self.log("loss", F.cross_entropy(self.net(x), y))  # (batch, classes)

    trainer = lightning.Trainer(callbacks=[CollapseCallback()])
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from mcover import checks
from mcover.errors import McoverError
from mcover.extras import missing


def _framework() -> Any:
    """Lightning under one of its two names: the imported one, else the installed one."""
    names = ("lightning.pytorch", "pytorch_lightning")
    imported_first = sorted(names, key=lambda name: name not in sys.modules)
    found = [name for name in imported_first if find_spec(name.partition(".")[0])]
    return import_module((found or names)[0])


try:
    from torch import nn

    from mcover.nn import Covered

    _Callback: Any = _framework().Callback
except ModuleNotFoundError as error:
    raise missing("mcover.lightning", error.name, "lightning") from error

__all__ = ["CollapseCallback", "collapsed"]

Collapse = Callable[[Covered], nn.Module]


@contextmanager
def collapsed(module: nn.Module, collapse: Collapse = Covered.collapse) -> Iterator[None]:
    """Replaces the covered models inside a module by their collapses; restores them on exit.

    It needs no Lightning: any module that holds covered models will do.

    >>> import mcover, torch
    >>> model = nn.Sequential(nn.Flatten(), mcover.lift(nn.Linear(4, 2), 3, mcover.Uniform()))
    >>> with collapsed(model):
    ...     model(torch.zeros(5, 2, 2)).shape
    torch.Size([5, 2])
    >>> model(torch.zeros(5, 2, 2)).shape
    torch.Size([3, 5, 2])

    Optimizers and references from elsewhere keep the covered models, which are neither copied nor
    changed. The collapses are thrown away on exit, so train nothing inside.

    Args:
        module: a module with covered models in it.
        collapse: makes a model of each, e.g. with new running statistics of batch norms:
            ``lambda covered: covered.collapse(loader=batches)``.

    Raises:
        McoverError: there is no covered model, or the module is one itself.
    """
    checks.check_instance("module", module, nn.Module, "a module that holds covered models")
    checks.check_callable("collapse", collapse, "a function of a covered model")
    # A covered model may be registered under several names; each of them is replaced.
    places = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent._modules.items()
        if isinstance(child, Covered)
    ]
    if isinstance(module, Covered):
        raise McoverError("module is a covered model itself; write net = covered.collapse().")
    if not places:
        raise McoverError(
            f"{type(module).__name__} holds no covered model; write self.net = mcover.lift(net, "
            "covers=..., topology=...) where it makes its network."
        )
    # All collapses are made before the first is put in place: one that fails changes nothing.
    made = {child: collapse(child).eval() for _, _, child in places}
    try:
        for parent, name, child in places:
            parent._modules[name] = made[child]
        yield
    finally:
        for parent, name, child in places:
            parent._modules[name] = child


class CollapseCallback(_Callback):
    """Validates, tests and predicts with the collapse, while the covers train.

    Metrics are then those of the collapse, under the module's own names, and other callbacks may
    monitor them. Training and its checkpoints are the same as without the callback: the covers are
    restored before a checkpoint is written, as ``ModelCheckpoint`` is always called last.

    Args:
        collapse: makes the collapse, as in :func:`collapsed`.
    """

    def __init__(self, collapse: Collapse = Covered.collapse) -> None:
        super().__init__()
        self.collapse = collapse
        self._swapped = ExitStack()

    def _swap(self, trainer: Any, pl_module: nn.Module) -> None:
        self._swapped.enter_context(collapsed(pl_module, self.collapse))

    def _restore(self, *_: Any) -> None:
        self._swapped.close()

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        # A module without covers, or a collapse that fails, is refused before the training.
        with collapsed(pl_module, self.collapse):
            pass

    on_validation_start = on_test_start = on_predict_start = _swap
    on_validation_end = on_test_end = on_predict_end = on_exception = _restore
