"""Draws the figures of "The idea in pictures": ``python docs/figures.py``, into docs/figures/.

Colours in the SVG files are CSS variables, which the page sets for its light and dark themes. The
value after the comma, ``var(--ink, #222222)``, is the colour outside of such a page.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Polygon, Rectangle
from matplotlib.path import Path as Curve

import mcover
from reproduction.rows import read_csv

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # reproduction is not installed

from reproduction.figures import COLOURS  # noqa: E402

INK, RULE, PAPER = "#222222", "#bbbbbb", "#fffffe"
COVERS = [COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[3]]
# Positions at which a figure may be divided, as shares of its width; on a phone the parts are
# stacked.
CUTS = {"covers": (1 / 3, 2 / 3), "law": (0.355, 0.68), "cycle": (0.43,), "lifts": (0.5,)}
ROUTES = np.array([[0, 1, 2], [1, 2, 0], [2, 1, 0], [0, 2, 1]])  # of four sources, over 3 covers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=HERE / "figures")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for draw in (covers, law, cycle, lifts, outcome):
        figure, label = draw()
        text = inline_svg(figure, draw.__name__, label, CUTS.get(draw.__name__, ()))
        for number, colour in enumerate(COLOURS):
            text = text.replace(f"var(--s{number})", f"var(--s{number}, {colour})")
        for name, colour in {"ink": INK, "rule": RULE}.items():
            text = text.replace(f"var(--{name})", f"var(--{name}, {colour})")
        text = text.replace(PAPER, "var(--paper, #ffffff)")
        text = text.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
        text = re.sub(r" xmlns:xlink=\"[^\"]*\"", "", text)
        (folder / f"{draw.__name__}.svg").write_text(text + "\n", encoding="utf-8")


def inline_svg(figure: Figure, name: str, label: str, cuts: tuple[float, ...]) -> str:
    """Converts a figure to SVG for use inside a page, whose style sheet sets colours and fonts.

    Args:
        figure: what to draw.
        name: of the figure, unique on the page: identifiers begin with it.
        label: what the figure shows, in words.
        cuts: where a narrow page may divide it, as shares of its width.
    """
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True)
    text = file.getvalue()
    for number, colour in enumerate(COLOURS):
        text = text.replace(colour.lower(), f"var(--s{number})")
    text = re.sub(r"#([0-9a-f]{2})\1\1\b", _grey, text)
    text = re.sub(r"font: ([^;\"]*?)\d+px [^;\"]*", _font, text)
    root = ElementTree.fromstring(re.sub(r">\s+<", "><", text))
    used = set(re.findall(r"#([\w-]+)", text))
    for parent in root.iter():
        parent.tag = parent.tag.rpartition("}")[2]
        parent.attrib = {key.rpartition("}")[2]: of for key, of in parent.attrib.items()}
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)  # a style sheet in here would apply to the whole page
        _adapt(parent, name, used)
    size = {"viewBox": root.attrib["viewBox"]}
    root.attrib = size | {"class": "plot", "role": "img", "aria-label": label}
    if cuts:
        root.attrib["data-cuts"] = " ".join(f"{cut:.4f}" for cut in cuts)
    return ElementTree.tostring(root, encoding="unicode", method="html")


def _adapt(element: ElementTree.Element, name: str, used: set[str]) -> None:
    """Makes the identifiers that are referred to unique, drops the others, and rounds numbers."""
    own = element.attrib.pop("id", "")
    if own in used:
        element.attrib["id"] = f"{name}-{own}"
    for key, value in element.attrib.items():
        if key in ("href", "clip-path"):
            element.attrib[key] = value.replace("#", f"#{name}-")
        elif key in ("d", "x", "y", "transform"):  # hundredths of a point halve the file
            element.attrib[key] = re.sub(r"(\.\d\d)\d+", r"\1", value)


def _grey(found: re.Match[str]) -> str:
    return "var(--ink)" if int(found[1], 16) < 128 else "var(--rule)"


def _font(found: re.Match[str]) -> str:
    size = re.search(r"\d+px", found[0])
    italic = "; font-style: italic" if "italic" in found[1] else ""
    return f"font-size: {size[0] if size else 'inherit'}{italic}"


def covers() -> tuple[Figure, str]:
    """One model, three covers of it, and the same covers routed."""
    figure, panels = _panels(3, (9.0, 3.4))
    straight = np.tile(np.arange(3), (4, 1))
    for axes, title, note, count, routes in (
        (panels[0], "one model", "a unit reads four weights", 1, straight),
        (panels[1], "three covers", "three independent models", 3, straight),
        (panels[2], "three routed covers", "each weight is read from some cover,\n"
         "and every copy is read exactly once", 3, ROUTES),
    ):  # fmt: skip
        _sheets(axes, count, routes)
        axes.text(2.1, 4.35, title, ha="center", va="bottom", size=13, weight="bold", color=INK)
        axes.text(2.1, -0.62, note, ha="center", va="top", size=10.5, color=INK)
        axes.set(xlim=(-0.75, 4.75), ylim=(-1.35, 4.8))
    return figure, (
        "Left: one model, a unit that reads four weights. Middle: three copies of it, one above "
        "the other. Right: the same copies, with wires that cross between them, so that each unit "
        "reads its weights from different copies."
    )


def _sheets(axes: Axes, count: int, routes: np.ndarray) -> None:
    """Covers as sheets in perspective, with four weights and one unit on each."""
    levels = [1.75] if count == 1 else [0.2, 1.75, 3.3]
    for level, colour in zip(levels, COVERS, strict=False):
        corners = [(-0.6, -0.42), (3.75, -0.42), (4.6, 0.62), (0.25, 0.62)]
        sheet = Polygon([(x, y + level) for x, y in corners], facecolor=colour, alpha=0.12, lw=0)
        axes.add_patch(sheet)
    source = [(0.1 + 0.27 * j, 0.26 * j - 0.36) for j in range(4)]
    for alpha, level in enumerate(levels):
        unit = np.array([3.55, level + 0.1])
        for j, (x, y) in enumerate(source):
            read = int(routes[j, alpha]) if count > 1 else 0
            start = np.array([x, levels[read] + y])
            _wire(axes, start, unit, COVERS[read])
        axes.add_patch(
            Rectangle(unit - 0.2, 0.4, 0.4, facecolor=PAPER, edgecolor=INK, lw=1.3, zorder=4)
        )
        for x, y in source:
            at, colour = (x, level + y), COVERS[alpha]
            axes.add_patch(Circle(at, 0.13, facecolor=colour, edgecolor=PAPER, lw=1, zorder=5))


def _wire(axes: Axes, start: np.ndarray, end: np.ndarray, colour: str, width: float = 1.6) -> None:
    pull = np.array([0.45 * (end[0] - start[0]), 0.0])
    curve = Curve([start, start + pull, end - pull, end], [1, 4, 4, 4])
    axes.add_patch(FancyArrowPatch(path=curve, arrowstyle="-", color=colour, lw=width, zorder=3))


def law() -> tuple[Figure, str]:
    """Kernels of three widths, and routes drawn from the law of each."""
    figure = Figure(figsize=(9.0, 3.9))
    width, m = 0.255, 5
    choices = (
        ("a narrow ring", mcover.GaussianRing(0.6), "σ = 0.6: few wires cross"),
        ("a wider ring", mcover.GaussianRing(1.5), "σ = 1.5: mostly adjacent covers"),
        ("uniform", mcover.Uniform(), "all permutations equally likely"),
    )
    for number, (title, topology, note) in enumerate(choices):
        left = 0.04 + 0.325 * number
        kernel = figure.add_axes((left + 0.055, 0.50, width - 0.11, 0.36))
        matrix = topology.matrix(m)
        for alpha in range(m):
            for beta in range(m):
                share = float(matrix[alpha, beta] / 0.5)
                cell = (beta + 0.06, alpha + 0.06)
                colour, shade = COVERS[0], 0.08 + 0.92 * min(share, 1.0)
                kernel.add_patch(Rectangle(cell, 0.88, 0.88, facecolor=colour, alpha=shade, lw=0))
        kernel.set(xlim=(0, m), ylim=(m, 0), aspect="equal", xticks=[], yticks=[])
        kernel.set_title(title, size=13, weight="bold", color=INK, pad=6)
        if number == 0:
            kernel.set_ylabel("reads (α)", size=10, color=INK)
            kernel.set_xlabel("is read (β)", size=10, color=INK)
        wires = figure.add_axes((left, 0.10, width, 0.30))
        for draw, route in enumerate(mcover.permutations.sample(matrix, 3, seed=21)):
            _route(wires, 1.55 * draw, route)
        wires.set(xlim=(-0.15, 4.25), ylim=(m - 0.5, -0.6))
        figure.text(left + width / 2, 0.035, note, ha="center", size=10.5, color=INK)
        for axes in (kernel, wires):
            axes.spines[:].set_visible(False)
        wires.set_axis_off()
    figure.text(0.012, 0.68, "kernel Q", rotation=90, va="center", size=11, color=INK)
    figure.text(0.012, 0.25, "drawn routes", rotation=90, va="center", size=11, color=INK)
    return figure, (
        "Three kernels Q for five covers as heat maps: nearly diagonal, a band, and flat; below "
        "each three routes drawn from it, as wires from the cover that reads to the cover that is "
        "read. The wider the kernel, the more wires cross."
    )


def _route(axes: Axes, left: float, route: np.ndarray) -> None:
    for reader, read in enumerate(route):
        colour = RULE if read == reader else COVERS[0]
        _wire(axes, np.array([left, reader]), np.array([left + 1.0, int(read)]), colour, 1.5)
    for x in (left, left + 1.0):
        axes.scatter([x] * len(route), range(len(route)), s=22, color=INK, zorder=4)


def cycle() -> tuple[Figure, str]:
    """Lift, train, collapse: what happens to one weight matrix."""
    figure = Figure(figsize=(9.0, 2.86))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10.8), ylim=(0, 3.3))
    axes.set_axis_off()
    rng = np.random.default_rng(5)
    base = rng.normal(size=(4, 5))
    spread = [base + 0.35 * rng.normal(size=base.shape) for _ in range(3)]
    trained = [0.55 * base + 0.9 * rng.normal(size=base.shape) for _ in range(3)]
    for x, title, stack, size in (
        (0.55, "your model", [base], "(10, 64)"),
        (2.95, "covered model", spread, "(3, 10, 64)"),
        (6.15, "trained covers", trained, "(3, 10, 64)"),
        (9.15, "your model, trained", [np.mean(trained, axis=0)], "(10, 64)"),
    ):
        for back in reversed(range(len(stack))):
            colour = COVERS[back] if len(stack) > 1 else INK
            _matrix(axes, (x + 0.17 * back, 1.15 + 0.17 * back), stack[back], colour, 9 - 2 * back)
        middle = x + 0.55 + 0.085 * (len(stack) - 1)
        axes.text(middle, 2.78, title, ha="center", size=12, weight="bold", color=INK)
        axes.text(middle, 0.78, size, ha="center", size=10.5, color=INK)
    for x, verb, code in (
        (2.25, "lift", "mcover.lift(model, 3, …)"),
        (5.35, "train", "cover_loss(…)"),
        (8.4, "collapse", "covered.collapse()"),
    ):
        arrow = FancyArrowPatch(
            (x - 0.32, 1.7), (x + 0.42, 1.7), arrowstyle="-|>", mutation_scale=16, color=INK, lw=1.5
        )
        axes.add_patch(arrow)
        axes.text(x + 0.05, 1.88, verb, ha="center", size=12, color=INK)
        axes.text(x + 0.05, 0.3, code, ha="center", size=9.5, color=INK, family="monospace")
    return figure, (
        "A weight matrix of shape (10, 64) is lifted to a stack of three, (3, 10, 64), which is "
        "trained and then averaged to one matrix of shape (10, 64)."
    )


def _matrix(axes: Axes, at: tuple[float, float], values: np.ndarray, colour: str, z: int) -> None:
    size = 0.22
    height, width = size * values.shape[0], size * values.shape[1]
    frame = Rectangle((at[0] - 0.03, at[1] - 0.03), width + 0.06, height + 0.06)
    frame.set(facecolor=PAPER, edgecolor=colour, lw=1.2, zorder=z)
    axes.add_patch(frame)
    shade = (values - values.min()) / np.ptp(values)
    for (row, column), strength in np.ndenumerate(shade):
        cell = (at[0] + size * column, at[1] + size * row)
        alpha = 0.1 + 0.75 * strength
        axes.add_patch(Rectangle(cell, size, size, fc=colour, alpha=alpha, lw=0, zorder=z + 1))


def lifts() -> tuple[Figure, str]:
    """The directed lift gathers weights; the message lift mixes messages of input blocks."""
    figure, (left, right) = _panels(2, (9.0, 3.75))
    rng = np.random.default_rng(2)
    routes = np.array([rng.permutation(3) for _ in range(20)])
    for alpha in range(3):
        y = 2.55 - 1.2 * alpha
        _patchwork(left, (0.2, y), np.full(20, alpha))
        _patchwork(left, (3.5, y), routes[:, alpha])
        left.text(0.0, y + 0.44, f"{alpha}", ha="right", va="center", size=11, color=INK)
        arrow = FancyArrowPatch((2.0, y + 0.44), (3.1, y + 0.44), arrowstyle="-|>", color=INK)
        arrow.set(mutation_scale=13, lw=1.2)
        left.add_patch(arrow)
    left.text(0.75, 3.62, "covers", ha="center", size=11, color=INK)
    left.text(4.05, 3.62, "virtual models", ha="center", size=11, color=INK)
    left.text(2.4, 4.1, "directed lift", ha="center", size=13, weight="bold", color=INK)
    left.text(2.4, -0.35, "each weight of a virtual model has its own route;\n"
              "gradients return to the cover that it was read from", ha="center", va="top",
              size=10.5, color=INK)  # fmt: skip
    left.set(xlim=(-0.4, 5.2), ylim=(-1.15, 4.5))

    blocks = np.array([[0, 1, 2], [1, 0, 2], [2, 1, 0]])
    for alpha in range(3):
        y = 2.99 - 1.2 * alpha
        right.text(0.0, y, f"{alpha}", ha="right", va="center", size=11, color=INK)
        for g in range(3):
            at, read = y + 0.31 * (1 - g), int(np.argmax(blocks[g] == alpha))
            block = FancyBboxPatch((0.2, at - 0.12), 1.0, 0.24, facecolor=COVERS[alpha], lw=0)
            block.set(boxstyle="round,pad=0,rounding_size=0.07", zorder=4)
            right.add_patch(block)
            end = np.array([4.05, 2.99 - 1.2 * read + 0.17 * (1 - g)])
            _wire(right, np.array([1.2, at]), end, COVERS[alpha], 2.0)
        right.add_patch(Circle((4.25, y), 0.27, facecolor=PAPER, edgecolor=INK, lw=1.3, zorder=5))
        right.text(4.25, y, "+", ha="center", va="center", size=13, color=INK, zorder=6)
    right.text(0.7, 3.62, "messages", ha="center", size=11, color=INK)
    right.text(4.25, 3.62, "units", ha="center", size=11, color=INK)
    right.text(2.4, 4.1, "message lift", ha="center", size=13, weight="bold", color=INK)
    right.text(2.4, -0.35, "a unit sums messages from blocks of its inputs (here three),\n"
               "each along its own route, averaged over many draws", ha="center", va="top",
               size=10.5, color=INK)  # fmt: skip
    right.set(xlim=(-0.4, 5.2), ylim=(-1.15, 4.5))
    return figure, (
        "Left, the directed lift: virtual models whose cells have the colours of the covers that "
        "they were read from. Right, the message lift: units that add up messages of three blocks, "
        "each from another cover."
    )


def _patchwork(axes: Axes, at: tuple[float, float], owner: np.ndarray) -> None:
    for index, cover in enumerate(owner):
        row, column = divmod(index, 5)
        cell = (at[0] + 0.22 * column, at[1] + 0.22 * row)
        axes.add_patch(Rectangle(cell, 0.2, 0.2, facecolor=COVERS[int(cover)], lw=0))


def outcome() -> tuple[Figure, str]:
    """The error of every trial of three annealers, from the committed rows."""
    figure = Figure(figsize=(6.5, 2.7))
    axes = figure.add_axes((0.28, 0.22, 0.7, 0.72))
    rng = np.random.default_rng(0)
    trials = read_csv(HERE.parent / "reproduction" / "results" / "perceptron-variants.csv")
    ring = {"kind": "ring", "shift": 2, "sigma": 3}
    methods = {
        "plain annealing": {"kind": "vanilla"},
        "three replicas (RSA)": {"kind": "rsa"},
        "M-cover, M = 3": {"kind": "mcover", "topology": ring},
    }
    said = []
    for row, (name, method) in enumerate(methods.items()):
        settings = {"alpha": 1.58, "method": method, "n": 1000}  # the paper's Table 1
        errors = [r.outcome["generalization_error"] for r in trials if r.settings == settings]
        height = row + rng.uniform(-0.27, 0.27, len(errors))
        axes.scatter(errors, height, s=13, color=COVERS[row], alpha=0.45, lw=0)
        found = mcover.statistics.mean(errors)
        axes.plot([found.low, found.high], [row, row], color=INK, lw=5, solid_capstyle="butt")
        at, side = (found.low - 0.004, "right") if row == 0 else (found.high + 0.004, "left")
        axes.text(at, row - 0.36, f"mean {found:.4f}", ha=side, size=10, color=INK)
        axes.text(-0.008, row, name, ha="right", va="center", size=11.5, color=INK)
        said.append(f"{name} {found:.4f}")
    axes.set(ylim=(2.45, -0.6), yticks=[], xlim=(-0.004, 0.245))
    axes.set_xlabel("generalization error of each of 200 trials, same teachers",
                    color=INK, size=10.5)  # fmt: skip
    axes.tick_params(colors=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    return figure, "Generalization error of 200 trials, mean and interval: " + "; ".join(said) + "."


def _panels(count: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=size)
    panels = [figure.add_axes((n / count, 0, 1 / count, 1)) for n in range(count)]
    for axes in panels:
        axes.set_axis_off()
        axes.set_aspect("equal")
    return figure, panels


if __name__ == "__main__":
    main()
