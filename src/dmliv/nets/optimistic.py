"""Optimistic Adam: for games, where plain gradient steps of both players circle around the equilibrium."""

from __future__ import annotations

import torch
from torch import Tensor

_EPSILON = 1e-8


class OptimisticAdam:
    """Optimistic Adam on one parameter.

    With Adam's bias-corrected step u_t the parameter moves by ``- 2 u_t + u_{t-1}``: a step along the
    gradient expected next, if it goes on changing as it just did. While steps do not change it moves as Adam.

    Parameters
    ----------
    parameter : Tensor
        Changed in place; its ``grad`` is read.
    learning_rate : float or Tensor, shape of ``parameter``
        One rate, or a rate per weight.
    betas : tuple of float
        Memory of the gradient's mean and of its square; short, because in a game old gradients mislead.
    weight_decay : float
        Factor of the weights that is added to their gradient (coupled, as an L2 penalty).
    """

    def __init__(
        self,
        parameter: Tensor,
        learning_rate: float | Tensor,
        *,
        betas: tuple[float, float] = (0.5, 0.9),
        weight_decay: float = 0.0,
    ) -> None:
        self._parameter, self._rate = parameter, learning_rate
        self._betas, self._weight_decay = betas, weight_decay
        values = parameter.detach()
        self._mean, self._square = torch.zeros_like(values), torch.zeros_like(values)
        self._previous = torch.zeros_like(values)
        self._n_steps = 0

    @torch.no_grad()
    def step(self, factor: float = 1.0) -> None:
        """Take one step along the parameter's gradient, with ``factor`` times the learning rate."""
        if self._parameter.grad is None:
            raise ValueError("The parameter has no gradient.")
        gradient = self._parameter.grad
        if self._weight_decay:
            gradient = gradient.add(self._parameter, alpha=self._weight_decay)
        self._n_steps += 1
        beta_mean, beta_square = self._betas
        self._mean.lerp_(gradient, 1.0 - beta_mean)
        self._square.mul_(beta_square).addcmul_(gradient, gradient, value=1.0 - beta_square)
        scale = (self._square / (1.0 - beta_square**self._n_steps)).sqrt_().add_(_EPSILON)
        update = (self._mean / scale).mul_(factor / (1.0 - beta_mean**self._n_steps)).mul_(self._rate)
        self._parameter.add_(self._previous).sub_(update, alpha=2.0)
        self._previous = update
