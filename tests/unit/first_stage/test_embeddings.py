"""Means of the action's kernel are exact for mixtures, in any number of dimensions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dmliv.first_stage.distributions import CategoricalDistribution, MixtureDistribution
from dmliv.kernels.features import gaussian_kernel


@pytest.mark.parametrize("width", [1, 2])
def test_mixtures_agree_with_many_quadrature_points(width: int) -> None:
    rng = np.random.default_rng(0)
    n_rows, n_components = 5, 3
    factors = np.tril(rng.uniform(0.1, 0.6, (n_rows, n_components, width, width)))
    weights = rng.dirichlet(np.ones(n_components), n_rows)
    means = rng.standard_normal((n_rows, n_components, width))
    distribution = MixtureDistribution(
        *(torch.from_numpy(each).float() for each in (weights, means, factors))
    )
    rows, scales = np.array([4, 0, 2]), np.array([0.7, 0.9])[:width]
    landmarks = rng.standard_normal((6, width))
    found = distribution.kernel_means(rows, landmarks, scales, n_points=1)
    nodes = distribution.nodes(torch.from_numpy(rows), 20)
    kernel = gaussian_kernel(nodes.actions.reshape(-1, width).numpy(), landmarks, scales)
    expected = np.einsum("nq,nqm->nm", nodes.weights.numpy(), kernel.reshape(len(rows), -1, 6))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_distribution_without_spread_is_the_kernel_itself() -> None:
    means = torch.tensor([[[0.3]], [[-1.0]]], dtype=torch.float64)
    distribution = MixtureDistribution(torch.ones(2, 1), means, torch.zeros(2, 1, 1, 1))
    landmarks, scales = np.array([[0.0], [1.0]]), np.array([0.5])
    expected = gaussian_kernel(means[:, 0].numpy(), landmarks, scales)
    np.testing.assert_allclose(
        distribution.kernel_means(np.arange(2), landmarks, scales, n_points=3), expected
    )


def test_classes_are_summed() -> None:
    distribution = CategoricalDistribution(torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=torch.float64))
    between = float(np.exp(-0.5 * 2.0))
    found = distribution.kernel_means(np.arange(2), np.eye(2), np.ones(2), n_points=3)
    np.testing.assert_allclose(
        found, [[0.25 + 0.75 * between, 0.75 + 0.25 * between], [1.0, between]], rtol=1e-6
    )
