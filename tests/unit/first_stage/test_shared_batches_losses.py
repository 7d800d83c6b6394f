"""Losses with gradients by hand against automatic differentiation."""

from __future__ import annotations

import pytest
import torch

from dmliv.first_stage.blocks import weighted_means
from dmliv.first_stage.shared_batches import mean_losses
from dmliv.nets.heads import ClassHead, Head, MeanHead, MixtureHead

MEMBERS, ROWS = 3, 40


def drawn(head: Head, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    raw = 3.0 * torch.randn(MEMBERS, ROWS, head.width, generator=generator, dtype=torch.float64)
    weights = torch.rand(MEMBERS, ROWS, generator=generator, dtype=torch.float64)
    # The first member may not look at half of the rows, the last at none.
    weights[0, ::2] = 0.0
    weights[2] = 0.0
    return raw.requires_grad_(), target, weights


@pytest.mark.parametrize(
    ("head", "target"),
    [
        (MeanHead(), torch.linspace(-2.0, 3.0, ROWS, dtype=torch.float64)),
        (MixtureHead(5, 1), torch.linspace(-2.0, 3.0, ROWS, dtype=torch.float64)[:, None]),
        (MixtureHead(2, 2), torch.linspace(-2.0, 3.0, 2 * ROWS, dtype=torch.float64).view(ROWS, 2)),
        (ClassHead(3), torch.arange(ROWS) % 3),
    ],
)
def test_values_and_gradients_are_those_of_automatic_differentiation(
    head: Head, target: torch.Tensor
) -> None:
    raw, target, weights = drawn(head, target)
    factors = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    by_hand = mean_losses(head, raw, target, weights)
    (gradient,) = torch.autograd.grad((factors * by_hand).sum(), raw)
    expected = weighted_means(head.row_loss(raw, target.expand(MEMBERS, *target.shape)), weights)
    (expected_gradient,) = torch.autograd.grad((factors * expected).sum(), raw)
    torch.testing.assert_close(by_hand, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    assert by_hand[2] == 0.0
    assert not gradient[2].any()
