"""The search: Optuna asks and is told, an engine of the studies runs, a file keeps all of it.

Every candidate meets the same seeds, one after the other, as the steps of an Optuna trial; a
Wilcoxon test of these pairs gives it up once the best one is surely better. The test that follows
has seeds of its own.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcover import checks
from mcover.errors import McoverError
from mcover.lab.perceptron import Outcome
from mcover.lab.studies.rows import Row, config_of
from mcover.lab.studies.runner import Engine, Progress
from mcover.lab.training.options import require
from mcover.lab.tune.spaces import Params, Range, Search, tidy
from mcover.plain import to_plain
from mcover.seeds import seed_sequence

FIRST_SEED = 10_000
"""Of the search; no study has such seeds."""
FIRST_TEST_SEED = 20_000
"""Of the first test; a test of another winner has seeds of its own again."""
_POLL_SECONDS = 0.5
_QUANTILE = 0.25  # importance: what it takes to be among this share of the candidates


@dataclass(frozen=True)
class Candidate:
    """What the search tried."""

    number: int
    params: Params
    value: float | None
    """What is minimised; None where the trial refused its settings."""
    outcomes: tuple[Outcome, ...]
    """Of the seeds that it met."""
    complete: bool
    """Whether it met all of them, instead of being pruned."""
    first: bool
    """Whether it is the trial that the search began with."""
    message: str = ""
    """Why it was refused."""


class Tuning:
    """A search and the file that keeps it; what a second run finds there is not done again.

    Only one run at a time has a file. Use it as a context::

        with Tuning(PerceptronSearch(), "out/tune.db") as tuning:
            tuning.run(Processes(), trials=40)
            print(tuning.best.params)
    """

    def __init__(self, search: Search, path: str | Path, seed: int = 0) -> None:
        require("optuna", "mcover tune", "tune")
        self.search, self.path, self.seed = search, Path(path), seed
        self.space = search.space()

    def __enter__(self) -> Tuning:
        checks.check_writable(self.path).parent.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self._lock_file)
        try:
            self._study = self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._lock_file.unlink()
        self._lock.close()

    @property
    def _lock_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}-lock")

    def _open(self) -> Any:
        """The study of the file, with what was in flight put back in front of the queue."""
        import optuna
        from sqlalchemy import URL
        from sqlalchemy.exc import SQLAlchemyError

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # A Ctrl-C that meets its pool at work is logged with a traceback, and heeded all the same.
        logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
        url = URL.create("sqlite", database=str(self.path))
        # TPE in groups, and the pruner, are marked as experimental; what they do is meant.
        with warnings.catch_warnings(
            action="ignore", category=optuna.exceptions.ExperimentalWarning
        ):
            pruner = optuna.pruners.WilcoxonPruner(p_threshold=self.search.prune)
            try:
                study = optuna.create_study(
                    storage=url.render_as_string(hide_password=False),
                    study_name="mcover tune",
                    pruner=pruner,
                    load_if_exists=True,
                )
            except (SQLAlchemyError, RuntimeError) as error:
                why = str(error).partition("\n")[0]
                raise McoverError(
                    f"{self.path} is no file of mcover tune ({why}); write another output."
                ) from error
            begun = len(study.get_trials(deepcopy=False))
            # Another seed for each run: the draws of the last one are not to come again.
            drawn = seed_sequence([self.seed, begun]).generate_state(1)
            study.sampler = optuna.samplers.TPESampler(
                multivariate=True, group=True, constant_liar=True, seed=int(drawn[0])
            )
        asked = to_plain(self.search)
        kept = study.user_attrs.get("search")
        if kept not in (None, asked):
            names = ", ".join(sorted(_differing(kept, asked)))
            raise McoverError(
                f"{self.path} is of another search: {names} differs; write the command as it was, "
                "or another output."
            )
        study.set_user_attr("search", asked)
        states = optuna.trial.TrialState
        for left in study.get_trials(states=(states.RUNNING,)):  # by a run that was stopped
            study.tell(left.number, state=states.FAIL)
            whole = all(n in left.params for n in self.space if self.search.applies(n, left.params))
            if whole and not left.user_attrs.get("first"):
                study.enqueue_trial(left.params)
        there = study.get_trials(states=(states.COMPLETE, states.WAITING))
        if not any(one.user_attrs.get("first") for one in there):
            study.enqueue_trial(self.search.first(), user_attrs={"first": True})
        return study

    def run(
        self,
        engine: Engine,
        trials: int,
        seconds: float | None = None,
        tell: Progress | None = None,
    ) -> None:
        """Searches until there are so many candidates in all, or no time is left to start another.

        Candidates in flight then still come to their end.

        Raises:
            McoverError: the trial that the search begins with is refused.
        """
        begin = time.monotonic()
        flying: dict[Future[Row], _Flight] = {}
        while True:
            found, spent = self.candidates(), time.monotonic() - begin
            if tell is not None:
                seeds = sum(len(one.outcomes) for one in flying.values())
                share = (len(found) + seeds / self.search.seeds) / trials
                tell(min(max(share, spent / (seconds or math.inf)), 1.0), _words(found, trials))
            in_time = seconds is None or spent < seconds or not found
            room = min(engine.workers, trials - len(found)) if in_time else 0
            while len(flying) < room:
                one = self._ask()
                flying[engine.submit(one.trial, FIRST_SEED)] = one
            if not flying:
                return
            for future in wait(flying, _POLL_SECONDS, FIRST_COMPLETED).done:
                one = flying.pop(future)
                seed = self._step(one, future.result())
                if seed is not None:
                    flying[engine.submit(one.trial, seed)] = one

    def _ask(self) -> _Flight:
        asked, params = self._study.ask(), dict[str, Any]()
        for name, room in self.space.items():
            if not self.search.applies(name, params):
                continue
            if isinstance(room, tuple):
                params[name] = asked.suggest_categorical(name, room)
            elif isinstance(room, Range) and room.whole:
                ends = int(room.low), int(room.high)
                params[name] = asked.suggest_int(name, *ends, log=room.log)
            else:
                params[name] = asked.suggest_float(name, room.low, room.high, log=room.log)
        return _Flight(asked, self.search.tried(self.tidied(params)))

    def tidied(self, params: Params) -> Params:
        """Without digits that mean nothing, but for those of the trial itself."""
        first = self.search.first()
        return {n: of if of == first.get(n) else tidy(of) for n, of in params.items()}

    def _step(self, one: _Flight, row: Row) -> int | None:
        """Tells what a seed gave; returns the next one, or None where the candidate is done."""
        import optuna

        states, asked = optuna.trial.TrialState, one.asked
        if row.status == "failed":
            if asked.user_attrs.get("first"):
                raise McoverError(f"the trial that the search begins with fails: {row.message}")
            asked.set_user_attr("message", row.message)
            self._study.tell(asked, state=states.PRUNED)  # the sampler ranks it last
            return None
        one.outcomes.append(dict(row.outcome))
        asked.set_user_attr("outcomes", one.outcomes)
        asked.report(self.search.each(one.outcomes[-1]), len(one.outcomes))
        value = self.search.total(one.outcomes)
        if len(one.outcomes) == self.search.seeds:
            asked.set_user_attr("complete", True)
            self._study.tell(asked, value)
            return None
        if self.search.prune and asked.should_prune():
            # As the pruner's manual has it, a pruned candidate counts with its value so far; which
            # must not be the best, since it is of fewer seeds.
            best = math.nextafter(self._study.best_value, math.inf)
            self._study.tell(asked, max(value, best))
            return None
        return FIRST_SEED + len(one.outcomes)

    def candidates(self) -> list[Candidate]:
        """All that came to an end, in the order of their beginning."""
        import optuna

        states = optuna.trial.TrialState
        return [
            Candidate(
                one.number,
                self.tidied(one.params),
                one.value if one.state == states.COMPLETE else None,
                tuple(one.user_attrs.get("outcomes", ())),
                one.user_attrs.get("complete", False),
                one.user_attrs.get("first", False),
                one.user_attrs.get("message", ""),
            )
            for one in self._study.get_trials(
                deepcopy=False, states=(states.COMPLETE, states.PRUNED)
            )
        ]

    @property
    def best(self) -> Candidate:
        """The candidate of least value among those that met all seeds; of equals, the first."""
        complete = [one for one in self.candidates() if one.complete]
        if not complete:
            raise McoverError(f"{self.path} has no candidate that met all seeds; search on.")
        return _best(complete)

    @property
    def defaults(self) -> Candidate:
        """The trial that the search began with."""
        return next(one for one in self.candidates() if one.first)

    def importances(self) -> dict[str, float]:
        """What it takes to be among the best quarter, by PED-ANOVA; the shares sum to 1."""
        import optuna

        if sum(one.value is not None for one in self.candidates()) < 8:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_QUANTILE)
        with warnings.catch_warnings(action="ignore"):
            return optuna.importance.get_param_importances(self._study, evaluator=evaluator)

    def test(
        self, engine: Engine, seeds: int, tell: Progress | None = None
    ) -> dict[str, list[Outcome]]:
        """The winner, and what it is compared with, on fresh seeds and on the data of a test.

        Outcomes by name, seed by seed. A test of the same winner is not run again; one of another
        winner has other seeds.
        """
        winner = self.best
        trials = {"winner": self.search.candidate(winner.params)}
        if winner.params == self.defaults.params:
            trials = {}
        trials |= self.search.rivals(winner.params)
        trials = {name: self.search.tested(trial) for name, trial in trials.items()}
        first = self.first_test_seed()
        wanted = [(n, s) for s in range(first, first + seeds) for n in trials]
        keys = {(n, s): f"test {config_of(trials[n])} {s}" for n, s in wanted}
        flying: dict[Future[Row], tuple[str, int]] = {}
        while True:
            kept = self._study.user_attrs
            done = sum(key in kept for key in keys.values())
            if tell is not None:
                tell(done / len(wanted), f"test: {done}/{len(wanted)} runs")
            missing = [one for one in wanted if keys[one] not in kept]
            if not missing:
                return {n: [kept[keys[m, s]] for m, s in wanted if m == n] for n in trials}
            for name, seed in missing:
                if len(flying) < engine.workers and (name, seed) not in flying.values():
                    flying[engine.submit(trials[name], seed)] = name, seed
            for future in wait(flying, _POLL_SECONDS, FIRST_COMPLETED).done:
                row, one = future.result(), flying.pop(future)
                outcome = dict(row.outcome) or self.search.failed
                if not outcome:
                    raise McoverError(f"the test of the {one[0]} fails: {row.message}")
                self._study.set_user_attr(keys[one], outcome)

    def first_test_seed(self) -> int:
        """Where the fresh seeds of this winner begin."""
        tested: list[Any] = list(self._study.user_attrs.get("tested", ()))
        number = self.best.number
        if number not in tested:
            tested.append(number)
            self._study.set_user_attr("tested", tested)
        return FIRST_TEST_SEED + 10_000 * tested.index(number)


@dataclass
class _Flight:
    """A candidate on its way."""

    asked: Any
    trial: Any
    outcomes: list[Outcome] = field(default_factory=list)


def _words(found: Sequence[Candidate], trials: int) -> str:
    """How far a search is."""
    complete = [one for one in found if one.complete]
    text = f"{len(found)}/{trials} trials, {len(found) - len(complete)} pruned"
    if not complete:
        return text
    first = next((one.value for one in complete if one.first), None)
    return f"{text}, {_best(complete).value:.3g} from {first or math.nan:.3g}"


def _best(complete: Sequence[Candidate]) -> Candidate:
    return min(complete, key=lambda one: one.value or 0.0)


def _lock(path: Path) -> sqlite3.Connection:
    """Keeps other runs away from a file for as long as it is open, or this process lives."""
    lock = sqlite3.connect(path, timeout=0, isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        lock.close()
        raise McoverError(
            f"{path} is held by another run ({error}); wait for it, or write another output."
        ) from error
    return lock


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Names of the fields in which two plain values differ, the innermost ones."""
    for name in {**one, **other}:
        a, b = one.get(name), other.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differing(a, b)
        elif a != b:
            yield name
