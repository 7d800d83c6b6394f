"""Optimistic Adam against torch's Adam, and in a game where others circle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.optim.adam import adam

from dmliv.nets.optimistic import OptimisticAdam

START = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
CURVATURE = torch.tensor([1.0, 0.3, 5.0], dtype=torch.float64)


class Adam:
    """Torch's Adam, through its functional form, which does not import torch's compiler."""

    def __init__(
        self,
        parameter: Tensor,
        rate: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.5, 0.9),
    ) -> None:
        self.parameter, self.rate, self.weight_decay, self.betas = parameter, rate, weight_decay, betas
        self.mean, self.square = torch.zeros_like(parameter), torch.zeros_like(parameter)
        self.count = torch.zeros(())

    @torch.no_grad()
    def step(self) -> None:
        assert self.parameter.grad is not None
        adam(
            [self.parameter],
            [self.parameter.grad],
            [self.mean],
            [self.square],
            [],
            [self.count],
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=self.rate,
            weight_decay=self.weight_decay,
            eps=1e-8,
            maximize=False,
        )


class TestAgainstAdam:
    @pytest.mark.parametrize("weight_decay", [0.0, 0.1])
    def test_moves_by_twice_adams_step_less_the_one_before(self, weight_decay: float) -> None:
        ours, shadow = START.clone().requires_grad_(), START.clone().requires_grad_()
        optimiser = OptimisticAdam(ours, 0.05, weight_decay=weight_decay)
        reference = Adam(shadow, 0.05, weight_decay)
        expected, previous = START.clone(), torch.zeros(3, dtype=torch.float64)
        for _ in range(20):
            gradient = CURVATURE * ours.detach()
            # Adam steps from our weights, because it adds the decay of its own.
            with torch.no_grad():
                shadow.copy_(ours)
            shadow.grad = gradient.clone()
            reference.step()
            step = ours.detach() - shadow.detach()
            expected = expected - 2.0 * step + previous
            previous = step
            ours.grad = gradient
            optimiser.step()
            torch.testing.assert_close(ours.detach(), expected)

    def test_under_a_constant_gradient_it_moves_as_adam(self) -> None:
        gradient = torch.tensor([2.0, -0.5, 1e-3], dtype=torch.float64)
        ours, theirs = START.clone().requires_grad_(), START.clone().requires_grad_()
        optimisers = (OptimisticAdam(ours, 0.01), Adam(theirs, 0.01))
        n_steps = 10
        for _ in range(n_steps):
            ours.grad, theirs.grad = gradient.clone(), gradient.clone()
            for optimiser in optimisers:
                optimiser.step()
        # All of Adam's steps are equal here, and the first one counts twice.
        extra = (theirs.detach() - START) / n_steps
        torch.testing.assert_close(ours.detach(), theirs.detach() + extra)

    def test_rates_per_weight_and_factors_scale_the_step(self) -> None:
        gradient = torch.ones(3, dtype=torch.float64)
        moves = []
        for rate, factor in ((torch.tensor([0.01, 0.02, 0.04], dtype=torch.float64), 1.0), (0.01, 2.0)):
            weights = START.clone().requires_grad_()
            weights.grad = gradient
            OptimisticAdam(weights, rate).step(factor)
            moves.append(START - weights.detach())
        torch.testing.assert_close(moves[0], torch.tensor([0.02, 0.04, 0.08], dtype=torch.float64))
        torch.testing.assert_close(moves[1], torch.full((3,), 0.04, dtype=torch.float64))

    def test_needs_a_gradient(self) -> None:
        with pytest.raises(ValueError, match="no gradient"):
            OptimisticAdam(START.clone().requires_grad_(), 0.1).step()


def _late_distance(make: Callable[[Tensor], Callable[[], None]]) -> float:
    """Play min over x, max over y of x y from (1, 1); return how far from (0, 0) the last rounds come."""
    x, y = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    steps = (make(x), make(y))
    late = 0.0
    for number in range(1500):
        x.grad, y.grad = y.detach().clone(), -x.detach().clone()
        for step in steps:
            step()
        if number >= 1200:
            late = max(late, float((x.abs() + y.abs()).detach()))
    return late


def test_settles_in_the_bilinear_game_where_plain_steps_circle() -> None:
    """Without momentum, which itself drives players around."""
    rate, betas = 0.05, (0.0, 0.999)

    def gradient_descent(parameter: Tensor) -> Callable[[], None]:
        @torch.no_grad()
        def step() -> None:
            assert parameter.grad is not None
            parameter.sub_(rate * parameter.grad)

        return step

    assert _late_distance(gradient_descent) > 1.0
    assert _late_distance(lambda parameter: Adam(parameter, rate, betas=betas).step) > 1.0
    assert _late_distance(lambda parameter: OptimisticAdam(parameter, rate, betas=betas).step) < 1e-3


def test_with_momentum_it_circles_closer_than_adam() -> None:
    optimistic = _late_distance(lambda parameter: OptimisticAdam(parameter, 0.01).step)
    assert optimistic < 0.7 * _late_distance(lambda parameter: Adam(parameter, 0.01).step)
