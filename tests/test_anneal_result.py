"""Annealing results: representations, selection, records, summaries and pictures."""

import dataclasses
import json
import os
import re
import sys

import numpy as np
import pytest

import mcover
from mcover import MCover, McoverError, Vanilla, statistics
from mcover.annealing import AnnealOptions, AnnealResult
from mcover.figures import annealing_figure

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def problem():
    return mcover.teacher_student(51, alpha=1.4, seed=1)


@pytest.fixture(scope="module")
def result(problem):
    schedule = mcover.LinearSchedule(0.4, 0.01, 0.39 / 199)
    found = mcover.anneal(problem, MCover(3, bank=4), schedule=schedule, num_reads=6, seed=2)
    assert 0 < found.solved.sum() < 6  # reads of both kinds
    return found


def test_repr_is_a_screen_with_the_outcome(result):
    lines = repr(result).splitlines()
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 100
    text = repr(result)
    for word in ("MCover(covers=3", "linear, T = 0.4 to 0.01, 200 sweeps", "6, all finished"):
        assert word in text
    assert f"{result.solved.sum()} of 6" in text
    assert "0 of 71 patterns wrong" in text
    html = result._repr_html_()
    assert html.startswith("<table>")
    assert re.sub("<[^>]*>", "", html).startswith("AnnealResultmethodMCover")


def test_reads_are_students(result, problem):
    assert len(result) == 6
    students = list(result)
    assert [student.read for student in students] == list(range(6))
    assert result[-1].read == result[np.int64(5)].read == 5
    margins = problem.gauged @ result.collapsed_sign.T / np.sqrt(51)
    for student, own, margin in zip(students, result.collapsed_sign, margins.T, strict=True):
        assert student.weights.tolist() == own.tolist()
        assert student.errors == problem.training_errors(own)
        assert student.energy == pytest.approx(problem.energy(own))
        assert student.margin == pytest.approx(margin.min())
        assert (student.margin > 0) == (student.errors == 0)
    assert repr(students[0]).startswith("<Student of read 0: 51 weights, energy")


def test_margins_of_a_committee_are_votes():
    problem = mcover.teacher_student(11, alpha=2.0, hidden=3, seed=0)
    result = mcover.anneal(problem, MCover(3, bank=4), num_sweeps=20, num_reads=4, seed=0)
    units = result.collapsed_sign.reshape(4, 3, 11)
    votes = np.where(np.einsum("pi,rki->rkp", problem.gauged, units) > 0, 1, -1).sum(axis=1)
    np.testing.assert_allclose(result.margin, votes.min(axis=1) / np.sqrt(3))


def test_the_best_student_has_the_lowest_energy_and_then_the_largest_margin(result):
    assert result.best.energy == result.collapsed_energy.min() == 0
    assert result.best.margin == result.margin[result.solved].max()
    assert result.first.read == result.best.read


def test_some_reads_are_a_result_again(result):
    for chosen in (result.solved, slice(1, 4), [5, 0], np.array([2])):
        part = result[chosen]
        assert isinstance(part, AnnealResult)
        np.testing.assert_array_equal(part.weights, result.weights[chosen])
        np.testing.assert_array_equal(part.trajectory.energy, result.trajectory.energy[chosen])
        assert part.trajectory.sweep.tolist() == result.trajectory.sweep.tolist()
    assert result[result.solved].solved.all()


def test_records_and_tables_have_the_students(result):
    record = result.record
    np.testing.assert_array_equal(record.sample, result.collapsed_sign)
    np.testing.assert_array_equal(record.energy, result.collapsed_energy)
    np.testing.assert_array_equal(record[2].sample, result[2].weights)
    frame = pytest.importorskip("pandas") and result.to_pandas()
    assert frame.index.name == "read"
    assert frame["errors"].tolist() == result.training_errors.tolist()
    assert frame.shape == (6, 11)
    method = result.info["options"]["method"]
    assert (method["kind"], method["covers"], method["bank"]) == ("mcover", 3, 4)
    assert (result.info["patterns"], result.info["interrupted"]) == (71, False)


def test_without_pandas_the_message_says_so(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install pandas, or use result.record"):
        result.to_pandas()


def test_summary_has_the_estimates_and_prints_them(result):
    summary = result.summary()
    assert summary.solved == statistics.fraction(result.solved)
    assert summary.tts99 == statistics.time_to_solution(result.solved, result.seconds)
    assert summary.generalization_error == statistics.mean(result.generalization_error)
    assert summary.energy.value == pytest.approx(result.energy.mean() / (3 * 71))
    text = str(summary)
    assert text.splitlines()[0].startswith("mcover, 3 covers, 6 reads")
    assert f"{summary.solved:.3f}" in text
    assert "TTS99" in text
    assert "TTS99" in summary._repr_html_()


def test_what_has_no_teacher_is_left_out_of_the_summary(problem):
    own = mcover.Perceptron(problem.patterns, problem.labels)
    result = mcover.anneal(own, Vanilla(), num_sweeps=5, num_reads=3, seed=0)
    assert np.isnan(result.generalization_error).all()
    assert result.summary().overlap is None
    assert "teacher" not in str(result.summary())
    assert len(result.plot().axes) == 2  # energy and acceptance


def test_unfinished_reads_are_not_summed_up(problem):
    stop = iter([False, True]).__next__
    schedule = mcover.LinearSchedule(0.4, 0.01, 1e-7)
    result = mcover.anneal(problem, schedule=schedule, num_reads=2, seed=0, interrupt=stop)
    assert "2, 0 finished, interrupted" in repr(result)
    with pytest.raises(McoverError, match="no read was finished"):
        result.summary()


def test_pictures_are_drawn_and_shown_by_notebooks(result, tmp_path):
    figure = result.plot()
    assert figure._suptitle.get_text() == "mcover, 3 covers, 6 reads"
    energies = [line.get_ydata() for line in figure.axes[0].lines]
    np.testing.assert_allclose(energies[-1], result.trajectory.energy.mean(axis=0))
    assert len(energies) == 7  # the reads and their mean
    assert figure._repr_png_().startswith(PNG)
    course = result.trajectory.plot("course")
    assert course._suptitle.get_text() == "course"
    assert len(course.axes) == 4
    assert repr(result.trajectory).startswith("<Trajectory: 50 points of 6 reads, sweeps 0 to 199")


def test_topologies_draw_themselves():
    figure = mcover.Uniform().plot(4)
    kernel = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(kernel, np.full((4, 4), 0.25))


@pytest.mark.parametrize(
    "options",
    [
        {"method": MCover(3, mcover.GaussianRing(1.5, shift=2), bank=4)},
        {"method": Vanilla(), "rule": "descent", "improvement": "best"},
    ],
)
def test_files_keep_everything_without_pickle(options, problem, tmp_path):
    result = mcover.anneal(problem, num_sweeps=20, num_reads=2, seed=0, **options)
    path = result.save(tmp_path / "deep" / "result.npz")
    stored = json.loads(str(np.load(path)["about"]))["options"]
    assert stored == result.info["options"]  # also the defaults, which another version may change
    assert set(stored) == {field.name for field in dataclasses.fields(AnnealOptions)}
    again = AnnealResult.load(path)
    assert again.options == result.options
    assert repr(again) == repr(result)
    np.testing.assert_array_equal(again.weights, result.weights)
    np.testing.assert_array_equal(again.record, result.record)
    np.testing.assert_array_equal(again.trajectory.energy, result.trajectory.energy)
    with np.load(path, allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file.files)
    assert os.listdir(path.parent) == ["result.npz"]


def test_foreign_files_are_refused_and_left_alone(result, tmp_path):
    np.savez(tmp_path / "foreign.npz", a=np.ones(3))
    before = (tmp_path / "foreign.npz").read_bytes()
    whole = result.save(tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:300])
    flipped = bytearray(whole)
    flipped[200] ^= 255
    (tmp_path / "flipped.npz").write_bytes(flipped)
    np.save(tmp_path / "array.npy", np.ones(3))
    for name, message in (
        ("foreign.npz", "not a result that mcover saved"),
        ("cut.npz", "cannot read .*cut.npz as an .npz file"),
        ("flipped.npz", "cannot read .*flipped.npz as an .npz file"),
        ("array.npy", "cannot read .*array.npy as an .npz file"),
        ("missing.npz", "cannot read .*missing.npz"),
        ("", "cannot read"),
    ):
        with pytest.raises(McoverError, match=message):
            AnnealResult.load(tmp_path / name)
    assert (tmp_path / "foreign.npz").read_bytes() == before
    with pytest.raises(McoverError, match=r"end the name in \.npz"):
        result.save(tmp_path / "result.pkl")
    assert not (tmp_path / "result.pkl").exists()


def test_a_picture_without_falling_temperatures_is_against_sweeps(problem):
    for label, rule in (("temperature T", "glauber"), ("sweep", "descent")):
        course = mcover.anneal(problem, Vanilla(), rule=rule, num_sweeps=5, seed=0).trajectory
        axes = course.plot().axes[0]
        assert axes.get_xlabel() == label
        assert axes.xaxis_inverted() == (rule == "glauber")


def test_a_picture_of_many_methods_has_all_of_them(result):
    course = vars(result.trajectory)
    figure = annealing_figure({str(k): course for k in range(7)}, "seven methods")
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [*"0123456"]
