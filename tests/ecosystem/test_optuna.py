"""Trials of Optuna as topologies, lifts and annealing runs, in studies of a user."""

import optuna
import pytest
import torch
from optuna.trial import FixedTrial

import mcover
from mcover import McoverError
from mcover.optuna import suggest_annealing, suggest_lift, suggest_topology

optuna.logging.set_verbosity(optuna.logging.WARNING)


def topology_value(trial):
    return suggest_topology(trial, 5, kinds=("ring", "chain", "uniform", "identity"))


def lift_value(trial):
    return suggest_lift(trial, routing=("directed", "messages"))


def annealing_value(trial):
    return suggest_annealing(trial, method=("mcover", "rsa", "vanilla"), start=(0.2, 0.8))


def use_topology(topology):
    assert topology.matrix(5).shape == (5, 5)


def use_lift(options):
    covered = mcover.lift(torch.nn.Linear(4, 3), **options, seed=0)
    assert covered(torch.zeros(2, 4)).shape == (options["covers"], 2, 3)


def use_annealing(options):
    problem = mcover.teacher_student(11, alpha=2.0, seed=0)
    result = mcover.anneal(problem, **options, seed=0, workers=1)
    assert result.weights.shape == (1, options["method"].covers, 11)


USES = {
    topology_value: use_topology,
    lift_value: use_lift,
    annealing_value: use_annealing,
}


@pytest.mark.parametrize("value", USES)
def test_every_candidate_works_and_is_rebuilt_from_its_parameters(value, tmp_path):
    storage, values = f"sqlite:///{tmp_path / 'study.db'}", {}

    def objective(trial):
        values[trial.number] = made = value(trial)
        USES[value](made)
        return trial.number

    sampler = optuna.samplers.RandomSampler(seed=0)
    study = optuna.create_study(storage=storage, study_name="search", sampler=sampler)
    study.optimize(objective, n_trials=16)
    loaded = optuna.load_study(study_name="search", storage=storage)
    for trial in loaded.trials:
        assert value(FixedTrial(trial.params)) == value(trial) == values[trial.number]
    assert len({repr(made) for made in values.values()}) > 8


def test_what_is_fixed_is_not_searched():
    trial = optuna.create_study().ask()
    options = suggest_lift(
        trial, covers=3, topology=mcover.Uniform(), granularity="unit", redraw_every=None,
        noise_percent=10,
    )  # fmt: skip
    assert set(trial.params) == {"bank"}
    how = mcover.Directed(trial.params["bank"], granularity="unit", redraw_every=None)
    assert options == {"covers": 3, "topology": mcover.Uniform(), "routing": how, "noise": "10%"}
    assert suggest_topology(trial, 4, kinds="ring", sigma=1.5, shift=2) == mcover.GaussianRing(
        1.5, 2
    )
    options = suggest_annealing(trial, method="rsa", covers=4, coupling=1, sweeps=30, stop=0.1)
    assert options["method"] == mcover.RSA(4, 1.0)
    temperatures = options["schedule"].temperatures()
    assert (len(temperatures), temperatures[0]) == (30, 0.4)
    assert temperatures[-1] == pytest.approx(0.1)
    assert set(trial.params) == {"bank"}


def test_the_shift_of_a_ring_goes_half_way_around():
    for covers in (2, 7):
        trial = optuna.create_study().ask()
        suggest_topology(trial, covers, kinds="ring")
        assert trial.distributions["shift"].high == covers / 2


@pytest.mark.parametrize(
    ("suggest", "message"),
    [
        (lambda t: suggest_topology(t, 3, kinds=("ring", "torus")), "topology is 'torus'; write"),
        (lambda t: suggest_topology(t, 3, kinds=()), r"topology is \(\).*one or more"),
        (lambda t: suggest_topology(t, 3, kinds="ring", sigma=(0, 1)), "sigma is 0.*above 0"),
        (lambda t: suggest_topology(t, 3, kinds="ring", shift=(1, 2, 3)), r"\(low, high\)"),
        (lambda t: suggest_topology({}, 3), "trial is {}.*FixedTrial"),
        (lambda t: suggest_lift(t, covers=(4, 2)), "covers is 2.*at least 4"),
        (lambda t: suggest_lift(t, redraw_every=(None, 0)), "redraw_every is 0"),
        (lambda t: suggest_lift(t, blocks=(1, 0)), "blocks is 0"),  # also of the other routing
        (lambda t: suggest_annealing(t, start=0.1, stop=0.2), "write start > stop"),
    ],
)
def test_bad_arguments_are_refused(suggest, message):
    with pytest.raises(McoverError, match=message):
        suggest(optuna.create_study().ask())
