"""Problems for ±1 weights: patterns and labels that a perceptron or a committee machine must fit.

A perceptron's margin on pattern μ is Δ_μ = Σ_q G_μq w_q / √N with the gauged patterns
G_μq = y_μ x_μq; the pattern is classified correctly if and only if Δ_μ > 0. With even N, Δ_μ = 0
can occur: it adds nothing to the linear energy, but counts as an error.

A committee machine has K hidden units. Unit k votes correctly if and only if y_μ F_k > 0: a field
of zero votes against the label. The pattern is classified correctly if more than half of the votes
are correct. A tied vote, possible with even K, is an error.
"""

from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.errors import McoverError
from mcover.seeds import Seed, streams

Signs = NDArray[np.int8]
Weights = Signs | NDArray[np.float64]
Ties = Literal["redraw", "plus"]
Size = tuple[int, int, int]
"""Patterns, hidden units, inputs."""

_REDRAWS = 500
_TEST_PATTERNS = 20_000
_TEST_SEED = 0x7E57
_BLOCK = 4096  # patterns converted to floats at a time


class Problem:
    """Patterns, labels and, if known, the teacher that labelled them.

    Patterns have two values: ±1, 0 and 1, or bool. Labels may have any two values; in sorted order
    the first becomes -1 and the second +1. ``classes`` stores both values, and the repr shows the
    mapping.

    Shape: patterns (P, N), labels (P,), teacher (K·N,), entries ±1; K is ``hidden``, the number of
    hidden units, and 1 is a perceptron.
    """

    def __init__(
        self, patterns: ArrayLike, labels: ArrayLike, hidden: int, teacher: ArrayLike | None = None
    ) -> None:
        self.patterns = as_patterns(patterns)
        self.labels, self.classes = _as_labels(labels, len(self.patterns))
        self.hidden = checks.check_int("hidden", hidden, 1)
        self.inputs = int(self.patterns.shape[1])
        self.sites = self.hidden * self.inputs
        self.size: Size = len(self.patterns), self.hidden, self.inputs
        self.teacher = None if teacher is None else as_signs("teacher", teacher, (self.sites,))

    def __repr__(self) -> str:
        known = "" if self.teacher is None else ", with its teacher"
        units = f", {self.hidden} hidden units" if self.hidden > 1 else ""
        size = f"{len(self.patterns)} patterns of {self.inputs} inputs"
        minus, plus = self.classes
        mapped = "" if (minus, plus) == (-1, 1) else f", labels {minus!r} → -1 and {plus!r} → +1"
        return f"<{type(self).__name__}: {size}{units}{mapped}{known}>"

    def __str__(self) -> str:
        return repr(self).strip("<>")

    def __getstate__(self) -> dict[str, Any]:
        """Without the caches, because problems are sent to other processes."""
        return {name: of for name, of in vars(self).items() if name not in ("gauged", "_tests")}

    @cached_property
    def gauged(self) -> Signs:
        """G = label × pattern, shape (P, N)."""
        return self.patterns * self.labels[:, None]

    def energy(self, weights: Weights, kind: str = "linear") -> NDArray[np.float64]:
        """Σ_μ max(0, −Δ_μ), or the number of errors for kind="errors", (..., K·N) → (...)."""
        if checks.check_choice("energy", kind, ("linear", "errors")) == "errors":
            return self.training_errors(weights).astype(np.float64)
        fields = _fields(self.gauged, self._students(weights), self.hidden)
        margins = fields if self.hidden == 1 else np.where(fields > 0, 1.0, -1.0)
        margins = margins.sum(axis=-2) / np.sqrt(self.inputs if self.hidden == 1 else self.hidden)
        return np.asarray(np.maximum(0.0, -margins).sum(axis=-1))

    def training_errors(self, weights: Weights) -> NDArray[np.int64]:
        """The number of patterns that students misclassify, shape (..., K·N) → (...)."""
        return np.sum(~_is_right(self.gauged, self._students(weights), self.hidden), axis=-1)

    def overlap(self, weights: Weights) -> NDArray[np.float64]:
        """R = ``w·w* / |w||w*|`` with the teacher, shape (..., K·N) → (...); 0 for w = 0.

        For a committee it is the mean over hidden units, optimally matched to those of the teacher.
        NaN without a teacher.
        """
        students = self._students(weights)
        if self.teacher is None:
            return np.full(students.shape[:-1], np.nan)
        units = students.reshape(-1, self.hidden, self.inputs)
        length = np.linalg.norm(units, axis=-1, keepdims=True)
        units = np.divide(units, length, where=length > 0, out=np.zeros_like(units))
        target = self.teacher.reshape(self.hidden, self.inputs) / np.sqrt(self.inputs)
        between = units @ target.T
        return np.array([_matched_mean(table) for table in between]).reshape(students.shape[:-1])

    def generalization_error(self, weights: Weights) -> NDArray[np.float64]:
        """The share of new patterns on which students and teacher differ, (..., K·N) → (...).

        For a perceptron this is arccos(R)/π, as in the paper, which is exact for large N; for a
        committee, the error on 20,000 random test patterns, the same for every student. NaN without
        a teacher.
        """
        if self.teacher is None or self.hidden == 1:
            return np.arccos(np.clip(self.overlap(weights), -1.0, 1.0)) / np.pi
        students = self._students(weights).reshape(-1, self.sites)
        wrong = [np.mean(~_is_right(self._tests, student, self.hidden)) for student in students]
        return np.array(wrong).reshape(np.shape(weights)[:-1])

    def _students(self, weights: Weights) -> NDArray[np.float64]:
        students = checks.check_floats("weights", weights)
        if students.shape[-1:] != (self.sites,):
            wanted = f"write {self.sites} of them along the last axis."
            raise McoverError(f"weights have shape {students.shape}; {wanted}")
        return students

    @cached_property
    def _tests(self) -> Signs:
        if self.teacher is None:
            raise McoverError("a problem without a teacher has no test patterns.")
        rng = np.random.default_rng([_TEST_SEED, self.inputs, self.hidden])
        patterns, labels = _labelled(_TEST_PATTERNS, self.teacher, self.hidden, rng)
        return patterns * labels[:, None]


class Perceptron(Problem):
    """One layer of ±1 weights that predicts the label sign(w·x)."""

    def __init__(
        self, patterns: ArrayLike, labels: ArrayLike, teacher: ArrayLike | None = None
    ) -> None:
        super().__init__(patterns, labels, 1, teacher)


class Committee(Problem):
    """A committee machine, which predicts the majority of K hidden signs.

    Its margin is the vote, Δ_μ = K^-½ Σ_k (vote of unit k, ±1). With K = 1 it is a perceptron.
    """


def teacher_student(
    n: int, alpha: float, seed: Seed = None, hidden: int = 1, ties: Ties = "redraw"
) -> Problem:
    """Random patterns labelled by a random teacher of ±1 weights.

    There are round(alpha · n · hidden) patterns. With even N (or K) the teacher is undecided on
    some of them, which have a field or a vote of zero; at N = 1000 that is one pattern in forty.
    ``ties="redraw"`` redraws these patterns, so that the teacher makes no error; ``ties="plus"``
    labels them +1. On such a pattern the teacher has zero linear energy, but makes an error.
    Instances with these patterns are harder.

    >>> teacher_student(101, alpha=1.5, seed=0)
    <Perceptron: 152 patterns of 101 inputs, with its teacher>
    """
    n, hidden = checks.check_int("n", n, 1), checks.check_int("hidden", hidden, 1)
    alpha = checks.check_float("alpha", alpha, above=0, most=1e9)
    checks.check_choice("ties", ties, ("redraw", "plus"))
    patterns = round(alpha * n * hidden)
    if patterns < 1:
        raise McoverError(
            f"alpha is {alpha!r}, which gives no patterns; write a number of at least "
            f"{1 / (n * hidden):.2g} (patterns per weight)."
        )
    # The signs, and the floats that label them.
    needed = patterns * (6 * n + 8 * hidden) + 8 * n * hidden
    checks.check_memory(needed, f"{patterns} patterns of {n} inputs", "write a smaller n or alpha")
    weights_rng, patterns_rng = streams(seed, 2)
    teacher = random_signs(weights_rng, hidden * n)
    drawn = _labelled(patterns, teacher, hidden, patterns_rng, ties)
    return Perceptron(*drawn, teacher) if hidden == 1 else Committee(*drawn, hidden, teacher)


def random_signs(rng: np.random.Generator, shape: int | tuple[int, ...]) -> Signs:
    """Uniform ±1 entries."""
    return 2 * rng.integers(0, 2, size=shape, dtype=np.int8) - 1


def problem_of(problem: Any, labels: Any = None, hidden: Any = None) -> Problem:
    """The problem given to ``anneal`` or ``solve``: a problem, or patterns and labels."""
    if isinstance(problem, Problem):
        for name, value in {"labels": labels, "hidden": hidden}.items():
            if value is not None:
                raise McoverError(f"a problem has its own {name}; leave {name} out.")
        return problem
    if labels is None:
        example = "mcover.teacher_student(1001, 1.5), or patterns followed by their labels"
        checks.check_instance("problem", problem, Problem, example)
    hidden = 1 if hidden is None else checks.check_int("hidden", hidden, 1)
    return Perceptron(problem, labels) if hidden == 1 else Committee(problem, labels, hidden)


def as_patterns(values: ArrayLike) -> Signs:
    """±1 patterns from ±1, 0 and 1, or bool."""
    array = checks.as_array("patterns", values)
    if array.dtype.kind in "biuf" and np.all((array == 0) | (array == 1)):
        array = np.where(array, np.int8(1), np.int8(-1))
    advice = "±1, 0 and 1, or bool, from grey values by np.where(patterns > median, 1, -1)"
    return as_signs("patterns", array, (None, None), advice)


def _as_labels(values: ArrayLike, count: int) -> tuple[Signs, tuple[Any, Any]]:
    """±1 labels, and the two values that became -1 and +1."""
    array = checks.as_array("labels", values)
    if array.shape != (count,):
        raise McoverError(
            f"labels have shape {array.shape}; write one for each of the {count} patterns."
        )
    if array.dtype.kind in "biuf" and np.all((array == 1) | (array == -1)):
        return array.astype(np.int8), (-1, 1)
    try:
        found = np.unique(array)
    except TypeError as error:  # values that cannot be sorted
        raise McoverError(f"labels must be two values with an order: {error}.") from error
    if len(found) != 2 or found[1] != found[1]:  # NaN is sorted to the end
        some = ", ".join(repr(one) for one in found[:4].tolist())
        raise McoverError(
            f"labels must have two values; got {len(found)}: {some}{', …' * (len(found) > 4)}."
        )
    minus, plus = found.tolist()
    return np.where(array == found[1], 1, -1).astype(np.int8), (minus, plus)


def as_signs(
    name: str, values: ArrayLike, shape: tuple[int | None, ...], advice: str | None = None
) -> Signs:
    """An int8 copy; refuses other entries than ±1 with ``advice``, and other shapes."""
    array = checks.as_array(name, values)
    if array.dtype.kind not in "iuf" and array.size:
        raise McoverError(
            f"{name} must be an array of -1 and +1; its entries are of type {array.dtype}."
        )
    fits = array.ndim == len(shape) and array.size > 0
    if not fits or any(want not in (None, n) for want, n in zip(shape, array.shape, strict=True)):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        wanted = f"({wanted},)" if len(shape) == 1 else f"({wanted})"
        raise McoverError(
            f"{name} is an array of shape {array.shape}; write one of shape {wanted}, not empty."
        )
    if not np.all((array == 1) | (array == -1)):
        foreign = np.unique(array[(array != 1) & (array != -1)][:1000])[:3].tolist()
        some = ", ".join(map(checks.shown, foreign))
        said = advice or f"-1 and +1, from 0 and 1 by 2 * {name} - 1"
        raise McoverError(f"{name} must be {said}; entries besides -1 and +1 are {some}.")
    return np.array(array, dtype=np.int8, order="C")


def _labelled(
    count: int, teacher: Signs, hidden: int, rng: np.random.Generator, ties: Ties = "redraw"
) -> tuple[Signs, Signs]:
    """Random patterns and the teacher's labels."""
    inputs = len(teacher) // hidden
    units = teacher.reshape(hidden, inputs).astype(np.float32)
    patterns = random_signs(rng, (count, inputs))
    if ties == "plus":
        votes = np.where(_products(patterns, units) >= 0, 1, -1).sum(axis=1)
        return patterns, np.where(votes >= 0, 1, -1).astype(np.int8)
    labels = np.zeros(count, dtype=np.int8)
    for _ in range(_REDRAWS):
        undecided = np.flatnonzero(labels == 0)
        fields = _products(patterns, units, undecided)
        votes = np.sign(fields).sum(axis=1)
        votes[np.any(fields == 0, axis=1)] = 0
        labels[undecided] = np.sign(votes)
        undecided = undecided[votes == 0]
        if not undecided.size:
            return patterns, labels
        patterns[undecided] = random_signs(rng, (len(undecided), inputs))
    raise McoverError(
        f"this teacher of {hidden} hidden units and {inputs} inputs is undecided on almost every "
        "pattern; write a larger n, or an odd number of hidden units."
    )


def _products(patterns: Signs, units: NDArray[Any], rows: NDArray[Any] | None = None) -> Any:
    """patterns @ units.T in the type of the units, a block of patterns at a time.

    All patterns converted to floats at once would take eight times their memory.
    """
    count = len(patterns) if rows is None else len(rows)
    parts = []
    for begin in range(0, max(count, 1), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        part = patterns[block] if rows is None else patterns[rows[block]]
        parts.append(part.astype(units.dtype) @ units.T)
    return np.concatenate(parts)


def _fields(gauged: Signs, students: NDArray[np.float64], hidden: int) -> NDArray[np.float64]:
    """Gauged fields of the hidden units, shape (..., K·N) → (..., K, P)."""
    units = students.reshape(*students.shape[:-1], hidden, -1)
    if len(gauged) <= _BLOCK:
        return np.asarray(units @ gauged.T.astype(np.float64))
    flat = _products(gauged, units.reshape(-1, units.shape[-1]))
    return np.asarray(flat.T.reshape(*units.shape[:-1], len(gauged)))


def _is_right(gauged: Signs, students: NDArray[np.float64], hidden: int) -> NDArray[np.bool_]:
    """Whether each pattern is classified correctly, shape (..., K·N) → (..., P)."""
    return np.asarray(2 * (_fields(gauged, students, hidden) > 0).sum(axis=-2) > hidden)


def _matched_mean(table: NDArray[np.float64]) -> float:
    if len(table) == 1:
        return float(table[0, 0])
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].mean())
