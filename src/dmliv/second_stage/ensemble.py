"""A fitted h: the mean of a small ensemble of networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dmliv.data import FloatArray, Table
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingRecord
from dmliv.second_stage.features import StructuralEncoder, evaluate

# Network rows (members x rows x actions) in one evaluation pass: few enough that layers stay in the cache.
_EVALUATION_ROWS = 1 << 14


@dataclass(frozen=True)
class NeuralStructuralModel:
    """A fitted ensemble; predictions are the mean over its networks.

    Attributes
    ----------
    net : StackedMLP
    encoder : StructuralEncoder
    encoding : str
        The encoding in use.
    variance_weight : float
        The weight in use.
    choice_losses : dict
        Held-out loss of every candidate setting; empty when there was nothing to choose.
    record : TrainingRecord
    """

    net: StackedMLP
    encoder: StructuralEncoder
    encoding: str
    variance_weight: float
    choice_losses: dict[str, float]
    record: TrainingRecord

    @torch.no_grad()
    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""
        actions = self._tensor(action).unsqueeze(1)
        parts = [
            self._values(embedded, centre, actions[rows]).squeeze(1)
            for rows, embedded, centre in self._contexts(context, n_actions=1)
        ]
        return torch.cat(parts).cpu().double().numpy() if parts else np.empty(0)

    @torch.no_grad()
    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action; each context is encoded and embedded once."""
        candidates = self._tensor(actions).unsqueeze(0)
        result = np.empty((len(context), len(actions)))
        for rows, embedded, centre in self._contexts(context, n_actions=len(actions)):
            features = self._action_features(centre, candidates.expand(len(centre), -1, -1))
            values = self.net.body_grid(embedded, features).squeeze(-1).mean(0)
            result[rows] = values.cpu().double().numpy()
        return result

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative of h in the action, shape (n, d)."""
        parts = []
        for rows, embedded, centre in self._contexts(context, n_actions=1):
            actions = self._tensor(action[rows]).unsqueeze(1).requires_grad_()
            total = self._values(embedded, centre, actions).sum()
            parts.append(torch.autograd.grad(total, actions)[0].squeeze(1))
        return torch.cat(parts).cpu().double().numpy() if parts else np.empty(action.shape)

    def describe(self) -> dict[str, object]:
        """Return the choices made and the loss curve."""
        return {
            "encoding": self.encoding,
            "variance_weight": self.variance_weight,
            "choice_losses": self.choice_losses,
            "train_loss": self.record.train_loss.mean(axis=1).tolist(),
        }

    def _contexts(self, context: Table, n_actions: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield rows, embedded contexts (M, B, e) and action centres (B, d), chunk by chunk."""
        n_cells = self.net.n_members * n_actions
        if self.net.front is not None:
            # Convolutions hold some hundred times more numbers per row than the perceptron behind them.
            n_cells = max(n_cells, 128 * self.net.n_members)
        step = max(1, _EVALUATION_ROWS // n_cells)
        for start in range(0, len(context), step):
            rows = slice(start, min(start + step, len(context)))
            part = context.take(np.arange(rows.start, rows.stop))
            features = self.encoder.context_features(part, self.encoding)
            pixels = self.encoder.context.pixels(part)
            if pixels is not None:
                features = np.hstack([features, pixels])
            with torch.no_grad():
                embedded = self.net.embed(self._tensor(features).unsqueeze(0))
            yield rows, embedded, self._tensor(self.encoder.centre(part))

    def _values(self, embedded: Tensor, centre: Tensor, actions: Tensor) -> Tensor:
        """Return the mean over the members, (B, Q), for actions (B, Q, d)."""
        return evaluate(self.net, embedded, self._action_features(centre, actions)).mean(0)

    def _action_features(self, centre: Tensor, actions: Tensor) -> Tensor:
        """Return what the members see of actions (B, Q, d), shape (M, B, Q, width)."""
        encode = self.encoder.action_encoder(self.encoding, self.net.device)
        features = encode(actions - centre.unsqueeze(1)).unsqueeze(0)
        return features.expand(self.net.n_members, -1, -1, -1)

    def _tensor(self, values: npt.NDArray[np.generic]) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self.net.device)
