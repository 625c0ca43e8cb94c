"""Classifiers with ±1 weights, found by :func:`mcover.solve`; fitted, they have one bit per weight.

**Bits.** A feature becomes up to k bits (``thermometer=k``). Bit j tells whether the value is above
threshold j; with k = 1 the threshold is the median. Thresholds are fitted: threshold j is the
midpoint of the two successive values of the training data whose split is nearest to the share j /
(k + 1). Equal thresholds give one bit, and a constant feature gives none. One or two bits that are
always set serve as bias and make the number of bits odd, so that no field is zero.

**Classes.** Two classes need one question, more classes one each: this class, or another?
``students`` independent searches answer each question, and their margins are averaged.
On digits, 30 such students have an accuracy of 0.9474 [0.9412, 0.9536], 30 with error-correcting
output codes 0.9366 [0.9291, 0.9441] (n = 10; ``bench/sklearn_estimators.py``).

**Sample weights** are numbers of copies, up to a common factor: with weights 1 and 3, or 0.5 and
1.5, one pattern counts exactly three times as much as the other. If this would need many copies,
weights are rounded to multiples of an eighth of their mean, but not to zero. Temperatures are
relative to the energy (:class:`mcover.annealing.AutoSchedule`), so the unit of the weights has no
effect.

**Search.** Each student is a search of :func:`mcover.solve` with up to ``restarts`` restarts of one
method. ``readout="best"`` keeps the student with the fewest errors on the training data,
``"majority"`` the majority of the covers of the restart; errors are weighted by the sample weights.
"best" changes the accuracy of the perceptron on new data by +0.0693 [+0.0526, +0.0860] if 10 % of a
teacher's labels are flipped, and by +0.0400 [+0.0211, +0.0589] if classes overlap. The committee
has five times as many weights. It gains if classes overlap, +0.0350 [+0.0140, +0.0560], but no
difference is established on flipped labels, and with very unequal class weights only the majority
favours the heavy class enough (n = 20; ``bench/sklearn_estimators.py``). So "majority" is the
default of the committee.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from mcover import Committee, MCover, McoverError, checks, solve
from mcover.annealing import Method, Solution
from mcover.annealing.packed import pack_above, pack_signs, packed_fields, unpack_signs
from mcover.annealing.readouts import Readout
from mcover.sklearn.callbacks import CallbackSupportMixin, with_callbacks
from mcover.sklearn.validation import check_n_jobs, class_weights, random_state, reading

Signs = NDArray[np.int8]

_FLOATS = (np.float64, np.float32)
_COPIES = 8  # copies of a pattern of mean weight, if weights are rounded


class MCoverPerceptronClassifier(CallbackSupportMixin, ClassifierMixin, BaseEstimator):
    """A perceptron of ±1 weights on fitted bits, annealed in M covers.

    Args:
        method: what each restart anneals: :class:`mcover.MCover`, :class:`mcover.RSA` or
            :class:`mcover.Vanilla`. None is the method of ``mcover.annealing.RECOMMENDED``, with a
            smaller bank if there are fewer weights.
        restarts: the maximum number of restarts for each student.
        readout: "best" for the student with the fewest errors on the training data, or "majority"
            for the majority of the covers of a restart.
        thermometer: largest number of bits per feature.
        students: independent searches for each question, whose margins are averaged.
        class_weight: weights of classes as a dict, or "balanced".
        n_jobs: threads; the result does not depend on it.
        random_state: seed of starts, routes and proposals.

    Attributes:
        classes_: the classes, sorted.
        columns_: the feature of each bit, shape (bits,).
        thresholds_: the threshold of each bit; −∞ for the bits of the bias.
        collapsed_: the ±1 students, shape (questions, students, 1, bits).
        packed_: the students in 64-bit words, which ``predict`` uses with the thresholds.
        training_error_: the share of training samples that each student misclassifies, by weight,
            shape (questions, students).
        n_features_in_: number of features; ``feature_names_in_`` are their names, if X had names.

    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = MCoverPerceptronClassifier(thermometer=3, random_state=0).fit(X, y)
    >>> model.collapsed_.shape, model.packed_.nbytes
    ((1, 3, 1, 91), 48)
    """

    _default = MCover(7, bank=3, coupling=0.3)

    def __init__(
        self,
        *,
        method: Method | None = None,
        restarts: int = 3,
        readout: Readout = "best",
        thermometer: int = 7,
        students: int = 3,
        class_weight: dict[Any, float] | str | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.restarts = restarts
        self.readout = readout
        self.thermometer = thermometer
        self.students = students
        self.class_weight = class_weight
        self.n_jobs = n_jobs
        self.random_state = random_state

    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Any:
        """Fits the thresholds, and finds the students of every question.

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
        product = weight * class_weights(self.class_weight, y, np.unique(y))
        X, y, weight, product = (of[product > 0] for of in (X, y, weight, product))
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) == 1:
            raise McoverError("y has 1 class where its weights are not zero; give at least two.")
        copies = _copies(product)
        metadata = None if sample_weight is None else {"sample_weight": weight}
        about = {"estimator": self, "X": X, "y": y, "metadata": metadata}
        questions = range(len(self.classes_)) if len(self.classes_) > 2 else range(1, 2)
        context = self._init_callback_context(max_subtasks=len(questions))
        context.call_on_fit_task_begin(**about)

        thermometer = checks.check_int("thermometer", self.thermometer, 1)
        self.columns_, self.thresholds_ = _fit_thresholds(X, copies, thermometer)
        bits = len(self.thresholds_)
        patterns = unpack_signs(pack_above(X, self.columns_, self.thresholds_), bits)
        found = self._search(
            np.repeat(patterns, copies, axis=0), np.repeat(labels, copies), questions
        )
        students: list[list[Solution]] = []
        for _ in questions:
            task = context.subcontext(task_name="question")
            task.call_on_fit_task_begin(**about)
            students.append([next(found) for _ in range(self.students)])
            task.call_on_fit_task_end(**about)
        weights = np.array([[one.weights for one in row] for row in students], dtype=np.int8)
        packed = pack_signs(weights.reshape(-1, bits))
        self.packed_ = packed.reshape(len(questions), self.students, self._hidden(), -1)
        errors = np.array([[one.errors for one in row] for row in students])
        self.training_error_ = errors / copies.sum()
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

    def _search(
        self, patterns: Signs, labels: NDArray[np.int64], questions: range
    ) -> Iterator[Solution]:
        """The students of each question, question by question."""
        hidden, students = self._hidden(), checks.check_int("students", self.students, 1)
        restarts = checks.check_int("restarts", self.restarts, 1)
        check_n_jobs(self.n_jobs)
        method = self._method(patterns.shape[1] * hidden)
        seeds = random_state(self.random_state).randint(2**31, size=len(questions) * students)

        def search(question: int, seed: int) -> Solution:
            solution = solve(
                Committee(patterns, np.where(labels == question, 1, -1), hidden),
                method=method,
                restarts=restarts,
                readout=self.readout,
                time_limit=None,
                seed=seed,
                workers=1,
            )
            if solution.interrupted:
                raise KeyboardInterrupt
            return solution

        run = Parallel(n_jobs=self.n_jobs, prefer="threads", return_as="generator")
        asked = np.repeat(questions, students)
        return run(delayed(search)(*one) for one in zip(asked, seeds.tolist(), strict=True))

    def _method(self, sites: int) -> Method:
        if self.method is not None:
            return self.method
        return replace(self._default, bank=min(self._default.bank or sites, sites))

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
        method: None is ``MCover(5, bank=3)``, covers that do not attract each other.
        restarts: see :class:`MCoverPerceptronClassifier`, also for all other parameters and the
            attributes. The defaults are one restart and the readout "majority".
    """

    _default = MCover(5, bank=3)

    def __init__(
        self,
        *,
        hidden: int = 5,
        method: Method | None = None,
        restarts: int = 1,
        readout: Readout = "majority",
        thermometer: int = 7,
        students: int = 3,
        class_weight: dict[Any, float] | str | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            method=method,
            restarts=restarts,
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
