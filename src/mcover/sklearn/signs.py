"""Classifiers with ±1 weights, annealed in M covers; fitted, they have one bit per weight.

**Bits.** A feature becomes up to k bits (``thermometer=k``). Bit j tells whether the value is above
threshold j; with k = 1 the threshold is the median. Thresholds are fitted: threshold j is the
midpoint of the two successive values of the training data whose split is nearest to the share j /
(k + 1). Equal thresholds give one bit, and a constant feature gives none. One or two bits that are
always set serve as bias and make the number of bits odd, so that no field is zero.

**Classes.** Two classes are one question; with more classes, each class against the rest is one
question. ``students`` independent annealings answer each question, and their margins are averaged.
On digits, 30 such students have an accuracy of 0.9482 [0.9391, 0.9574], 30 with error-correcting
output codes 0.9382 [0.9278, 0.9486] (n = 10; ``bench/sklearn_estimators.py``).

**Sample weights** are numbers of copies, up to a common factor: with weights 1 and 3, or 0.5 and
1.5, one pattern counts exactly three times as much as the other. If this would need many copies,
weights are rounded to multiples of an eighth of their mean, but not to zero. Temperatures are
relative to the energy (:class:`mcover.annealing.AutoSchedule`), so the unit of the weights has no
effect.

**Readout.** ``readout="best"`` uses the student of each annealing with the fewest errors on the
training data, as :func:`mcover.solve` does: the majority of the covers, a cover, or one of these
annealed further with the number of errors as its energy. Errors are weighted by the sample weights.
``readout="majority"`` uses the majority of the covers. With 10 % of a teacher's labels flipped,
"best" changes the accuracy of the perceptron on new data by +0.0450 [+0.0264, +0.0637], and that of
the committee, which has five times as many weights and fits the wrong labels, by −0.0292 [−0.0460,
−0.0124]. If classes overlap, both gain, +0.0508 [+0.0269, +0.0747] and +0.0388 [+0.0106, +0.0669]
(n = 20; ``bench/sklearn_estimators.py``). So "best" is the default of the perceptron, and
"majority" that of the committee.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from mcover import Committee, GaussianRing, MCover, McoverError, anneal, checks
from mcover.annealing import AnnealResult, AutoSchedule, Method, Schedule
from mcover.annealing.packed import pack_above, pack_signs, packed_fields, unpack_signs
from mcover.annealing.readouts import read_out
from mcover.annealing.schedules import schedule_of
from mcover.annealing.states import pack_columns
from mcover.sklearn.callbacks import CallbackSupportMixin, with_callbacks
from mcover.sklearn.validation import check_n_jobs, class_weights, random_state, reading

Signs = NDArray[np.int8]

_FLOATS = (np.float64, np.float32)
_COPIES = 8  # copies of a pattern of mean weight, if weights are rounded
_READOUTS = ("best", "majority")


class MCoverPerceptronClassifier(CallbackSupportMixin, ClassifierMixin, BaseEstimator):
    """A perceptron of ±1 weights on fitted bits, annealed in M covers.

    Args:
        covers: copies M that are annealed together.
        sigma: width of the kernel of the ring of covers; ``math.inf`` is uniform.
        bank: number of destinations whose routes are kept, at most one per weight; None keeps all.
        method: :class:`mcover.MCover`, :class:`mcover.RSA` or :class:`mcover.Vanilla`, instead of
            ``covers``, ``sigma``, ``bank`` and ``coupling``.
        coupling: attraction γ between the covers.
        sweeps: sweeps of the annealing, with temperatures from the data.
        schedule: temperatures, e.g. :class:`mcover.LinearSchedule`, instead of ``sweeps``.
        readout: "best" for the student with the fewest errors on the training data, or "majority"
            for the majority of the covers.
        thermometer: largest number of bits per feature.
        students: independent annealings for each question, whose margins are added.
        class_weight: weights of classes as a dict, or "balanced".
        n_jobs: threads; the result does not depend on it.
        random_state: seed of starts, routes and proposals.

    Attributes:
        classes_: the classes, sorted.
        columns_: the feature of each bit, shape (bits,).
        thresholds_: the threshold of each bit; −∞ for the bits of the bias.
        collapsed_: the ±1 students, shape (questions, students, 1, bits).
        covers_: the covers of these students, (questions, students, covers, 1, bits).
        packed_: the students in 64-bit words, which ``predict`` uses with the thresholds;
            ``packed_covers_`` are their covers.
        history_: the trajectory of the annealing: sweep and temperature (points,); energy,
            acceptance and cover_overlap (questions, students, points); training_error (questions,
            students).
        n_features_in_: number of features; ``feature_names_in_`` are their names, if X had names.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = MCoverPerceptronClassifier(thermometer=3, random_state=0).fit(X, y)
    >>> model.collapsed_.shape, model.packed_.nbytes
    ((1, 3, 1, 91), 48)
    """

    def __init__(
        self,
        *,
        covers: int = 5,
        sigma: float = 1.5,
        bank: int | None = 3,
        coupling: float = 0.0,
        method: Method | None = None,
        sweeps: int = 300,
        schedule: Schedule | ArrayLike | None = None,
        readout: str = "best",
        thermometer: int = 7,
        students: int = 3,
        class_weight: dict[Any, float] | str | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.covers = covers
        self.sigma = sigma
        self.bank = bank
        self.coupling = coupling
        self.method = method
        self.sweeps = sweeps
        self.schedule = schedule
        self.readout = readout
        self.thermometer = thermometer
        self.students = students
        self.class_weight = class_weight
        self.n_jobs = n_jobs
        self.random_state = random_state

    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Any:
        """Fits the thresholds, and anneals the students of every question.

        Args:
            X: features, shape (samples, features).
            y: classes, shape (samples,).
            sample_weight: the weight of each sample, shape (samples,).
        """
        with reading(X=X, y=y, sample_weight=sample_weight):
            X, y = validate_data(self, X, y, dtype=_FLOATS)
            check_classification_targets(y)
            weight = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
        X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) == 1:
            raise McoverError("y has 1 class where its weights are not zero; give at least two.")
        copies = _copies(weight * class_weights(self.class_weight, y, self.classes_))
        metadata = None if sample_weight is None else {"sample_weight": weight}
        about = {"estimator": self, "X": X, "y": y, "metadata": metadata}
        questions = range(len(self.classes_)) if len(self.classes_) > 2 else range(1, 2)
        context = self._init_callback_context(max_subtasks=len(questions))
        context.call_on_fit_task_begin(**about)

        thermometer = checks.check_int("thermometer", self.thermometer, 1)
        self.columns_, self.thresholds_ = _fit_thresholds(X, copies, thermometer)
        bits = len(self.thresholds_)
        patterns = unpack_signs(pack_above(X, self.columns_, self.thresholds_), bits)
        answers = self._anneal(
            np.repeat(patterns, copies, axis=0), np.repeat(labels, copies), questions
        )
        results = []
        for _ in questions:
            task = context.subcontext(task_name="question")
            task.call_on_fit_task_begin(**about)
            results.append(next(answers))
            task.call_on_fit_task_end(**about)
        collapsed = np.stack([students for _, students, _ in results])
        covers = np.stack([result.weights for result, *_ in results])
        self.packed_, self.packed_covers_ = (
            pack_signs(signs.reshape(-1, bits)).reshape(*signs.shape[:-1], self._hidden(), -1)
            for signs in (collapsed, covers)
        )
        errors = np.stack([wrong for *_, wrong in results])
        self.history_ = _history([result for result, *_ in results], errors / copies.sum())
        context.call_on_fit_task_end(**about, reconstruction_attributes={})
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """The mean margin of the students: (samples,) for two classes, else (samples, classes).

        The students run on packed bits.
        """
        check_is_fitted(self)
        with reading(X=X):
            X = validate_data(self, X, dtype=_FLOATS, reset=False)
        bits = pack_above(X, self.columns_, self.thresholds_)
        rows = self.packed_.reshape(-1, self.packed_.shape[-1])
        fields = packed_fields(bits, rows, len(self.thresholds_))
        fields = fields.reshape(len(X), *self.packed_.shape[:-1])
        margins = self._margins(fields).mean(axis=2)
        return margins[:, 0] if margins.shape[1] == 1 else margins

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each sample."""
        margins = self.decision_function(X)
        return self.classes_[margins.argmax(axis=1) if margins.ndim > 1 else (margins > 0) * 1]

    @property
    def collapsed_(self) -> Signs:
        """The ±1 students, shape (questions, students, hidden units, bits)."""
        return unpack_signs(self.packed_, len(self.thresholds_))

    @property
    def covers_(self) -> Signs:
        """The covers of these students, (questions, students, covers, hidden, bits)."""
        return unpack_signs(self.packed_covers_, len(self.thresholds_))

    def _anneal(
        self, patterns: Signs, labels: NDArray[np.int64], questions: range
    ) -> Iterator[tuple[AnnealResult, Signs, NDArray[np.int64]]]:
        """For each question in order: the result, the students of its reads, and their errors."""
        hidden, students = self._hidden(), checks.check_int("students", self.students, 1)
        method = self._method(patterns.shape[1] * hidden)
        readout = checks.check_choice("readout", self.readout, _READOUTS)
        schedule = self._schedule()
        check_n_jobs(self.n_jobs)
        threads = max(1, effective_n_jobs(self.n_jobs) // len(questions))
        seeds = random_state(self.random_state).randint(2**31, size=len(questions))

        def ask(question: int, seed: int) -> tuple[AnnealResult, Signs, NDArray[np.int64]]:
            problem = Committee(patterns, np.where(labels == question, 1, -1), hidden)
            reads = {"num_reads": students, "seed": seed, "workers": threads}
            result = anneal(problem, method=method, schedule=schedule, **reads)
            if result.interrupted:
                raise KeyboardInterrupt
            if readout == "majority":
                return result, result.collapsed_sign, result.training_errors
            return result, *_read_out(problem, result, seed)

        run = Parallel(n_jobs=self.n_jobs, prefer="threads", return_as="generator")
        return run(delayed(ask)(*one) for one in zip(questions, seeds.tolist(), strict=True))

    def _method(self, sites: int) -> Method:
        if self.method is not None:
            return self.method
        bank = (
            self.bank if self.bank is None else min(checks.check_int("bank", self.bank, 1), sites)
        )
        ring = GaussianRing(self.sigma, shift=2)
        return MCover(self.covers, ring, bank, coupling=self.coupling)

    def _schedule(self) -> Schedule:
        if self.schedule is None:
            return AutoSchedule(checks.check_int("sweeps", self.sweeps, 1))
        return schedule_of(self.schedule, None)

    def _hidden(self) -> int:
        return 1

    def _margins(self, fields: NDArray[np.int32]) -> NDArray[np.float64]:
        """Margins of students, (samples, questions, students, hidden) → without the last axis."""
        return fields[..., 0] / math.sqrt(len(self.thresholds_))


class MCoverCommitteeClassifier(MCoverPerceptronClassifier):
    """A committee machine of ±1 weights: each student is the majority of some perceptrons.

    Its margin is the vote, from −1 to 1; the mean field of the hidden units breaks ties.

    Args:
        hidden: number of perceptrons in each student; with an odd number no vote is undecided.
        covers: see :class:`MCoverPerceptronClassifier`, also for all other parameters and the
            attributes. The default readout is "majority".
    """

    def __init__(
        self,
        *,
        hidden: int = 5,
        covers: int = 5,
        sigma: float = 1.5,
        bank: int | None = 3,
        coupling: float = 0.0,
        method: Method | None = None,
        sweeps: int = 300,
        schedule: Schedule | ArrayLike | None = None,
        readout: str = "majority",
        thermometer: int = 7,
        students: int = 3,
        class_weight: dict[Any, float] | str | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            covers=covers,
            sigma=sigma,
            bank=bank,
            coupling=coupling,
            method=method,
            sweeps=sweeps,
            schedule=schedule,
            readout=readout,
            thermometer=thermometer,
            students=students,
            class_weight=class_weight,
            n_jobs=n_jobs,
            random_state=random_state,
        )
        self.hidden = hidden

    def _hidden(self) -> int:
        return checks.check_int("hidden", self.hidden, 1)

    def _margins(self, fields: NDArray[np.int32]) -> NDArray[np.float64]:
        hidden = fields.shape[-1]
        votes = 2 * (fields > 0).sum(axis=-1) - hidden
        return (votes + fields.sum(axis=-1) / (hidden * (len(self.thresholds_) + 1))) / hidden


def _fit_thresholds(
    X: NDArray[Any], copies: NDArray[np.int64], bits: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The column and the threshold of every bit; those of the bias are last."""
    columns, thresholds = [], []
    levels = np.arange(1, bits + 1) / (bits + 1)
    for column, values in enumerate(X.T):
        seen, where = np.unique(values.astype(np.float64), return_inverse=True)
        share = np.cumsum(np.bincount(where, weights=copies))[:-1] / copies.sum()
        if not share.size:
            continue
        at = np.unique(np.abs(share[:, None] - levels).argmin(axis=0))
        low, high = seen[at], seen[at + 1]
        middle = low / 2 + high / 2
        thresholds.extend(np.where((low < middle) & (middle < high), middle, low))
        columns.extend([column] * len(at))
    bias = 1 + len(thresholds) % 2
    return np.array(columns + [0] * bias, dtype=np.intp), np.array(thresholds + [-np.inf] * bias)


def _history(
    results: list[AnnealResult], training_error: NDArray[np.float64]
) -> dict[str, NDArray[Any]]:
    """The trajectories of all questions, which have the same points."""
    courses = [result.trajectory for result in results]
    names = ("energy", "acceptance", "cover_overlap")
    return {
        "sweep": courses[0].sweep,
        "temperature": courses[0].temperature,
        **{name: np.stack([getattr(course, name) for course in courses]) for name in names},
        "training_error": training_error,
    }


def _read_out(
    problem: Committee, result: AnnealResult, seed: int
) -> tuple[Signs, NDArray[np.int64]]:
    """The students of the reads with the fewest errors, and their errors."""
    columns = pack_columns(problem.patterns, problem.labels)
    size = len(problem.patterns), problem.hidden, problem.inputs
    sweeps = len(result.options.schedule.temperatures())
    seeds = np.random.SeedSequence([seed, 1]).spawn(len(result))
    reads = zip(result.weights, seeds, strict=True)
    found = [read_out(columns, size, covers, sweeps, own) for covers, own in reads]
    return np.stack([student for student, *_ in found]), np.array([wrong for _, wrong, *_ in found])


def _copies(weight: NDArray[np.float64]) -> NDArray[np.int64]:
    """The number of copies of each pattern, which does not depend on the unit of the weights."""
    for unit in (weight.min(), 1.0):
        numbers = np.rint(weight / unit)
        if np.allclose(numbers * unit, weight, rtol=1e-9, atol=0) and numbers.max() < 2**53:
            numbers = numbers.astype(np.int64) // np.gcd.reduce(numbers.astype(np.int64))
            if numbers.mean() <= _COPIES:
                return numbers
    rounded = np.rint(weight / weight.mean() * _COPIES).astype(np.int64)
    return np.maximum(rounded, 1)
