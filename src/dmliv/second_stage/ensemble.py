"""A fitted h: the mean of a small ensemble of networks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dmliv.data import FloatArray, Table
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingRecord
from dmliv.second_stage.features import StructuralEncoder

# Network rows (members x rows x actions) in one evaluation pass; keeps memory flat.
_EVALUATION_ROWS = 1 << 17


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
        features, centre = self._context(context)
        actions = torch.as_tensor(action, dtype=torch.float32, device=self.net.device)
        step = max(1, _EVALUATION_ROWS // self.net.n_members)
        parts = [
            self._values(*part)
            for part in zip(
                torch.split(features, step),
                torch.split(centre, step),
                torch.split(actions, step),
                strict=True,
            )
        ]
        return torch.cat(parts).cpu().double().numpy() if parts else np.empty(0)

    @torch.no_grad()
    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action, encoding contexts once."""
        features, centre = self._context(context)
        candidates = torch.as_tensor(actions, dtype=torch.float32, device=self.net.device)
        n_actions = len(candidates)
        step = max(1, _EVALUATION_ROWS // (self.net.n_members * n_actions))
        result = np.empty((len(context), n_actions))
        for start in range(0, len(context), step):
            part = slice(start, start + step)
            n_rows = len(features[part])
            values = self._values(
                features[part].repeat_interleave(n_actions, dim=0),
                centre[part].repeat_interleave(n_actions, dim=0),
                candidates.repeat(n_rows, 1),
            )
            result[part] = values.view(n_rows, n_actions).cpu().double().numpy()
        return result

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative of h in the action, shape (n, d)."""
        features, centre = self._context(context)
        step = max(1, _EVALUATION_ROWS // self.net.n_members)
        parts = []
        for start in range(0, len(features), step):
            rows = slice(start, start + step)
            actions = torch.as_tensor(action[rows], dtype=torch.float32, device=self.net.device)
            actions.requires_grad_()
            total = self._values(features[rows], centre[rows], actions).sum()
            parts.append(torch.autograd.grad(total, actions)[0])
        return torch.cat(parts).cpu().double().numpy() if parts else np.empty(action.shape)

    def describe(self) -> dict[str, object]:
        """Return the choices made and the loss curve."""
        return {
            "encoding": self.encoding,
            "variance_weight": self.variance_weight,
            "choice_losses": self.choice_losses,
            "train_loss": self.record.train_loss.mean(axis=1).tolist(),
        }

    def _context(self, context: Table) -> tuple[Tensor, Tensor]:
        features = self.encoder.context_features(context, self.encoding)
        device = self.net.device
        return torch.from_numpy(features).to(device), torch.from_numpy(self.encoder.centre(context)).to(
            device
        )

    def _values(self, features: Tensor, centre: Tensor, actions: Tensor) -> Tensor:
        encode = self.encoder.action_encoder(self.encoding, self.net.device)
        rows = torch.cat([features, encode(actions - centre)], dim=-1)
        values: Tensor = self.net(rows.unsqueeze(0))
        return values.squeeze(-1).mean(0)
