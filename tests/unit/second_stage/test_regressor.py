"""h by direct regression on drawn actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeRegressor

from dmliv import DMLIV
from dmliv.data import TrainingData
from dmliv.errors import InputError
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.distributions import CategoricalDistribution, MixtureDistribution
from dmliv.learners import Learners
from dmliv.parallel.runtime import Runtime
from dmliv.problems import TicketDemand
from dmliv.second_stage import regressor as module
from dmliv.second_stage.regressor import RegressorStructural, RegressorStructuralModel

MakeFirstStage = Callable[[TrainingData], FirstStage]

N_LEVELS = 3


class Recorder(RegressorMixin, BaseEstimator):
    """Remembers what it was fitted with."""

    def __init__(self, min_samples_leaf: int | float = 4, random_state: int | None = None) -> None:
        self.min_samples_leaf = min_samples_leaf
        self.random_state = random_state

    def fit(self, X: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None = None) -> Recorder:
        self.inputs_, self.target_, self.weight_ = X, y, sample_weight
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X))


def features(data: TrainingData) -> np.ndarray:
    numeric = data.context.numeric
    standardised = (numeric - numeric.mean(axis=0)) / numeric.std(axis=0)
    return np.hstack([standardised, np.eye(3)[data.context.codes[:, 0]]])


def only(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("data", [kind], indirect=True)


def recorded(model: RegressorStructuralModel) -> Any:
    return model.regressor


def concentrated(data: TrainingData, first_stage: FirstStage) -> tuple[FirstStage, np.ndarray]:
    """Return the first stage with distributions at one action per row, and these actions."""
    actions = data.action_spec.vectors(data.action).astype(np.float32)
    tensor = torch.from_numpy(actions)
    n, width = actions.shape
    if data.action_spec.kind == "discrete":
        return replace(first_stage, distribution=CategoricalDistribution(tensor)), actions.astype(np.float64)
    distribution = MixtureDistribution(torch.ones(n, 1), tensor[:, None], torch.zeros(n, 1, width, width))
    return replace(first_stage, distribution=distribution), actions.astype(np.float64)


class TestFit:
    @pytest.mark.parametrize("regressor", [LinearRegression(), DecisionTreeRegressor(min_samples_leaf=4)])
    def test_a_distribution_at_one_point_gives_the_plain_regressor(
        self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime, regressor: Any
    ) -> None:
        first_stage, actions = concentrated(data, make_first_stage(data))
        seeded = (
            regressor.set_params(random_state=0) if "random_state" in regressor.get_params() else regressor
        )
        model = RegressorStructural(seeded).fit(data, first_stage, seed=0, runtime=runtime)
        inputs = np.hstack([features(data), actions])
        expected = seeded.fit(inputs, first_stage.target).predict(inputs)
        np.testing.assert_allclose(model.predict(data.context, actions), expected, atol=1e-8)

    @only("one column")
    def test_pairs_hold_context_draw_and_target(
        self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
    ) -> None:
        first_stage = make_first_stage(data)
        model = RegressorStructural(Recorder(), n_draws=400).fit(data, first_stage, seed=0, runtime=runtime)
        seen = recorded(model)
        assert seen.weight_ is None
        np.testing.assert_array_equal(seen.target_, np.repeat(first_stage.target, 400))
        np.testing.assert_allclose(seen.inputs_[:, :-1], np.repeat(features(data), 400, axis=0), atol=1e-9)
        draws = seen.inputs_[:, -1].reshape(len(data), 400)
        mean = first_stage.distribution.mean()[:, 0].numpy()
        # The distribution has standard deviation 0.5, so the mean of 400 draws has 0.025.
        assert np.abs(draws.mean(axis=1) - mean).max() < 5 * 0.025
        np.testing.assert_allclose((draws - mean[:, None]).std(), 0.5, atol=0.01)

    @only("one column")
    def test_same_seed_same_draws(
        self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
    ) -> None:
        first_stage = make_first_stage(data)
        torch.manual_seed(7)
        before = torch.get_rng_state()
        fits = [
            recorded(RegressorStructural(Recorder()).fit(data, first_stage, seed=seed, runtime=runtime))
            for seed in (0, 0, 1)
        ]
        assert torch.equal(before, torch.get_rng_state())
        np.testing.assert_array_equal(fits[0].inputs_, fits[1].inputs_)
        assert fits[0].random_state == fits[1].random_state is not None
        assert np.abs(fits[0].inputs_ - fits[2].inputs_).max() > 0.1
        assert fits[0].random_state != fits[2].random_state

    @pytest.mark.parametrize(("n_draws", "size", "expected"), [(1, 4, 4), (3, 4, 12), (3, 0.25, 0.25)])
    @only("one column")
    def test_leaves_count_rows(
        self,
        data: TrainingData,
        make_first_stage: MakeFirstStage,
        runtime: Runtime,
        n_draws: int,
        size: float,
        expected: float,
    ) -> None:
        given = make_pipeline(StandardScaler(), Recorder(size))
        model = RegressorStructural(given, n_draws).fit(data, make_first_stage(data), seed=0, runtime=runtime)
        assert recorded(model)[-1].min_samples_leaf == expected
        assert given[-1].min_samples_leaf == size

    @only("one column")
    def test_weights_are_passed_on(
        self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
    ) -> None:
        weight = np.random.default_rng(3).uniform(0.0, 2.0, len(data))
        heavy = replace(data, weight=weight)
        first_stage = make_first_stage(data)
        model = RegressorStructural(Recorder(), 2).fit(heavy, first_stage, seed=0, runtime=runtime)
        np.testing.assert_array_equal(recorded(model).weight_, np.repeat(weight, 2))
        with pytest.raises(InputError, match="takes sample_weight"):
            RegressorStructural(KNeighborsRegressor()).fit(heavy, first_stage, seed=0, runtime=runtime)


@only("discrete")
class TestDiscrete:
    def test_sums_over_all_levels(
        self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
    ) -> None:
        weight = np.random.default_rng(3).uniform(0.5, 2.0, len(data))
        first_stage = make_first_stage(data)
        assert isinstance(first_stage.distribution, CategoricalDistribution)
        heavy = replace(data, weight=weight)
        model = RegressorStructural(Recorder()).fit(heavy, first_stage, seed=0, runtime=runtime)
        seen = recorded(model)
        probabilities = first_stage.distribution.probabilities.double().numpy()
        np.testing.assert_allclose(seen.weight_, (probabilities * weight[:, None]).reshape(-1))
        np.testing.assert_array_equal(seen.inputs_[:, -N_LEVELS:], np.tile(np.eye(N_LEVELS), (len(data), 1)))
        assert seen.min_samples_leaf == 4 * N_LEVELS

    def test_impossible_levels_are_left_out(
        self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
    ) -> None:
        first_stage, actions = concentrated(data, make_first_stage(data))
        seen = recorded(RegressorStructural(Recorder()).fit(data, first_stage, seed=0, runtime=runtime))
        np.testing.assert_array_equal(seen.inputs_[:, -N_LEVELS:], actions)
        assert seen.min_samples_leaf == 4

    def test_draws_where_weights_cannot_be_given(
        self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
    ) -> None:
        learner = RegressorStructural(KNeighborsRegressor(), n_draws=2)
        model = learner.fit(data, make_first_stage(data), seed=0, runtime=runtime)
        assert model.describe()["n_pairs"] == 2 * len(data)
        assert model.describe()["sums_over_levels"] is False


class TestModel:
    @pytest.fixture
    def model(
        self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
    ) -> RegressorStructuralModel:
        learner = RegressorStructural(DecisionTreeRegressor(min_samples_leaf=3), n_draws=2)
        return learner.fit(data, make_first_stage(data), seed=0, runtime=runtime)

    @pytest.mark.parametrize("chunk_size", [1, 100, 1 << 20])
    def test_grid_equals_rows(
        self,
        data: TrainingData,
        model: RegressorStructuralModel,
        monkeypatch: pytest.MonkeyPatch,
        chunk_size: int,
    ) -> None:
        monkeypatch.setattr(module, "_CHUNK_SIZE", chunk_size)
        actions = data.action_spec.vectors(data.action)[:7]
        context = data.context.take(np.arange(11))
        grid = model.predict_grid(context, actions)
        assert grid.shape == (11, 7)
        for column, action in enumerate(actions):
            np.testing.assert_array_equal(grid[:, column], model.predict(context, np.tile(action, (11, 1))))

    def test_no_rows(self, data: TrainingData, model: RegressorStructuralModel) -> None:
        nothing = data.context.take(np.empty(0, dtype=np.int64))
        actions = data.action_spec.vectors(data.action)[:7]
        assert model.predict(nothing, actions[:0]).shape == (0,)
        assert model.predict_grid(nothing, actions).shape == (0, 7)
        assert model.gradient(nothing, actions[:0]).shape == (0, actions.shape[1])

    def test_gradient_of_a_linear_regressor_is_its_slope(
        self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
    ) -> None:
        learner = RegressorStructural(LinearRegression())
        model = learner.fit(data, make_first_stage(data), seed=0, runtime=runtime)
        actions = data.action_spec.vectors(data.action)
        slope = recorded(model).coef_[-actions.shape[1] :]
        np.testing.assert_allclose(model.gradient(data.context, actions), np.tile(slope, (len(data), 1)))

    def test_describe(self, data: TrainingData, model: RegressorStructuralModel) -> None:
        described = model.describe()
        assert "DecisionTreeRegressor" in str(described["regressor"])
        copies = N_LEVELS if data.action_spec.kind == "discrete" else 2
        assert described["n_pairs"] == copies * len(data)


class TestArguments:
    def test_needs_no_judging(self) -> None:
        assert not RegressorStructural(LinearRegression()).needs_validation

    @pytest.mark.parametrize("regressor", [LogisticRegression(), "forest", None])
    def test_not_a_regressor(self, regressor: Any) -> None:
        with pytest.raises(InputError, match="Expected a scikit-learn regressor for h, got"):
            RegressorStructural(regressor)

    @pytest.mark.parametrize("n_draws", [0, -1, 1.5])
    def test_draws(self, n_draws: Any) -> None:
        with pytest.raises(InputError, match="positive whole number for n_draws, got "):
            RegressorStructural(DummyRegressor(), n_draws)


def test_trees_in_every_role_learn_ticket_demand() -> None:
    problem = TicketDemand()
    data = problem.sample(1000, seed=0)
    trees = HistGradientBoostingRegressor(max_iter=50)
    estimator = DMLIV(Learners(trees, trees, RegressorStructural(trees)), n_folds=3, random_state=0)
    estimator.fit(data.Y, data.T, Z=data.Z, X=data.X)
    X, T, truth = problem.test_set()
    assert np.mean((estimator.predict(T, X) - truth) ** 2) < 0.5
