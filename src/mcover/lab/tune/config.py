"""The winner of a search as a file, which commands and functions read.

mcover train --config out/tune.json
mcover.lift(model, **mcover.lab.tune.read("out/tune.json").lift_options())
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcover.errors import McoverError
from mcover.lab.perceptron import PerceptronTrial
from mcover.lab.training import CommitteeTrial, Lifted, NetworkTrial
from mcover.plain import from_plain

AnyTrial = PerceptronTrial | NetworkTrial | CommitteeTrial


@dataclass(frozen=True)
class ConfigFile:
    """What a file says is to be done: its trial, with or without the rest of the experiment."""

    trial: AnyTrial
    path: Path

    def lift_options(self) -> dict[str, Any]:
        """Arguments of :func:`mcover.lift`: covers, topology, routing and noise.

        Where routes are redrawn after each epoch, ``redraw_every`` is the number of gradient steps
        that an epoch of the trial has.
        """
        if not isinstance(self.trial, NetworkTrial | CommitteeTrial):
            raise self._refusal("a lift", "mcover.anneal(problem, **config.anneal_options())")
        method = self.trial.method
        if not isinstance(method, Lifted):
            raise McoverError(f"{self.path} trains by {method.kind}, which is no lift; search one.")
        routing = method.routing
        if method.redraw_each_epoch:
            images = self.trial.images or len(self.trial.images_of(0).train_labels)
            routing = replace(routing, redraw_every=-(-images // self.trial.training.batch))
        found = {name: getattr(method, name) for name in ("covers", "topology", "noise")}
        return found | {"routing": routing}

    def anneal_options(self) -> dict[str, Any]:
        """Arguments of :func:`mcover.anneal`: method, schedule, rule and the like."""
        if not isinstance(self.trial, PerceptronTrial):
            raise self._refusal("an annealing", "mcover.lift(model, **config.lift_options())")
        return dict(vars(self.trial.options))

    def _refusal(self, what: str, instead: str) -> McoverError:
        return McoverError(
            f"{self.path} holds a {self.trial.kind}, which has no options of {what}; "
            f"write {instead}."
        )


def read(path: str | Path) -> ConfigFile:
    """A file that ``mcover tune`` or ``mcover train`` wrote.

    Raises:
        McoverError: it cannot be read, or it is no such file; the message says why.
    """
    file = Path(path)
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror or str(error)
        raise McoverError(f"cannot read the config {file}: {why}.") from error
    except ValueError as error:
        raise McoverError(f"the config {file} is not JSON: {error}.") from error
    if not isinstance(plain, dict) or "trial" not in plain:
        raise McoverError(
            f"the config {file} has no trial; give a file that 'mcover tune' or 'mcover train' "
            "wrote."
        )
    try:
        return ConfigFile(from_plain(AnyTrial, plain["trial"], "trial"), file)
    except McoverError as error:
        raise McoverError(f"the config {file} cannot be used: {error}") from error
