import itertools
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import reference_annealer as reference
from interrupting import interruptible
from mcover import (
    RSA,
    Committee,
    FactorGraph,
    GaussianRing,
    Identity,
    LinearSchedule,
    MCover,
    McoverError,
    Perceptron,
    Uniform,
    Vanilla,
    anneal,
    teacher_student,
)
from mcover.annealing import (
    PAPER,
    AnnealOptions,
    AnnealResult,
    BetaSchedule,
    CustomSchedule,
    GeometricSchedule,
)
from mcover.annealing.options import bank_size, couplings_of
from mcover.annealing.reads import AnnealStatus, cover_overlap
from mcover.checks import MEMORY_VARIABLE as VARIABLE
from mcover.errors import TooLargeError
from mcover.factor_graph import lift_bank
from mcover.routing import draw_bank
from mcover.seeds import seed_sequence

SHORT = LinearSchedule(0.4, 0.1, 0.05)
RING = GaussianRing(1.5, shift=2)
COOLING = np.linspace(0.4, 0.01, 40)


def same(one, two):
    np.testing.assert_array_equal(one.weights, two.weights)
    np.testing.assert_allclose(one.energy, two.energy, atol=1e-12)
    np.testing.assert_array_equal(one.trajectory.acceptance, two.trajectory.acceptance)


@pytest.mark.parametrize("hidden", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"method": Vanilla()},
        {"method": RSA(3, coupling=0.8, coupling_growth=0.1)},
        {"method": MCover(4, RING, bank=3)},
        {"method": MCover(4, RING, bank=3, coupling=0.7)},
        {"method": MCover(3, bank=2, coupling=0.3, coupling_growth=0.2, redraw_every=3)},
        {"method": MCover(2, Uniform(), bank=None), "rule": "metropolis"},
        {"method": MCover(3, bank=2), "energy": "errors", "order": "sequential"},
        {"method": MCover(3, bank=2, redraw_every=3), "order": "permutation"},
        {"method": MCover(3, bank=2, redraw_every=3)},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_every_method_walks_the_reference_trajectory(options, hidden):
    problem = teacher_student(7, alpha=2.0, seed=1, hidden=hidden)
    result = anneal(problem, schedule=SHORT, num_reads=2, seed=5, **options)
    settings = AnnealOptions(schedule=SHORT, **options)
    assert result.options == settings
    method = settings.method
    for read, seed in enumerate(seed_sequence(5).spawn(2)):
        route_seed, redraw_seed, chain_seed = seed.spawn(3)
        rng = reference.Xoshiro(chain_seed.generate_state(4, np.uint64))
        weights = reference.random_weights(rng, method.covers, problem.sites)
        size = bank_size(settings.method, problem.sites)
        bank = draw_bank(method.topology, method.covers, problem.sites, size, route_seed)
        temperatures, couplings = SHORT.temperatures(), couplings_of(settings)
        every = method.redraw_every or len(temperatures)
        for start in range(0, len(temperatures), every):
            if start:
                bank = bank.redraw(redraw_seed.spawn(1)[0])
            _, energies = reference.anneal(
                problem.gauged.astype(int),
                bank.routes.astype(int),
                weights,
                hidden,
                settings.energy,
                temperatures[start : start + every],
                couplings[start : start + every],
                settings.rule,
                settings.order,
                rng,
            )
        np.testing.assert_array_equal(result.weights[read], weights)
        assert result.energy[read] == pytest.approx(energies[-1])


@pytest.mark.parametrize("n", [6, 7])
@pytest.mark.parametrize("energy", ["linear", "errors"])
def test_energy_is_that_of_the_general_lift(n, energy):
    problem = teacher_student(n, alpha=2.0, seed=2)
    result = anneal(problem, MCover(3, RING, bank=4), num_sweeps=3, seed=9, energy=energy)
    route_seed = seed_sequence(9).spawn(1)[0].spawn(3)[0]
    bank = draw_bank(RING, 3, n, 4, route_seed)

    def factor(row):
        def linear(*w):
            return max(0.0, -float(row @ np.array(w)) / n**0.5)

        def errors(*w):
            return float(row @ np.array(w) <= 0)

        return linear if energy == "linear" else errors

    graph = FactorGraph([(factor(row), range(n)) for row in problem.gauged])
    expected = lift_bank(graph, bank).objective(result.weights[0].astype(float))
    assert result.energy[0] == pytest.approx(expected)


def test_covers_that_attract_are_replicas_without_mixing():
    problem = teacher_student(31, 1.5, seed=0)
    replicas = anneal(problem, RSA(3, coupling=0.8), schedule=COOLING, seed=3)
    covers = MCover(3, Identity(), bank=5, coupling=0.8)
    same(anneal(problem, covers, schedule=COOLING, seed=3), replicas)


def test_a_coupling_brings_covers_together():
    problem = teacher_student(61, 1.5, seed=0)
    how = {"schedule": [0.5] * 60, "num_reads": 8, "seed": 0}
    overlaps = [
        cover_overlap(anneal(problem, MCover(5, bank=2, coupling=gamma), **how).weights).mean()
        for gamma in (0.0, 0.5, 2.0)
    ]
    assert overlaps[0] + 0.05 < overlaps[1] < overlaps[2] - 0.05


def test_collapse_is_the_mean_and_the_majority():
    problem = teacher_student(30, 1.0, seed=0)
    result = anneal(problem, MCover(4, bank=3), num_sweeps=2, num_reads=2, seed=0)
    np.testing.assert_allclose(result.collapsed, result.weights.mean(axis=1))
    total = result.weights.astype(int).sum(axis=1)
    decided = total != 0
    np.testing.assert_array_equal(result.collapsed_sign[decided], np.sign(total[decided]))
    ties = result.weights[:, 0][~decided]
    np.testing.assert_array_equal(result.collapsed_sign[~decided], ties)
    assert (~decided).any()


def test_results_do_not_depend_on_workers_or_on_the_number_of_reads():
    problem = teacher_student(60, 1.4, seed=0)
    method = MCover(3, bank=4, redraw_every=7)
    options = {"method": method, "num_sweeps": 60, "seed": 11}
    five = anneal(problem, num_reads=5, workers=1, **options)
    same(anneal(problem, num_reads=5, workers=4, **options), five)
    two = anneal(problem, num_reads=2, **options)
    np.testing.assert_array_equal(two.weights, five.weights[:2])
    other = anneal(problem, num_reads=2, **{**options, "seed": 12})
    assert not np.array_equal(two.weights, other.weights)
    assert not np.array_equal(five.weights[0], five.weights[1])


def test_annealing_learns():
    """Far above the threshold, every read finds the teacher."""
    problem = teacher_student(101, alpha=4.0, seed=3)
    result = anneal(problem, MCover(3, bank=5), num_sweeps=400, num_reads=4, seed=0)
    assert result.solved.all()
    np.testing.assert_array_equal(result.collapsed_energy, 0)
    assert result.generalization_error.max() < 0.03
    committee = teacher_student(21, alpha=6.0, seed=3, hidden=3)
    found = anneal(
        committee,
        MCover(3, bank=5),
        schedule=GeometricSchedule(1.0, 0.02, 400),
        num_reads=4,
        seed=0,
    )
    assert found.generalization_error.min() < 0.12


def test_trajectory_records_what_happened():
    problem = teacher_student(51, 1.5, seed=0)
    schedule = LinearSchedule(0.4, 0.1, 0.01)
    result = anneal(problem, MCover(3, bank=4), schedule=schedule, num_reads=2, seed=0, record=7)
    course = result.trajectory
    assert len(course.temperature) == 7
    assert course.temperature[[0, -1]] == pytest.approx([0.4, 0.1])
    assert course.energy.shape == course.overlap.shape == (2, 7)
    patterns = len(problem.patterns)
    np.testing.assert_allclose(course.energy[:, -1] * 3 * patterns, result.energy)
    np.testing.assert_allclose(course.overlap[:, -1], result.overlap)
    assert np.all((course.acceptance > 0) & (course.acceptance < 1))
    expected = [cover_overlap(weights) for weights in result.weights]
    np.testing.assert_allclose(course.cover_overlap[:, -1], expected)
    chosen = anneal(problem, Vanilla(), schedule=schedule, seed=0, record=[0.3, 0.2])
    assert chosen.trajectory.temperature == pytest.approx([0.3, 0.2])
    assert np.isnan(chosen.trajectory.cover_overlap).all()


def test_every_point_of_a_trajectory_is_a_run_that_ended_there():
    """More points than are worked out together, and some of them alone at the end."""
    problem, temperatures = teacher_student(31, 1.5, seed=0), np.linspace(0.5, 0.1, 70)
    how = {"method": MCover(3, bank=2), "seed": 0}
    course = anneal(problem, schedule=temperatures, record=70, **how).trajectory
    for point in (0, 31, 32, 63, 64, 69):
        short = anneal(problem, schedule=temperatures[: point + 1], record=1, **how)
        assert course.overlap[0, point] == pytest.approx(short.overlap[0])
        assert course.cover_overlap[0, point] == pytest.approx(cover_overlap(short.weights[0]))
        assert course.energy[0, point] * 3 * len(problem.patterns) == pytest.approx(short.energy[0])


@pytest.mark.parametrize("energy", ["linear", "errors"])
@pytest.mark.parametrize(("inputs", "hidden"), [(30, 1), (31, 1), (12, 3), (11, 4)])
def test_the_collapse_has_the_energy_and_errors_that_the_problem_says(energy, inputs, hidden):
    problem = teacher_student(inputs, 20.0, seed=0, hidden=hidden)
    result = anneal(problem, MCover(3), schedule=[9.0], num_reads=3, seed=1, energy=energy)
    expected = problem.energy(result.collapsed_sign, energy)
    assert expected.min() > 0
    np.testing.assert_array_equal(result.collapsed_energy, expected)  # to the last bit
    np.testing.assert_array_equal(
        result.training_errors, problem.training_errors(result.collapsed_sign)
    )


def test_cover_overlap_is_the_mean_over_pairs():
    weights = np.random.default_rng(0).choice([-1, 1], (4, 9)).astype(np.int8)
    pairs = [weights[a] @ weights[b] / 9 for a in range(4) for b in range(a)]
    assert cover_overlap(weights) == pytest.approx(np.mean(pairs))


def test_recording_does_not_change_the_run():
    problem = teacher_student(40, 1.5, seed=0)
    options = {"method": MCover(3, bank=3), "num_sweeps": 90, "seed": 1}
    few, many = (anneal(problem, record=count, **options) for count in (1, 90))
    np.testing.assert_array_equal(few.weights, many.weights)


def test_stop_at_zero_ends_early():
    problem = teacher_student(51, alpha=0.4, seed=0)
    how = {"schedule": PAPER.schedule, "stop_at_zero": True}
    result = anneal(problem, MCover(2, bank=3), num_reads=3, seed=0, **how)
    assert result.solved.all()
    assert np.all(result.sweeps < 3901)
    np.testing.assert_array_equal(result.proposals, result.sweeps * 2 * 51)
    assert np.isnan(result.trajectory.energy[:, -1]).all()
    assert not result.interrupted
    assert result.finished.all()


def test_initial_states_of_every_shape():
    problem = teacher_student(20, 1.0, seed=0)
    one = np.random.default_rng(0).choice([-1, 1], 20)
    shapes = [one, np.tile(one, (3, 1)), np.tile(one, (2, 3, 1))]
    runs = [
        anneal(problem, MCover(3, bank=2), num_sweeps=4, num_reads=2, seed=0, initial_states=start)
        for start in shapes
    ]
    for run in runs[1:]:
        same(run, runs[0])


def test_progress_is_reported():
    seen = []
    problem = teacher_student(301, 1.5, seed=0)
    anneal(problem, MCover(3), num_sweeps=600, num_reads=3, seed=0, progress=seen.append)
    assert seen[-1].reads_done == seen[-1].reads == 3
    assert seen[-1].share == pytest.approx(1)
    assert all(a.share <= b.share for a, b in itertools.pairwise(seen))
    assert 0 < seen[-1].temperature <= 0.4


def test_interrupt_returns_what_was_reached():
    problem = teacher_student(501, 1.5, seed=0)
    begin = time.monotonic()
    result = anneal(
        problem,
        num_sweeps=10**6,
        num_reads=8,
        seed=0,
        workers=2,
        interrupt=lambda: time.monotonic() > begin + 1,
    )
    assert result.interrupted
    assert not result.finished.any()
    assert 1 <= len(result.energy) <= 3
    assert np.all(result.sweeps > 0)
    assert np.all(np.abs(result.weights) == 1)
    assert time.monotonic() - begin < 30


def test_ctrl_c_returns_what_was_reached(tmp_path):
    code = (
        "import mcover\n"
        "told = []\n"
        "def tell(status):\n"
        "    if status.share and not told:\n"
        "        told.append(print('running', flush=True))\n"
        "problem = mcover.teacher_student(501, 1.5, seed=0)\n"
        "result = mcover.anneal(problem, num_sweeps=10**6, num_reads=2, seed=0, progress=tell)\n"
        "result.save('result.npz')\n"
        "print(result.interrupted, flush=True)\n"
    )
    with interruptible([sys.executable, "-c", code], tmp_path) as process:
        assert process.stdout.readline().strip() == "running"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().strip() == "True"
    assert process.returncode == 0
    result = AnnealResult.load(tmp_path / "result.npz")
    assert result.interrupted
    assert 1 <= len(result.energy) <= 2


def test_a_failure_in_a_thread_reaches_the_caller():
    def fail(status):
        raise RuntimeError("no progress today")

    problem = teacher_student(101, 1.5, seed=0)
    with pytest.raises(RuntimeError, match="no progress today"):
        anneal(problem, num_sweeps=10**5, num_reads=2, seed=0, progress=fail)
    assert threading.active_count() < 4


def test_save_and_load_without_pickle(tmp_path):
    problem = teacher_student(30, 1.0, seed=0)
    result = anneal(problem, MCover(3, RING, bank=3), num_sweeps=20, num_reads=2, seed=0)
    path = result.save(tmp_path / "deep" / "result.npz")
    again = AnnealResult.load(path)
    same(again, result)
    assert again.options == result.options
    assert again.options.method == MCover(3, RING, bank=3)
    np.testing.assert_array_equal(again.collapsed, result.collapsed)
    with np.load(path, allow_pickle=False) as file:
        assert all(file[name].dtype != object for name in file.files)
    assert os.listdir(path.parent) == ["result.npz"]


def test_foreign_files_are_refused_and_left_alone(tmp_path):
    problem = teacher_student(10, 1.0, seed=0)
    result = anneal(problem, MCover(bank=2), num_sweeps=2, seed=0)
    with pytest.raises(McoverError, match=r"end the name in \.npz"):
        result.save(tmp_path / "result.pkl")
    foreign = tmp_path / "foreign.npz"
    np.savez(foreign, a=np.ones(3))
    before = foreign.read_bytes()
    broken = tmp_path / "broken.npz"
    broken.write_bytes(result.save(tmp_path / "whole.npz").read_bytes()[:300])
    text = tmp_path / "text.npz"
    text.write_text("hello")
    array = tmp_path / "array.npy"
    np.save(array, np.ones(3))
    for path, message in (
        (foreign, "not a result that mcover saved"),
        (broken, "cannot read .*broken.npz as an .npz file"),
        (text, "cannot read .*text.npz as an .npz file"),
        (array, "cannot read .*array.npy as an .npz file"),
        (tmp_path, "cannot read"),
        (tmp_path / "missing.npz", "cannot read .*missing.npz"),
    ):
        with pytest.raises(McoverError, match=message):
            AnnealResult.load(path)
    assert foreign.read_bytes() == before


def test_schedules_have_the_temperatures_they_say():
    paper = LinearSchedule(0.4, 0.01, 1e-4).temperatures()
    assert len(paper) == 3901
    assert paper[[0, -1]] == pytest.approx([0.4, 0.01])
    np.testing.assert_allclose(np.diff(paper), -1e-4)
    geometric = GeometricSchedule(1.0, 0.1, 5, sweeps=2).temperatures()
    np.testing.assert_allclose(geometric[::2], 10 ** np.array([0, -0.25, -0.5, -0.75, -1]))
    np.testing.assert_array_equal(geometric[::2], geometric[1::2])
    np.testing.assert_allclose(1 / BetaSchedule(1.0, 0.1, 4).temperatures(), [1, 4, 7, 10])
    assert CustomSchedule((0.3, 0.5)).temperatures().tolist() == [0.3, 0.5]
    growing = AnnealOptions(RSA(3, coupling=2.0, coupling_growth=1.0), SHORT)
    np.testing.assert_allclose(couplings_of(growing)[:3], [2, 4, 8])


@pytest.mark.parametrize("schedule", [(0.3, 1e-8, 0.1), (0.3, 0.1 - 1e-15, 0.1), (0.4, 0.01, 0.1)])
def test_linear_schedules_never_end_below_their_stop(schedule):
    temperatures = LinearSchedule(*schedule).temperatures()
    assert temperatures.min() >= 0.999 * schedule[1]
    assert np.all(np.diff(temperatures) < 0)


PROBLEM = teacher_student(20, 1.0, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: {"method": "quantum"}, r"method is 'quantum'; write mcover.MCover"),
        (lambda: {"method": MCover}, "method is .*; write mcover.MCover"),
        (lambda: {"energy": "square"}, "energy is 'square'"),
        (lambda: {"rule": "heat"}, "rule is 'heat'"),
        (lambda: {"order": "spiral"}, "order is 'spiral'"),
        (lambda: {"method": MCover(0)}, "covers is 0"),
        (lambda: {"method": MCover(300)}, "covers is 300; write a whole number from 1 to 255"),
        (lambda: {"method": MCover(bank=0)}, "bank is 0"),
        (lambda: {"method": MCover(bank=21)}, "at most 20, or bank=None"),
        (lambda: {"method": MCover(topology="moon")}, "topology is 'moon'"),
        (lambda: {"method": MCover(redraw_every=0)}, "redraw_every is 0"),
        (lambda: {"method": RSA(coupling=-1.0)}, "coupling is -1.0; .* from 0 to 300"),
        (lambda: {"method": MCover(coupling=-1.0)}, "coupling is -1.0; .* from 0 to 300"),
        (lambda: {"method": MCover(coupling="auto")}, "coupling is 'auto'; write a finite number"),
        (lambda: {"method": RSA(coupling_growth=-2)}, "coupling_growth is -2"),
        (lambda: {"method": RSA(coupling_growth=1.0)}, "must stay between 0"),
        (lambda: {"schedule": LinearSchedule(0.4, 0.0, 0.1)}, "stop is 0.0"),
        (lambda: {"schedule": LinearSchedule(0.1, 0.4, 0.1)}, "write start ≥ stop"),
        (lambda: {"schedule": LinearSchedule(0.4, 0.1, -0.1)}, "step is -0.1"),
        (lambda: {"schedule": LinearSchedule(0.4, 0.1, 1e-300)}, "fewer temperatures"),
        (lambda: {"schedule": GeometricSchedule(0.4, 0.1, 0)}, "count is 0"),
        (lambda: {"schedule": GeometricSchedule(0.4, 0.1, 10**15)}, "fewer temperatures"),
        (lambda: {"schedule": BetaSchedule(0.4, -0.1)}, "stop is -0.1"),
        (lambda: {"schedule": [0.3, 0.0]}, "positive temperatures, the smallest here is 0"),
        (lambda: {"schedule": []}, "write a list or array of numbers"),
        (lambda: {"schedule": "linear"}, "schedule is 'linear'"),
        (lambda: {"schedule": SHORT, "num_sweeps": 3}, "leave one of them out"),
        (lambda: {"num_sweeps": 0}, "num_sweeps is 0"),
        (lambda: {"num_reads": 0}, "num_reads is 0"),
        (lambda: {"num_reads": 10**12}, "fewer covers, reads"),
        (lambda: {"workers": 0}, "workers is 0"),
        (lambda: {"seed": -1}, "seed is -1"),
        (lambda: {"record": 0}, "record is 0"),
        (lambda: {"record": []}, "record is"),
        (
            lambda: {"initial_states": np.ones(19)},
            r"initial_states is an array of shape .*write one of shape \(20,\)",
        ),
        (lambda: {"initial_states": np.ones((2, 20))}, r"write one of shape \(5, 20\)"),
        (lambda: {"initial_states": np.zeros(20)}, "initial_states must be -1 or"),
    ],
)
def test_bad_requests_are_refused_with_a_remedy(options, message):
    with pytest.raises(McoverError, match=message):
        anneal(PROBLEM, **options())


def test_narrow_integers_do_not_overflow():
    plain = anneal(PROBLEM, MCover(3, bank=10), num_sweeps=5, num_reads=3, seed=0)
    narrow = MCover(np.uint8(3), bank=np.uint8(10))
    assert narrow == MCover(3, bank=10)
    same(anneal(PROBLEM, narrow, num_sweeps=np.int8(5), num_reads=np.uint8(3), seed=0), plain)


def test_the_progress_bar_ends_at_100_percent_with_the_last_status(capsys):
    anneal(PROBLEM, MCover(bank=2), num_sweeps=20, num_reads=2, seed=0, progress=True)
    last = capsys.readouterr().err.replace("\r", "\n").strip().splitlines()[-1]
    assert last.lstrip().startswith("100%")
    assert "reads 2/2" in last


def test_the_status_fits_a_terminal():
    """80 columns less 28 for the percentage, the bar and the time left."""
    status = AnnealStatus(100, 100, 0.5, 0.00123, 0.01234, 1.0, 10.0, 10.0)
    assert len(str(status)) <= 52


def test_what_does_not_fit_is_refused(monkeypatch):
    problem = teacher_student(50, 10.0, seed=0)
    monkeypatch.setenv(VARIABLE, "100000")
    with pytest.raises(TooLargeError, match="smaller bank"):
        anneal(problem, MCover(9, bank=None), num_sweeps=5)
    with pytest.raises(TooLargeError, match="fewer temperatures"):
        anneal(problem, num_sweeps=10_000)


def test_user_data_needs_no_teacher():
    rng = np.random.default_rng(0)
    patterns, labels = rng.choice([-1, 1], (70, 33)), rng.choice([-1, 1], 70)
    for problem in (Perceptron(patterns, labels), Committee(patterns, labels, hidden=2)):
        result = anneal(problem, MCover(2, bank=3), num_sweeps=30, seed=0)
        assert np.isnan(result.generalization_error).all()
        assert result.training_errors[0] == problem.training_errors(result.collapsed_sign)[0]
