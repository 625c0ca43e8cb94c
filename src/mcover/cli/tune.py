"""``mcover tune``: search a topology and a lift on held-out data, and test the winner once."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich.table

import mcover
from mcover import checks, statistics
from mcover.errors import McoverError
from mcover.files import write_atomic
from mcover.lab.engines import EngineOptions
from mcover.lab.figures.style import save
from mcover.lab.figures.tune import tune_figure
from mcover.lab.perceptron import Outcome, summarize
from mcover.lab.training.options import require
from mcover.lab.tune import NetworkSearch, PerceptronSearch, Tuning
from mcover.plain import to_plain
from mcover.progress import console, live_line
from mcover.statistics import Comparison, Estimate

_SHOWN = {
    "solved": ("solved", ".3f"),
    "tts_seconds": ("TTS99, core seconds", ".3g"),
    "tts_proposals": ("TTS99, proposals", ".3g"),
    "generalization_error": ("generalization error", ".4f"),
    "error": ("test error", ".4f"),
    "gradients": ("minibatch gradients", ",.0f"),
    "core_seconds": ("core seconds a run", ".3g"),
}
_KEPT = ("solved", "generalization_error", "proposals", "error", "gradients", "core_seconds")


@dataclass(frozen=True)
class Tune(EngineOptions):
    """Search topology, covers and the rest on held-out data; test the winner once, on fresh seeds.

    Stop it with Ctrl-C at any time: the same command goes on. The winner is a file that
    'mcover train', 'mcover anneal' (--config FILE) and mcover.lab.tune.read take.
    """

    search: PerceptronSearch | NetworkSearch
    """What is searched."""
    trials: int = 40
    """Candidates in all, with those of earlier runs."""
    seconds: float | None = None
    """Time of this run after which no candidate is started; none is no limit."""
    test_seeds: int = 20
    """Fresh seeds of the test."""
    seed: int = 0
    """Seed of the search."""
    output: Path = Path("out/tune")
    """Where to write: OUTPUT.json, the winner, OUTPUT.png, and OUTPUT.db, which keeps it all."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "trials", "test_seeds")
        checks.check_float_fields(self, "seconds", above=0, optional=True)
        checks.check_int("seed", self.seed, 0)
        if self.workers is not None:
            checks.check_int("workers", self.workers, 0)
        if not self.output.name:
            raise McoverError(f"output is {str(self.output)!r}; write a path without an ending.")
        for ending in ("json", "png", "db"):
            checks.check_writable(self._path(ending))

    def _path(self, ending: str) -> Path:
        return self.output.parent / f"{self.output.name}.{ending}"

    def run(self) -> None:
        require("optuna", "mcover tune", "tune")
        engine = self.make_engine()
        with live_line() as line:
            line.wait("loading")
            getattr(self.search.trial, "prepare", lambda: None)()
            with Tuning(self.search, self._path("db"), self.seed) as tuning:
                try:
                    tuning.run(engine, self.trials, self.seconds, line)
                    found = tuning.test(engine, self.test_seeds, line)
                except KeyboardInterrupt:
                    console.print("stopped; what is finished is kept, the same command goes on")
                    raise
                finally:
                    engine.shutdown()
                self._tell(tuning, found)

    def _tell(self, tuning: Tuning, found: dict[str, list[Outcome]]) -> None:
        search, best, first = self.search, tuning.best, tuning.defaults
        candidates, importances = tuning.candidates(), tuning.importances()
        self._print_search(tuning, importances)
        summaries = {name: _summary(of) for name, of in found.items()}
        each = {name: [search.each(one) for one in of] for name, of in found.items()}
        ours = each.pop("winner", None)
        paired = {name: statistics.paired(ours, of) for name, of in each.items() if ours}
        seed = tuning.first_test_seed()
        _print_test(summaries, paired, search.each_label, seed, self.test_seeds)
        for name, of in found.items():
            if failed := sum("failed" in one for one in of):
                console.print(f"{name}: {failed} of {len(of)} failed, which count as all wrong")
        plain = {
            "trial": to_plain(search.candidate(best.params)),
            "version": mcover.__version__,
            "search": to_plain(search) | {"seed": self.seed},
            "minimised": search.label,
            "values": {"winner": best.value, "defaults": first.value},
            "importances": importances,
            "candidates": [
                {"params": one.params, "value": one.value, "seeds": len(one.outcomes)}
                for one in candidates
            ],
            "test": {
                "seeds": [seed, self.test_seeds],
                "estimates": to_plain(summaries),
                "winner_minus": to_plain(paired),
                "outcomes": {
                    name: {key: [one.get(key) for one in of] for key in _KEPT if key in of[0]}
                    for name, of in found.items()
                },
            },
        }
        text = json.dumps(plain, indent=1, ensure_ascii=False)
        write_atomic(self._path("json"), (_short(text) + "\n").encode())
        title = f"{search.kind}: {len(candidates)} candidates, {search.seeds} paired seeds"
        figure = tune_figure(
            candidates, tuning.space, importances, search.label, title, (first, best)
        )
        console.print(f"picture: {save(figure, self._path('png'))}", markup=False)
        verb, call = "train", "mcover.lift(model, **{}.lift_options())"
        if isinstance(search, PerceptronSearch):
            verb, call = "anneal", "mcover.anneal(problem, **{}.anneal_options())"
        path = self._path("json")
        console.print(f"winner:  {path}, for mcover {verb} --config {path}", markup=False)
        console.print(f"         {call.format('tune.read(path)')}", markup=False)

    def _print_search(self, tuning: Tuning, importances: dict[str, float]) -> None:
        best, first, found = tuning.best, tuning.defaults, tuning.candidates()
        pruned = sum(not one.complete for one in found)
        table = rich.table.Table(show_edge=False, title_justify="left")
        table.title = f"{len(found)} candidates, {pruned} pruned"
        for name in ("option", "defaults", "winner", "importance"):
            table.add_column(name, justify="left" if name == "option" else "right")
        for name in tuning.space:
            share = f"{importances[name]:.0%}" if name in importances else "–"
            values = (_word(one.params.get(name)) for one in (first, best))
            table.add_row(name, *values, share)
        table.add_row(self.search.label, f"{first.value:.4g}", f"{best.value:.4g}", "")
        table.caption = (
            f"values of {self.search.seeds} paired seeds, by which the winner was chosen"
        )
        console.print(table)
        if best.params == first.params:
            console.print("nothing better than the defaults was found")


def _print_test(
    summaries: dict[str, dict[str, Estimate]],
    paired: dict[str, Comparison],
    label: str,
    seed: int,
    count: int,
) -> None:
    table = rich.table.Table(show_edge=False, title_justify="left")
    table.title = f"test, n = {count} fresh seeds, {seed} to {seed + count - 1}"
    table.add_column("figure")
    for name in summaries:
        table.add_column(name, justify="right")
    for figure in next(iter(summaries.values())):
        words, spec = _SHOWN[figure]
        cells = (f"{found[figure]:{spec}}".replace(" [", "\n[") for found in summaries.values())
        table.add_row(words, *cells)
    table.caption = "intervals are 95 %"
    console.print(table)
    for name, one in paired.items():
        console.print(
            f"winner minus {name}, {label}: {one.difference:.4g}, p = {one.p:.2g}", markup=False
        )


def _summary(outcomes: Sequence[Outcome]) -> dict[str, Estimate]:
    if "solved" in outcomes[0]:
        found = summarize(outcomes)
        names = [name for name in _SHOWN if name in found]
        return {name: found[name] for name in names}
    by_name = {
        n: [o[n] for o in outcomes if n in o] for n in ("error", "gradients", "core_seconds")
    }
    return {name: statistics.mean(values) for name, values in by_name.items() if values}


def _word(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    """JSON with the innermost lists and tables on one line each."""
    return re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda found: " ".join(found[0].split()), text)
