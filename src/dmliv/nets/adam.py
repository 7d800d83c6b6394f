"""Adam through torch's functional form.

The optimiser classes import torch's compiler when the first one is made, which takes longer than a fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamw import adamw


class Adam:
    """Adam on some parameters, with torch's defaults.

    Parameters
    ----------
    parameters : sequence of Tensor
    weight_decay : float
    decoupled : bool
        Whether the weight decay acts on the parameters, as in AdamW, or is part of the gradient.
    """

    def __init__(self, parameters: Sequence[Tensor], weight_decay: float, *, decoupled: bool = False) -> None:
        self._parameters, self._weight_decay = list(parameters), weight_decay
        self._update = adamw if decoupled else adam
        self._means, self._squares = ([torch.zeros_like(each) for each in self._parameters] for _ in range(2))
        self._steps = [torch.zeros((), dtype=torch.float32, device=each.device) for each in self._parameters]

    def step(self, learning_rate: float) -> None:
        """Take one step against the gradients that the parameters hold."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        if len(gradients) < len(self._parameters):
            raise ValueError("Expected parameters with gradients; call backward() first.")
        self._move(gradients, learning_rate)

    def descend(self, loss: Tensor, learning_rate: float) -> None:
        """Take one step down the gradient of a loss."""
        self._move(list(torch.autograd.grad(loss, self._parameters)), learning_rate)

    @torch.no_grad()
    def _move(self, gradients: list[Tensor], learning_rate: float) -> None:
        self._update(
            self._parameters,
            gradients,
            self._means,
            self._squares,
            [],
            self._steps,
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=learning_rate,
            weight_decay=self._weight_decay,
            eps=1e-8,
            maximize=False,
        )
