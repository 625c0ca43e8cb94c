"""One setting for all families of the study `structured`: its choice and its cost.

The chosen setting has the least geometric mean, over families, of TTS99 in core seconds, on the
instances for comparing candidates. Its cost is measured on new instances: in each family, the ratio
of its TTS99 to that of the method's best setting for this family.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcover import statistics
from mcover.statistics import Estimate
from reproduction.families import ATTRACTING, FAMILIES, FROM, ONE, SETTINGS, STARTS, label_of
from reproduction.planted import Annealed, PlantedTrial
from reproduction.rows import Row, trial_id
from reproduction.study import Rows
from reproduction.summary import NOTHING, Point, Summary, Table, text


def score(rows: Sequence[Row]) -> float:
    """TTS99 in core seconds with half a success and half a failure added, so that it is finite."""
    cost = float(np.mean([row.outcome["core_seconds"] for row in rows]))
    share = (sum(row.outcome["solved"] for row in rows) + 0.5) / (len(rows) + 1)
    return cost * max(1.0, math.log(0.01) / math.log1p(-share))


def choose(settings: Iterable[Annealed], rows: Rows, seeds: Iterable[int]) -> Annealed:
    """The setting of least geometric mean over families; all settings have the same instances."""
    used = tuple(seeds)

    def mean(one: Annealed) -> float:
        ids = [trial_id(PlantedTrial(family, one)) for family in FAMILIES.values()]
        scores = [score([rows[name, seed] for seed in used]) for name in ids]
        return float(np.exp(np.mean(np.log(scores))))

    return min(settings, key=mean)


def farthest(settings: Iterable[Annealed], rows: Rows, seeds: Iterable[int]) -> dict[str, float]:
    """For each setting, the largest ratio over families of its TTS99 to the least of any setting.

    The default of the library is the setting for which this is least.
    """
    used = tuple(seeds)
    scores = {
        label_of(one): [
            score([rows[trial_id(PlantedTrial(family, one)), seed] for seed in used])
            for family in FAMILIES.values()
        ]
        for one in settings
    }
    least = np.min(list(scores.values()), axis=0)
    return {label: float(np.max(np.array(own) / least)) for label, own in scores.items()}


@dataclass(frozen=True)
class Cost:
    """Ratios of one setting's TTS99 in a family to those of settings that are best there."""

    family: str
    ratio: Estimate
    """To the method's own best setting."""
    to_best: Estimate
    """To the best setting of the best annealer."""


@lru_cache(maxsize=1)
def costs(summary: Summary) -> Mapping[tuple[str, str], list[Cost]]:
    """The costs of each method and kind of setting, in each family that has rows of both."""
    places = {(point.cell.panel, point.cell.series): point for point in summary.points}
    found: dict[tuple[str, str], list[Cost]] = {}
    for family in FAMILIES:
        own = {series: places.get((family, series)) for series in SETTINGS}
        present = {series: point for series, point in own.items() if point and point.rows}
        if not present:
            continue
        best = min(present.values(), key=lambda point: score(point.rows))
        for series, point in present.items():
            for how in ("one setting", "one temperature"):
                one = places.get((family, f"{series}, {how}"))
                if one and one.rows:
                    cost = Cost(family, _ratio(one, point), _ratio(one, best))
                    found.setdefault((series, how), []).append(cost)
    return found


def _ratio(one: Point, own: Point) -> Estimate:
    seeds = sorted(set(one.values) & set(own.values))

    def side(point: Point) -> tuple[list[bool], list[float]]:
        solved = {row.seed: row.outcome["solved"] > 0 for row in point.rows}
        return [solved[seed] for seed in seeds], [point.values[seed] for seed in seeds]

    return statistics.paired_time_to_solution(side(one), side(own)).difference


def table(summary: Summary) -> Table:
    """The largest ratio of each method, and its family."""
    lines = []
    for (series, how), every in costs(summary).items():
        # If neither solved anything, there is no ratio; the number of families shows this.
        of = [one for one in every if not math.isnan(one.ratio.value)]
        worst = max(of, key=lambda one: one.ratio.value)
        behind = max(of, key=lambda one: one.to_best.value)
        with np.errstate(divide="ignore", invalid="ignore"):  # ratios of 0 and inf have no mean
            middle = float(np.exp(np.mean(np.log([one.ratio.value for one in of]))))
        setting = next(
            point.cell.trial.solver  # type: ignore[attr-defined]
            for point in summary.points
            if point.cell.series == f"{series}, {how}"
        )
        lines.append(
            (
                *(series, label_of(setting), text(worst.ratio, ".3g"), worst.family),
                *(NOTHING if math.isnan(middle) else f"{middle:.3g}",),
                *(text(behind.to_best, ".3g"), behind.family, f"{len(of)}", str(worst.ratio.n)),
            )
        )
    header = (
        *("method", "setting", "largest ratio to its own best [95 % interval]", "where"),
        *("geometric mean of ratios", "largest ratio to the best annealer", "where"),
        *("families", "n"),
    )
    return Table("One setting for all", header, tuple(lines))


def overall(summary: Summary) -> Table:
    """Methods compared over all families: the geometric mean of their ratios of TTS99.

    The interval is a percentile bootstrap over the instances of each family, both methods together.
    """
    places = {(point.cell.panel, point.cell.series): point for point in summary.points}
    lines = []
    for end, how in (("", "own best"), (", one setting", "one setting")):
        for first, second in _PAIRS:
            names = [(family, f"{first}{end}", f"{second}{end}") for family in FAMILIES]
            sides = [
                (places[family, ours], places[family, theirs])
                for family, ours, theirs in names
                if (family, ours) in places and (family, theirs) in places
            ]
            pairs = [_paired(*both) for both in sides if both[0].rows and both[1].rows]
            if pairs:
                ratio = _geometric_mean(pairs)
                lines.append((f"{first} / {second}", how, text(ratio, ".3g"), str(ratio.n)))
    header = ("ratio of TTS99", "settings", "geometric mean over families [95 % interval]", "n")
    return Table("All families together", header, tuple(lines))


def by_family(summary: Summary) -> Table:
    """TTS99 in core seconds of each family, of some series side by side."""
    places = {(point.cell.panel, point.cell.series): point for point in summary.points}
    present = [one for one in _SHOWN if any(series == one for _, series in places)]
    lines = []
    for family in dict.fromkeys(family for family, _ in places):
        points = [places.get((family, series)) for series in present]
        found = [text(one.value, ".2g") if one and one.rows else NOTHING for one in points]
        lines.append((family, *found, str(max(len(one.rows) for one in points if one))))
    return Table(BY_FAMILY, ("family", *present, "n, at most"), tuple(lines))


def temperatures(summary: Summary) -> Table:
    """TTS99 of the default setting from several temperatures, and what the automatic one costs.

    The ratio is to the least of the line. It is selected on the same instances, which favours it.
    """
    places = {(point.cell.panel, point.cell.series): point for point in summary.points}
    lines = []
    for family in FAMILIES:
        points = [places.get((family, series)) for series in FROM]
        if all(one and one.rows for one in points):
            tried = [score(one.rows) for one in points if one]
            ratio = tried[STARTS.index(ONE[ATTRACTING].start)] / min(tried)
            n = min(len(one.rows) for one in points if one)
            lines.append((family, *(f"{one:.2g}" for one in tried), f"{ratio:.2f}", str(n)))
    header = ("family", *(f"from {start:g} T₀" for start in STARTS), "automatic / least", "n")
    return Table(TEMPERATURES, header, tuple(lines))


def tables(summary: Summary) -> tuple[Table, ...]:
    """All of them, in the order of the page."""
    return overall(summary), table(summary), temperatures(summary), by_family(summary)


TEMPERATURES = (
    "TTS99 in core seconds of attracting covers at one setting, from several temperatures"
)


BY_FAMILY = "TTS99 in core seconds [95 % interval]"
_SHOWN = (
    *(f"{ATTRACTING}, one setting", ATTRACTING, "M-cover", "RSA", "vanilla"),
    *("message passing", "expectation propagation", "HiGHS, 10 s", "CP-SAT, 10 s"),
)


_PAIRS = (
    (ATTRACTING, "M-cover"),
    (ATTRACTING, "RSA"),
    ("M-cover", "RSA"),
    (ATTRACTING, "vanilla"),
)
_RESAMPLES = 2000


def _paired(first: Point, second: Point) -> NDArray[np.float64]:
    """Solved and core seconds of both methods on their common instances, shape (2, 2, n)."""
    seeds = sorted(set(first.values) & set(second.values))
    found = []
    for point in (first, second):
        kept = {row.seed: row.outcome for row in point.rows}
        found.append([[kept[seed][name] for seed in seeds] for name in ("solved", "core_seconds")])
    return np.array(found)


def _geometric_mean(pairs: Sequence[NDArray[np.float64]]) -> Estimate:
    """Of ratios of `score`; n counts the instances of all families."""
    rng = np.random.default_rng(0)
    drawn, value = np.zeros(_RESAMPLES), 0.0
    for both in pairs:
        n = both.shape[-1]
        counts = rng.multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
        value += _log_ratio(both.sum(axis=-1), n)
        drawn += _log_ratio(np.moveaxis(both @ counts.T, -1, 0), n)
    low, high = np.exp(np.quantile(drawn, (0.025, 0.975)) / len(pairs))
    total = sum(both.shape[-1] for both in pairs)
    return Estimate(math.exp(value / len(pairs)), float(low), float(high), total)


def _log_ratio(sums: NDArray[np.float64], n: int) -> Any:
    """From sums over n instances of (solved, core seconds) of both methods, shape (..., 2, 2)."""
    shares = (sums[..., 0] + 0.5) / (n + 1)
    logs = np.log(sums[..., 1]) + np.log(np.maximum(1, math.log(0.01) / np.log1p(-shares)))
    return logs[..., 0] - logs[..., 1]
