"""What the two-stage estimators expose after a fit, and the two switches that tell them apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import LinearRegression

from dmliv import CEDMLIV, DMLIV, DeepIV
from dmliv.first_stage.distributions import MixtureDistribution, ResidualDistribution
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.first_stage.regressors import RegressorAction, RegressorOutcome
from dmliv.learners import Learners, neural
from dmliv.nets.settings import NetworkSettings
from dmliv.problems import TicketDemand
from dmliv.second_stage.linear import LinearStructural, LinearStructuralModel
from dmliv.second_stage.network import NeuralStructural, NeuralStructuralModel

N = 200


@pytest.fixture
def roles() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X, Z, hidden = rng.standard_normal((N, 2)), rng.standard_normal(N), rng.standard_normal(N)
    T = 3.0 * Z + hidden + 10.0
    return {"Y": 5.0 * T + X[:, 0] + 4.0 * hidden, "T": T, "Z": Z, "X": X}


@pytest.fixture
def linear() -> Learners:
    return Learners(LinearRegression(), LinearRegression(), LinearStructural())  # type: ignore[arg-type]


@pytest.fixture
def tiny() -> Learners:
    settings = NetworkSettings(hidden=(16,), epochs=3, batch_size=50, dropout=0.0)
    return Learners(
        NeuralOutcome(settings), NeuralAction(settings, n_components=3), NeuralStructural(settings)
    )


class TestSwitches:
    def test_dml_iv_is_cross_fitted_with_an_estimated_target(self, roles: Any, linear: Learners) -> None:
        stage = DMLIV(linear, n_folds=4, random_state=0).fit(**roles).first_stage_
        assert np.bincount(stage.fold).tolist() == [50] * 4
        assert stage.outcome_model is not None
        assert len(stage.fold_members) == 4

    def test_ce_dml_iv_has_one_fold(self, roles: Any, linear: Learners) -> None:
        estimator = CEDMLIV(linear, random_state=0).fit(**roles)
        assert set(estimator.first_stage_.fold) == {0}
        assert estimator.first_stage_.outcome_model is not None
        assert "n_folds" not in estimator.get_params()

    def test_ce_dml_iv_is_dml_iv_with_one_fold(self, roles: Any, tiny: Learners) -> None:
        one = CEDMLIV(tiny, random_state=0).fit(**roles)
        other = DMLIV(tiny, n_folds=1, random_state=0).fit(**roles)
        np.testing.assert_array_equal(
            one.predict(roles["T"], roles["X"]), other.predict(roles["T"], roles["X"])
        )

    @pytest.mark.parametrize("n_folds", [1, 4])
    def test_deep_iv_takes_the_outcome_itself(self, roles: Any, tiny: Learners, n_folds: int) -> None:
        estimator = DeepIV(tiny, n_folds=n_folds, pilot=None, random_state=0).fit(**roles)
        stage = estimator.first_stage_
        assert stage.outcome_model is None
        Y = roles["Y"]
        np.testing.assert_allclose(stage.target, (Y - Y.mean()) / Y.std())
        assert set(stage.fold) == set(range(n_folds))

    def test_deep_iv_never_looks_at_its_outcome_learner(self, roles: Any, linear: Learners) -> None:
        absent = Learners(None, linear.action, linear.structural)  # type: ignore[arg-type]
        with_learner, without = (
            DeepIV(learners, random_state=0).fit(**roles).predict(roles["T"], roles["X"])
            for learners in (linear, absent)
        )
        np.testing.assert_array_equal(with_learner, without)

    def test_targets_of_the_mean_learner(self, roles: Any) -> None:
        """The cross-fitted target of a learner that knows only the mean: the mean of the other folds."""
        learners = Learners(
            RegressorOutcome(DummyRegressor()), RegressorAction(LinearRegression()), LinearStructural()
        )
        stage = DMLIV(learners, n_folds=4, random_state=0).fit(**roles).first_stage_
        Y = (roles["Y"] - roles["Y"].mean()) / roles["Y"].std()
        for k in range(4):
            np.testing.assert_allclose(stage.target[stage.fold == k], Y[stage.fold != k].mean(), atol=1e-12)


class TestFittedAttributes:
    def test_models(self, roles: Any, linear: Learners, tiny: Learners) -> None:
        of_lines = DMLIV(linear, n_folds=2, random_state=0).fit(**roles)
        of_nets = DMLIV(tiny, n_folds=2, pilot=None, random_state=0).fit(**roles)
        assert isinstance(of_lines.structural_model_, LinearStructuralModel)
        assert isinstance(of_lines.first_stage_.distribution, ResidualDistribution)
        assert isinstance(of_nets.structural_model_, NeuralStructuralModel)
        assert isinstance(of_nets.first_stage_.distribution, MixtureDistribution)
        for estimator in (of_lines, of_nets):
            assert estimator.counterfactual_.model is estimator.structural_model_
            assert estimator.first_stage_.distribution.n_rows == N

    def test_nuisance_losses_are_out_of_fold_and_in_the_units_of_the_user(
        self, roles: Any, linear: Learners
    ) -> None:
        estimator = DMLIV(linear, n_folds=5, random_state=0).fit(**roles)
        inputs, fold = np.column_stack([roles["X"], roles["Z"]]), estimator.first_stage_.fold
        for role, name in (("Y", "outcome"), ("T", "action")):
            errors = np.empty(N)
            for k in range(5):
                model = LinearRegression().fit(inputs[fold != k], roles[role][fold != k])
                errors[fold == k] = roles[role][fold == k] - model.predict(inputs[fold == k])
            losses = estimator.nuisance_losses_
            assert losses[f"{name}_mse"] == pytest.approx(np.mean(errors**2), rel=0.01)
            assert losses[f"{name}_r2"] == pytest.approx(1 - np.mean(errors**2) / roles[role].var(), rel=0.01)

    def test_density_of_the_action_in_the_units_of_the_user(self, roles: Any, tiny: Learners) -> None:
        estimator = DMLIV(tiny, n_folds=2, pilot=None, random_state=0).fit(**roles)
        distribution = estimator.first_stage_.distribution
        assert isinstance(distribution, MixtureDistribution)
        mean, scale = roles["T"].mean(), roles["T"].std()
        density = (
            distribution.weights.double().numpy()
            * stats.norm.pdf(
                roles["T"][:, None],
                distribution.means[..., 0].double().numpy() * scale + mean,
                distribution.factors[..., 0, 0].double().numpy() * scale,
            )
        ).sum(axis=1)
        assert estimator.nuisance_losses_["action_nll"] == pytest.approx(-np.log(density).mean(), rel=1e-4)

    def test_deep_iv_has_no_outcome_loss(self, roles: Any, linear: Learners) -> None:
        losses = DeepIV(linear, random_state=0).fit(**roles).nuisance_losses_
        assert set(losses) == {"action_mse", "action_r2"}

    def test_discrete_actions_have_an_accuracy(self, roles: Any, tiny: Learners) -> None:
        roles["T"] = np.where(roles["T"] > 10, "dear", "cheap")
        losses = CEDMLIV(tiny, random_state=0).fit(**roles).nuisance_losses_
        assert {"action_nll", "action_accuracy"} <= set(losses)
        assert 0.0 <= losses["action_accuracy"] <= 1.0


class TestScore:
    def test_is_the_share_of_the_outcome_that_the_projection_explains(
        self, roles: Any, linear: Learners
    ) -> None:
        """For linear learners without folds the projection is the reduced form's fit."""
        estimator = CEDMLIV(linear, random_state=0).fit(**roles)
        inputs = np.column_stack([roles["X"], roles["Z"]])
        expected = LinearRegression().fit(inputs, roles["Y"]).score(inputs, roles["Y"])
        score = estimator.score(roles["Y"], Z=roles["Z"], X=roles["X"])
        assert score == pytest.approx(expected, abs=1e-3)

    def test_folds_share_the_projection_of_new_rows(self, roles: Any, linear: Learners) -> None:
        """A new row's distribution mixes those of the fold models equally; a linear h needs their means."""
        estimator = DMLIV(linear, n_folds=3, random_state=0).fit(**roles)
        inputs, fold = np.column_stack([roles["X"], roles["Z"]]), estimator.first_stage_.fold
        actions = [
            LinearRegression().fit(inputs[fold != k], roles["T"][fold != k]).predict(inputs) for k in range(3)
        ]
        projected = estimator.predict(np.mean(actions, axis=0), roles["X"])
        expected = 1.0 - np.mean((roles["Y"] - projected) ** 2) / roles["Y"].var()
        assert estimator.score(roles["Y"], Z=roles["Z"], X=roles["X"]) == pytest.approx(expected, abs=1e-6)


class TestDefaults:
    def test_default_learners_are_the_neural_preset(self, roles: Any) -> None:
        few = {role: values[:60] for role, values in roles.items()}
        default = CEDMLIV(random_state=0).fit(**few).predict(few["T"], few["X"])
        named = CEDMLIV(neural(), random_state=0).fit(**few).predict(few["T"], few["X"])
        np.testing.assert_array_equal(default, named)

    def test_the_preset_beats_the_confounded_answer(self) -> None:
        """On ticket demand the error is far below that of naive regression (4.6) and of a constant (1.3)."""
        problem = TicketDemand()
        data = problem.sample(1000, seed=0)
        X, T, truth = problem.test_set()
        estimator = DMLIV(neural(n_members=1), n_folds=2, random_state=0).fit(
            data.Y, data.T, Z=data.Z, X=data.X
        )
        assert np.mean((estimator.predict(T, X) - truth) ** 2) < 0.4
        policy = estimator.policy(np.linspace(-5, 5, 21))
        contexts = problem.contexts(500)
        reward = problem.reward(contexts, policy.predict(contexts)).mean()
        assert reward > problem.random_value(contexts) + 0.5
