import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference_annealer as reference
from mcover import Committee, McoverError, Perceptron, teacher_student
from mcover.annealing import load_problem
from mcover.annealing.states import pack_columns
from mcover.checks import MEMORY_VARIABLE
from mcover.errors import TooLargeError


@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 4), st.integers(0, 10**6))
def test_training_errors_meet_the_definition(inputs, patterns, hidden, seed):
    rng = np.random.default_rng(seed)
    problem = Committee(
        rng.choice([-1, 1], (patterns, inputs)), rng.choice([-1, 1], patterns), hidden
    )
    students = rng.choice([-1, 1], (3, hidden * inputs))
    expected = [reference.training_errors(problem, student) for student in students]
    assert problem.training_errors(students).tolist() == expected
    gauged = problem.gauged.astype(int)
    for student, wrong in zip(students, expected, strict=True):
        assert problem.energy(student, "errors") == wrong
        linear = reference.network_energy(gauged, student, hidden, "linear")
        expected_linear = reference.value(linear, inputs, hidden, 1, "linear")
        assert problem.energy(student) == pytest.approx(expected_linear)


def test_patterns_of_two_values_become_signs():
    signs = np.random.default_rng(0).choice([-1, 1], (9, 5))
    for patterns in (signs, signs > 0, (signs + 1) // 2, signs * 1.0, (signs + 1) / 2):
        problem = Perceptron(patterns, np.ones(9))
        np.testing.assert_array_equal(problem.patterns, signs)
        assert problem.patterns.dtype == np.int8
    assert Perceptron([[True, True]], [1]).patterns.tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("minus", "plus", "said"),
    [(-1, 1, ""), (0, 1, "0 → -1 and 1 → +1"), (False, True, "False → -1 and True → +1"),
     ("cat", "dog", "'cat' → -1 and 'dog' → +1"), (3, 7.5, "3.0 → -1 and 7.5 → +1")],
)  # fmt: skip
def test_labels_of_any_two_values_are_mapped_and_said(minus, plus, said):
    problem = Perceptron(np.ones((4, 3)), [plus, minus, minus, plus])
    assert problem.labels.tolist() == [1, -1, -1, 1]
    assert problem.classes == (minus, plus)
    assert said in repr(problem)
    assert ("labels" in repr(problem)) == bool(said)


@pytest.mark.parametrize(("n", "hidden"), [(100, 1), (101, 1), (20, 3), (21, 4), (1, 1), (2, 1)])
def test_the_teacher_makes_no_error(n, hidden):
    problem = teacher_student(n, alpha=3.0, seed=1, hidden=hidden)
    assert problem.patterns.shape == (3 * n * hidden, n)
    assert problem.training_errors(problem.teacher) == 0
    assert problem.overlap(problem.teacher) == pytest.approx(1)
    assert problem.generalization_error(problem.teacher) == pytest.approx(0, abs=1e-7)


def test_ties_may_be_kept_as_plus_one():
    """One pattern in forty at N = 1000; those the teacher decides get the same labels."""
    kept = teacher_student(1000, 2.0, seed=4, ties="plus")
    fields = kept.patterns.astype(int) @ kept.teacher
    np.testing.assert_array_equal(kept.labels, np.where(fields >= 0, 1, -1))
    share = np.mean(fields == 0)
    assert 0.012 < share < 0.04
    assert kept.energy(kept.teacher) == 0
    assert kept.training_errors(kept.teacher) == np.sum(fields == 0)
    redrawn = teacher_student(1000, 2.0, seed=4)
    np.testing.assert_array_equal(redrawn.patterns[fields != 0], kept.patterns[fields != 0])
    committee = teacher_student(4, 20.0, seed=0, hidden=2, ties="plus")
    assert set(committee.labels.tolist()) == {-1, 1}


def test_random_students_know_nothing():
    problem = teacher_student(1001, alpha=1.0, seed=0)
    students = np.random.default_rng(1).choice([-1, 1], (200, 1001))
    overlaps = problem.overlap(students)
    assert abs(overlaps.mean()) < 5 / np.sqrt(200 * 1001)
    assert overlaps.std() == pytest.approx(1 / np.sqrt(1001), rel=0.25)
    assert problem.generalization_error(students).mean() == pytest.approx(0.5, abs=0.01)
    assert problem.training_errors(students).mean() == pytest.approx(500, abs=5)


def test_perceptron_error_is_how_often_it_differs_on_new_patterns():
    problem = teacher_student(301, alpha=0.5, seed=2)
    student = problem.teacher.copy()
    student[:60] *= -1
    fresh = np.random.default_rng(0).choice([-1, 1], (40_000, 301)).astype(np.float32)
    differ = np.mean(np.sign(fresh @ student) != np.sign(fresh @ problem.teacher))
    assert problem.generalization_error(student) == pytest.approx(differ, abs=0.012)


def test_committee_measures_ignore_the_order_of_hidden_units():
    problem = teacher_student(51, alpha=1.0, seed=3, hidden=3)
    turned = np.roll(problem.teacher.reshape(3, 51), 1, axis=0).ravel()
    assert problem.overlap(turned) == pytest.approx(1)
    assert problem.generalization_error(turned) == 0
    assert problem.generalization_error(-turned) == 1


def test_without_a_teacher_there_is_nothing_to_compare_with():
    for problem in (Perceptron([[1, -1, 1]], [1]), Committee([[1, -1, 1]], [1], hidden=2)):
        assert np.isnan(problem.overlap(np.ones(problem.sites)))
        assert np.isnan(problem.generalization_error(np.ones((2, problem.sites)))).all()
        assert problem.overlap(np.ones((2, problem.sites))).shape == (2,)


def test_problems_are_read_from_files(tmp_path):
    problem = teacher_student(9, 3.0, seed=0)
    np.savez(tmp_path / "a.npz", patterns=problem.patterns, labels=problem.labels)
    again = load_problem(tmp_path / "a.npz")
    np.testing.assert_array_equal(again.gauged, problem.gauged)
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:-30])
    flipped = bytearray(whole)
    flipped[200] ^= 255
    (tmp_path / "flipped.npz").write_bytes(flipped)
    np.savez(tmp_path / "objects.npz", patterns=np.array([None]), labels=np.ones(1))
    for name in ("cut.npz", "flipped.npz", "objects.npz", "missing.npz"):
        with pytest.raises(McoverError, match=f"cannot read .*{name} as an .npz file"):
            load_problem(tmp_path / name)
    np.savez(tmp_path / "half.npz", patterns=problem.patterns)
    with pytest.raises(McoverError, match="needs 'patterns' and 'labels'"):
        load_problem(tmp_path / "half.npz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no patterns"),
        ("a,b,c\n", "has no patterns"),
        ("1\n-1\n", "has no patterns"),
        ("1,1,1\n1,x,1\n", "line 2 of .* write 2 numbers and a label"),
        ("1,1,1\n1,-1,1,1\n", "line 2 of .* write 2 numbers and a label"),
        ("1,2,1\n1,-1,0\n", "patterns must be"),
        ("1,-1,a\n1,-1,b\n1,1,c\n", "labels must have two values"),
    ],
)
def test_tables_that_are_no_problem_are_refused(text, message, tmp_path):
    file = tmp_path / "data.csv"
    file.write_text(text)
    with pytest.raises(McoverError, match=message):
        load_problem(file)


def test_arrays_that_are_no_problem_are_refused(tmp_path):
    file = tmp_path / "data.npy"
    for array in (np.ones(3), np.ones((3, 1)), np.array(1.0), np.ones((2, 2, 2))):
        np.save(file, array)
        with pytest.raises(McoverError, match=r"write one of shape \(P, N \+ 1\)"):
            load_problem(file)
    np.save(file, np.array([{}, None], dtype=object))
    with pytest.raises(McoverError, match=r"cannot read .* as an \.npy file"):
        load_problem(file)


def test_one_hidden_unit_is_a_perceptron(tmp_path):
    np.savez(tmp_path / "a.npz", patterns=[[1, -1], [0, 1]], labels=["no", "yes"])
    with pytest.raises(McoverError, match="patterns must be"):
        load_problem(tmp_path / "a.npz")
    np.save(tmp_path / "a.npy", [[True, False, True], [False, True, False]])
    assert isinstance(load_problem(tmp_path / "a.npy"), Perceptron)
    assert isinstance(load_problem(tmp_path / "a.npy", hidden=3), Committee)


def test_devices_are_not_read(tmp_path):
    for name in ("zero.npz", "zero.npy", "zero.csv"):
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(McoverError, match="it is not a file"):
            load_problem(tmp_path / name)


def test_files_that_unpack_to_more_than_memory_allows_are_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", patterns=np.ones((1000, 1000)), labels=np.ones(1))
    monkeypatch.setenv(MEMORY_VARIABLE, "100000")
    with pytest.raises(TooLargeError, match=r"bomb\.npz"):
        load_problem(tmp_path / "bomb.npz")


def test_large_problems_are_computed_in_blocks(monkeypatch):
    """The same numbers for every block size."""
    whole = teacher_student(31, 9.0, seed=0, hidden=3), teacher_student(20, 9.0, seed=0)
    students = [np.random.default_rng(0).choice([-1, 1], (2, 2, one.sites)) for one in whole]
    wanted = [(p.energy(w), p.training_errors(w)) for p, w in zip(whole, students, strict=True)]
    columns = [pack_columns(one.gauged) for one in whole]
    monkeypatch.setattr("mcover.annealing.problems._BLOCK", 7)
    monkeypatch.setattr("mcover.annealing.states._PACKED_AT_A_TIME", 1000)
    again = teacher_student(31, 9.0, seed=0, hidden=3), teacher_student(20, 9.0, seed=0)
    for one, other, student, want, packed in zip(
        whole, again, students, wanted, columns, strict=True
    ):
        np.testing.assert_array_equal(other.patterns, one.patterns)
        np.testing.assert_array_equal(other.labels, one.labels)
        np.testing.assert_allclose(other.energy(student), want[0], rtol=1e-12)
        np.testing.assert_array_equal(other.training_errors(student), want[1])
        np.testing.assert_array_equal(pack_columns(other.patterns, other.labels), packed)


def test_a_problem_is_sent_without_what_can_be_made_again():
    problem = teacher_student(31, 2.0, seed=0)
    size = len(pickle.dumps(problem))
    _ = problem.gauged
    assert len(pickle.dumps(problem)) == size
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(problem)).gauged, problem.gauged)
