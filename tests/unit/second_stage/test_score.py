"""Losses of the nuisances and the density of a mixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp

from dmliv.data import TrainingData
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.distributions import MixtureDistribution
from dmliv.nets.heads import MixtureHead
from dmliv.second_stage.score import nuisance_losses

MakeFirstStage = Callable[[TrainingData], FirstStage]


@pytest.mark.parametrize("dimension", [1, 2])
def test_log_density_equals_scipy(dimension: int) -> None:
    head = MixtureHead(3, dimension)
    rng = np.random.default_rng(0)
    raw = torch.from_numpy(rng.standard_normal((20, head.width))).float()
    distribution = MixtureDistribution.from_parameters(head.parameters(raw))
    action = rng.standard_normal((20, dimension))
    expected = [
        logsumexp(
            [
                stats.multivariate_normal.logpdf(
                    action[row],
                    distribution.means[row, g].double().numpy(),
                    (distribution.factors[row, g] @ distribution.factors[row, g].T).double().numpy(),
                )
                for g in range(3)
            ],
            b=distribution.weights[row].double().numpy(),
        )
        for row in range(20)
    ]
    density = distribution.log_density(action)
    np.testing.assert_allclose(density, expected, rtol=1e-3, atol=1e-3)


class TestNuisanceLosses:
    def test_outcome_losses_are_in_the_units_of_the_user(
        self, data: TrainingData, make_first_stage: MakeFirstStage
    ) -> None:
        stage = replace(make_first_stage(data), target=0.5 * data.outcome, outcome_model=object())  # type: ignore[arg-type]
        losses = nuisance_losses(data, stage)
        outcome = data.outcome_spec.to_user(data.outcome)
        predicted = data.outcome_spec.to_user(0.5 * data.outcome)
        assert losses["outcome_mse"] == pytest.approx(np.mean((outcome - predicted) ** 2))
        assert losses["outcome_r2"] == pytest.approx(0.75)

    def test_no_outcome_model_no_outcome_loss(
        self, data: TrainingData, make_first_stage: MakeFirstStage
    ) -> None:
        losses = nuisance_losses(data, make_first_stage(data))
        assert not any(name.startswith("outcome") for name in losses)

    def test_action_losses(self, data: TrainingData, make_first_stage: MakeFirstStage) -> None:
        stage = make_first_stage(data)
        losses = nuisance_losses(data, stage)
        mean = stage.distribution.mean().double().numpy()
        if data.action_spec.kind == "discrete":
            own = mean[np.arange(len(data)), data.action]
            assert losses["action_nll"] == pytest.approx(-np.log(own).mean(), rel=1e-5)
            assert losses["action_accuracy"] == pytest.approx(np.mean(mean.argmax(axis=1) == data.action))
            return
        action, scale = data.action, data.action_spec.scale
        assert losses["action_mse"] == pytest.approx(np.mean(((action - mean) * scale) ** 2), rel=1e-5)
        assert losses["action_r2"] == pytest.approx(1 - np.mean((action - mean) ** 2), rel=1e-4)
        # The density of one Gaussian per row with standard deviation one half, in the units of the user.
        expected = -stats.norm.logpdf(action * scale, mean * scale, 0.5 * scale).sum(axis=1).mean()
        assert losses["action_nll"] == pytest.approx(expected, rel=1e-4)

    def test_weights(self, data: TrainingData, make_first_stage: MakeFirstStage) -> None:
        keep = np.arange(len(data)) < 50
        heavy = replace(data, weight=keep / keep.mean())
        stage = replace(make_first_stage(data), target=0.5 * data.outcome, outcome_model=object())  # type: ignore[arg-type]
        losses = nuisance_losses(heavy, stage)
        expected = np.mean((0.5 * data.outcome[keep]) ** 2) * data.outcome_spec.scale**2
        assert losses["outcome_mse"] == pytest.approx(expected)

    @pytest.mark.parametrize("data", ["discrete"], indirect=True)
    def test_a_class_of_probability_zero_is_a_finite_loss(
        self, data: TrainingData, make_first_stage: MakeFirstStage
    ) -> None:
        stage = make_first_stage(data)
        wrong = torch.eye(3)[torch.from_numpy((data.action + 1) % 3)]
        losses = nuisance_losses(data, replace(stage, distribution=type(stage.distribution)(wrong)))  # type: ignore[call-arg]
        assert np.isfinite(losses["action_nll"])
        assert losses["action_accuracy"] == 0.0
