"""The covered model: M covers of one base model, run as one module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, NamedTuple

from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor, nn

from mcover.lifting import Settings
from mcover.nn import trees
from mcover.nn.collapse import collapse, cover, ensemble
from mcover.nn.cover_by_cover import loss
from mcover.nn.execution import Execution
from mcover.nn.files import save
from mcover.nn.misuse import check_trainer
from mcover.nn.mixing import Rules
from mcover.nn.modules import Override
from mcover.nn.report import report
from mcover.nn.state import CoverState


class NextRoutes(NamedTuple):
    """The routes of one evaluation of a directed lift.

    Attributes:
        bank: :attr:`Covered.routes`, the same array until the routes are redrawn.
        destinations: those to evaluate, as indices into the bank.
    """

    bank: NDArray[Any]
    destinations: tuple[int, ...]


class _Forward:
    """``covered.forward`` runs all covers on the same inputs, with the base model's signature.

    Like any method it can be replaced on one model, as accelerate does for mixed precision; on a
    copy of the model it is bound to the copy.
    """

    def __init__(self, base: Callable[..., Any] | None = None) -> None:
        self._base = base

    def __get__(self, covered: Covered | None, owner: Any = None) -> Any:
        if covered is None:
            return self

        def forward(covered: Covered, /, *args: Any, **kwargs: Any) -> Any:
            return _run(covered, args, kwargs)

        # The signature is computed when it is read, and not in each call.
        forward.__wrapped__ = _Forward(Override.of(covered.net))  # type: ignore[attr-defined]
        return MethodType(forward, covered)

    def __call__(self, covered: Covered, /, *args: Any, **kwargs: Any) -> Any:
        return _run(covered, args, kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        base = inspect.signature(self._base or self.__call__)
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        return base.replace(parameters=[own, *base.parameters.values()])


def _run(covered: Covered, args: Any, kwargs: Any) -> Any:
    if covered.training and not covered.steps:
        check_trainer()
    return covered._execution.forward(args, kwargs, each=False)


class Covered(CoverState):
    """What :func:`mcover.lift` returns: an input of shape (B, ...) gives outputs (M, B, ...).

    Several streams or destinations lie along the batch: (M, S·B, ...), stream by stream. Outputs
    in tuples, dicts, dataclasses and the like keep their form, with the covers first in every
    tensor.

    Attributes:
        net: the base model's modules; lifted tensors are stacks, ``(M, *shape)``. It is never
            called: each cover runs on a private copy of it.
        settings: the options of the lift.
        lifted: names of the lifted parameters in ``net``.
        state: names of the buffers that each cover keeps for itself.
        seed: the root of all routes.
        steps: training forwards so far.
        redraws: how often the routes were redrawn.
    """

    # Methods that have files of their own.
    collapse, cover, ensemble = collapse, cover, ensemble
    loss, report, save = loss, report, save

    def __init__(
        self,
        net: nn.Module,
        settings: Settings,
        lifted: tuple[str, ...],
        state: tuple[str, ...],
        seed: SeedSequence,
        rules: Rules | None = None,
    ) -> None:
        super().__init__(net, settings, lifted, state, seed)
        self._execution = Execution(self, rules or Rules())

    def __repr__(self) -> str:
        """One line; ``print(covered.net)`` shows the modules."""
        stacks = set(self.stacks().values())
        shared = [value.numel() for value in self.parameters() if value not in stacks]
        lifted = sum(stack[0].numel() for stack in stacks)
        how = self.settings
        return (
            f"Covered({type(self.net).__name__}, covers={how.covers}, topology={how.topology!r}, "
            f"routing={how.routing!r}, noise={how.noise!r}; {lifted:,} parameters lifted, "
            f"{sum(shared):,} shared)"
        )

    forward = _Forward()

    def each(self, *args: Any, **kwargs: Any) -> Any:
        """Runs each cover on its own inputs; outputs are (M, B, ...) as for a common input.

        It takes what the base model takes, every tensor with the covers first, (M, B, ...). Where
        covers mix, the messages of cover α come from its own inputs; in the directed lift, context
        α sees the inputs of cover α.
        """
        count = len(self.held)
        trees.check_covers_first((args, kwargs), count, "each", "covered(x) for inputs")
        return self._execution.forward(args, kwargs, each=True)

    def next_routes(self) -> NextRoutes | None:
        """The routes of the next evaluation, for a model that is evaluated by other code.

        Counters change as in a forward: in training mode destinations cycle, and routes are redrawn
        on schedule. None in the message lift, which mixes activations.

        >>> import mcover
        >>> how = mcover.Directed(bank=3, destinations=2)
        >>> covered = mcover.lift(nn.Linear(4, 2), 5, mcover.Uniform(), how, seed=0)
        >>> [covered.next_routes().destinations for _ in range(3)], covered.steps
        ([(0, 1), (2, 0), (1, 2)], 3)
        >>> covered.next_routes().bank.shape
        (3, 10, 5)
        """
        with self._execution.lock:
            step, number = self._advance()
            self._draw(number)
            if not self.is_directed:
                return None
            return NextRoutes(self.routes, tuple(self._passes_of(step)))

    def _cover_module(self, cover: int, values: Mapping[Tensor, Tensor]) -> nn.Module:
        return self._execution.copies.independent_copy(cover, values)
