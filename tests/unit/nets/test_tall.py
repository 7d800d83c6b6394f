"""Outputs column by column: another layout, the same network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dmliv.nets.stacked import StackedMLP

CPU = torch.device("cpu")


def passes(
    width: int, dropout: float, tall: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return outputs and the gradients of weights and inputs of one training step."""
    net = StackedMLP(
        3,
        (4, 8, 6, width),
        dropout=[dropout] * 2,
        generator=np.random.Generator(np.random.SFC64(0)),
        device=CPU,
    )
    net.tall = tall
    net.train()
    inputs = torch.linspace(-1.0, 1.0, 3 * 20 * 4).view(3, 20, 4).requires_grad_()
    outputs = net(inputs)
    outputs.square().sum().backward()  # type: ignore[no-untyped-call]
    return outputs.detach(), net.flat.grad, inputs.grad


@pytest.mark.parametrize("width", [1, 5])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_outputs_and_gradients_do_not_depend_on_the_layout(width: int, dropout: float) -> None:
    for tall, wide in zip(passes(width, dropout, True), passes(width, dropout, False), strict=True):
        torch.testing.assert_close(tall, wide)


def test_the_layout_is_for_training_alone() -> None:
    net = StackedMLP(2, (3, 4, 5), dropout=[0.0], generator=np.random.default_rng(0), device=CPU)
    inputs = torch.linspace(-1.0, 1.0, 2 * 7 * 3).view(2, 7, 3)
    expected = net.eval()(inputs)
    net.tall = True
    assert torch.equal(net(inputs), expected)
    assert net(inputs).is_contiguous()
    assert net.train()(inputs).transpose(1, 2).is_contiguous()
