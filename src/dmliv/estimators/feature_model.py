"""A fitted h of deep feature IV regression: products of action features and context features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dmliv.data import FloatArray, Table
from dmliv.data.savable import savable
from dmliv.nets.encoding import TableEncoder
from dmliv.nets.feature_maps import FeatureMap, exact, with_intercept

ColumnEncoding = Literal["standardised", "piecewise"]

# Contexts encoded at once in predictions; keeps memory flat with images.
_CHUNK_CONTEXTS = 1 << 12


@savable
@dataclass(frozen=True, eq=False)
class ColumnReader:
    """Turns tables into inputs of feature maps: encoded columns, then pixels for convolutions.

    Attributes
    ----------
    encoder : TableEncoder
    encoding : {"standardised", "piecewise"}
    device : torch.device
    """

    encoder: TableEncoder
    encoding: ColumnEncoding
    device: torch.device

    def columns(self, table: Table) -> Tensor:
        """Return inputs (n, width)."""
        encode = (
            self.encoder.standardised if self.encoding == "standardised" else self.encoder.piecewise_linear
        )
        columns = torch.as_tensor(encode(table), dtype=torch.float32, device=self.device)
        pixels = self.encoder.pixels(table)
        if pixels is None:
            return columns
        return torch.cat([columns, torch.as_tensor(pixels, device=self.device)], dim=1)


@savable
@dataclass(frozen=True, eq=False)
class FeatureFit:
    """One fit: h is the sum of u over all products of [psi(action), 1] and [xi(context), 1].

    Attributes
    ----------
    action_map, context_map : FeatureMap
        psi and xi.
    coefficients : Tensor, shape (d + 1, q + 1), double
        u.
    losses : list of float
        Mean loss of the second stage, epoch by epoch, in model units.
    heldout_losses : ndarray, shape (n1,)
        Squared errors of the projected h on the other half of the rows, in model units.
    """

    action_map: FeatureMap
    context_map: FeatureMap
    coefficients: Tensor
    losses: list[float]
    heldout_losses: FloatArray

    def action_weights(self, context: Tensor) -> Tensor:
        """Return the weight of each action feature in each context, (n, d + 1)."""
        return with_intercept(self.context_map.evaluate(context)) @ self.coefficients.T

    def action_features(self, action: Tensor) -> Tensor:
        """Return [psi, 1], (n, d + 1), differentiable."""
        return with_intercept(exact(self.action_map(action)))


@savable
@dataclass(frozen=True, eq=False)
class FeatureModel:
    """A fitted h: the mean over fits, in model units.

    Attributes
    ----------
    reader : ColumnReader
    fits : tuple of FeatureFit
    choice_losses : dict
        Mean held-out loss for each candidate for the action features.
    """

    reader: ColumnReader
    fits: tuple[FeatureFit, ...]
    choice_losses: dict[tuple[int, ...], float]

    @torch.no_grad()
    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""
        result, actions = np.empty(len(context)), self._tensor(action)
        for rows, weights in self._contexts(context):
            values = [
                (weight * fit.action_features(actions[rows])).sum(dim=1)
                for fit, weight in zip(self.fits, weights, strict=True)
            ]
            result[rows] = torch.stack(values).mean(dim=0).cpu().numpy()
        return result

    @torch.no_grad()
    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action; each is put through its network once."""
        result, candidates = np.empty((len(context), len(actions))), self._tensor(actions)
        features = [fit.action_features(candidates) for fit in self.fits]
        for rows, weights in self._contexts(context):
            total = sum(weight @ feature.T for weight, feature in zip(weights, features, strict=True))
            result[rows] = torch.as_tensor(total).cpu().numpy() / len(self.fits)
        return result

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative of h in the action, shape (n, d)."""
        result = np.empty(action.shape)
        for rows, weights in self._contexts(context):
            actions = self._tensor(action[rows]).requires_grad_()
            total = torch.stack(
                [
                    (weight * fit.action_features(actions)).sum()
                    for fit, weight in zip(self.fits, weights, strict=True)
                ]
            ).mean()
            result[rows] = torch.autograd.grad(total, actions)[0].cpu().double().numpy()
        return result

    def describe(self) -> dict[str, object]:
        """Return the number of fits, the widths of the features and the loss curve."""
        return {
            "n_fits": len(self.fits),
            "encoding": self.reader.encoding,
            "action_features": self.fits[0].action_map.width,
            "context_features": self.fits[0].context_map.width,
            "choice_losses": {str(layers): loss for layers, loss in self.choice_losses.items()},
            "second_stage_loss": np.mean([fit.losses for fit in self.fits], axis=0).tolist(),
        }

    @torch.no_grad()
    def _contexts(self, context: Table) -> Iterator[tuple[slice, list[Tensor]]]:
        """Yield rows and, for each fit, the weights of its action features, chunk by chunk."""
        for start in range(0, len(context), _CHUNK_CONTEXTS):
            rows = slice(start, min(start + _CHUNK_CONTEXTS, len(context)))
            columns = self.reader.columns(context.take(np.arange(rows.start, rows.stop)))
            yield rows, [fit.action_weights(columns) for fit in self.fits]

    def _tensor(self, values: FloatArray) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self.reader.device)
