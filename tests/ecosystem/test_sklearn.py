"""The estimators: scikit-learn's checks and tools, and their own guarantees."""

import math
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine, make_regression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.utils.estimator_checks import parametrize_with_checks

import mcover
from mcover.annealing import RECOMMENDED
from mcover.sklearn import (
    MCoverCommitteeClassifier,
    MCoverMLPClassifier,
    MCoverMLPRegressor,
    MCoverPerceptronClassifier,
)
from mcover.sklearn.batched import BatchedCovers

SMALL = {"covers": 3, "max_iter": 20, "learning_rate_init": 0.02}
SIGNS = [MCoverPerceptronClassifier, MCoverCommitteeClassifier]


@pytest.fixture(scope="module")
def cancer():
    return load_breast_cancer(return_X_y=True)


@parametrize_with_checks(
    [
        MCoverPerceptronClassifier(),
        MCoverCommitteeClassifier(),
        MCoverMLPClassifier((16,), **SMALL),
        MCoverMLPRegressor((16,), **SMALL),
    ]
)
def test_the_contract_is_kept(estimator, check):
    check(estimator)


# ±1 students


@pytest.mark.parametrize("cls", SIGNS)
@pytest.mark.parametrize("data", [load_wine, load_breast_cancer])
def test_packed_prediction_is_the_plain_one(cls, data):
    X, y = data(return_X_y=True)
    model = cls(restarts=1, random_state=0).fit(X, y)
    bits = np.where(X[:, model.columns_] > model.thresholds_, 1, -1)
    fields = np.einsum("pn,qshn->pqsh", bits, model.collapsed_.astype(int))
    if cls is MCoverPerceptronClassifier:
        margins = fields[..., 0] / math.sqrt(bits.shape[1])
    else:
        margins = (np.sign(fields).sum(-1) + fields.mean(-1) / (bits.shape[1] + 1)) / 5
    margins = margins.mean(axis=2)
    wanted = margins.argmax(axis=1) if margins.shape[1] > 1 else (margins[:, 0] > 0) * 1
    np.testing.assert_allclose(model.decision_function(X), margins.squeeze())
    np.testing.assert_array_equal(model.predict(X), model.classes_[wanted])
    assert np.all(fields != 0)


@pytest.mark.parametrize("readout", ["majority", "best"])
def test_students_are_those_of_solve(readout, wine):
    method = mcover.MCover(3, bank=2)
    how = {"method": method, "restarts": 2, "readout": readout}
    model = MCoverCommitteeClassifier(hidden=3, students=2, random_state=0, **how).fit(*wine)
    bits = len(model.thresholds_)
    assert model.collapsed_.shape == (3, 2, 3, bits)
    assert model.packed_.nbytes == 3 * 2 * 3 * -(-bits // 64) * 8
    patterns = np.where(wine[0][:, model.columns_] > model.thresholds_, 1, -1)
    seeds = np.random.RandomState(0).randint(2**31, size=6).reshape(3, 2)
    for question, own in enumerate(seeds):
        problem = mcover.Committee(patterns, np.where(wine[1] == question, 1, -1), 3)
        for student, seed in enumerate(own):
            found = mcover.solve(problem, seed=int(seed), **how)
            wanted = model.collapsed_[question, student].ravel()
            np.testing.assert_array_equal(wanted, found.weights)
            assert model.training_error_[question, student] == found.errors / len(patterns)


def test_the_perceptron_anneals_as_anneal_does(wine):
    bare = MCoverPerceptronClassifier(random_state=0).fit(*wine)
    named = MCoverPerceptronClassifier(method=RECOMMENDED.method, random_state=0).fit(*wine)
    np.testing.assert_array_equal(bare.packed_, named.packed_)


def thresholds_of(X, k):
    y = np.arange(len(X)) % 2
    model = MCoverPerceptronClassifier(thermometer=k, restarts=1, students=1).fit(X, y)
    return [
        model.thresholds_[(model.columns_ == i) & np.isfinite(model.thresholds_)]
        for i in range(X.shape[1])
    ]


def test_thresholds_are_quantiles_between_values_of_the_data():
    X = np.stack([np.arange(8), [0, 0, 0, 0, 0, 0, 0, 1], np.ones(8), [-1, 1] * 4], axis=1)
    median, few, constant, signs = thresholds_of(X, 1)
    assert (median, few, signs) == ([3.5], [0.5], [0.0])
    assert constant.size == 0
    quartiles, few, constant, signs = thresholds_of(X, 3)
    assert quartiles.tolist() == [1.5, 3.5, 5.5]
    assert (few, signs) == ([0.5], [0.0])
    assert constant.size == 0


def test_every_cut_splits_the_data_however_close_or_large_its_values():
    low, large = np.nextafter(1, 2), np.finfo(float).max
    X = np.array([[1.0, -large], [low, large], [1.0, -large], [low, large]])
    for thresholds, values in zip(thresholds_of(X, 1), X.T, strict=True):
        assert np.any(values > thresholds)
        assert np.any(values <= thresholds)


def test_the_number_of_bits_is_odd_and_has_a_bias(wine):
    for k in (1, 2, 3):
        model = MCoverPerceptronClassifier(thermometer=k, restarts=1).fit(*wine)
        assert len(model.thresholds_) % 2 == 1
        assert 1 <= np.sum(model.thresholds_ == -np.inf) <= 2


def test_near_capacity_the_teacher_is_found():
    problem = mcover.teacher_student(201, alpha=2.0, seed=3)
    X, y = problem.patterns.astype(float), problem.labels
    model = MCoverPerceptronClassifier(random_state=0).fit(X, y)
    fresh = 2.0 * np.random.default_rng(1).integers(0, 2, (2000, 201)) - 1
    np.testing.assert_array_equal(model.predict(fresh), np.sign(fresh @ problem.teacher))


@pytest.mark.parametrize("cls", SIGNS)
def test_whole_weights_are_copies(cls, cancer):
    X, y = cancer[0][:120], cancer[1][:120]
    copies = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = cls(restarts=1, random_state=0).fit(X, y, sample_weight=copies)
    repeated = cls(restarts=1, random_state=0).fit(X.repeat(copies, axis=0), y.repeat(copies))
    np.testing.assert_array_equal(weighted.thresholds_, repeated.thresholds_)
    np.testing.assert_array_equal(weighted.packed_, repeated.packed_)


@pytest.mark.parametrize("cls", SIGNS)
@pytest.mark.parametrize("equal", [True, False])
def test_the_unit_of_weights_does_not_matter(cls, equal, cancer):
    """1, 8 and 9 copies of every pattern once had three temperatures. Other weights are rounded."""
    X, y = cancer
    weight = np.ones(len(X)) if equal else np.random.default_rng(0).uniform(0.5, 2, len(X))
    plain = cls(restarts=1, random_state=0).fit(X, y, sample_weight=None if equal else weight)
    for unit in (1, 8, 9, 0.3, 1e6) if equal else (1000,):
        weighted = cls(restarts=1, random_state=0).fit(X, y, sample_weight=unit * weight)
        np.testing.assert_array_equal(weighted.packed_, plain.packed_)


def test_a_class_of_small_weight_is_kept(wine):
    X, y = wine
    weight = np.where(y == 2, 0.04, 1.0)
    model = MCoverPerceptronClassifier(random_state=0).fit(X, y, sample_weight=weight)
    assert np.mean(model.predict(X[y == 2]) == 2) > 0.5


@pytest.mark.parametrize("cls", SIGNS)
def test_training_errors_are_weighted_and_least_with_the_best_readout(cls):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 9)), rng.integers(0, 2, 200)
    how = {"restarts": 1, "students": 8, "random_state": 0, "thermometer": 3}
    weight = rng.integers(1, 4, 200)
    for readout in ("best", "majority"):
        model = cls(readout=readout, **how).fit(X, y, sample_weight=weight)
        bits = np.where(X[:, model.columns_] > model.thresholds_, 1, -1)
        votes = np.sign(np.einsum("pn,rhn->prh", bits, model.collapsed_[0].astype(int))).sum(-1)
        errors = ((votes > 0) != y[:, None]).T @ weight / weight.sum()
        np.testing.assert_allclose(errors, model.training_error_[0])
        if readout == "best":
            least = errors
    assert least.mean() < errors.mean()
    with pytest.raises(ValueError, match="readout is 'mean'; write 'best' or 'majority'"):
        cls(readout="mean").fit(X, y)


@pytest.mark.parametrize("cls", SIGNS)
def test_a_class_of_weight_zero_is_left_out(cls, wine):
    X, y = wine
    one = cls(restarts=1, random_state=0, class_weight={0: 0, 1: 0.3, 2: 0.5}).fit(X, y)
    other = cls(restarts=1, random_state=0, class_weight={1: 0.3, 2: 0.5}).fit(X[y > 0], y[y > 0])
    assert one.classes_.tolist() == [1, 2]
    np.testing.assert_array_equal(one.packed_, other.packed_)


@pytest.mark.parametrize("cls", SIGNS)
def test_class_weights_shift_the_balance(cls):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    X = rng.normal(size=(300, 4)) + 0.5 * y[:, None]
    share = [
        cls(class_weight=weight, random_state=0).fit(X, y).predict(X).mean()
        for weight in ({0: 9.5, 1: 1}, {0: 1, 1: 9.5})
    ]
    assert share[0] < 0.3
    assert share[1] > 0.7


def test_balanced_weights_are_those_of_the_classes(cancer):
    X, y = cancer
    count = np.bincount(y)
    models = [
        MCoverPerceptronClassifier(class_weight=weight, restarts=1, random_state=0).fit(X, y)
        for weight in ("balanced", {0: 1 / count[0], 1: 1 / count[1]}, None)
    ]
    np.testing.assert_array_equal(models[0].packed_, models[1].packed_)
    assert np.any(models[0].packed_ != models[2].packed_)


def test_results_depend_on_the_seed_and_not_on_the_number_of_jobs(wine):
    models = [
        MCoverPerceptronClassifier(restarts=1, random_state=seed, n_jobs=jobs).fit(*wine)
        for seed, jobs in ((0, None), (0, 5), (1, None))
    ]
    np.testing.assert_array_equal(models[0].packed_, models[1].packed_)
    assert np.any(models[0].packed_ != models[2].packed_)


# What all have in common


@pytest.mark.parametrize(
    ("model", "grid"),
    [
        (
            MCoverPerceptronClassifier(random_state=0),
            {"method": [None, mcover.RSA(4)], "restarts": [1, 2], "thermometer": [1, 3]},
        ),
        (
            MCoverCommitteeClassifier(restarts=1, students=1, random_state=0),
            {"hidden": [1, 3], "method": [None, mcover.Vanilla()]},
        ),
        (
            MCoverMLPClassifier((8,), max_iter=10, learning_rate_init=0.05, random_state=0),
            {
                "covers": [1, 2],
                "topology": [mcover.GaussianRing(1.0), "ring"],
                "routing": ["directed", "messages", mcover.Directed(2)],
            },
        ),
    ],
)
def test_pipelines_and_grid_search(model, grid, wine):
    name = type(model).__name__.lower()
    search = GridSearchCV(
        make_pipeline(StandardScaler(), model),
        {f"{name}__{key}": values for key, values in grid.items()},
        cv=2,
        error_score="raise",
    ).fit(*wine)
    assert len(search.cv_results_["params"]) == math.prod(map(len, grid.values()))
    assert search.best_score_ > 0.6
    assert search.predict(wine[0]).shape == wine[1].shape


@pytest.mark.parametrize(
    "model",
    [
        MCoverPerceptronClassifier(random_state=0),
        MCoverCommitteeClassifier(random_state=0),
        MCoverMLPClassifier((32,), max_iter=40, learning_rate_init=0.01, random_state=0),
    ],
)
def test_cross_validation_finds_what_they_learn(model, wine):
    assert cross_val_score(model, *wine, cv=3).mean() > 0.92


@pytest.mark.parametrize("cls", [*SIGNS, MCoverMLPClassifier, MCoverMLPRegressor])
def test_bad_weights_are_refused(cls, wine):
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        cls().fit(*wine, sample_weight=-np.ones(178))


@pytest.mark.parametrize("cls", [*SIGNS, MCoverMLPClassifier])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({0: -1, 1: 1}, r"class_weight\[0\] is -1; write a finite number of at least 0"),
        ({0: math.nan}, r"class_weight\[0\] is nan"),
        ({0: "much"}, r"class_weight\[0\] is 'much'"),
        ({7: 1.0}, r"names \[7\]; the classes are \[0, 1, 2\]"),
        ({0: 0, 1: 0, 2: 0}, "is 0 for all classes"),
        ("even", "class_weight is 'even'; write a dict"),
        ([1, 2, 3], r"class_weight is \[1, 2, 3\]"),
    ],
)
def test_bad_class_weights_are_refused(cls, weights, message, wine):
    with pytest.raises(ValueError, match=message):
        cls(class_weight=weights).fit(*wine)


# Networks


HOW = {
    "defaults": "directed",
    "redrawn": mcover.Directed(redraw_every=3),
    "kept": mcover.Directed(3, redraw_every=None),
}


@pytest.mark.parametrize("routing", HOW.values(), ids=HOW)
@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity"])
def test_batched_covers_train_as_covers_one_by_one(routing, activation, wine, monkeypatch):
    X, y = wine
    model = MCoverMLPClassifier(
        (7, 5), activation=activation, routing=routing, covers=3, batch_size=50, max_iter=4,
        class_weight={0: 2.0}, alpha=0.1, random_state=0,
    )  # fmt: skip
    ours = clone(model).fit(X, y, sample_weight=1 + y)
    monkeypatch.setattr(BatchedCovers, "fits", staticmethod(lambda covered: False))
    plain = clone(model).fit(X, y, sample_weight=1 + y)
    assert ours.covers_.steps == plain.covers_.steps == 16
    np.testing.assert_allclose(ours.history_["loss"], plain.history_["loss"], rtol=1e-9)
    for name, value in plain.covers_.state_dict().items():
        torch.testing.assert_close(ours.covers_.state_dict()[name], value)


@pytest.mark.parametrize(
    "how",
    [mcover.Directed(granularity="unit"), mcover.Directed(4, destinations=2), mcover.Messages()],
)
def test_other_lifts_are_trained_one_by_one(how, wine):
    X, y = wine
    model = MCoverMLPClassifier((7,), routing=how, max_iter=2, random_state=0).fit(scale(X), y)
    assert not BatchedCovers.fits(model.covers_)
    assert model.history_["loss"][-1] < model.history_["loss"][0]


def test_batched_covers_fit_several_outputs_and_one_cover(monkeypatch):
    X, y = make_regression(120, 5, n_targets=2, random_state=0)
    for covers in (1, 3):
        model = MCoverMLPRegressor((6,), covers=covers, max_iter=3, random_state=0)
        ours = clone(model).fit(X, scale(y))
        with monkeypatch.context() as patch:
            patch.setattr(BatchedCovers, "fits", staticmethod(lambda covered: False))
            plain = clone(model).fit(X, scale(y))
        np.testing.assert_allclose(ours.predict(X), plain.predict(X))


def test_the_collapse_predicts(wine):
    X, y = wine
    model = MCoverMLPClassifier(
        (16, 8), activation="tanh", max_iter=30, learning_rate_init=0.01, random_state=0
    ).fit(X, y)
    logits = model.collapsed_(torch.from_numpy(X)).detach()
    np.testing.assert_allclose(model.predict_proba(X), logits.softmax(1))
    np.testing.assert_array_equal(model.predict(X), logits.argmax(1))
    linear = [layer for layer in model.collapsed_ if isinstance(layer, torch.nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in linear] == [(16, 13), (8, 16), (3, 8)]
    for name, value in model.covers_.collapse().state_dict().items():
        torch.testing.assert_close(value, model.collapsed_.state_dict()[name])
    assert model.covers_.covers == 4
    assert model.score(X, y) > 0.95
    assert len(model.history_["loss"]) == model.n_iter_ == 30
    assert model.history_["loss"][-1] < model.history_["loss"][0]


def test_routes_and_noise_are_those_of_lift_unless_they_are_given(wine):
    model = MCoverMLPClassifier((8,), max_iter=4, random_state=0).fit(*wine)
    assert model.covers_.settings.routing == mcover.Directed()
    assert model.covers_.settings.noise == "100%"
    assert model.covers_.redraws == 1  # twelve steps
    assert model.covers_.settings.topology == mcover.Uniform()
    given = {"topology": mcover.Chain(1.0), "routing": mcover.Messages(blocks=2)}
    model = MCoverMLPClassifier((8,), max_iter=1, random_state=0, **given).fit(*wine)
    assert model.covers_.settings.topology == mcover.Chain(1.0)
    assert model.covers_.settings.routing == mcover.Messages(blocks=2)


def test_precision_is_that_of_the_data_and_global_randomness_is_left_alone(wine):
    X, y = wine
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    model = MCoverMLPClassifier((8,), max_iter=1).fit(X.astype(np.float32), y)
    assert torch.equal(before[0], torch.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert {value.dtype for value in model.collapsed_.parameters()} == {torch.float32}
    assert model.predict_proba(X).dtype == np.float32


def test_partial_fit_goes_on(wine):
    X, y = wine
    model = MCoverMLPClassifier((16,), learning_rate_init=0.02, random_state=0)
    for _ in range(15):
        for part in range(3):
            model.partial_fit(X[y == part], y[y == part], classes=[0, 1, 2])
    assert model.n_iter_ == 45
    assert model.score(X, y) > 0.9
    twice = clone(model).partial_fit(X, y, [0, 1, 2])
    twice = pickle.loads(pickle.dumps(twice)).partial_fit(X, y)
    once = clone(model).partial_fit(X, y, [0, 1, 2]).partial_fit(X, y)
    np.testing.assert_array_equal(once.predict_proba(X), twice.predict_proba(X))


def test_partial_fit_says_what_it_cannot_do(wine):
    X, y = wine
    with pytest.raises(ValueError, match="first call of partial_fit needs all possible classes"):
        MCoverMLPClassifier((8,)).partial_fit(X, y)
    model = MCoverMLPClassifier((8,)).partial_fit(X[y < 2], y[y < 2], [0, 1])
    with pytest.raises(ValueError, match=r"classes \[2\]"):
        model.partial_fit(X, y)
    with pytest.raises(ValueError, match="first call"):
        model.partial_fit(X[y < 2], y[y < 2], classes=[0, 1, 2])
    with pytest.raises(ValueError, match="early_stopping"):
        MCoverMLPClassifier(early_stopping=True).partial_fit(X, y, [0, 1, 2])
    with pytest.raises(ValueError, match="balanced"):
        MCoverMLPClassifier((8,), class_weight="balanced").partial_fit(X[:9], y[:9], [0, 1, 2])
    with pytest.raises(ValueError, match="shape"):
        MCoverMLPRegressor((8,)).partial_fit(X, y).partial_fit(X, np.stack([y, y], axis=1))


def test_early_stopping_keeps_the_best_collapse(wine):
    X, y = wine
    model = MCoverMLPClassifier(
        (16,), early_stopping=True, max_iter=200, learning_rate_init=0.01, random_state=0
    ).fit(X, y)
    scores = model.history_["validation_score"]
    assert len(scores) == model.n_iter_ < 200
    assert max(scores[-10:]) <= max(scores[:-10]) + model.tol
    assert model.score(X, y) > 0.9
    last, kept = model.covers_.collapse().state_dict(), model.collapsed_.state_dict()
    assert any(not torch.equal(last[name], kept[name]) for name in kept)


@pytest.mark.parametrize("routing", ["directed", "messages"])
def test_regression(routing):
    X, y = make_regression(200, 5, n_targets=2, noise=1.0, random_state=0)
    model = MCoverMLPRegressor(
        (32,), routing=routing, max_iter=150, learning_rate_init=0.02, random_state=0
    ).fit(X[:150], scale(y)[:150])
    assert model.predict(X).shape == (200, 2)
    assert model.score(X[150:], scale(y)[150:]) > 0.8
    one = MCoverMLPRegressor((8,), max_iter=1, early_stopping=True).fit(X, scale(y)[:, 0])
    assert one.predict(X).shape == (200,)
    assert one.partial_fit


def test_training_that_diverges_says_what_to_do(wine):
    with pytest.raises(ValueError, match="StandardScaler"):
        MCoverMLPRegressor((8,), random_state=0).fit(1e200 * wine[0], wine[1])
