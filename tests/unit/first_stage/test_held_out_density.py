"""Likelihoods of actions under every kind of distribution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from dmliv.first_stage.distributions import (
    ActionDistribution,
    CategoricalDistribution,
    MixtureDistribution,
    ResidualDistribution,
)


def _residual_distribution(residuals: np.ndarray, location: np.ndarray) -> ResidualDistribution:
    return ResidualDistribution(
        torch.as_tensor(location, dtype=torch.float32),
        torch.as_tensor(residuals[None], dtype=torch.float32),
        torch.zeros(len(location), dtype=torch.long),
    )


def log_likelihood(
    distribution: ActionDistribution, action: np.ndarray, n_fit_rows: int, seed: int
) -> np.ndarray:
    found = distribution.held_out_log_density(action, n_fit_rows=n_fit_rows, seed=seed)
    assert found is not None
    return found


def test_a_mixture_has_its_own_density() -> None:
    distribution = MixtureDistribution(
        torch.tensor([[0.3, 0.7]]), torch.tensor([[[0.0], [2.0]]]), torch.tensor([[[[1.0]], [[0.5]]]])
    )
    expected = 0.3 * norm.pdf(1.2) + 0.7 * norm.pdf(1.2, loc=2.0, scale=0.5)
    found = log_likelihood(distribution, np.array([[1.2]]), 10, seed=0)
    np.testing.assert_allclose(found, np.log(expected), rtol=1e-5)


def test_residuals_have_a_density_that_integrates_to_one() -> None:
    residuals = np.random.default_rng(0).gamma(2.0, size=(300, 1))
    residuals -= residuals.mean()
    grid = np.linspace(-30.0, 40.0, 7001)
    distribution = _residual_distribution(residuals, np.full((len(grid), 1), 1.0))
    density = np.exp(log_likelihood(distribution, grid[:, None], 300, seed=0))
    assert np.trapezoid(density, grid) == pytest.approx(1.0, abs=1e-3)
    assert np.trapezoid(grid * density, grid) == pytest.approx(1.0, abs=0.05)


def test_the_density_of_gaussian_residuals_is_nearly_gaussian_in_two_columns() -> None:
    rng = np.random.default_rng(1)
    covariance = np.array([[1.0, 0.6], [0.6, 0.8]])
    residuals = rng.multivariate_normal([0.0, 0.0], covariance, size=1000)
    actions = rng.multivariate_normal([0.0, 0.0], covariance, size=500) + 3.0
    found = log_likelihood(_residual_distribution(residuals, np.full((500, 2), 3.0)), actions, 1000, seed=0)
    truth = multivariate_normal([3.0, 3.0], covariance).logpdf(actions)
    assert np.mean(found) == pytest.approx(np.mean(truth), abs=0.1)


def test_a_far_action_or_an_impossible_level_does_not_decide_alone() -> None:
    residuals = np.random.default_rng(0).standard_normal((200, 1))
    far = log_likelihood(_residual_distribution(residuals, np.zeros((1, 1))), np.array([[8.0]]), 200, seed=0)
    assert -15.0 < far[0] < -5.0
    distribution = CategoricalDistribution(torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    found = log_likelihood(distribution, np.array([1, 1]), 50, seed=0)
    np.testing.assert_allclose(found, np.log([0.01, 0.75]), rtol=1e-6)


def test_residuals_without_spread_are_no_error() -> None:
    distribution = _residual_distribution(np.zeros((20, 1)), np.zeros((2, 1)))
    found = log_likelihood(distribution, np.array([[0.0], [1.0]]), 20, seed=0)
    assert np.all(np.isfinite(found))
    assert found[0] > found[1]
