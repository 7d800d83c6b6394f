"""The loss identity of the draw rules: which multiple of the variance of h each of them carries."""

from __future__ import annotations

from itertools import product
from typing import Any

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
)
from dmliv.second_stage.projection import DrawRule

N_ROWS = 3
TARGET = torch.tensor([0.3, -1.0, 2.0])


def h(actions: Tensor) -> Tensor:
    """A function with bends and a slope."""
    return torch.sin(2.0 * actions[..., 0]) + 0.5 * actions[..., -1]


def mixture(dimension: int = 1) -> MixtureDistribution:
    rng = np.random.default_rng(0)
    return MixtureDistribution(
        torch.from_numpy(rng.dirichlet(np.ones(2), N_ROWS)).float(),
        torch.from_numpy(rng.normal(0.0, 1.0, (N_ROWS, 2, dimension))).float(),
        0.6 * torch.eye(dimension).expand(N_ROWS, 2, dimension, dimension),
    )


def categorical() -> CategoricalDistribution:
    return CategoricalDistribution(torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.9, 0.1], [0.4, 0.4, 0.2]]))


def residual() -> ResidualDistribution:
    rng = np.random.default_rng(0)
    return ResidualDistribution(
        torch.from_numpy(rng.standard_normal((N_ROWS, 1))).float(),
        torch.from_numpy(rng.standard_normal((1, 60, 1))).float(),
        torch.zeros(N_ROWS, dtype=torch.long),
    )


def exact_terms(distribution: ActionDistribution) -> tuple[Tensor, Tensor]:
    """Return (target - E h)^2 and Var h of every row."""
    if isinstance(distribution, ResidualDistribution):
        actions = distribution.location.unsqueeze(1) + distribution.residuals[distribution.pool]
        nodes = Nodes(actions, torch.full(actions.shape[:2], 1.0 / actions.shape[1]))
    else:
        nodes = distribution.nodes(torch.arange(N_ROWS), 20)
    values = h(nodes.actions.double())
    mean = (nodes.weights * values).sum(-1)
    return (TARGET - mean).square(), (nodes.weights * (values - mean.unsqueeze(-1)).square()).sum(-1)


def sampled_losses(
    rule: DrawRule, distribution: ActionDistribution, weight: float, repeats: int = 200_000
) -> Tensor:
    rows = torch.arange(N_ROWS).repeat(repeats, 1)
    nodes = rule.draw(distribution, rows, torch.Generator().manual_seed(0))
    return rule.loss(h(nodes.actions), nodes, TARGET.expand(repeats, -1), distribution, torch.tensor(weight))


SAMPLED = [
    (DrawRule("single"), 0.0, 1.0),
    (DrawRule("mean", n_draws=1), 0.0, 1.0),
    (DrawRule("mean", n_draws=4), 0.0, 0.25),
    (DrawRule("mean", n_draws=4), 0.5, 0.75),
    (DrawRule("unbiased"), 0.0, 0.0),
    (DrawRule("unbiased", n_draws=5), 0.0, 0.0),
    (DrawRule("unbiased"), 1.0, 1.0),
    (DrawRule("unbiased", n_draws=5), 0.2, 0.2),
    (DrawRule("unbiased", n_draws=4), 0.25, 0.25),
]


class TestExpectation:
    @pytest.mark.parametrize(("rule", "weight", "expected"), SAMPLED)
    @pytest.mark.parametrize(
        "distribution", [mixture(1), mixture(2), residual()], ids=["1-D", "2-D", "residual"]
    )
    def test_sampled_rules(
        self, distribution: ActionDistribution, rule: DrawRule, weight: float, expected: float
    ) -> None:
        """The mean loss is the squared projected error plus the stated share of the variance of h."""
        error, variance = exact_terms(distribution)
        losses = sampled_losses(rule, distribution, weight).double()
        standard_error = losses.std(dim=0) / len(losses) ** 0.5
        # Where draws are summed in single precision, rounding adds a little to five standard errors.
        gap = (losses.mean(dim=0) - (error + expected * variance)).abs()
        assert bool((gap < 5 * standard_error + 1e-4).all())
        assert bool((variance > 0.05).all())

    @pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
    @pytest.mark.parametrize("dimension", [1, 2])
    def test_quadrature(self, weight: float, dimension: int) -> None:
        """Deterministic nodes give the limit of infinitely many draws."""
        distribution = mixture(dimension)
        rule = DrawRule("quadrature", n_points=12)
        error, variance = exact_terms(distribution)
        nodes = rule.draw(distribution, torch.arange(N_ROWS), torch.Generator())
        loss = rule.loss(h(nodes.actions), nodes, TARGET, distribution, torch.tensor(weight))
        torch.testing.assert_close(loss.double(), error + weight * variance, rtol=1e-3, atol=1e-4)

    def test_quadrature_equals_the_mean_of_many_draws(self) -> None:
        distribution = mixture()
        exact, many = DrawRule("quadrature", n_points=20), DrawRule("mean", n_draws=100_000)
        losses = []
        for rule in (exact, many):
            nodes = rule.draw(distribution, torch.arange(N_ROWS), torch.Generator().manual_seed(1))
            losses.append(rule.loss(h(nodes.actions), nodes, TARGET, distribution, torch.tensor(0.0)))
        torch.testing.assert_close(losses[0], losses[1], rtol=0.02, atol=0.02)

    def test_unbiased_with_two_draws_is_the_product_of_errors(self) -> None:
        distribution, rule = mixture(), DrawRule("unbiased")
        nodes = rule.draw(distribution, torch.arange(N_ROWS), torch.Generator().manual_seed(0))
        errors = TARGET.unsqueeze(-1) - h(nodes.actions)
        loss = rule.loss(h(nodes.actions), nodes, TARGET, distribution, torch.tensor(0.0))
        torch.testing.assert_close(loss, errors[:, 0] * errors[:, 1], rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("n_draws", [2, 3, 6])
    def test_unbiased_is_the_u_statistic(self, n_draws: int) -> None:
        distribution, rule = mixture(), DrawRule("unbiased", n_draws=n_draws)
        nodes = rule.draw(distribution, torch.arange(N_ROWS), torch.Generator().manual_seed(0))
        errors = TARGET.unsqueeze(-1) - h(nodes.actions)
        expected = (errors.sum(-1).square() - errors.square().sum(-1)) / (n_draws * (n_draws - 1))
        loss = rule.loss(h(nodes.actions), nodes, TARGET, distribution, torch.tensor(0.0))
        torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)

    def test_gradients_are_unbiased(self) -> None:
        """The mean gradient of the sampled loss is the gradient of the exact one."""
        distribution = mixture()
        theta = torch.tensor([0.7, -0.4], requires_grad=True)

        def value(actions: Tensor) -> Tensor:
            return theta[0] * torch.sin(2.0 * actions[..., 0]) + theta[1] * actions[..., 0]

        exact_rule = DrawRule("quadrature", n_points=20)
        nodes = exact_rule.draw(distribution, torch.arange(N_ROWS), torch.Generator())
        loss = exact_rule.loss(value(nodes.actions), nodes, TARGET, distribution, torch.tensor(0.0)).mean()
        (exact,) = torch.autograd.grad(loss, theta)
        rows = torch.arange(N_ROWS).repeat(200_000, 1)
        gradients = {}
        for name in ("unbiased", "single"):
            rule = DrawRule(name)  # type: ignore[arg-type]
            nodes = rule.draw(distribution, rows, torch.Generator().manual_seed(0))
            losses = rule.loss(
                value(nodes.actions), nodes, TARGET.expand(len(rows), -1), distribution, torch.tensor(0.0)
            )
            (gradients[name],) = torch.autograd.grad(losses.mean(), theta)
        torch.testing.assert_close(gradients["unbiased"], exact, rtol=0.02, atol=0.02)
        assert float((gradients["single"] - exact).abs().max()) > 0.1


class TestDiscreteActions:
    """Every rule is its own expectation over the draws, computed by going through all of them."""

    @staticmethod
    def brute_force(
        rule: DrawRule, distribution: CategoricalDistribution, values: Tensor, weight: float
    ) -> Tensor:
        """Average the sampled loss over all combinations of draws."""
        n_draws = 1 if rule.name == "single" else rule.n_draws
        total = torch.zeros(N_ROWS, dtype=torch.float64)
        # A distribution that is not finite makes the rule use the formula for draws.
        sampled = mixture()
        for classes in product(range(3), repeat=n_draws):
            index = list(classes)
            probability = distribution.probabilities[:, index].double().prod(dim=1)
            drawn = Nodes(torch.empty(N_ROWS, n_draws, 1), torch.full((N_ROWS, n_draws), 1.0 / n_draws))
            loss = rule.loss(values[:, index], drawn, TARGET, sampled, torch.tensor(weight))
            total += probability * loss.double()
        return total

    @pytest.mark.parametrize("weight", [0.0, 0.5])
    @pytest.mark.parametrize(
        "rule",
        [
            DrawRule("single"),
            DrawRule("mean", n_draws=1),
            DrawRule("mean", n_draws=2),
            DrawRule("mean", n_draws=4),
            DrawRule("unbiased"),
            DrawRule("unbiased", n_draws=4),
        ],
    )
    def test_rules_equal_their_expectation(self, rule: DrawRule, weight: float) -> None:
        distribution = categorical()
        nodes = rule.draw(distribution, torch.arange(N_ROWS), torch.Generator())
        values = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.0, -3.0], [0.2, 0.4, 0.1]])
        loss = rule.loss(values, nodes, TARGET, distribution, torch.tensor(weight))
        expected = self.brute_force(rule, distribution, values, weight)
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)

    def test_quadrature_is_the_exact_sum(self) -> None:
        distribution, rule = categorical(), DrawRule("quadrature", n_points=1)
        nodes = rule.draw(distribution, torch.arange(N_ROWS), torch.Generator())
        values = torch.tensor([0.5, -1.0, 2.0]).expand(N_ROWS, -1)
        loss = rule.loss(values, nodes, TARGET, distribution, torch.tensor(0.0))
        torch.testing.assert_close(loss, (TARGET - distribution.probabilities @ values[0]).square())

    def test_nothing_is_drawn(self) -> None:
        distribution = categorical()
        generator = torch.Generator().manual_seed(0)
        before = generator.get_state()
        for name in ("single", "mean", "unbiased", "quadrature"):
            nodes = DrawRule(name).draw(distribution, torch.arange(N_ROWS), generator)  # type: ignore[arg-type]
            assert torch.equal(nodes.weights, distribution.probabilities)
        assert torch.equal(generator.get_state(), before)


class TestDraws:
    @pytest.mark.parametrize(
        ("rule", "n_nodes"),
        [
            (DrawRule("single", n_draws=7), 1),
            (DrawRule("mean", n_draws=7), 7),
            (DrawRule("unbiased", n_draws=3), 3),
            (DrawRule("quadrature", n_points=4), 2 * 4),
        ],
    )
    def test_number_of_nodes(self, rule: DrawRule, n_nodes: int) -> None:
        nodes = rule.draw(mixture(), torch.zeros(5, 6, dtype=torch.long), torch.Generator())
        assert nodes.actions.shape == (5, 6, n_nodes, 1)

    def test_draws_are_fresh_at_every_step(self) -> None:
        generator = torch.Generator().manual_seed(0)
        rows = torch.arange(N_ROWS)
        first, second = (DrawRule().draw(mixture(), rows, generator).actions for _ in range(2))
        assert not torch.equal(first, second)

    def test_weights_may_differ_by_member(self) -> None:
        """Members of one stack carry different weights, shape (M, 1) against losses (M, B)."""
        distribution, rule = mixture(), DrawRule("unbiased")
        rows = torch.arange(N_ROWS).repeat(2, 1)
        nodes = rule.draw(distribution, rows, torch.Generator().manual_seed(0))
        values, target = h(nodes.actions), TARGET.expand(2, -1)
        both = rule.loss(values, nodes, target, distribution, torch.tensor([[0.0], [0.7]]))
        for member, weight in enumerate((0.0, 0.7)):
            alone = rule.loss(values, nodes, target, distribution, torch.tensor(weight))
            torch.testing.assert_close(both[member], alone[member])

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"name": "double"}, "draw rule among .*got 'double'"),
            ({"name": "unbiased", "n_draws": 1}, "at least 2 draws for the rule 'unbiased', got n_draws=1"),
            ({"name": "mean", "n_draws": 0}, "at least 1 draws"),
            ({"n_points": 0}, "at least one quadrature point"),
        ],
    )
    def test_rules_that_cannot_work(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            DrawRule(**settings)
