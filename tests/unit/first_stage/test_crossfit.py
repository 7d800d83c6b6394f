"""Cross-fitting: rows are filled by models that never saw them, whatever the learners choose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression

from dmliv.data import TrainingData
from dmliv.first_stage.crossfit import FirstStage, cross_fit, make_folds
from dmliv.first_stage.distributions import (
    ActionDistribution,
    CategoricalDistribution,
    MixtureDistribution,
    ResidualDistribution,
)
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.first_stage.nuisances import Exogenous
from dmliv.first_stage.regressors import RegressorAction, RegressorOutcome
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.runtime import Runtime

ENCODINGS = ("standardised", "piecewise", "piecewise_context", "products")
N_FOLDS = 4
SEED = 5

TINY = NetworkSettings(hidden=(12,), epochs=3, batch_size=25, dropout=0.1, learning_rate=1e-2)
SETTINGS = {
    "one encoding": TINY,
    "choice of encodings": replace(TINY, encodings=ENCODINGS),
    "early stopping": replace(TINY, epochs=12, patience=2),
    "choice of rates": replace(TINY, encodings=ENCODINGS, rate_factors=(1.0, 0.3)),
    "choice and early stopping": replace(TINY, epochs=12, patience=2, encodings=ENCODINGS),
}


def neural(settings: NetworkSettings) -> tuple[Any, Any]:
    return NeuralOutcome(settings), NeuralAction(settings, n_components=3)


def forest() -> tuple[Any, Any]:
    regressor = RandomForestRegressor(n_estimators=3, min_samples_leaf=3)
    return RegressorOutcome(regressor), RegressorAction(regressor, n_residual_folds=3)


LEARNERS = {name: neural(settings) for name, settings in SETTINGS.items()} | {
    "linear": (RegressorOutcome(LinearRegression()), RegressorAction(LinearRegression())),
    "forest": forest(),
}
learners = pytest.mark.parametrize("pair", LEARNERS.values(), ids=LEARNERS)


def distribution_tensors(distribution: ActionDistribution) -> list[torch.Tensor]:
    """Return everything the distribution knows, with the row axis first."""
    if isinstance(distribution, MixtureDistribution):
        return [distribution.weights, distribution.means, distribution.factors]
    if isinstance(distribution, CategoricalDistribution):
        return [distribution.probabilities]
    assert isinstance(distribution, ResidualDistribution)
    return [distribution.location, distribution.residuals[distribution.pool]]


def fit(data: TrainingData, pair: tuple[Any, Any], runtime: Runtime, **options: Any) -> FirstStage:
    settings = {"n_folds": N_FOLDS, "seed": SEED, "validates": False} | options
    return cross_fit(data, pair[0], pair[1], runtime=runtime, **settings)


def assert_same_distribution(
    first: ActionDistribution, second: ActionDistribution, rows: Any = slice(None)
) -> None:
    for one, other in zip(distribution_tensors(first), distribution_tensors(second), strict=True):
        assert torch.equal(one[rows], other[rows])


class TestFolds:
    @pytest.mark.parametrize(("n_rows", "n_folds"), [(100, 10), (103, 10), (10, 10), (7, 2), (50, 1)])
    def test_sizes_differ_by_at_most_one(self, n_rows: int, n_folds: int) -> None:
        fold = make_folds(n_rows, n_folds, np.random.default_rng(0))
        sizes = np.bincount(fold, minlength=n_folds)
        assert fold.shape == (n_rows,)
        assert sizes.sum() == n_rows
        assert sizes.max() - sizes.min() <= 1

    def test_folds_are_random(self) -> None:
        one, same, other = (make_folds(100, 5, np.random.default_rng(seed)) for seed in (1, 1, 2))
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)
        assert not np.array_equal(one, np.arange(100) % 5)


class TestFilling:
    def test_predictions_are_those_of_the_model_of_the_complement(
        self, data: TrainingData, runtime: Runtime
    ) -> None:
        """A mean as the model makes it visible on which rows it was learned."""
        pair = (RegressorOutcome(DummyRegressor()), RegressorAction(DummyRegressor()))
        result = fit(data, pair, runtime)
        assert isinstance(result.distribution, ResidualDistribution)
        for k in range(N_FOLDS):
            inside, outside = result.fold == k, result.fold != k
            np.testing.assert_allclose(result.target[inside], data.outcome[outside].mean())
            np.testing.assert_allclose(
                result.distribution.location[torch.from_numpy(inside)].numpy(),
                data.action[outside].mean(),
                rtol=1e-5,
            )

    def test_networks_fill_the_rows_of_their_fold(self, data: TrainingData, runtime: Runtime) -> None:
        result = fit(data, LEARNERS["choice of encodings"], runtime)
        exogenous = Exogenous(data.context, data.instrument)
        everything = [np.arange(len(data))] * N_FOLDS
        assert result.outcome_model is not None
        predictions = result.outcome_model.predict(exogenous, everything)
        distributions = result.action_model.distributions(exogenous, everything)
        for k in range(N_FOLDS):
            rows = np.flatnonzero(result.fold == k)
            np.testing.assert_allclose(result.target[rows], predictions[k][rows], rtol=1e-4, atol=1e-5)
            for filled, whole in zip(
                distribution_tensors(result.distribution), distribution_tensors(distributions[k]), strict=True
            ):
                torch.testing.assert_close(filled[rows], whole[rows], rtol=1e-4, atol=1e-5)
        # The members are different models.
        assert not np.allclose(predictions[0], predictions[1], atol=1e-3)

    def test_without_folds_all_rows_train_one_model(self, data: TrainingData, runtime: Runtime) -> None:
        pair = (RegressorOutcome(DummyRegressor()), RegressorAction(DummyRegressor()))
        result = fit(data, pair, runtime, n_folds=1)
        np.testing.assert_allclose(result.target, data.outcome.mean(), atol=1e-12)
        assert (result.fold_members, result.n_members) == ((0,), 1)

    def test_without_an_outcome_learner_the_target_is_the_outcome(
        self, data: TrainingData, runtime: Runtime
    ) -> None:
        pair = (None, RegressorAction(LinearRegression()))
        result = fit(data, pair, runtime)
        np.testing.assert_array_equal(result.target, data.outcome)
        assert result.outcome_model is None

    def test_more_folds_than_distinct_sizes(self, data: TrainingData, runtime: Runtime) -> None:
        result = fit(data, LEARNERS["one encoding"], runtime, n_folds=7)
        assert np.isfinite(result.target).all()
        assert result.distribution.n_rows == len(data)

    def test_unknown_encodings(self, data: TrainingData, runtime: Runtime) -> None:
        pair = neural(replace(TINY, encodings=("standardised", "wavelets")))
        with pytest.raises(ValueError, match=r"encodings among .*got 'wavelets'"):
            fit(data, pair, runtime)

    def test_an_encoding_is_chosen_by_held_out_loss(self, runtime: Runtime, data: TrainingData) -> None:
        """An outcome that is a product of instrument and context is learned best from products."""
        product = data.instrument.numeric[:, 0] * data.context.numeric[:, 0]
        easy = replace(data, outcome=(product - product.mean()) / product.std())
        settings = replace(TINY, hidden=(8,), epochs=60, dropout=0.0, encodings=("standardised", "products"))
        result = fit(easy, (NeuralOutcome(settings), RegressorAction(LinearRegression())), runtime)
        assert result.outcome_model is not None
        assert result.outcome_model.describe()["encodings"] == ["products"] * N_FOLDS


class TestNoLeakage:
    """Wild values in one fold may change everything but the predictions for that fold."""

    @learners
    @pytest.mark.parametrize("fold", [0, N_FOLDS - 1])
    def test_outcomes_of_a_fold(
        self, data: TrainingData, runtime: Runtime, pair: tuple[Any, Any], fold: int
    ) -> None:
        honest = fit(data, pair, runtime)
        inside = honest.fold == fold
        wild = np.where(inside, 1e3 * np.cos(np.arange(len(data))), data.outcome)
        changed = fit(replace(data, outcome=wild), pair, runtime)
        np.testing.assert_array_equal(changed.fold, honest.fold)
        np.testing.assert_array_equal(changed.target[inside], honest.target[inside])
        assert not np.allclose(changed.target[~inside], honest.target[~inside], rtol=0.1)
        # Outcomes do not reach the action model at all.
        assert_same_distribution(changed.distribution, honest.distribution)

    @learners
    @pytest.mark.parametrize("fold", [0, N_FOLDS - 1])
    def test_actions_of_a_fold(
        self, data: TrainingData, runtime: Runtime, pair: tuple[Any, Any], fold: int
    ) -> None:
        honest = fit(data, pair, runtime)
        inside = honest.fold == fold
        wild = np.where(inside[:, None], 1e2 * np.cos(np.arange(len(data)))[:, None], data.action)
        changed = fit(replace(data, action=wild), pair, runtime)
        assert_same_distribution(changed.distribution, honest.distribution, torch.from_numpy(inside))
        outside = torch.from_numpy(~inside)
        assert not torch.allclose(
            changed.distribution.mean()[outside], honest.distribution.mean()[outside], rtol=0.1
        )
        np.testing.assert_array_equal(changed.target, honest.target)

    @pytest.mark.parametrize("seed", range(4))
    def test_the_choice_of_an_encoding(self, data: TrainingData, runtime: Runtime, seed: int) -> None:
        """Outcomes of a fold that turn the choice of other folds around do not touch this fold."""
        settings = replace(TINY, hidden=(8,), epochs=30, dropout=0.0, encodings=("standardised", "products"))
        pair = (NeuralOutcome(settings), RegressorAction(LinearRegression()))
        product = 3.0 * data.instrument.numeric[:, 0] * data.context.numeric[:, 0]
        linear = replace(data, outcome=data.instrument.numeric[:, 0] + data.context.numeric[:, 0])
        honest = fit(linear, pair, runtime, seed=seed)
        changes = 0
        for fold in range(N_FOLDS):
            inside = honest.fold == fold
            changed = fit(
                replace(linear, outcome=np.where(inside, product, linear.outcome)), pair, runtime, seed=seed
            )
            np.testing.assert_array_equal(changed.target[inside], honest.target[inside])
            assert honest.outcome_model is not None
            assert changed.outcome_model is not None
            encodings = (
                model.describe()["encodings"] for model in (honest.outcome_model, changed.outcome_model)
            )
            changes += int(np.not_equal(*map(np.array, encodings)).any())
        assert changes > 0, "no choice was turned around: the test has no power"

    @pytest.mark.parametrize("fold", range(N_FOLDS))
    def test_how_long_trials_train(self, data: TrainingData, runtime: Runtime, fold: int) -> None:
        """Trials stop early by what they see, and what they draw until then may not reach the other folds."""
        settings = replace(TINY, epochs=40, patience=1, encodings=("standardised", "raw"))
        pair = (NeuralOutcome(settings), RegressorAction(LinearRegression()))
        honest = fit(data, pair, runtime)
        inside = honest.fold == fold
        for scale in (0.0, 3.0, 1e3):
            wild = np.where(inside, scale * np.cos(np.arange(len(data))), data.outcome)
            changed = fit(replace(data, outcome=wild), pair, runtime)
            np.testing.assert_array_equal(changed.target[inside], honest.target[inside])

    @pytest.mark.parametrize("name", ["choice of encodings", "forest"])
    def test_discrete_actions_of_a_fold(
        self, data_discrete: TrainingData, runtime: Runtime, name: str
    ) -> None:
        classifier = RegressorAction(RandomForestClassifier(n_estimators=3, min_samples_leaf=3))
        pair = (LEARNERS[name][0], classifier if name == "forest" else LEARNERS[name][1])
        honest = fit(data_discrete, pair, runtime)
        inside = honest.fold == 1
        changed = fit(replace(data_discrete, action=np.where(inside, 0, data_discrete.action)), pair, runtime)
        assert_same_distribution(changed.distribution, honest.distribution, torch.from_numpy(inside))
        assert not torch.equal(changed.distribution.mean(), honest.distribution.mean())

    @pytest.mark.parametrize("n_folds", [1, N_FOLDS])
    @pytest.mark.parametrize("name", ["one encoding", "choice of encodings", "linear"])
    def test_validation_rows_of_the_second_stage(
        self, data: TrainingData, runtime: Runtime, n_folds: int, name: str
    ) -> None:
        """On its validation rows a split's nuisances know neither outcome nor action."""
        honest = fit(data, LEARNERS[name], runtime, n_folds=n_folds, validates=True)
        assert honest.splits
        split = honest.splits[-1]
        rows = split.validation_rows
        outcome, action = data.outcome.copy(), data.action.copy()
        outcome[rows], action[rows] = 1e3, -1e2
        changed = fit(
            replace(data, outcome=outcome, action=action),
            LEARNERS[name],
            runtime,
            n_folds=n_folds,
            validates=True,
        ).splits[-1]
        np.testing.assert_array_equal(changed.validation_rows, rows)
        np.testing.assert_array_equal(changed.target[rows], split.target[rows])
        assert_same_distribution(changed.distribution, split.distribution, torch.from_numpy(rows))


class TestValidationSplits:
    @pytest.mark.parametrize("n_folds", [1, 2, N_FOLDS])
    def test_rows_are_apart_and_complete(self, data: TrainingData, runtime: Runtime, n_folds: int) -> None:
        result = fit(data, LEARNERS["linear"], runtime, n_folds=n_folds, validates=True)
        everything = np.arange(len(data))
        for split in result.splits:
            both = np.concatenate([split.fit_rows, split.validation_rows])
            np.testing.assert_array_equal(np.sort(both), everything)
            assert split.target.shape == (len(data),)
            assert split.distribution.n_rows == len(data)
        validation = np.concatenate([split.validation_rows for split in result.splits])
        assert len(np.unique(validation)) == len(validation)
        assert result.n_members >= n_folds

    def test_validation_rows_share_no_fold_with_the_rows_that_were_learned_from(
        self, data: TrainingData, runtime: Runtime
    ) -> None:
        result = fit(data, LEARNERS["linear"], runtime, validates=True)
        for split in result.splits:
            assert not set(result.fold[split.validation_rows]) & set(result.fold[split.fit_rows])

    @pytest.mark.parametrize("n_folds", [1, 2, 3, N_FOLDS])
    def test_nuisances_of_a_split_learn_from_its_rows_and_those_of_a_fold_from_the_others(
        self, data: TrainingData, runtime: Runtime, n_folds: int
    ) -> None:
        pair = (RegressorOutcome(DummyRegressor()), RegressorAction(DummyRegressor()))
        result = fit(data, pair, runtime, n_folds=n_folds, validates=True)
        for split in result.splits:
            np.testing.assert_allclose(split.target, data.outcome[split.fit_rows].mean())
            assert isinstance(split.distribution, ResidualDistribution)
            np.testing.assert_allclose(
                split.distribution.location.numpy(), data.action[split.fit_rows].mean(), rtol=1e-5, atol=1e-6
            )
        for k in range(n_folds):
            outside = result.fold != k if n_folds > 1 else np.ones(len(data), dtype=bool)
            np.testing.assert_allclose(
                result.target[result.fold == k], data.outcome[outside].mean(), atol=1e-12
            )

    def test_plug_in_targets(self, data: TrainingData, runtime: Runtime) -> None:
        result = fit(data, (None, RegressorAction(LinearRegression())), runtime, n_folds=1, validates=True)
        assert result.splits
        for split in result.splits:
            np.testing.assert_array_equal(split.target, data.outcome)

    def test_none_unless_asked_for(self, data: TrainingData, runtime: Runtime) -> None:
        assert fit(data, LEARNERS["linear"], runtime).splits == ()


class TestReproducibility:
    @learners
    def test_number_of_jobs(self, data: TrainingData, runtime: Runtime, pair: tuple[Any, Any]) -> None:
        one = fit(data, pair, runtime, validates=True)
        two = fit(data, pair, replace(runtime, n_jobs=2), validates=True)
        np.testing.assert_array_equal(one.target, two.target)
        assert_same_distribution(one.distribution, two.distribution)
        for first, second in zip(one.splits, two.splits, strict=True):
            np.testing.assert_array_equal(first.target, second.target)
            assert_same_distribution(first.distribution, second.distribution)

    @pytest.mark.parametrize("name", ["choice of encodings", "forest"])
    def test_seeds(self, data: TrainingData, runtime: Runtime, name: str) -> None:
        one, same, other = (fit(data, LEARNERS[name], runtime, seed=seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one.target, same.target)
        assert_same_distribution(one.distribution, same.distribution)
        assert not np.array_equal(one.fold, other.fold)
        assert not np.array_equal(one.target, other.target)

    def test_two_action_columns(self, data_two_columns: TrainingData, runtime: Runtime) -> None:
        for name, kind in (("one encoding", MixtureDistribution), ("forest", ResidualDistribution)):
            result = fit(data_two_columns, LEARNERS[name], runtime)
            assert isinstance(result.distribution, kind)
            assert result.distribution.mean().shape == (len(data_two_columns), 2)

    @pytest.mark.parametrize("classifier", [None, LogisticRegression(), DummyClassifier()])
    def test_discrete_actions_have_probabilities(
        self, data_discrete: TrainingData, runtime: Runtime, classifier: Any
    ) -> None:
        pair = LEARNERS["one encoding"]
        if classifier is not None:
            pair = (pair[0], RegressorAction(classifier))
        result = fit(data_discrete, pair, runtime)
        assert isinstance(result.distribution, CategoricalDistribution)
        assert result.distribution.probabilities.shape == (len(data_discrete), 3)
        torch.testing.assert_close(result.distribution.probabilities.sum(1), torch.ones(len(data_discrete)))
