"""Action distributions: draws, nodes and means agree with each other and with the parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from dmliv.errors import InputError
from dmliv.first_stage.distributions import (
    ActionDistribution,
    CategoricalDistribution,
    MixtureDistribution,
    Nodes,
    ResidualDistribution,
    assemble,
)
from dmliv.nets.heads import MixtureHead

DRAWS = 200_000


def mixture(dimension: int, n_rows: int = 3, n_components: int = 4, seed: int = 0) -> MixtureDistribution:
    head = MixtureHead(n_components, dimension)
    raw = torch.from_numpy(
        np.random.default_rng(seed).standard_normal((n_rows, head.width)).astype(np.float32)
    )
    return MixtureDistribution.from_parameters(head.parameters(raw))


def categorical(seed: int = 0) -> CategoricalDistribution:
    return CategoricalDistribution(
        torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(4), 3)).float()
    )


def residual(dimension: int = 1, n_rows: int = 3, size: int = 200, seed: int = 0) -> ResidualDistribution:
    rng = np.random.default_rng(seed)
    return ResidualDistribution(
        torch.from_numpy(rng.standard_normal((n_rows, dimension))).float(),
        torch.from_numpy(rng.gamma(2.0, size=(2, size, dimension))).float(),
        torch.from_numpy(np.arange(n_rows) % 2),
    )


LAWS = {
    "mixture of one column": mixture(1),
    "mixture of two columns": mixture(2),
    "categorical": categorical(),
    "residual of one column": residual(1),
    "residual of two columns": residual(2),
}
distributions = pytest.mark.parametrize("distribution", LAWS.values(), ids=LAWS)


def moments(nodes: Nodes) -> tuple[Tensor, Tensor]:
    """Return means (n, d) and second moments (n, d, d)."""
    actions, weights = nodes.actions.double(), nodes.weights.double()
    mean = (weights.unsqueeze(-1) * actions).sum(-2)
    second = torch.einsum("...q,...qi,...qj->...ij", weights, actions, actions)
    return mean, second


def mixture_moments(distribution: MixtureDistribution) -> tuple[Tensor, Tensor]:
    weights, means, factors = (
        distribution.weights.double(),
        distribution.means.double(),
        distribution.factors.double(),
    )
    second = factors @ factors.transpose(-1, -2) + means.unsqueeze(-1) * means.unsqueeze(-2)
    return (weights.unsqueeze(-1) * means).sum(1), (weights[..., None, None] * second).sum(1)


class TestEveryLaw:
    @distributions
    def test_mean_of_draws(self, distribution: ActionDistribution) -> None:
        nodes = distribution.sample(
            torch.arange(distribution.n_rows), DRAWS, torch.Generator().manual_seed(0)
        )
        mean, second = moments(nodes)
        spread = (torch.diagonal(second, dim1=-2, dim2=-1) - mean.square()).clamp_min(0).sqrt()
        assert float(((mean - distribution.mean().double()).abs() / (spread / DRAWS**0.5 + 1e-7)).max()) < 5.0

    @distributions
    def test_mean_of_nodes(self, distribution: ActionDistribution) -> None:
        mean, _ = moments(distribution.nodes(torch.arange(distribution.n_rows), 5))
        torch.testing.assert_close(mean, distribution.mean().double(), rtol=1e-5, atol=1e-5)

    @distributions
    def test_weights_sum_to_one(self, distribution: ActionDistribution) -> None:
        rows = torch.arange(distribution.n_rows)
        for nodes in (
            distribution.nodes(rows, 4),
            distribution.sample(rows, 7, torch.Generator().manual_seed(0)),
        ):
            assert bool((nodes.weights >= 0).all())
            torch.testing.assert_close(nodes.weights.sum(-1), torch.ones(distribution.n_rows))

    @distributions
    def test_rows_of_any_shape(self, distribution: ActionDistribution) -> None:
        rows = torch.tensor([[2, 0, 1, 1], [0, 0, 2, 2]])
        dimension = distribution.mean().shape[1]
        drawn = distribution.sample(rows, 6, torch.Generator().manual_seed(0))
        assert drawn.actions.shape == (2, 4, 6, dimension)
        assert drawn.weights.shape == (2, 4, 6)
        nodes, flat = distribution.nodes(rows, 3), distribution.nodes(torch.arange(3), 3)
        assert nodes.actions.shape == (*nodes.weights.shape, dimension)
        torch.testing.assert_close(nodes.actions, flat.actions[rows], rtol=0, atol=0)
        torch.testing.assert_close(nodes.weights, flat.weights[rows], rtol=0, atol=0)

    @distributions
    def test_draws_follow_the_generator(self, distribution: ActionDistribution) -> None:
        rows = torch.zeros(50, dtype=torch.long)
        one, same, other = (
            distribution.sample(rows, 2, torch.Generator().manual_seed(seed)).actions for seed in (1, 1, 2)
        )
        assert torch.equal(one, same)
        assert not torch.equal(one, other)

    @distributions
    def test_draws_of_a_row_are_independent(self, distribution: ActionDistribution) -> None:
        rows = torch.zeros(40_000, dtype=torch.long)
        first, second = distribution.sample(rows, 2, torch.Generator().manual_seed(3)).actions.unbind(-2)
        # Five standard errors of a correlation.
        assert abs(np.corrcoef(first[:, 0], second[:, 0])[0, 1]) < 5 / np.sqrt(len(rows))


class TestMixtureLaw:
    @pytest.mark.parametrize("dimension", [1, 2])
    def test_second_moments_of_draws_and_nodes(self, dimension: int) -> None:
        distribution = mixture(dimension)
        mean, second = mixture_moments(distribution)
        torch.testing.assert_close(distribution.mean().double(), mean, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            moments(distribution.nodes(torch.arange(3), 2))[1], second, rtol=1e-4, atol=1e-4
        )
        drawn = distribution.sample(torch.arange(3), DRAWS, torch.Generator().manual_seed(0))
        torch.testing.assert_close(moments(drawn)[1], second, rtol=0.03, atol=0.03)

    @pytest.mark.parametrize("n_points", [1, 2, 3, 5])
    def test_quadrature_is_exact_for_polynomials(self, n_points: int) -> None:
        """Gauss-Hermite with n points integrates every polynomial of degree below 2 n."""
        distribution = mixture(1, n_rows=5)
        nodes = distribution.nodes(torch.arange(5), n_points)
        weights, means = distribution.weights.double().numpy(), distribution.means.double().numpy()[..., 0]
        scales = distribution.factors.double().numpy()[..., 0, 0]
        # Raw moments of a Gaussian by the recursion m_k = mu m_(k-1) + (k - 1) sigma^2 m_(k-2).
        gaussian = [np.ones_like(means), means]
        for degree in range(2, 2 * n_points):
            gaussian.append(means * gaussian[-1] + (degree - 1) * scales**2 * gaussian[-2])
        for degree in range(2 * n_points):
            expected = (weights * gaussian[degree]).sum(axis=1)
            actions = nodes.actions.double()[..., 0].numpy()
            got = (nodes.weights.double().numpy() * actions**degree).sum(axis=1)
            tolerance = 1e-5 * (weights * np.abs(means) ** degree + scales**degree).sum(axis=1).max() + 1e-5
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=tolerance)

    def test_quadrature_in_two_columns_is_exact_for_mixed_moments(self) -> None:
        distribution = mixture(2, n_rows=4)
        nodes = distribution.nodes(torch.arange(4), 3)
        assert nodes.weights.shape == (4, 4 * 9)
        weights, means = distribution.weights.double(), distribution.means.double()
        covariance = distribution.factors.double() @ distribution.factors.double().transpose(-1, -2)
        first, second = means.unbind(-1)
        # E[x^2 y] of a Gaussian.
        component = (first**2 + covariance[..., 0, 0]) * second + 2 * first * covariance[..., 0, 1]
        x, y = nodes.actions.double().unbind(-1)
        got = (nodes.weights.double() * x**2 * y).sum(-1)
        torch.testing.assert_close(got, (weights * component).sum(-1), rtol=1e-4, atol=1e-3)

    def test_components_are_drawn_by_weight(self) -> None:
        distribution = MixtureDistribution(
            torch.tensor([[0.1, 0.7, 0.2]]),
            torch.tensor([[[-100.0], [0.0], [100.0]]]),
            torch.full((1, 3, 1, 1), 0.01),
        )
        actions = distribution.sample(
            torch.zeros(1, dtype=torch.long), DRAWS, torch.Generator().manual_seed(0)
        ).actions
        for value, share in ((-100, 0.1), (0, 0.7), (100, 0.2)):
            assert float(((actions - value).abs() < 1).float().mean()) == pytest.approx(share, abs=0.005)

    def test_too_many_nodes(self) -> None:
        with pytest.raises(InputError, match=r"9 points in each of 3 action columns.*DrawRule\('mean'\)"):
            mixture(3).nodes(torch.arange(3), 9)
        assert mixture(3).nodes(torch.arange(3), 8).weights.shape == (3, 4 * 512)

    def test_is_not_finite(self) -> None:
        assert not mixture(1).is_finite
        assert not residual().is_finite


class TestNormalScores:
    def test_of_one_component_are_standardised_actions(self) -> None:
        rng = np.random.default_rng(0)
        means, spreads, action = rng.standard_normal(20), rng.uniform(0.5, 2.0, 20), rng.standard_normal(20)
        distribution = MixtureDistribution(
            torch.ones(20, 1),
            torch.from_numpy(means).float().reshape(20, 1, 1),
            torch.from_numpy(spreads).float().reshape(20, 1, 1, 1),
        )
        found = distribution.normal_scores(action[:, None])
        assert found is not None
        np.testing.assert_allclose(found[0], np.clip((action - means) / spreads, -3.7, 3.7), atol=0.02)
        np.testing.assert_allclose(found[1], spreads, rtol=1e-6)

    def test_of_draws_are_standard_normal(self) -> None:
        distribution = mixture(1)
        _, second = mixture_moments(distribution)
        n = 20_000
        for row in range(3):
            rows = torch.full((n,), row)
            drawn = (
                distribution.sample(rows, 1, torch.Generator().manual_seed(row))
                .actions[:, 0]
                .double()
                .numpy()
            )
            repeated = MixtureDistribution(
                distribution.weights[rows], distribution.means[rows], distribution.factors[rows]
            )
            found = repeated.normal_scores(drawn)
            assert found is not None
            scores, spread = found
            assert abs(scores.mean()) < 5 / np.sqrt(n)
            assert scores.std() == pytest.approx(1.0, abs=0.03)
            # Higher actions have higher scores.
            order = np.argsort(drawn[:, 0])
            assert (np.diff(scores[order]) >= 0.0).all()
            variance = float(second[row, 0, 0] - distribution.mean()[row, 0].double() ** 2)
            np.testing.assert_allclose(spread, np.sqrt(variance), rtol=1e-4)

    def test_are_finite_far_out(self) -> None:
        found = mixture(1).normal_scores(np.array([[-1e6], [1e6], [0.0]]))
        assert found is not None
        assert np.isfinite(found[0]).all()
        np.testing.assert_allclose(found[0][:2], [-3.72, 3.72], atol=0.01)

    def test_others_have_none(self) -> None:
        for distribution in (mixture(2), categorical(), residual()):
            assert distribution.normal_scores(np.zeros((3, distribution.width))) is None


class TestCategoricalLaw:
    distribution = categorical()

    def test_nodes_are_all_classes_with_their_probability(self) -> None:
        nodes = self.distribution.nodes(torch.arange(3), 1)
        assert self.distribution.is_finite
        assert torch.equal(nodes.weights, self.distribution.probabilities)
        assert torch.equal(nodes.actions, torch.eye(4).expand(3, 4, 4))

    def test_draws_are_one_hot(self) -> None:
        actions = self.distribution.sample(torch.arange(3), 500, torch.Generator().manual_seed(0)).actions
        assert torch.equal(actions.sum(-1), torch.ones(3, 500))
        assert set(actions.unique().tolist()) == {0.0, 1.0}

    def test_classes_of_probability_zero_are_never_drawn(self) -> None:
        distribution = CategoricalDistribution(torch.tensor([[0.0, 1.0, 0.0]]))
        actions = distribution.sample(
            torch.zeros(1, dtype=torch.long), 20_000, torch.Generator().manual_seed(0)
        ).actions
        assert torch.equal(actions.mean(dim=(0, 1)), torch.tensor([0.0, 1.0, 0.0]))


class TestResidualLaw:
    def test_draws_come_from_the_pool_of_the_row(self) -> None:
        distribution = residual(size=50)
        drawn = distribution.sample(torch.arange(3), 2000, torch.Generator().manual_seed(0)).actions[..., 0]
        for row in range(3):
            pool = distribution.residuals[row % 2, :, 0] + distribution.location[row]
            assert set(np.round(drawn[row].tolist(), 4)) == set(np.round(pool.tolist(), 4))

    def test_columns_are_drawn_together(self) -> None:
        """A residual is a row: columns that hang together stay together."""
        rng = np.random.default_rng(0)
        first = rng.standard_normal((1, 300, 1)).astype(np.float32)
        distribution = ResidualDistribution(
            torch.zeros(1, 2), torch.from_numpy(np.concatenate([first, 2 * first], -1)), torch.zeros(1).long()
        )
        rows = torch.zeros(1, dtype=torch.long)
        for nodes in (
            distribution.sample(rows, 100, torch.Generator().manual_seed(0)),
            distribution.nodes(rows, 3),
        ):
            offset = nodes.actions[..., 1] - 2 * nodes.actions[..., 0]
            assert float(offset.max() - offset.min()) < 1e-5

    @pytest.mark.parametrize("n_points", [3, 5])
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_nodes_have_about_the_spread_of_the_pool(self, n_points: int, seed: int) -> None:
        """A thinned pool whose outermost residuals weigh as much as the others would be far too wide."""
        distribution = residual(size=2000, seed=seed)
        mean, second = moments(distribution.nodes(torch.arange(3), n_points))
        variance = (second[:, 0, 0] - mean[:, 0] ** 2).numpy()
        pool_variance = distribution.residuals[distribution.pool, :, 0].double().var(dim=1).numpy()
        np.testing.assert_allclose(variance, pool_variance, rtol=0.15)

    def test_a_small_pool_is_used_whole(self) -> None:
        distribution = residual(size=6)
        nodes = distribution.nodes(torch.arange(3), 5)
        assert nodes.weights.shape == (3, 6)
        expected = (distribution.location[0] + distribution.residuals[0]).sort(dim=0).values
        torch.testing.assert_close(nodes.actions[0].sort(dim=0).values, expected, rtol=1e-5, atol=1e-5)


class TestAssemble:
    row_sets = (torch.tensor([3, 0]), torch.tensor([4, 1, 2]))

    def test_mixture_rows_go_where_they_belong(self) -> None:
        parts = [mixture(2, n_rows=2, seed=1), mixture(2, n_rows=3, seed=2)]
        distribution = assemble(5, self.row_sets, parts)
        assert isinstance(distribution, MixtureDistribution)
        for rows, part in zip(self.row_sets, parts, strict=True):
            for name in ("weights", "means", "factors"):
                assert torch.equal(getattr(distribution, name)[rows], getattr(part, name))

    def test_categorical_rows_go_where_they_belong(self) -> None:
        whole = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(3), 5)).float()
        distribution = assemble(
            5, self.row_sets, [CategoricalDistribution(whole[rows]) for rows in self.row_sets]
        )
        assert torch.equal(distribution.mean(), whole)

    def test_residual_rows_keep_their_pool(self) -> None:
        parts = [residual(n_rows=2, size=40, seed=1), residual(n_rows=3, size=40, seed=2)]
        distribution = assemble(5, self.row_sets, parts)
        assert isinstance(distribution, ResidualDistribution)
        assert distribution.residuals.shape == (4, 40, 1)
        for rows, part in zip(self.row_sets, parts, strict=True):
            assert torch.equal(distribution.location[rows], part.location)
            assert torch.equal(distribution.residuals[distribution.pool[rows]], part.residuals[part.pool])
            torch.testing.assert_close(distribution.mean()[rows], part.mean())

    def test_pools_of_different_size_keep_their_mean(self) -> None:
        """Folds differ by a row, and so do their pools; the mean of a row may not move for that."""
        parts = [residual(n_rows=2, size=40, seed=1), residual(n_rows=3, size=41, seed=2)]
        distribution = assemble(5, self.row_sets, parts)
        for rows, part in zip(self.row_sets, parts, strict=True):
            torch.testing.assert_close(distribution.mean()[rows], part.mean(), rtol=1e-5, atol=1e-5)

    def test_missing_rows(self) -> None:
        with pytest.raises(ValueError, match="cover 6 rows, got 5"):
            assemble(6, self.row_sets, [mixture(1, n_rows=2), mixture(1, n_rows=3)])
