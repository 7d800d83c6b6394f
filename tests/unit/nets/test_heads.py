"""Losses of the heads against SciPy and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from torch import Tensor

from dmliv.nets.heads import ClassHead, MeanHead, MixtureHead


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def scipy_loss(head: MixtureHead, raw: Tensor, target: Tensor) -> np.ndarray:
    mixture = head.parameters(raw.double())
    losses = np.empty(raw.shape[:-1])
    for index in np.ndindex(*losses.shape):
        log_density = [
            float(mixture.log_weights[index][g])
            + stats.multivariate_normal.logpdf(
                target[index].double().numpy(),
                mixture.means[index][g].numpy(),
                (mixture.factors[index][g] @ mixture.factors[index][g].T).numpy(),
            )
            for g in range(head.n_components)
        ]
        losses[index] = -logsumexp(log_density)
    return losses


class TestMixtureHead:
    @pytest.mark.parametrize("dimension", [1, 2, 3])
    @pytest.mark.parametrize("n_components", [1, 4])
    def test_negative_log_likelihood_equals_scipy(self, dimension: int, n_components: int) -> None:
        head = MixtureHead(n_components, dimension)
        raw = 1.5 * draw(2, 11, head.width)
        target = draw(2, 11, dimension, seed=1)
        loss = head.row_loss(raw, target)
        assert loss.shape == (2, 11)
        np.testing.assert_allclose(loss.numpy(), scipy_loss(head, raw, target), rtol=2e-4, atol=2e-4)

    def test_negative_log_likelihood_equals_torch_distributions(self) -> None:
        head = MixtureHead(3, 2)
        raw, target = draw(1, 9, head.width), draw(1, 9, 2, seed=1)
        mixture = head.parameters(raw)
        reference = torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(logits=mixture.log_weights),
            torch.distributions.MultivariateNormal(mixture.means, scale_tril=mixture.factors),
        )
        torch.testing.assert_close(
            head.row_loss(raw, target), -reference.log_prob(target), rtol=1e-4, atol=1e-4
        )

    @pytest.mark.parametrize(("dimension", "width"), [(1, 9), (2, 18), (3, 30)])
    def test_width(self, dimension: int, width: int) -> None:
        # Three components: a weight, d means, and d (d + 1) / 2 entries of a Cholesky factor each.
        assert MixtureHead(3, dimension).width == width

    @pytest.mark.parametrize("dimension", [1, 2])
    def test_parameters_are_a_mixture(self, dimension: int) -> None:
        head = MixtureHead(3, dimension)
        mixture = head.parameters(5.0 * draw(4, 6, head.width))
        torch.testing.assert_close(mixture.log_weights.exp().sum(-1), torch.ones(4, 6))
        assert mixture.means.shape == (4, 6, 3, dimension)
        assert torch.equal(mixture.factors, mixture.factors.tril())
        diagonal = torch.diagonal(mixture.factors, dim1=-2, dim2=-1)
        assert bool((diagonal > 0).all())
        torch.testing.assert_close(mixture.log_determinants, diagonal.log().sum(-1))

    @pytest.mark.parametrize("dimension", [1, 2, 3])
    def test_no_rows(self, dimension: int) -> None:
        """A model may be asked for the distribution of no rows at all."""
        head = MixtureHead(3, dimension)
        mixture = head.parameters(torch.empty(0, head.width))
        assert mixture.log_weights.shape == (0, 3)
        assert mixture.means.shape == (0, 3, dimension)
        assert mixture.factors.shape == (0, 3, dimension, dimension)

    @pytest.mark.parametrize("dimension", [1, 2])
    def test_scales_are_bounded(self, dimension: int) -> None:
        """Raw outputs without limit give scales with limits: no component collapses onto a row."""
        head = MixtureHead(2, dimension)
        for size in (-1e4, 1e4):
            factors = head.parameters(torch.full((1, head.width), size)).factors
            scale = float(factors[0, 0, 0, 0])
            assert 1e-3 < scale < 100.0
        raw = torch.full((1, 1, head.width), -1e4)
        raw[..., : 2 + 2 * dimension] = 0.0
        raw[..., 2 + 4 * dimension :] = 0.0
        # The density at the mean is that of the smallest scale, exp(-5) in every column.
        expected = dimension * (0.5 * np.log(2 * np.pi) - 5.0)
        assert float(head.row_loss(raw, torch.zeros(1, 1, dimension))) == pytest.approx(expected, rel=1e-3)

    @pytest.mark.parametrize("dimension", [1, 2])
    def test_far_targets_have_finite_losses_and_gradients(self, dimension: int) -> None:
        head = MixtureHead(3, dimension)
        raw = draw(1, 5, head.width).requires_grad_()
        loss = head.row_loss(raw, torch.full((1, 5, dimension), 1e4))
        loss.sum().backward()
        assert raw.grad is not None
        assert torch.isfinite(loss).all()
        assert torch.isfinite(raw.grad).all()
        assert float(raw.grad.abs().sum()) > 0.0

    def test_one_dimension_is_the_general_formula(self) -> None:
        head = MixtureHead(4, 1)
        raw, target = draw(2, 7, head.width), draw(2, 7, 1, seed=3)
        mixture = head.parameters(raw)
        normal = torch.distributions.Normal(mixture.means.squeeze(-1), mixture.factors.flatten(-3))
        expected = -torch.logsumexp(mixture.log_weights + normal.log_prob(target), dim=-1)
        torch.testing.assert_close(head.row_loss(raw, target), expected, rtol=1e-4, atol=1e-4)


class TestClassHead:
    def test_loss_is_cross_entropy(self) -> None:
        head = ClassHead(4)
        raw = 3.0 * draw(2, 50, 4)
        codes = torch.from_numpy(np.random.default_rng(1).integers(0, 4, (2, 50)))
        expected = torch.nn.functional.cross_entropy(raw.flatten(0, 1), codes.flatten(), reduction="none")
        # Targets arrive as floats from the training loop.
        torch.testing.assert_close(head.row_loss(raw, codes.float()), expected.view(2, 50))
        assert head.width == 4

    def test_probabilities(self) -> None:
        raw = draw(2, 50, 4)
        probabilities = ClassHead(4).probabilities(raw)
        torch.testing.assert_close(probabilities, torch.softmax(raw, -1))
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 50))

    def test_extreme_outputs_stay_finite(self) -> None:
        raw = torch.tensor([[[1e4, -1e4]]])
        assert float(ClassHead(2).row_loss(raw, torch.tensor([[0.0]]))) == 0.0
        assert float(ClassHead(2).row_loss(raw, torch.tensor([[1.0]]))) == pytest.approx(2e4)


class TestMeanHead:
    def test_squared_error(self) -> None:
        raw, target = draw(2, 5, 1), draw(2, 5, seed=1)
        torch.testing.assert_close(MeanHead().row_loss(raw, target), (raw[..., 0] - target) ** 2)
        assert MeanHead().width == 1
