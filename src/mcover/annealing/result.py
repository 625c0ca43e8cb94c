"""The result of an annealing: weights, their collapse, energies and trajectories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover import checks, statistics
from mcover.annealing.loading import read_arrays
from mcover.annealing.options import AnnealOptions
from mcover.annealing.problems import Signs
from mcover.annealing.trajectory import Trajectory, select
from mcover.errors import McoverError
from mcover.files import write_atomic
from mcover.plain import brief, from_plain, to_plain
from mcover.statistics import Estimate
from mcover.tables import facts, html_table, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMAT = "mcover.AnnealResult/3"

T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class Student:
    """The ±1 student of a read: the majority of its covers."""

    weights: Signs  # ±1, shape (sites,)
    energy: float
    errors: int  # number of patterns that it misclassifies
    margin: float  # the smallest over all patterns; positive if and only if errors is 0
    read: int

    def __repr__(self) -> str:
        return (
            f"<Student of read {self.read}: {len(self.weights)} weights, energy {self.energy:.6g}, "
            f"{self.errors} errors, margin {self.margin:.4g}>"
        )


@dataclass(frozen=True)
class Summary:
    """Estimates over the finished reads; printed as a table."""

    title: str
    solved: Estimate  # share of the reads
    energy: Estimate  # lifted, per cover and pattern
    training_error: Estimate  # of the ±1 students, a share of the patterns
    overlap: Estimate | None  # R of the mean of the covers; None without a teacher
    generalization_error: Estimate | None  # of the mean of the covers; None without a teacher
    seconds: Estimate  # CPU seconds of a read
    tts99: Estimate  # CPU seconds of restarts until a solution is found with 99 % certainty
    proposal_rate: Estimate  # million proposals in a CPU second

    def __str__(self) -> str:
        return table([self.title, "mean [95 % interval]"], self._rows())

    def _repr_html_(self) -> str:
        return html_table(self.title, ["", "mean [95 % interval]"], self._rows())

    def _rows(self) -> list[list[str]]:
        texts = {
            "solved by the ±1 student": (self.solved, ".3f"),
            "energy per cover and pattern": (self.energy, ".5f"),
            "training error of the ±1 student": (self.training_error, ".4f"),
            "teacher overlap R of the mean": (self.overlap, ".4f"),
            "generalization error of the mean": (self.generalization_error, ".4f"),
            "core seconds per read": (self.seconds, ".3g"),
            "TTS99, core seconds": (self.tts99, ".3g"),
            "million proposals per core second": (self.proposal_rate, ".3g"),
        }
        return [[name, f"{of:{spec}}"] for name, (of, spec) in texts.items() if of is not None]


class RunResult(Generic[T]):
    """What results of patterns and of graphs have in common: an entry for each read."""

    energy: NDArray[np.float64]
    seconds: NDArray[np.float64]
    finished: NDArray[np.bool_]
    options: AnnealOptions
    interrupted: bool

    def __len__(self) -> int:
        return len(self.energy)

    def __iter__(self) -> Iterator[T]:
        return (self[read] for read in range(len(self)))

    def __getitem__(self, read: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return facts(type(self).__name__, self._facts())

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, [], self._facts())

    def _number(self, read: int) -> int:
        """The number of a read, which may count from the end."""
        if not -len(self) <= read < len(self):
            raise IndexError(f"there is no read {read}; the result has {len(self)}.")
        return read % len(self)

    def _facts(self) -> list[list[str]]:
        """The names and texts in the representations."""
        options, temperatures = self.options, self.options.schedule.temperatures()
        ends = f"T = {temperatures[0]:.4g} to {temperatures[-1]:.4g}"
        done = int(np.count_nonzero(self.finished))
        state = "all finished" if done == len(self) else f"{done} finished"
        return [
            ["method", brief(options.method)],
            ["schedule", f"{options.schedule.kind}, {ends}, {len(temperatures)} sweeps"],
            ["reads", f"{len(self)}, {state}" + (", interrupted" if self.interrupted else "")],
            *self._outcome(),
            ["time", f"{self.seconds.sum():.3g} core seconds"],
        ]

    def _outcome(self) -> list[list[str]]:
        """The facts about the best read."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False, repr=False)
class AnnealResult(RunResult[Student]):
    """The result of :func:`mcover.anneal`; arrays have one entry for each read.

    ``len(result)`` is the number of reads, ``result[3]`` and iteration give each read's
    :class:`~mcover.annealing.Student`, and ``result[result.solved]`` or ``result[2:5]`` a result
    of these reads.

    With even N there may be training errors at zero linear energy, because a margin of zero adds
    none. ``overlap`` and ``generalization_error`` are those of the mean of the covers, as in the
    paper; they are NaN without a teacher.
    """

    weights: Signs  # final ±1 weights of all covers, (reads, M, sites)
    energy: NDArray[np.float64]  # final lifted energy, summed over covers
    collapsed_energy: NDArray[np.float64]  # of the student collapsed to ±1 weights
    training_errors: NDArray[np.int64]  # patterns that this student misclassifies
    margin: NDArray[np.float64]  # smallest margin of this student
    overlap: NDArray[np.float64]  # R with the teacher
    generalization_error: NDArray[np.float64]  # ε_g
    proposals: NDArray[np.int64]  # single-weight proposals made
    seconds: NDArray[np.float64]  # CPU time of the read's thread
    sweeps: NDArray[np.int64]  # fewer than planned if a read was solved or interrupted
    finished: NDArray[np.bool_]  # False for a read that was interrupted
    trajectory: Trajectory
    options: AnnealOptions
    patterns: int  # number of patterns of the problem
    interrupted: bool  # whether the run ended early; reads that never started are left out

    @overload
    def __getitem__(self, reads: int | np.integer[Any]) -> Student: ...

    @overload
    def __getitem__(self, reads: slice | ArrayLike) -> AnnealResult: ...

    def __getitem__(self, reads: Any) -> Student | AnnealResult:
        if not isinstance(reads, int | np.integer) or isinstance(reads, bool):
            return self._select(reads)
        read = self._number(int(reads))
        return Student(
            self.collapsed_sign[read],
            float(self.collapsed_energy[read]),
            int(self.training_errors[read]),
            float(self.margin[read]),
            read,
        )

    def _select(self, reads: Any) -> AnnealResult:
        """A result of some reads, given by a slice, by numbers, or by True or False for each."""
        try:
            chosen = np.arange(len(self))[reads if isinstance(reads, slice) else np.asarray(reads)]
        except (IndexError, TypeError, ValueError) as error:
            raise McoverError(
                f"a result of {len(self)} reads has none at {checks.shown(reads)}; write a number, "
                "a slice, or True and False for each read, e.g. result[result.solved]."
            ) from error
        if chosen.ndim != 1 or not len(chosen):
            seen = checks.shown(reads)
            raise McoverError(f"{seen} selects no read; select at least one.")
        arrays = {name: getattr(self, name)[chosen] for name in ARRAYS}
        return replace(self, **arrays, trajectory=select(self.trajectory, chosen))

    @cached_property
    def collapsed(self) -> NDArray[np.float64]:
        """The mean of the covers, the paper's collapsed student, shape (reads, sites)."""
        return collapse_mean(self.weights)

    @cached_property
    def collapsed_sign(self) -> Signs:
        """The majority of the covers as ±1 weights, shape (reads, sites); ties go to cover 0."""
        return collapse_sign(self.weights)

    @property
    def solved(self) -> NDArray[np.bool_]:
        """Whether the collapsed ±1 student has zero energy, (reads,).

        With the linear energy and an even number of inputs, some patterns may still be undecided;
        ``training_errors`` counts them.
        """
        return self.collapsed_energy == 0

    @property
    def best(self) -> Student:
        """The student with the lowest energy, then the fewest errors, then the largest margin.

        >>> import mcover
        >>> problem = mcover.teacher_student(51, alpha=1.5, seed=0)
        >>> result = mcover.anneal(problem, mcover.MCover(3, bank=4), num_sweeps=99, seed=0)
        >>> bool(result.best.errors == problem.training_errors(result.best.weights))
        True
        """
        order = np.lexsort((-self.margin, self.training_errors, self.collapsed_energy))
        return self[order[0]]

    @property
    def first(self) -> Student:
        """:attr:`best`, under its name in dimod's ``SampleSet``."""
        return self.best

    @property
    def record(self) -> np.recarray[Any, Any]:
        """One entry for each read, as in dimod's ``SampleSet``: ``record.sample``, ``.energy``.

        The sample is the ±1 student, with its energy, errors and margin; ``lifted_energy`` is that
        of all covers.
        """
        columns = {"sample": self.collapsed_sign} | self._columns()
        types = [(name, of.dtype, of.shape[1:]) for name, of in columns.items()]
        record = np.recarray(len(self), dtype=types)
        for name, of in columns.items():
            record[name] = of
        return record

    @property
    def info(self) -> dict[str, Any]:
        """Options and totals of the run, as plain values."""
        return {
            "options": to_plain(self.options, defaults=True),
            "patterns": self.patterns,
            "seconds": float(self.seconds.sum()),
            "interrupted": self.interrupted,
        }

    def to_pandas(self) -> Any:
        """A pandas ``DataFrame`` with a row for each read, without the weights."""
        if find_spec("pandas") is None:
            raise ModuleNotFoundError(
                "to_pandas needs pandas; write pip install pandas, or use result.record.",
                name="pandas",
            )
        import pandas

        return pandas.DataFrame(self._columns()).rename_axis("read")

    def summary(self) -> Summary:
        """Means with their intervals, and the time to solution, over the finished reads."""
        done = self.finished
        if not done.any():
            raise McoverError(
                "no read was finished, so there is nothing to summarise; anneal to the end, or use "
                "result.trajectory and result.weights."
            )
        title = f"{self._method()}, {reads_text(int(np.count_nonzero(done)))}"
        with_teacher = bool(np.all(np.isfinite(self.overlap)))

        def mean(values: NDArray[Any]) -> Estimate:
            return statistics.mean(values[done])

        return Summary(
            title=title,
            solved=statistics.fraction(self.solved[done]),
            energy=mean(self.energy / (self.patterns * self.options.method.covers)),
            training_error=mean(self.training_errors / self.patterns),
            overlap=mean(self.overlap) if with_teacher else None,
            generalization_error=mean(self.generalization_error) if with_teacher else None,
            seconds=mean(self.seconds),
            tts99=statistics.time_to_solution(self.solved[done], self.seconds[done]),
            proposal_rate=mean(self.proposals / np.maximum(self.seconds, 1e-9) / 1e6),
        )

    def plot(self, title: str | None = None) -> Figure:
        """Energy, overlaps and acceptance of each read, and the errors if there is a teacher.

        It returns a matplotlib figure, e.g. for ``.plot().savefig("run.png")``; matplotlib is in
        the extra ``plot``. Notebooks display the figure.
        """
        from mcover.figures import annealing_figure

        name, known = self._method(), bool(np.all(np.isfinite(self.generalization_error)))
        outcomes = {name: self.generalization_error} if known else None
        title = f"{name}, {reads_text(len(self))}" if title is None else title
        return annealing_figure({name: vars(self.trajectory)}, title, outcomes)

    def _outcome(self) -> list[list[str]]:
        best = self.best
        wrong = f"{best.errors} of {self.patterns} patterns wrong, margin {best.margin:.4g}"
        return [
            ["solved", f"{np.count_nonzero(self.solved)} of {len(self)}"],
            ["best energy", f"{best.energy:.6g} (read {best.read}: {wrong})"],
        ]

    def _method(self) -> str:
        method = self.options.method
        return f"{method.kind}, {method.covers} covers" if method.covers > 1 else method.kind

    def _columns(self) -> dict[str, NDArray[Any]]:
        """The values of each read except the weights, by the names of ``record``."""
        others = "overlap", "generalization_error", "sweeps", "proposals", "seconds", "finished"
        return {
            "energy": self.collapsed_energy,
            "errors": self.training_errors,
            "margin": self.margin,
            "solved": self.solved,
            "lifted_energy": self.energy,
        } | {name: getattr(self, name) for name in others}

    def save(self, path: str | Path) -> Path:
        """Writes one .npz file, without pickle; atomically replaces an existing file."""
        target = checks.check_path("path", path)
        if target.suffix != ".npz":
            raise McoverError(f"cannot save to {target}; end the name in .npz.")
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays |= {f"trajectory.{n}": getattr(self.trajectory, n) for n in _TRAJECTORY}
        about = {
            "format": _FORMAT,
            "interrupted": self.interrupted,
            "patterns": self.patterns,
            "options": to_plain(self.options, defaults=True),  # another version may have others
        }
        text = np.array(json.dumps(about))
        return write_atomic(target, lambda file: np.savez_compressed(file, about=text, **arrays))

    @classmethod
    def load(cls, path: str | Path) -> AnnealResult:
        """Reads a file of :meth:`save`; refuses other files."""
        arrays = read_arrays(path)
        try:
            about = json.loads(str(arrays["about"]))
            if about["format"] != _FORMAT:
                raise McoverError(f"it holds {about['format']}, not {_FORMAT}")
            course = Trajectory(**{name: arrays[f"trajectory.{name}"] for name in _TRAJECTORY})
            return cls(
                **{name: arrays[name] for name in ARRAYS},
                trajectory=course,
                options=from_plain(AnnealOptions, about["options"], "options"),
                patterns=int(about["patterns"]),
                interrupted=bool(about["interrupted"]),
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise McoverError(f"{path} is not a result that mcover saved: {error}.") from error


_TRAJECTORY = [field.name for field in fields(Trajectory)]
_ABOUT = ("trajectory", "options", "patterns", "interrupted")
ARRAYS = [field.name for field in fields(AnnealResult) if field.name not in _ABOUT]


def reads_text(count: int) -> str:
    return f"{count} read" + "s" * int(count > 1)


def collapse_mean(weights: Signs) -> NDArray[np.float64]:
    """Mean over covers, shape (..., M, sites) → (..., sites)."""
    return np.asarray(weights.mean(axis=-2, dtype=np.float64))


def collapse_sign(weights: Signs) -> Signs:
    """Majority over covers, shape (..., M, sites) → (..., sites); ties go to cover 0."""
    total = weights.sum(axis=-2, dtype=np.int64)
    return np.where(total == 0, weights[..., 0, :], np.sign(total)).astype(np.int8)
