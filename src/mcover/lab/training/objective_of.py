"""Which objective a model is trained by."""

from __future__ import annotations

from torch import nn

from mcover.lab.committee.machine import CommitteeMachine
from mcover.lab.training.committee_objective import CommitteeObjective
from mcover.lab.training.objectives import Objective, is_covered


def objective_of(model: nn.Module) -> Objective:
    """Committee machines have their own objective, and so may any module; else cross-entropy.

    A module that brings its objective has a method ``objective(model)``, where ``model`` is the
    module itself or covers of it.
    """
    base = getattr(model, "net", model) if is_covered(model) else model
    if isinstance(base, CommitteeMachine):
        return CommitteeObjective(model)
    own = getattr(base, "objective", None)
    return own(model) if callable(own) else Objective(model)
