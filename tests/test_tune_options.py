"""Searches without Optuna: what they go through, the file of a winner, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch

import mcover
from mcover import Band, Chain, GaussianRing, LinearSchedule, MCover, Uniform
from mcover.annealing import AnnealResult, GeometricSchedule
from mcover.cli import main
from mcover.errors import McoverError
from mcover.lab import tune
from mcover.lab.perceptron import PerceptronTrial
from mcover.lab.training import SGD, CommitteeTrial, Lifted, NetworkTrial, Training
from mcover.lab.tune import NetworkSearch, PerceptronSearch
from mcover.lifting import Directed, Messages
from mcover.plain import to_plain

PERCEPTRON = PerceptronTrial(101, 3.0)
NETWORK = NetworkTrial(training=Training(2, 50), images=100, validation=200, model="small-mlp")


@pytest.mark.parametrize(
    "search",
    [
        PerceptronSearch(PERCEPTRON),
        PerceptronSearch(PERCEPTRON, score="solved"),
        PerceptronSearch(replace(PERCEPTRON, method=MCover(12, Band(2), 30, redraw_every=7))),
        PerceptronSearch(replace(PERCEPTRON, method=MCover(3, GaussianRing(40, 1.7, skew=0.3)))),
        PerceptronSearch(replace(PERCEPTRON, schedule=GeometricSchedule(0.4, 0.01, 123, 2))),
        NetworkSearch(NETWORK),
        NetworkSearch(replace(NETWORK, method=Lifted(noise="150%", routing=Messages(blocks=64)))),
        NetworkSearch(replace(NETWORK, method=Lifted(topology=Chain(2.123456)))),
        NetworkSearch(replace(NETWORK, method=Lifted(noise=0.0, start="independent"))),
        NetworkSearch(replace(NETWORK, method=Lifted(routing=Directed(redraw_every=4)))),
    ],
)
def test_a_search_begins_with_the_trial_as_it_is(search):
    given = replace(search.trial, validation=None) if search.kind == "network" else search.trial
    first, space = search.first(), search.space()
    assert search.candidate(first) == given
    for name, value in first.items():
        room = space[name]
        assert value in room if isinstance(room, tuple) else room.low <= value <= room.high


def test_what_is_searched_changes_the_trial_and_nothing_else_does():
    search = PerceptronSearch(PERCEPTRON)
    params = {"topology": "chain", "sigma": 0.7, "covers": 5, "bank": 2, "redraw": "10"}
    found = search.candidate(params | {"temperatures": 40})
    assert found.method == MCover(5, Chain(0.7), 2, redraw_every=10)
    assert len(found.schedule.temperatures()) == 40
    assert replace(found, method=PERCEPTRON.method, schedule=PERCEPTRON.schedule) == PERCEPTRON
    network = NetworkSearch(NETWORK)
    params = {"topology": "ring", "sigma": 2.0, "shift": 1.0, "covers": 3, "bank": 2}
    params |= {"granularity": "unit", "noise": 0.02, "redraw": "3"}
    routing = Directed(2, granularity="unit", redraw_every=3)
    method = Lifted(3, 0.02, topology=GaussianRing(2, 1), routing=routing)
    assert network.candidate(params) == replace(NETWORK, method=method, validation=None)
    tried = network.tried(params)
    assert (tried.validation, tried.method, tried.training.evaluate_every) == (200, method, 2)


def test_sigma_and_shift_belong_to_topologies_that_have_them():
    search = PerceptronSearch(PERCEPTRON)
    having = {
        kind: [name for name in search.space() if search.applies(name, {"topology": kind})]
        for kind in ("ring", "chain", "uniform")
    }
    assert {"sigma", "shift"} <= set(having["ring"])
    assert {"sigma", "shift"} & set(having["chain"]) == {"sigma"}
    assert not {"sigma", "shift"} & set(having["uniform"])


def test_what_is_fixed_is_not_searched():
    search = PerceptronSearch(PERCEPTRON, fix=("topology", "bank", "temperatures"))
    assert set(search.space()) == {"sigma", "shift", "covers", "redraw"}
    assert search.candidate({"covers": 4}).method == replace(PERCEPTRON.method, covers=4)
    band = PerceptronSearch(replace(PERCEPTRON, method=MCover(3, Band(1))), fix=("topology",))
    assert not any(band.applies(name, {}) for name in ("sigma", "shift"))


def test_the_schedule_is_searched_only_where_time_counts():
    assert "temperatures" in PerceptronSearch(PERCEPTRON).space()
    assert "temperatures" not in PerceptronSearch(PERCEPTRON, score="solved").space()


def test_scores_of_the_perceptron():
    solved = {"solved": 1.0, "core_seconds": 2.0, "proposals": 100.0}
    failed = solved | {"solved": 0.0}
    by_name = {s: PerceptronSearch(PERCEPTRON, score=s) for s in ("solved", "tts-proposals")}
    assert [by_name["solved"].each(one) for one in (solved, failed)] == [0, 1]
    assert by_name["solved"].total([solved, solved, solved, failed]) == 0.25
    assert [by_name["tts-proposals"].each(one) for one in (solved, failed)] == [100, 1000]
    few, many = (by_name["tts-proposals"].total([solved] * n) for n in (2, 1000))
    assert few > many == 100  # two of two are less sure than a thousand of a thousand
    assert 1e4 < by_name["tts-proposals"].total([failed] * 20) < 1e5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("perceptron rsa", "method is rsa, which has no routes"),
        ("network sgd", "method is sgd, which has no routes"),
        ("network --validation none", "--validation is None, and candidates are judged"),
        ("perceptron --fix speed", "--fix is 'speed', which is not searched"),
        ("perceptron mcover --bank none", "--bank is None, where the search needs a number"),
        ("network lifted --noise 0", "--noise is 0.0, where the search needs a number"),
        ("perceptron --seeds 0", "--seeds is 0"),
        ("perceptron --trials 0", "--trials is 0"),
        ("perceptron --seconds 0", "--seconds is 0"),
        ("perceptron --prune 2", "--prune is 2"),
        ("perceptron --workers -1", "--workers is -1"),
        ("perceptron --score speed", "score"),
        ("network --output /", "--output is '/'"),
        ("network --covers 0", "--covers is 0"),
    ],
)
def test_bad_input_ends_with_a_message_and_no_file(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["tune", *words.split()])
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert message in " ".join((said.out + said.err).replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_a_missing_optuna_is_named_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mcover.lab.training.options.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        main(["tune", "network", "--output", str(tmp_path / "new" / "tune")])
    assert stop.value.code == 2
    assert "mcover tune needs optuna: pip install 'mcover[tune]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def written(trial, folder):
    path = folder / "tune.json"
    path.write_text(json.dumps({"trial": to_plain(trial), "test": {}}))
    return path


METHOD = Lifted(3, 0.02, topology=GaussianRing(2, 1), routing=Directed(2, granularity="unit"))


def test_a_lift_takes_the_options_of_a_file(tmp_path):
    trial = replace(NETWORK, method=METHOD, validation=None)
    options = tune.read(written(trial, tmp_path)).lift_options()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    covered = mcover.lift(model, **options, seed=0)
    assert covered(torch.zeros(3, 4)).shape == (3, 3, 2)
    assert covered.settings.topology == METHOD.topology
    assert (covered.settings.routing, covered.settings.noise) == (METHOD.routing, 0.02)


@pytest.mark.parametrize(("images", "steps"), [(100, 2), (101, 3), (None, 29)])
def test_a_redraw_each_epoch_becomes_one_every_so_many_steps(images, steps, tmp_path):
    trial = replace(NETWORK, images=images, method=Lifted(redraw_each_epoch=True), validation=None)
    options = tune.read(written(trial, tmp_path)).lift_options()
    assert options["routing"] == Directed(redraw_every=steps)


def test_an_annealing_takes_the_options_of_a_file(tmp_path):
    schedule = LinearSchedule(step=0.01)
    trial = replace(
        PERCEPTRON, method=MCover(4, Uniform(), 2), schedule=schedule, rule="metropolis"
    )
    trial = replace(trial, stop_at_zero=True)
    options = tune.read(written(trial, tmp_path)).anneal_options()
    problem = mcover.teacher_student(21, 3.0, seed=0)
    annealed = mcover.anneal(problem, **options, seed=0).options
    assert annealed == trial.options
    assert (annealed.schedule, annealed.rule, annealed.stop_at_zero) == (
        schedule,
        "metropolis",
        True,
    )


@pytest.mark.parametrize(
    ("trial", "ask", "message"),
    [
        (PERCEPTRON, "lift_options", "holds a perceptron, which has no options of a lift"),
        (NETWORK, "anneal_options", "holds a network, which has no options of an annealing"),
        (replace(NETWORK, method=SGD()), "lift_options", "trains by sgd, which is no lift"),
    ],
)
def test_options_of_another_kind_are_refused(trial, ask, message, tmp_path):
    with pytest.raises(McoverError, match=message):
        getattr(tune.read(written(trial, tmp_path)), ask)()


def run(words, folder):
    main([*words.split(), "--output", str(folder / "out")])


def test_mcover_train_takes_a_file_and_options_beside_it_go_before(tmp_path, capsys):
    file = written(replace(NETWORK, method=METHOD, validation=None), tmp_path)
    for words in (f"train --config {file}", f"train network lifted --config={file} --covers 5"):
        run(words, tmp_path)
        covers = 5 if "--covers" in words else 3
        assert f"{covers} covers, GaussianRing(sigma=2.0, shift=1.0" in capsys.readouterr().out
        kept = tune.read(tmp_path / "out.json").trial
        assert kept == replace(NETWORK, method=replace(METHOD, covers=covers), validation=None)
    again = f"train --config {tmp_path / 'out.json'} --epochs 1"  # what a training wrote
    run(again, tmp_path)
    assert tune.read(tmp_path / "out.json").trial.training.epochs == 1


def test_mcover_anneal_takes_a_file_for_its_task_or_another(tmp_path, capsys):
    schedule = LinearSchedule(step=0.05)
    trial = PerceptronTrial(21, 3.0, method=MCover(4, Uniform(), 2), schedule=schedule)
    file = written(trial, tmp_path)
    for words, task in (("", "63 patterns"), ("committee --n 7 --hidden 3", "42 patterns")):
        run(f"anneal {words} --reads 2 --config {file}", tmp_path)
        printed = capsys.readouterr().out
        assert task in printed
        assert "mcover, 4 covers, 2 reads" in printed
    run(f"anneal perceptron mcover --covers 2 --reads 2 --config {file}", tmp_path)
    assert "63 patterns" in (printed := capsys.readouterr().out)
    assert "mcover, 2 covers, 2 reads" in printed
    trial = replace(trial, rule="repair", stop_at_zero=True)
    run(f"anneal --reads 1 --config {written(trial, tmp_path)}", tmp_path)
    assert AnnealResult.load(tmp_path / "out.npz").options == trial.options


@pytest.mark.parametrize(
    ("words", "content", "message"),
    [
        ("train", PERCEPTRON, "holds a perceptron; write mcover anneal --config"),
        ("train", None, "cannot read the config"),
        ("train", "{", "is not JSON"),
        ("train", "{}", "has no trial"),
        ("train", "[1]", "has no trial"),
        ("train", '{"trial": 3}', "cannot be used: trial is 3"),
        ("train", '{"trial": {"kind": "network", "speed": 1}}', "cannot be used: trial has no"),
        ("train", '{"trial": {"kind": "network", "model": "x"}}', "model is 'x'"),
        ("train committee", NETWORK, "holds a network; write train network"),
        ("train", CommitteeTrial(images=1_000_000), "from 1 to"),
        ("anneal", NETWORK, "holds a network; write mcover train --config"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused(words, content, message, tmp_path, capsys):
    file = tmp_path / "tune.json"
    if isinstance(content, str):
        file.write_text(content)
    elif content is not None:
        written(content, tmp_path)
    with pytest.raises(SystemExit) as stop:
        run(f"{words} --config {file}", tmp_path)
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out.json").exists()
