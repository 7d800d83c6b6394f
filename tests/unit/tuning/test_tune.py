"""Tuning finds what is better, repeats itself, goes on where it stopped, and looks at no row it judges on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeRegressor

from dmliv import CEDMLIV, DMLIV, DeepIV, IVData, KernelIV
from dmliv.errors import InputError
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.first_stage.regressors import RegressorOutcome
from dmliv.learners import Learners
from dmliv.nets.settings import NetworkSettings
from dmliv.second_stage.network import NeuralStructural
from dmliv.second_stage.regressor import RegressorStructural
from dmliv.tuning import SearchSpace, tune

LINEAR = Learners(LinearRegression(), LinearRegression(), LinearRegression())  # type: ignore[arg-type]
CONSTANT = Learners(DummyRegressor(), DummyRegressor(), DummyRegressor())  # type: ignore[arg-type]
TREES = Learners(*(DecisionTreeRegressor(min_samples_leaf=20) for _ in range(3)))  # type: ignore[arg-type]
TREE_SPACE = SearchSpace({"linear": LINEAR, "trees": TREES})


def _sample(n: int = 300, seed: int = 0) -> IVData:
    """Return rows with h(x, t) = x + 2 t, confounded."""
    rng = np.random.default_rng(seed)
    x, z, hidden, noise = rng.standard_normal((4, n))
    t = z + 0.5 * x + hidden
    return IVData(x + 2 * t - 3 * hidden + 0.3 * noise, t, z, x)


def _tune(estimator: Any, data: IVData, **options: Any) -> Any:
    return tune(estimator, data.Y, data.T, Z=data.Z, X=data.X, **options)


def _rows(result: Any) -> list[tuple[Any, ...]]:
    return [tuple(sorted(vars(trial).items(), key=lambda item: item[0])) for trial in result.trials]


def test_a_better_family_takes_every_role_and_the_estimator_gets_it() -> None:
    data, estimator = _sample(), DMLIV(CONSTANT, n_folds=2, random_state=0)
    result = _tune(estimator, data, space=SearchSpace({"linear": LINEAR}), n_trials=8, refit=True)
    assert [trial.family for trial in result.trials if trial.chosen] == ["linear"] * 3
    assert estimator.learners is result.learners
    # Two draws of the same family are one trial's work, and have its loss.
    losses = {trial.loss for trial in result.trials if trial.role == "outcome" and trial.family == "linear"}
    assert len(losses) == 1
    # One draw per row flattens the slope of 2; without the instrument it would be 0.7 and less.
    assert 0.9 < estimator.ate(data.X, T0=0.0, T1=1.0) < 2.2


def test_what_is_no_better_is_not_taken() -> None:
    result = _tune(CEDMLIV(LINEAR, random_state=0), _sample(), space=SearchSpace({"c": CONSTANT}), n_trials=4)
    assert [trial.number for trial in result.trials if trial.chosen] == [0, 0, 0]
    assert str(result).count("nothing was clearly better") == 3
    gains = [trial.gain for trial in result.trials if trial.family == "c"]
    assert gains
    assert max(gains) <= 0.0


def test_a_learning_rate_that_learns_is_preferred() -> None:
    settings = NetworkSettings(hidden=(16,), epochs=15, learning_rate=1e-7, dropout=0.0)
    networks = Learners(NeuralOutcome(settings), NeuralAction(settings, 1), NeuralStructural(settings))
    space = SearchSpace((), learning_rate=(1.0, 1e5), width=None, weight_decay=None, dropout=None)
    estimator = CEDMLIV(networks, random_state=0)
    result = _tune(estimator, _sample(), space=space, n_trials=5)
    assert [trial.settings for trial in result.trials if trial.chosen] == [{"learning_rate": 1e5}] * 3
    chosen: Any = estimator.learners
    assert chosen.action.settings.learning_rate == pytest.approx(1e-2)
    assert "learning rate x 1e+05" in str(result)


def test_a_candidate_whose_training_diverges_is_kept_as_such_and_never_chosen() -> None:
    settings = NetworkSettings(hidden=(8,), epochs=2, learning_rate=1e-3)
    networks = replace(LINEAR, outcome=NeuralOutcome(settings))
    space = SearchSpace((), learning_rate=(1e38,), width=None, weight_decay=None, dropout=None)
    result = _tune(CEDMLIV(networks, random_state=0), _sample(), space=space, n_trials=3)
    outcome = [trial for trial in result.trials if trial.role == "outcome"]
    assert [math.isnan(trial.loss) for trial in outcome] == [False, True, True]
    assert outcome[0].chosen


# After ten trials Optuna begins to learn from them; writing a database is slow.
@pytest.mark.parametrize(("name", "n_first"), [("trials.log", 12), ("trials.db", 2)])
def test_a_search_goes_on_where_it_stopped(tmp_path: Path, name: str, n_first: int) -> None:
    data, storage = _sample(), tmp_path / name
    options = {"space": TREE_SPACE, "storage": storage}
    _tune(DMLIV(LINEAR, n_folds=2, random_state=3), data, n_trials=n_first, **options)
    first = storage.read_bytes()
    repeated = _tune(DMLIV(LINEAR, n_folds=2, random_state=3), data, n_trials=n_first, **options)
    resumed = _tune(DMLIV(LINEAR, n_folds=2, random_state=3), data, n_trials=n_first + 2, **options)
    whole = _tune(DMLIV(LINEAR, n_folds=2, random_state=3), data, n_trials=n_first + 2, space=TREE_SPACE)
    assert _rows(resumed) == _rows(whole)
    assert repr(resumed.learners) == repr(whole.learners)
    assert set(_rows_of(repeated, "outcome")) <= set(_rows_of(resumed, "outcome"))
    if name.endswith(".log"):
        assert storage.read_bytes().startswith(first)


def _rows_of(result: Any, role: str) -> list[tuple[int, str, float]]:
    return [(trial.number, trial.family, trial.loss) for trial in result.trials if trial.role == role]


def test_a_stopped_trial_does_not_count(tmp_path: Path) -> None:
    data, storage = _sample(), tmp_path / "trials.db"
    estimator = DMLIV(LINEAR, n_folds=2, random_state=3)
    _tune(estimator, data, n_trials=1, space=TREE_SPACE, storage=storage)
    optuna.load_study(study_name="outcome", storage=f"sqlite:///{storage}").ask()
    resumed = _tune(
        DMLIV(LINEAR, n_folds=2, random_state=3), data, n_trials=2, space=TREE_SPACE, storage=storage
    )
    whole = _tune(DMLIV(LINEAR, n_folds=2, random_state=3), data, n_trials=2, space=TREE_SPACE)
    assert _rows(resumed) == _rows(whole)


def test_without_a_random_state_the_storage_remembers_the_seed(tmp_path: Path) -> None:
    data, options = _sample(), {"space": TREE_SPACE, "storage": tmp_path / "trials.log", "n_trials": 3}
    assert _rows(_tune(CEDMLIV(LINEAR), data, **options)) == _rows(_tune(CEDMLIV(LINEAR), data, **options))


@pytest.mark.parametrize("change", ["data", "seed", "learners", "space"])
def test_a_storage_of_another_search_is_refused(tmp_path: Path, change: str) -> None:
    storage = tmp_path / "trials.log"
    _tune(CEDMLIV(LINEAR, random_state=0), _sample(), space=TREE_SPACE, storage=storage, n_trials=1)
    estimator = CEDMLIV(TREES if change == "learners" else LINEAR, random_state=int(change == "seed"))
    space = SearchSpace({"linear": LINEAR}) if change == "space" else TREE_SPACE
    with pytest.raises(InputError, match="Expected the data, random_state, learners and space"):
        _tune(estimator, _sample(seed=int(change == "data")), space=space, storage=storage, n_trials=1)


def test_no_time_leaves_the_first_trial_of_each_role() -> None:
    estimator = DMLIV(LINEAR, n_folds=2, random_state=0)
    result = _tune(estimator, _sample(), space=TREE_SPACE, budget_minutes=0.0)
    assert [(trial.role, trial.number) for trial in result.trials] == [
        ("outcome", 0),
        ("action", 0),
        ("structural", 0),
    ]
    assert repr(result.learners) == repr(LINEAR)


def test_deepiv_has_no_outcome_model_to_tune() -> None:
    result = _tune(DeepIV(LINEAR, random_state=0), _sample(), space=TREE_SPACE, n_trials=2)
    assert {trial.role for trial in result.trials} == {"action", "structural"}


def test_rows_without_weight_change_nothing() -> None:
    data, junk = _sample(), _sample(50, seed=9)
    both = [np.concatenate([getattr(data, name), getattr(junk, name)]) for name in "YTZX"]
    weight = np.r_[np.ones(300), np.zeros(50)]
    options: dict[str, Any] = {"space": TREE_SPACE, "n_trials": 3}
    plain = _tune(CEDMLIV(LINEAR, random_state=0), data, **options)
    Y, T, Z, X = both
    weighted = tune(CEDMLIV(LINEAR, random_state=0), Y, T, Z=Z, X=X, sample_weight=weight, **options)
    losses = [[trial.loss for trial in result.trials] for result in (plain, weighted)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-9)


def test_losses_are_in_the_users_units() -> None:
    data = _sample()
    larger = IVData(100.0 * data.Y + 7.0, 10.0 * data.T, data.Z, data.X)
    options: dict[str, Any] = {"space": TREE_SPACE, "n_trials": 1}
    small, large = (_tune(CEDMLIV(LINEAR, random_state=0), rows, **options) for rows in (data, larger))
    ratio = [b.loss / a.loss for a, b in zip(small.trials, large.trials, strict=True)]
    assert ratio[0] == pytest.approx(1e4)
    assert large.trials[1].loss - small.trials[1].loss == pytest.approx(math.log(10.0))
    assert ratio[2] == pytest.approx(1e4, rel=1e-3)


@dataclass(frozen=True)
class _WatchedOutcome(RegressorOutcome):
    """Remembers the first context column, a row's number, of the rows it sees."""

    seen: set[float] = field(default_factory=set, repr=False)

    def fit(self, data: Any, row_sets: Any, *, seed: int, runtime: Any) -> Any:
        for rows in row_sets:
            self.seen.update(data.context.numeric[rows, 0])
        return super().fit(data, row_sets, seed=seed, runtime=runtime)


@dataclass(frozen=True)
class _WatchedStructural(RegressorStructural):
    seen: set[float] = field(default_factory=set, repr=False)
    asked: set[float] = field(default_factory=set, repr=False)

    def fit(self, data: Any, first_stage: Any, *, seed: int, runtime: Any) -> Any:
        self.seen.update(data.context.numeric[:, 0])
        return _Watched(super().fit(data, first_stage, seed=seed, runtime=runtime), self.asked)


@dataclass(frozen=True)
class _Watched:
    model: Any
    asked: set[float]

    def predict(self, context: Any, action: Any) -> Any:
        self.asked.update(context.numeric[:, 0])
        return self.model.predict(context, action)


def test_h_is_judged_on_rows_that_no_model_saw() -> None:
    data = _sample()
    outcome = _WatchedOutcome(LinearRegression())
    structural = _WatchedStructural(LinearRegression())
    learners = replace(LINEAR, outcome=outcome, structural=structural)
    X = np.column_stack([np.arange(300.0), data.X])
    tune(
        DMLIV(learners, n_folds=2, random_state=0),
        data.Y,
        data.T,
        Z=data.Z,
        X=X,
        space=SearchSpace(()),
        n_trials=1,
        validation_fraction=0.3,
    )
    assert len(structural.asked) == 90
    assert len(structural.seen) == 210
    assert not structural.asked & (structural.seen | outcome.seen)


def test_only_some_of_many_rows_are_looked_at() -> None:
    structural = _WatchedStructural(LinearRegression())
    data = _sample(400)
    estimator = CEDMLIV(replace(LINEAR, structural=structural), random_state=0)
    _tune(estimator, data, space=SearchSpace(()), n_trials=1, max_rows=100)
    assert (len(structural.seen), len(structural.asked)) == (70, 30)


def test_the_frame_has_one_row_per_trial() -> None:
    result = _tune(CEDMLIV(TREES, random_state=0), _sample(), space=SearchSpace(()), n_trials=3)
    frame = result.to_frame()
    assert len(frame) == len(result.trials) == 9
    assert {"role", "family", "loss", "gain", "chosen", "min_samples_leaf"} <= set(frame.columns)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_trials": 0}, "Expected a positive whole number for n_trials, got 0"),
        ({"budget_minutes": -1.0}, "finite number of at least 0 for budget_minutes, got -1"),
        ({"validation_fraction": 1.0}, "above 0 and below 1 for validation_fraction, got 1"),
        ({"max_rows": 3}, "whole number of at least 40 for max_rows, got 3"),
        ({"margin": math.nan}, "finite number of at least 0 for margin, got nan"),
        ({"storage": "no/such/folder/trials.log"}, "Expected a storage file in a folder that exists"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _tune(CEDMLIV(LINEAR, random_state=0), _sample(), **options)


@pytest.mark.parametrize("name", ["trials.log", "trials.db"])
def test_a_file_that_is_no_storage_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("sales,price\n1,2\n" * 50)
    with pytest.raises(InputError, match="Expected a storage file that Optuna can read"):
        _tune(CEDMLIV(LINEAR, random_state=0), _sample(), storage=file)
    assert file.read_text() == "sales,price\n1,2\n" * 50


def test_bad_estimators_and_data_are_refused() -> None:
    data = _sample()
    with pytest.raises(InputError, match="Expected an estimator with learners to tune, got KernelIV"):
        _tune(KernelIV(), data)
    with pytest.raises(InputError, match="Expected at least 40 rows, got 30"):
        _tune(CEDMLIV(LINEAR), data.take(np.arange(30)))
    with pytest.raises(InputError, match="Expected learners such as neural"):
        _tune(CEDMLIV(LinearRegression()), data)
