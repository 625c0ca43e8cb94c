"""The covered model: M covers of one base model, run as one module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, NamedTuple

from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor, nn

from mcover import checks
from mcover.errors import McoverError
from mcover.lifting import Settings
from mcover.nn import trees
from mcover.nn.collapse import collapse, cover, ensemble
from mcover.nn.cover_by_cover import Objective
from mcover.nn.execution import Execution
from mcover.nn.files import save
from mcover.nn.loss import check_loss
from mcover.nn.misuse import check_trainer
from mcover.nn.mixing import Rules
from mcover.nn.modules import Override
from mcover.nn.report import report
from mcover.nn.state import CoverState


class NextRoutes(NamedTuple):
    """The routes of one evaluation of a directed lift.

    Attributes:
        bank: :attr:`Covered.routes`, the same array until the routes are redrawn.
        destinations: the destinations to evaluate, as indices into the bank.
    """

    bank: NDArray[Any]
    destinations: tuple[int, ...]


class _Forward:
    """``covered.forward`` runs all covers on the same inputs, with the base model's signature.

    Like any method it can be replaced on one instance, as accelerate does for mixed precision. In a
    copy of the model it is bound to the copy.
    """

    def __init__(self, base: Callable[..., Any] | None = None) -> None:
        self._base = base

    def __get__(self, covered: Covered | None, owner: Any = None) -> Any:
        if covered is None:
            return self

        def forward(covered: Covered, /, *args: Any, **kwargs: Any) -> Any:
            """Runs all covers on the same inputs: (B, ...) gives plain tensors (M, B, ...).

            It takes what the base model takes. Write ``mcover.cover_loss(loss, covered(x), y)``
            for the sum of the covers' losses. Without ``cover_loss``, ``F.cross_entropy`` raises an
            error of torch's about batch sizes, and ``F.mse_loss`` broadcasts: torch warns, and the
            result is the mean over covers, with gradients of 1/M of the size.
            """
            return _run(covered, args, kwargs)

        # The signature is computed when it is read, not in each call.
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
    if not (covered.training and covered.steps):  # the later steps of a training are as the first
        check_trainer()
    return covered._execution.forward(args, kwargs, each=False)


class Covered(CoverState):
    """What :func:`mcover.lift` returns: an input of shape (B, ...) gives outputs (M, B, ...).

    Several streams or destinations are joined along the batch: (M, S·B, ...), stream by stream.
    Tuples, dicts, dataclasses and other containers of outputs keep their form; every tensor in them
    has the covers first.

    Attributes:
        net: the base model's modules; lifted tensors are stacks, ``(M, *shape)``. It is never
            called: each cover runs on a private copy of it.
        settings: the options of the lift.
        lifted: names of the lifted parameters in ``net``.
        state: names of the buffers that each cover keeps for itself.
        seed: the seed of all routes.
        steps: training forwards so far.
        redraws: how often the routes were redrawn.
    """

    # Methods that are defined in other files.
    collapse, cover, ensemble = collapse, cover, ensemble
    report, save = report, save

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

        The arguments are those of the base model, every tensor with the covers first, (M, B, ...).
        In the message lift, cover α computes its messages from its own inputs; in the directed
        lift, context α reads the inputs of cover α.
        """
        count = len(self.held)
        trees.check_covers_first((args, kwargs), count, "each", "covered(x) for inputs")
        return self._execution.forward(args, kwargs, each=True)

    def loss(
        self,
        loss: Callable[[Any, Any], Any] | None,
        inputs: Any,
        target: Any = None,
        *,
        each: bool = False,
        scale: float = 1.0,
        through: Callable[..., Any] | None = None,
    ) -> Tensor:
        """The sum of a loss over covers, computed cover by cover; its backward sets the gradients.

        Value and gradients are those of ``cover_loss(loss, covered(x), target)``, but the
        activations of only one model are alive at a time. This call computes the gradients, and
        ``backward`` hands them to the parameters, once for each loss. Where only the value is
        wanted, call it under ``torch.no_grad()``. It works for the directed lift only: in the
        message lift covers meet in every layer, and cannot run one after the other.

        >>> import mcover, torch
        >>> from torch.nn import functional as F
        >>> covered = mcover.lift(torch.nn.Linear(4, 2), 3, mcover.Uniform(), "directed", seed=0)
        >>> x, y = torch.ones(5, 4), torch.zeros(5, dtype=torch.long)
        >>> covered.loss(F.cross_entropy, x, y).backward()
        >>> covered.net.weight.grad.shape
        torch.Size([3, 2, 4])

        Args:
            loss: a function of output and target; None for a model that computes its own loss.
            inputs: what the model takes: a tensor, a tuple of arguments, or a dict of named ones.
            target: what the loss takes, batch first, the same for all covers.
            each: whether each cover has its own inputs and target; then the covers come first in
                every tensor.
            scale: a factor of the losses before their backward, so that gradients in half precision
                do not underflow; ``scaler.scale(covered.loss(..., scale=scaler.get_scale()))``
                divides it out again.
            through: a module around the covered model that returns the model's outputs, such as
                DistributedDataParallel; it is called in place of the covered model.

        Raises:
            McoverError: the lift is by messages, or the loss does not fit.
        """
        if not self.is_directed:
            raise McoverError(
                "covered.loss runs cover by cover, and covers of the message lift meet in every "
                "layer that mixes; write cover_loss(loss, covered(x), target), or take "
                "routing='directed'."
            )
        if loss is not None:
            check_loss(loss, inputs, target)
        objective = Objective(
            loss,
            target,
            checks.check_bool("each", each),
            checks.check_float("scale", scale, above=0),
        )
        if each:
            count = len(self.held)
            trees.check_covers_first(inputs, count, "each=True", "each=False for inputs")
            if loss is not None:
                trees.check_covers_first(target, count, "each=True", "each=False for a target")
        args, named = (), {}
        if isinstance(inputs, dict):
            named = inputs
        else:
            args = inputs if isinstance(inputs, tuple) else (inputs,)
        if through is not None and not callable(through):
            raise McoverError(f"through is {through!r}; write a module around the covered model.")
        with self._execution.expect(objective) as expected:
            total: Tensor = (through or self)(*args, **named)
            if expected():
                raise McoverError(
                    "through did not call this covered model; write a module that holds it."
                )
        return total

    def next_routes(self) -> NextRoutes | None:
        """The routes of the next evaluation, for code that evaluates the model itself.

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
            destinations = self._next_destinations()
            return NextRoutes(self.routes, destinations) if self.is_directed else None

    def _next_destinations(self) -> tuple[int, ...]:
        """The destinations of :meth:`next_routes`, without its array of routes."""
        with self._execution.lock:
            step, number = self._advance()
            self._draw(number)
            return tuple(self._passes_of(step))

    def _cover_module(self, cover: int, values: Mapping[Tensor, Tensor]) -> nn.Module:
        return self._execution.copies.independent_copy(cover, values)
