"""Covers in Lightning: covers are trained; validation, test and prediction use the collapse.

Lift the network inside your ``LightningModule`` and train it with ``self.net.loss``, which keeps
the activations of one network at a time, or with :func:`mcover.cover_loss` in the message lift.
With the callback, all steps but the training step use the collapse, one ordinary network. ::

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
from mcover.extras import require


def _framework() -> Any:
    """Lightning under one of its two names: the one that is imported, or else installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    imported_first = sorted(names, key=lambda name: name not in sys.modules)
    found = [name for name in imported_first if find_spec(name.partition(".")[0])]
    return import_module((found or names)[0])


with require("mcover.lightning", "lightning", "lightning", "torch"):
    from torch import nn

    from mcover.nn import Covered

    _Callback: Any = _framework().Callback

__all__ = ["CollapseCallback", "collapsed"]

Collapse = Callable[[Covered], nn.Module]


@contextmanager
def collapsed(module: nn.Module, collapse: Collapse = Covered.collapse) -> Iterator[None]:
    """Replaces the covered models inside a module by their collapses; restores them on exit.

    It works for any module that holds covered models, and does not need Lightning.

    >>> import mcover, torch
    >>> model = nn.Sequential(nn.Flatten(), mcover.lift(nn.Linear(4, 2), 3, mcover.Uniform()))
    >>> with collapsed(model):
    ...     model(torch.zeros(5, 2, 2)).shape
    torch.Size([5, 2])
    >>> model(torch.zeros(5, 2, 2)).shape
    torch.Size([3, 5, 2])

    Optimizers and other references keep the covered models, which are neither copied nor changed.
    The collapses are discarded on exit, so do not train in this context.

    Args:
        module: a module with covered models in it.
        collapse: a function that collapses each, e.g. with new running statistics of batch norms:
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
    # All collapses are made before the first replacement, so that a failure changes nothing.
    made = {child: collapse(child).eval() for _, _, child in places}
    try:
        for parent, name, child in places:
            parent._modules[name] = made[child]
        yield
    finally:
        for parent, name, child in places:
            parent._modules[name] = child


class CollapseCallback(_Callback):
    """Uses the collapse for validation, test and prediction, while the covers are trained.

    Metrics are then those of the collapse, under the module's own names, so other callbacks can
    monitor them. Training and its checkpoints are the same as without the callback: the covers are
    restored before a checkpoint is written, because ``ModelCheckpoint`` is always called last.

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
        # Refuses a module without covers, or a failing collapse, before the training.
        with collapsed(pl_module, self.collapse):
            pass

    on_validation_start = on_test_start = on_predict_start = _swap
    on_validation_end = on_test_end = on_predict_end = on_exception = _restore
