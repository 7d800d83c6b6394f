"""How well the stages fit: losses of the nuisances, and the projected error of h on any rows."""

from __future__ import annotations

import numpy as np

from dmliv.data import FloatArray, TrainingData
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.nuisances import Exogenous
from dmliv.second_stage.structural import StructuralModel, project


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
    return np.asarray(np.mean([project(model, exogenous.context, each) for each in distributions], axis=0))


def nuisance_losses(data: TrainingData, first_stage: FirstStage) -> dict[str, float]:
    """Return the losses of both nuisances on the rows they were filled in for, in the user's units."""
    losses: dict[str, float] = {}
    if first_stage.outcome_model is not None or first_stage.pilot_mean is not None:
        error = float(np.average((data.outcome - first_stage.outcome_mean) ** 2, weights=data.weight))
        losses["outcome_mse"] = error * data.outcome_spec.scale**2
        losses["outcome_r2"] = float(1.0 - error / _variance(data.outcome, data.weight))
    distribution = first_stage.distribution
    log_density = distribution.log_density(data.action)
    if log_density is not None:
        losses["action_nll"] = -float(np.average(log_density, weights=data.weight))
    if data.action_spec.kind == "discrete":
        hit = distribution.mean().cpu().numpy().argmax(axis=1) == data.action
        losses["action_accuracy"] = float(np.average(hit, weights=data.weight))
        return losses
    if log_density is not None:
        losses["action_nll"] += float(np.log(data.action_spec.scale).sum())
    action = data.action.astype(np.float64)
    errors = (action - distribution.mean().cpu().double().numpy()) ** 2
    mean_error = np.average(errors, axis=0, weights=data.weight)
    losses["action_mse"] = float(np.mean(mean_error * data.action_spec.scale**2))
    losses["action_r2"] = float(1.0 - np.mean(mean_error / _variance(action, data.weight)))
    return losses


def _variance(values: FloatArray, weight: FloatArray) -> FloatArray:
    centred = values - np.average(values, axis=0, weights=weight)
    return np.maximum(np.average(centred**2, axis=0, weights=weight), np.finfo(np.float64).tiny)
