"""Encodings of the structural input (context, action)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dmliv.data import Table, TrainingData
from dmliv.errors import InputError
from dmliv.nets.encoding import PiecewiseLinear, PiecewiseLinearTensor, TableEncoder

FloatArray = npt.NDArray[np.float64]

#: Encodings a structural network can choose from.
STRUCTURAL_ENCODINGS = ("standardised", "piecewise", "piecewise_action")


@dataclass(frozen=True)
class StructuralEncoder:
    """Encodes contexts once and actions whenever they are drawn.

    The encodings are ``"standardised"``, ``"piecewise"`` (piecewise-linear context, plain action) and
    ``"piecewise_action"`` (both piecewise linear). A discrete action is always one-hot.

    Attributes
    ----------
    context : TableEncoder
    action_width : int
        Width d of an action vector.
    action_knots : tuple of PiecewiseLinear
        One per column of a continuous action, empty for a discrete one.
    """

    context: TableEncoder
    action_width: int
    action_knots: tuple[PiecewiseLinear, ...]

    @classmethod
    def learn(cls, data: TrainingData, n_bins: int) -> StructuralEncoder:
        """Learn all encodings from training rows."""
        continuous = data.action_spec.kind == "continuous"
        levels = tuple(len(column.levels) for column in data.context_schema.categorical)
        return cls(
            TableEncoder.learn(data.context, levels, n_bins),
            data.action_spec.width,
            tuple(PiecewiseLinear.learn(column, n_bins) for column in data.action.T) if continuous else (),
        )

    def context_features(self, context: Table, encoding: str) -> npt.NDArray[np.float32]:
        """Return context inputs, shape (n, width)."""
        if encoding not in STRUCTURAL_ENCODINGS:
            raise InputError(
                f"Expected second-stage encodings among {STRUCTURAL_ENCODINGS}, got {encoding!r}."
            )
        if encoding == "standardised":
            return self.context.standardised(context).astype(np.float32)
        return self.context.piecewise_linear(context).astype(np.float32)

    def action_encoder(self, encoding: str, device: torch.device) -> ActionEncoder:
        """Return the action part of an encoding as a function of tensors."""
        if encoding == "piecewise_action" and self.action_knots:
            return ActionEncoder(PiecewiseLinearTensor(list(self.action_knots), device))
        return ActionEncoder(None)

    def action_features_width(self, encoding: str) -> int:
        """Return how many inputs an action becomes."""
        if encoding == "piecewise_action" and self.action_knots:
            return self.action_width + sum(knots.width for knots in self.action_knots)
        return self.action_width


@dataclass(frozen=True)
class ActionEncoder:
    """Action vectors (..., d) to network inputs (..., width)."""

    piecewise: PiecewiseLinearTensor | None

    def __call__(self, actions: Tensor) -> Tensor:
        """Encode actions."""
        if self.piecewise is None:
            return actions
        return torch.cat([actions, self.piecewise.encode(actions)], dim=-1)
