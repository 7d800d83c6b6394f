"""How well the stages fit: losses of the nuisances, and the projected error of h on any rows."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.distributions import (
    ActionDistribution,
    CategoricalDistribution,
    MixtureDistribution,
    evaluation_nodes,
)
from dmliv.first_stage.nuisances import Exogenous
from dmliv.second_stage.pilot_model import PilotedModel, PilotModel
from dmliv.second_stage.structural import StructuralModel

_POINTS = 3
# Structural rows (rows x nodes) evaluated at once.
_CHUNK_ROWS = 200_000


def projected_outcome(model: StructuralModel, first_stage: FirstStage, exogenous: Exogenous) -> FloatArray:
    """Return E[h(c, A) | c, z], shape (n,), in standardised units.

    The action distribution of new rows is the equal mixture of the distributions of the K fold models.
    """
    n_rows = len(exogenous)
    everything, nothing = np.arange(n_rows), np.empty(0, dtype=np.int64)
    folds = set(first_stage.fold_members)
    wanted = [everything if member in folds else nothing for member in range(first_stage.n_members)]
    all_distributions = first_stage.action_model.distributions(exogenous, wanted)
    distributions = [all_distributions[member] for member in first_stage.fold_members]
    return np.asarray(
        np.mean([project(model, distribution, exogenous) for distribution in distributions], axis=0)
    )


def project(model: StructuralModel, distribution: ActionDistribution, exogenous: Exogenous) -> FloatArray:
    """Return the mean of h over the distribution of every row, shape (n,)."""
    n_rows = len(exogenous)
    if not n_rows:
        return np.empty(0)
    if isinstance(model, PilotedModel | PilotModel):
        rest = model.remainder if isinstance(model, PilotedModel) else None
        pilot = model.pilot if isinstance(model, PilotedModel) else model
        if isinstance(pilot, PilotModel):
            found = pilot.project(exogenous.context, distribution)
            return found if rest is None else found + project(rest, distribution, exogenous)
    device = distribution.mean().device
    first_row = torch.zeros(1, dtype=torch.long, device=device)
    n_nodes = evaluation_nodes(distribution, first_row, _POINTS).weights.shape[-1]
    step = max(1, _CHUNK_ROWS // n_nodes)
    parts = []
    for start in range(0, n_rows, step):
        rows = np.arange(start, min(start + step, n_rows))
        nodes = evaluation_nodes(distribution, torch.from_numpy(rows).to(device), _POINTS)
        context = exogenous.context.take(np.repeat(rows, n_nodes))
        actions = nodes.actions.reshape(len(rows) * n_nodes, -1).cpu().double().numpy()
        values = model.predict(context, actions).reshape(len(rows), n_nodes)
        parts.append((nodes.weights.cpu().double().numpy() * values).sum(axis=1))
    return np.concatenate(parts)


def nuisance_losses(data: TrainingData, first_stage: FirstStage) -> dict[str, float]:
    """Return the losses of both nuisances on the rows they were filled in for, in the user's units."""
    losses: dict[str, float] = {}
    if first_stage.outcome_model is not None or first_stage.pilot_mean is not None:
        error = float(np.average((data.outcome - first_stage.outcome_mean) ** 2, weights=data.weight))
        losses["outcome_mse"] = error * data.outcome_spec.scale**2
        losses["outcome_r2"] = float(1.0 - error / _variance(data.outcome, data.weight))
    distribution = first_stage.distribution
    if isinstance(distribution, CategoricalDistribution):
        codes: IntArray = data.action.astype(np.int64)
        probabilities = distribution.probabilities.cpu().double().numpy()
        own = np.maximum(probabilities[np.arange(len(codes)), codes], np.finfo(np.float64).tiny)
        losses["action_nll"] = float(np.average(-np.log(own), weights=data.weight))
        losses["action_accuracy"] = float(
            np.average(probabilities.argmax(axis=1) == codes, weights=data.weight)
        )
        return losses
    action = data.action.astype(np.float64)
    errors = (action - distribution.mean().cpu().double().numpy()) ** 2
    mean_error = np.average(errors, axis=0, weights=data.weight)
    losses["action_mse"] = float(np.mean(mean_error * data.action_spec.scale**2))
    losses["action_r2"] = float(1.0 - np.mean(mean_error / _variance(action, data.weight)))
    if isinstance(distribution, MixtureDistribution):
        log_density = distribution_log_density(
            distribution, torch.from_numpy(action.astype(np.float32)).to(distribution.means.device)
        )
        scale_correction = float(np.log(data.action_spec.scale).sum())
        losses["action_nll"] = scale_correction - float(
            np.average(log_density.cpu().double().numpy(), weights=data.weight)
        )
    return losses


def distribution_log_density(distribution: MixtureDistribution, action: Tensor) -> Tensor:
    """Return the log density of one action (n, d) per row, shape (n,)."""
    offset = (action.unsqueeze(1) - distribution.means).unsqueeze(-1)
    whitened = torch.linalg.solve_triangular(distribution.factors, offset, upper=False).squeeze(-1)
    log_determinant = torch.diagonal(distribution.factors, dim1=-2, dim2=-1).log().sum(-1)
    dimension = action.shape[-1]
    component = -0.5 * whitened.square().sum(-1) - log_determinant - 0.5 * dimension * math.log(2 * math.pi)
    return torch.logsumexp(distribution.weights.clamp_min(1e-30).log() + component, dim=-1)


def _variance(values: FloatArray, weight: FloatArray) -> FloatArray:
    centred = values - np.average(values, axis=0, weights=weight)
    return np.maximum(np.average(centred**2, axis=0, weights=weight), np.finfo(np.float64).tiny)
