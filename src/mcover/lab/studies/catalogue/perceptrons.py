"""Studies of the ±1 perceptron: Figures 2(a, b), 3 and 5, and what else there is to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcover.lab.studies.catalogue.parts import (
    PAPER_ALPHA,
    SMOKE_ALPHA,
    TABLE_1_RING,
    perceptron,
    routed,
    rsa,
    vanilla,
)
from mcover.lab.studies.cells import Cell
from mcover.lab.studies.kinds import PlainTrial
from mcover.lab.studies.published import PERCEPTRON, TABLE_1
from mcover.lab.studies.study import Study
from mcover.topology import GaussianRing, Uniform

_A, _B = "(a) more covers", "(b) against replicas"


def _loading(alphas: Sequence[float], covers: Sequence[int], trials: int, **how: Any) -> Any:
    smoke = how.get("smoke", False)
    cells = []
    for alpha in alphas:
        lines = [(_A, "vanilla", vanilla())]
        lines += [(_A, f"M-cover M={m}", routed(m)) for m in covers]
        lines += [(_B, "vanilla", vanilla()), (_B, "RSA M=3", rsa(3))]
        lines += [(_B, "M-cover M=3", routed(3, TABLE_1_RING))]
        for panel, series, options in lines:
            known = TABLE_1[PERCEPTRON, series] if panel == _B and alpha == PAPER_ALPHA else None
            cells.append(
                Cell(
                    PlainTrial("perceptron", perceptron(options, alpha=alpha, **how)),
                    series,
                    panel,
                    x=alpha,
                    trials=trials,
                    published=None if smoke else known,
                )
            )
    return tuple(cells)


LOADING = Study(
    name="loading",
    title="Generalization error of the ±1 perceptron against the load",
    source="Figure 2(a, b)",
    about=(
        "N = 1000, the paper's schedule, bank S = 10. (a): σ = 1.5, shift = 2, the paper's "
        "defaults; (b): RSA with γ = 1 and M-cover as in Table 1, σ = 3, shift = 2. The paper "
        "sweeps α from 1.2 to 1.9 and does not say in which steps, nor which M."
    ),
    cells={
        "smoke": _loading((1.2, 3.0), (3,), 2, smoke=True),
        "quick": _loading((1.3, 1.5, 1.58, 1.7), (3, 5), 5),
        "paper": _loading((1.2, 1.3, 1.4, 1.5, 1.58, 1.7, 1.8, 1.9), (3, 5, 7), 20),
    },
    contrasts=(
        ("M-cover M=3", "vanilla"),
        ("M-cover M=3", "RSA M=3"),
        ("M-cover M=5", "M-cover M=3"),
        ("M-cover M=7", "M-cover M=3"),
    ),
    x_label="load α = P/N",
)


def _topology(
    sigmas: Sequence[float],
    shifts: Sequence[float],
    covers: Sequence[int],
    trials: int,
    **how: Any,
) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            PlainTrial(
                "perceptron", perceptron(routed(m, GaussianRing(sigma, shift), bank=4), **how)
            ),
            f"M={m}",
            f"shift μ = {shift:g}",
            x=sigma,
            trials=trials,
        )
        for shift in shifts
        for m in covers
        for sigma in sigmas
    )


TOPOLOGY = Study(
    name="perceptron-topology",
    title="Generalization error of the ±1 perceptron against the width of the ring",
    source="Figure 3",
    about=(
        "N = 1000, α = 1.58, the paper's schedule. Bank S = 4 where the paper has 10: half the "
        "time, and no loss that 200 paired trials at M = 3 could show (0.0262 against 0.0247; with "
        "S = 2 it is 0.0323). The paper does not give its grid of σ, μ and M."
    ),
    cells={
        "smoke": _topology((0.5, 2.0), (0, 2), (3, 5), 2, smoke=True, alpha=SMOKE_ALPHA),
        "quick": _topology((0.5, 1.5, 6.0), (0, 2), (3, 5), 5),
        "paper": _topology((0.5, 1.0, 1.5, 2.0, 3.0, 6.0), (0, 1, 2, 3), (3, 5, 7), 15),
    },
    contrasts=(("M=5", "M=3"), ("M=7", "M=3")),
    x_label="ring width σ",
    x_log=True,
)


def _covers(covers: Sequence[int], trials: int, **how: Any) -> tuple[Cell, ...]:
    topologies = {"structured": GaussianRing(1.5, 2), "uniform": Uniform()}
    return tuple(
        Cell(
            PlainTrial(
                "perceptron", perceptron(vanilla() if m == 1 else routed(m, topology), **how)
            ),
            f"{name} routing",
            x=m,
            trials=trials,
        )
        for name, topology in topologies.items()
        for m in covers
    )


COVERS = Study(
    name="covers",
    title="Generalization error of the ±1 perceptron against the number of covers",
    source="Figure 5",
    about=(
        "N = 1000, α = 1.58, the paper's schedule, bank S = 10. Structured is a ring with "
        "σ = 1.5, shift = 2; uniform is σ → ∞. One cover is plain annealing."
    ),
    cells={
        "smoke": _covers((1, 3), 2, smoke=True, alpha=SMOKE_ALPHA),
        "quick": _covers((1, 3, 5), 5),
        "paper": _covers((1, 2, 3, 4, 5, 6, 7, 8, 9), 20),
    },
    contrasts=(("structured routing", "uniform routing"),),
    x_label="covers M",
)


def _variants(covers: Sequence[int], banks: Sequence[int], trials: int, **how: Any) -> Any:
    plain: dict[str, dict[str, Any] | None] = {
        "vanilla": vanilla(),
        "RSA M=3": rsa(3),
        "M-cover M=3": routed(3, TABLE_1_RING),
        "message passing": None,
    }
    more = {f"M-cover M=3, S={s}": routed(3, TABLE_1_RING, bank=s) for s in banks}
    more |= {f"M-cover M={m}, σ=1.5": routed(m) for m in covers}
    odd = (how["n"] if how.get("smoke") else 1000) + 1
    groups: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        (PERCEPTRON, {}, plain | more),
        ("N odd: no ties", {"n": odd}, plain),
        ("ties +1", {"ties": "plus"}, plain),
    ]
    return tuple(
        Cell(
            PlainTrial(
                "perceptron" if options else "message-passing",
                _settings(options, **{**how, **changed}),
            ),
            series,
            panel,
            trials=trials,
            published=None
            if how.get("smoke") or panel != PERCEPTRON
            else TABLE_1.get((panel, series)),
        )
        for panel, changed, lines in groups
        for series, options in lines.items()
    )


def _settings(options: dict[str, Any] | None, **how: Any) -> dict[str, Any]:
    whole = perceptron(options or {}, **how)
    return whole if options else {name: whole[name] for name in ("n", "alpha", "ties")}


VARIANTS = Study(
    name="perceptron-variants",
    title="What the perceptron's outcome owes to banks, covers and ties, and where the limit lies",
    source="beyond Table 1",
    about=(
        "α = 1.58, the paper's schedule. At N = 1000 the teacher is undecided on one pattern in "
        "forty; they are drawn again, or labelled +1, or ruled out by N = 1001. Message passing "
        "knows the model and needs no annealing."
    ),
    cells={
        "smoke": _variants((5,), (2,), 2, smoke=True, n=40, alpha=SMOKE_ALPHA),
        "quick": _variants((5,), (2,), 5),
        "paper": _variants((5, 7, 9), (2, 4), 100),
    },
    contrasts=(
        ("M-cover M=3", "vanilla"),
        ("M-cover M=3", "RSA M=3"),
        ("M-cover M=3", "M-cover M=3, S=2"),
        ("M-cover M=3", "M-cover M=3, S=4"),
        ("M-cover M=5, σ=1.5", "M-cover M=3"),
        ("M-cover M=7, σ=1.5", "M-cover M=3"),
        ("M-cover M=9, σ=1.5", "M-cover M=3"),
    ),
    picture="outcomes",
)
