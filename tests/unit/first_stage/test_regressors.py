"""Nuisances from scikit-learn estimators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import is_classifier
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dmliv.data import TrainingData
from dmliv.errors import InputError
from dmliv.first_stage.distributions import CategoricalDistribution, ResidualDistribution
from dmliv.first_stage.nuisances import Exogenous
from dmliv.first_stage.regressors import RegressorAction, RegressorOutcome
from dmliv.learners import Learners, boosting, forest, paper_boosting, paper_forest
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.linear import LinearStructural


def everything(data: TrainingData) -> list[np.ndarray]:
    return [np.arange(len(data))]


def exogenous(data: TrainingData) -> Exogenous:
    return Exogenous(data.context, data.instrument)


def weighted(data: TrainingData) -> TrainingData:
    weight = np.random.default_rng(1).uniform(0.0, 2.0, len(data))
    return replace(data, weight=weight / weight.mean())


def residual_distribution(
    learner: RegressorAction, data: TrainingData, runtime: Runtime
) -> ResidualDistribution:
    distribution = learner.fit(data, everything(data), seed=0, runtime=runtime).distributions(
        exogenous(data), everything(data)
    )[0]
    assert isinstance(distribution, ResidualDistribution)
    return distribution


class TestOutcome:
    def test_equals_the_regressor_itself(self, data: TrainingData, runtime: Runtime) -> None:
        model = RegressorOutcome(LinearRegression()).fit(data, everything(data), seed=0, runtime=runtime)
        inputs = np.hstack([data.context.numeric, data.instrument.numeric])
        expected = LinearRegression().fit(inputs, data.outcome).predict(inputs)
        # Inputs are encoded in single precision.
        np.testing.assert_allclose(
            model.predict(exogenous(data), everything(data))[0], expected, rtol=1e-5, atol=1e-6
        )
        assert "LinearRegression" in str(model.describe()["regressor"])

    def test_one_model_per_row_set(self, data: TrainingData, runtime: Runtime) -> None:
        row_sets = [np.arange(0, 30), np.arange(30, 120)]
        model = RegressorOutcome(DummyRegressor()).fit(data, row_sets, seed=0, runtime=runtime)
        wanted = [np.array([5]), np.array([1, 2, 3])]
        parts = model.predict(exogenous(data), wanted)
        np.testing.assert_allclose(parts[0], [data.outcome[:30].mean()])
        np.testing.assert_allclose(parts[1], [data.outcome[30:].mean()] * 3)

    def test_weights_are_passed_on(self, data: TrainingData, runtime: Runtime) -> None:
        heavy = weighted(data)
        model = RegressorOutcome(DummyRegressor()).fit(heavy, everything(data), seed=0, runtime=runtime)
        expected = np.average(data.outcome, weights=heavy.weight)
        np.testing.assert_allclose(model.predict(exogenous(data), [np.array([0])])[0], [expected])
        assert abs(expected - data.outcome.mean()) > 1e-3

    @pytest.mark.parametrize(
        "regressor", [KNeighborsRegressor(), make_pipeline(StandardScaler(), LinearRegression())]
    )
    def test_weights_that_cannot_be_passed_on(
        self, data: TrainingData, runtime: Runtime, regressor: Any
    ) -> None:
        with pytest.raises(InputError, match=r"(?s)takes sample_weight.*fit without weights"):
            RegressorOutcome(regressor).fit(weighted(data), everything(data), seed=0, runtime=runtime)
        RegressorOutcome(regressor).fit(data, everything(data), seed=0, runtime=runtime)

    def test_the_given_regressor_is_never_fitted(self, data: TrainingData, runtime: Runtime) -> None:
        regressor = LinearRegression()
        RegressorOutcome(regressor).fit(data, everything(data), seed=0, runtime=runtime)
        assert not hasattr(regressor, "coef_")

    def test_seeds_reach_the_regressor_unless_it_has_one(self, data: TrainingData, runtime: Runtime) -> None:
        def predict(regressor: Any, seed: int) -> np.ndarray:
            model = RegressorOutcome(regressor).fit(data, everything(data), seed=seed, runtime=runtime)
            return model.predict(exogenous(data), everything(data))[0]

        free = RandomForestRegressor(n_estimators=2)
        nested = make_pipeline(StandardScaler(), RandomForestRegressor(n_estimators=2))
        for regressor in (free, nested):
            np.testing.assert_array_equal(predict(regressor, 1), predict(regressor, 1))
            assert not np.array_equal(predict(regressor, 1), predict(regressor, 2))
        own = RandomForestRegressor(n_estimators=2, random_state=3)
        np.testing.assert_array_equal(predict(own, 1), predict(own, 2))


class TestContinuousAction:
    def test_residuals_are_out_of_fold(self, data: TrainingData, runtime: Runtime) -> None:
        """The nearest neighbour of a row it was fitted on is the row itself: in-sample residuals are zero."""
        distribution = residual_distribution(RegressorAction(KNeighborsRegressor(1)), data, runtime)
        np.testing.assert_allclose(distribution.location.numpy(), data.action, rtol=1e-5, atol=1e-6)
        assert distribution.residuals.shape == (1, len(data), 1)
        assert float(distribution.residuals.abs().median()) > 0.1

    def test_residuals_have_the_spread_of_the_noise(self, runtime: Runtime, data: TrainingData) -> None:
        distribution = residual_distribution(RegressorAction(LinearRegression()), data, runtime)
        inputs = np.hstack([data.context.numeric, data.instrument.numeric])
        fitted = LinearRegression().fit(inputs, data.action).predict(inputs)
        in_sample = float((data.action - fitted).std())
        assert in_sample < float(distribution.residuals.std()) < 1.3 * in_sample

    @pytest.mark.parametrize("regressor", [LinearRegression(), RandomForestRegressor(5, min_samples_leaf=5)])
    def test_the_mean_of_the_distribution_is_what_the_regressor_predicts(
        self, data: TrainingData, runtime: Runtime, regressor: Any
    ) -> None:
        """The regressor learns the mean; residuals add spread around it, and no shift."""
        distribution = residual_distribution(RegressorAction(regressor), data, runtime)
        np.testing.assert_allclose(distribution.mean().numpy(), distribution.location.numpy(), atol=1e-5)

    def test_two_columns_have_a_model_each(self, data_two_columns: TrainingData, runtime: Runtime) -> None:
        distribution = residual_distribution(RegressorAction(LinearRegression()), data_two_columns, runtime)
        inputs = np.hstack([data_two_columns.context.numeric, data_two_columns.instrument.numeric])
        expected = LinearRegression().fit(inputs, data_two_columns.action).predict(inputs)
        np.testing.assert_allclose(distribution.location.numpy(), expected, rtol=1e-4, atol=1e-5)
        # Residuals of one row stay together: the columns share a hidden cause.
        correlation = np.corrcoef(distribution.residuals[0].T.numpy())[0, 1]
        assert correlation > 0.5

    def test_weights_are_passed_on(self, data: TrainingData, runtime: Runtime) -> None:
        heavy = weighted(data)
        distribution = residual_distribution(RegressorAction(DummyRegressor()), heavy, runtime)
        expected = np.average(data.action[:, 0], weights=heavy.weight)
        np.testing.assert_allclose(distribution.location.numpy(), expected, rtol=1e-4)

    def test_rows_of_weight_zero_leave_no_residuals(self, data: TrainingData, runtime: Runtime) -> None:
        """A row that does not count must not be drawn as an action either."""
        weight = np.ones(len(data))
        weight[:10] = 0.0
        action = data.action.copy()
        action[:10] = 1e3
        spoiled = replace(data, weight=weight / weight.mean(), action=action)
        distribution = residual_distribution(RegressorAction(LinearRegression()), spoiled, runtime)
        drawn = distribution.sample(
            torch.arange(10, len(data)), 200, torch.Generator().manual_seed(0)
        ).actions
        assert float(drawn.abs().max()) < 100.0

    def test_number_of_residual_folds(self, data: TrainingData, runtime: Runtime) -> None:
        """With as many folds as rows every residual is that of the row left out."""
        few = np.arange(12)
        model = RegressorAction(DummyRegressor(), n_residual_folds=100).fit(
            data, [few], seed=0, runtime=runtime
        )
        distribution = model.distributions(exogenous(data), [few])[0]
        assert isinstance(distribution, ResidualDistribution)
        action = data.action[few, 0]
        left_out = action - (action.sum() - action) / 11
        centred = left_out - left_out.mean()
        residuals = distribution.residuals[0, :, 0].numpy()
        np.testing.assert_allclose(
            np.sort(residuals - residuals.mean()), np.sort(centred), rtol=1e-4, atol=1e-5
        )


class TestDiscreteAction:
    def test_probabilities_are_those_of_the_classifier(
        self, data_discrete: TrainingData, runtime: Runtime
    ) -> None:
        rows = everything(data_discrete)
        model = RegressorAction(LogisticRegression()).fit(data_discrete, rows, seed=0, runtime=runtime)
        distribution = model.distributions(exogenous(data_discrete), rows)[0]
        assert isinstance(distribution, CategoricalDistribution)
        inputs = np.hstack([data_discrete.context.numeric, data_discrete.instrument.numeric])
        inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
        expected = LogisticRegression().fit(inputs, data_discrete.action).predict_proba(inputs)
        np.testing.assert_allclose(distribution.probabilities.numpy(), expected, atol=1e-3)

    def test_a_level_that_one_row_set_lacks(self, data_discrete: TrainingData, runtime: Runtime) -> None:
        with_all = np.arange(len(data_discrete))
        without = np.flatnonzero(data_discrete.action != 1)
        model = RegressorAction(LogisticRegression()).fit(
            data_discrete, [with_all, without], seed=0, runtime=runtime
        )
        full, lacking = model.distributions(exogenous(data_discrete), [with_all, with_all])
        assert isinstance(full, CategoricalDistribution)
        assert isinstance(lacking, CategoricalDistribution)
        assert float(full.probabilities[:, 1].min()) > 0.0
        assert float(lacking.probabilities[:, 1].max()) == 0.0
        torch.testing.assert_close(lacking.probabilities.sum(1), torch.ones(len(data_discrete)))

    def test_a_row_set_without_rows_to_predict(self, data_discrete: TrainingData, runtime: Runtime) -> None:
        rows = everything(data_discrete)
        model = RegressorAction(LogisticRegression()).fit(data_discrete, rows, seed=0, runtime=runtime)
        assert model.distributions(exogenous(data_discrete), [np.empty(0, dtype=np.int64)])[0].n_rows == 0


class TestRoles:
    def test_a_regressor_for_a_discrete_action(self, data_discrete: TrainingData, runtime: Runtime) -> None:
        with pytest.raises(
            InputError, match="Expected a classifier for a discrete action, got the regressor"
        ):
            RegressorAction(LinearRegression()).fit(
                data_discrete, everything(data_discrete), seed=0, runtime=runtime
            )

    def test_a_classifier_for_a_continuous_action(self, data: TrainingData, runtime: Runtime) -> None:
        with pytest.raises(
            InputError, match="Expected a regressor for a continuous action, got the classifier"
        ):
            RegressorAction(LogisticRegression()).fit(data, everything(data), seed=0, runtime=runtime)

    def test_a_pair_serves_both_kinds(
        self, data: TrainingData, data_discrete: TrainingData, runtime: Runtime
    ) -> None:
        pair = RegressorAction(LinearRegression(), classifier=LogisticRegression())
        np.testing.assert_array_equal(
            residual_distribution(pair, data, runtime).location,
            residual_distribution(RegressorAction(LinearRegression()), data, runtime).location,
        )
        rows = everything(data_discrete)
        distributions = []
        for learner in (pair, RegressorAction(LogisticRegression())):
            model = learner.fit(data_discrete, rows, seed=0, runtime=runtime)
            assert "LogisticRegression" in str(model.describe()["regressor"])
            distribution = model.distributions(exogenous(data_discrete), rows)[0]
            assert isinstance(distribution, CategoricalDistribution)
            distributions.append(distribution.probabilities)
        torch.testing.assert_close(distributions[0], distributions[1], rtol=0.0, atol=0.0)

    def test_a_pair_of_two_regressors(self) -> None:
        with pytest.raises(InputError, match=r"Expected a scikit-learn classifier, got .*LinearRegression"):
            RegressorAction(LinearRegression(), classifier=LinearRegression())

    def test_a_pair_of_two_classifiers(self, data: TrainingData, runtime: Runtime) -> None:
        with pytest.raises(InputError, match="Expected a regressor for a continuous action"):
            residual_distribution(
                RegressorAction(LogisticRegression(), classifier=LogisticRegression()), data, runtime
            )

    @pytest.mark.parametrize("preset", [boosting, forest, paper_boosting, paper_forest])
    def test_trees_come_in_pairs_of_one_size(self, preset: Any) -> None:
        action = preset().action
        assert is_classifier(action.classifier)
        wanted, got = (model.get_params() for model in (action.regressor, action.classifier))
        for name in ("n_estimators", "max_iter", "learning_rate", "max_leaf_nodes", "min_samples_leaf"):
            assert wanted.get(name) == got.get(name)

    def test_learners_wrap_plain_estimators(self) -> None:
        learners = Learners(LinearRegression(), LogisticRegression(), LinearStructural())  # type: ignore[arg-type]
        assert isinstance(learners.outcome, RegressorOutcome)
        assert isinstance(learners.action, RegressorAction)
        assert isinstance(learners.structural, LinearStructural)
        already = RegressorAction(LinearRegression(), n_residual_folds=2)
        assert Learners(learners.outcome, already, LinearStructural()).action is already
