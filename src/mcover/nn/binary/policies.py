"""Policies that choose the signs of one model of ±1 weights from its covers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mcover import checks
from mcover.errors import McoverError
from mcover.nn.binary.signs import SignWeight, latents, weights_of
from mcover.nn.collapse import (
    check_loader,
    mean_over_covers,
    rebuilt,
    recalibrated,
    warn_of_statistics,
)
from mcover.nn.covered import Covered

Policy = Literal["latents", "signs", "best"]
Score = Callable[[Any, Any], Any]


def errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of wrong classes, by the largest of several outputs or the sign of one."""
    if outputs.ndim > 1 and outputs.shape[1] > 1:
        guessed = outputs.argmax(1)
    else:
        guessed = torch.where(outputs < 0, -1, 1).reshape(targets.shape)
        targets = torch.where(targets > 0, 1, -1)
    return (guessed != targets).double().mean()


def collapse(
    covered: Covered,
    policy: Policy = "latents",
    *,
    loader: Iterable[Any] | None = None,
    held_out: Iterable[Any] | None = None,
    score: Score = errors,
) -> nn.Module:
    """Collapses the covers of a binarized model to one, in evaluation mode.

    >>> import mcover
    >>> from mcover.nn import binary
    >>> student = binary.binarize(nn.Linear(3, 2))
    >>> covered = mcover.lift(student, 3, seed=0)
    >>> net = collapse(covered, "signs")
    >>> votes = [covered.cover(k).weight for k in range(3)]
    >>> torch.equal(net.weight, sum(votes).sign())
    True

    Args:
        covered: a lifted model of ``binarize``.
        policy: "latents" averages the latents over covers and uses their signs. "signs" uses the
            most frequent sign of the covers, or that of cover 0 in a tie; the size of a latent is
            the mean of the sizes. Both average all other parameters. "best" is the cover with the
            lowest score on held-out data, or the first of several.
        loader: training batches from which running statistics of batch-norms are recomputed, as in
            ``torch.optim.swa_utils.update_bn``. Without it they are those of the covers.
        held_out: batches of inputs and targets, for "best".
        score: a function of outputs and targets that returns a mean over the batch, lower is
            better; by default the share of wrong classes or, for a single output, of wrong signs.
    """
    checks.check_instance("covered", covered, Covered, "mcover.lift(binary.binarize(model), ...)")
    latents(covered)
    checks.check_choice("policy", policy, ("latents", "signs", "best"))
    if (held_out is None) == (policy == "best"):
        raise McoverError(
            "policy='best' needs held_out, batches of inputs and targets."
            if policy == "best"
            else f"held_out is for policy='best', and {policy!r} does not use it."
        )
    checks.check_callable("score", score, "a function of outputs and targets")
    for name, given in (("loader", loader), ("held_out", held_out)):
        if given is not None:
            check_loader(name, given)
        if isinstance(given, Iterator) and policy == "best":
            raise McoverError(f"{name} is read once for each cover; write a list or a DataLoader.")
    own = policy == "best" and not covered.settings.mixes  # then each cover has its own statistics
    if loader is None and not own:
        warn_of_statistics(covered)
    if policy == "best":
        nets = (recalibrated(covered.cover(k), loader) for k in range(covered.covers))
        return min(
            ((_scored(net, held_out, score), net) for net in nets), key=lambda pair: pair[0]
        )[1]
    hows = {latent: how for _, how, latent in weights_of(covered)} if policy == "signs" else {}
    of = {name: hows.get(stack) for name, stack in covered.stacks().items()}

    def value(name: str, stack: Tensor) -> Tensor:
        how = of.get(name)
        return mean_over_covers(stack) if how is None else _majority(how, stack)

    return recalibrated(rebuilt(covered, value), loader)


@torch.no_grad()
def _scored(net: nn.Module, held_out: Any, score: Score) -> float:
    """The mean score over held-out samples."""
    device = next(net.parameters()).device
    total, count = 0.0, 0
    for batch in held_out:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise McoverError("held_out takes batches (inputs, targets), e.g. of a DataLoader.")
        inputs, targets = (part.to(device) for part in batch)
        total += float(score(net(inputs), targets)) * len(targets)
        count += len(targets)
    if not count or total != total:
        raise McoverError(
            "held_out has no samples." if not count else "the score on held_out is not a number."
        )
    return total / count


def _majority(how: SignWeight, stack: Tensor) -> Tensor:
    """Latents with the most frequent sign of the covers; in a tie, with the sign of cover 0."""
    if bool((stack == stack[0]).all()):
        return stack[0]
    signs = how.signs(stack)
    values = torch.tensor([-1, 0, 1]).to(stack)
    votes = torch.stack([(signs == value).sum(0) for value in values])
    tied = (votes == votes.amax(0)).sum(0) > 1
    made = torch.where(tied, signs[0], values[votes.argmax(0)])
    if not how.ternary:
        return made * mean_over_covers(stack.abs())
    # All latents that are not 0 get the same size, so that none of them is below the threshold.
    return made * how.sizes(stack, signs).mean(0)
