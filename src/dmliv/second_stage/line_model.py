"""A fitted h that is linear in the action."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from dmliv.data import FloatArray, Table
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingRecord
from dmliv.second_stage.features import StructuralEncoder

# Network rows (members x rows) in one evaluation pass.
_EVALUATION_ROWS = 1 << 14
# Convolutions hold some hundred times more numbers per row than the perceptron behind them.
_FRONT_FACTOR = 128


@dataclass(frozen=True)
class CoefficientModel:
    """A fitted ensemble; its level and slopes are means over its networks.

    Attributes
    ----------
    net : StackedMLP
    encoder : StructuralEncoder
    encoding : str
    action_factor : ndarray, shape (d,)
        What centred actions are multiplied by before the slopes see them.
    common_slope : ndarray, shape (d,)
        What the networks' slopes are added to.
    choice_losses : dict
        Held-out loss of every candidate; empty when there was nothing to choose.
    record : TrainingRecord
    """

    net: StackedMLP
    encoder: StructuralEncoder
    encoding: str
    action_factor: npt.NDArray[np.float32]
    common_slope: FloatArray
    choice_losses: dict[str, float] = field(repr=False)
    record: TrainingRecord = field(repr=False)

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""
        level, slope = self._lines(context)
        return np.asarray(level + (slope * action).sum(axis=1))

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action."""
        level, slope = self._lines(context)
        return np.asarray(level[:, None] + slope @ actions.T)

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the slopes."""
        del action
        return self._lines(context)[1]

    def describe(self) -> dict[str, object]:
        """Return the choices made and the loss curve."""
        return {
            "encoding": self.encoding,
            "choice_losses": self.choice_losses,
            "train_loss": self.record.train_loss.mean(axis=1).tolist(),
        }

    @torch.no_grad()
    def _lines(self, context: Table) -> tuple[FloatArray, FloatArray]:
        """Return the line of every context: h at action 0, shape (n,), and slopes (n, d)."""
        level, slope = np.empty(len(context)), np.empty((len(context), self.encoder.action_width))
        step = rows_at_once(self.net)
        for start in range(0, len(context), step):
            rows = slice(start, min(start + step, len(context)))
            part = context.take(np.arange(rows.start, rows.stop))
            features, pixels = (
                self.encoder.context_features(part, self.encoding),
                self.encoder.context.pixels(part),
            )
            if pixels is not None:
                features = np.hstack([features, pixels])
            inputs = torch.as_tensor(features, dtype=torch.float32, device=self.net.device)
            found = self.net(inputs.unsqueeze(0)).double().mean(0).cpu().numpy()
            slope[rows] = (found[:, 1:] + self.common_slope) * self.action_factor
            level[rows] = found[:, 0] - (slope[rows] * self.encoder.centre(part)).sum(axis=1)
        return level, slope


def rows_at_once(net: StackedMLP) -> int:
    """Return how many rows all members of a network are evaluated on at once."""
    return max(1, _EVALUATION_ROWS // (net.n_members * (1 if net.front is None else _FRONT_FACTOR)))
