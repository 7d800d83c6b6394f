"""Losses of the first stage fold by fold, to see whether some rows follow another distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dmliv.data import FloatArray, TrainingData
from dmliv.data.savable import savable
from dmliv.first_stage.crossfit import FirstStage


@savable
@dataclass(frozen=True)
class FoldLoss:
    """Held-out losses of one fold, as shares of the variance in all rows.

    Attributes
    ----------
    fold : int
    n_rows : int
    action : float
        Squared error of the mean of the action distribution; of one-hot levels for a discrete action.
    outcome : float
        Squared error of the outcome model; not a number where there is none.
    """

    fold: int
    n_rows: int
    action: float
    outcome: float


def row_losses(data: TrainingData, first_stage: FirstStage) -> tuple[FloatArray, FloatArray | None]:
    """Return the losses of every row for action and outcome, each (n,), as shares of the variance."""
    action = data.action_spec.vectors(data.action)
    mean = first_stage.distribution.mean().cpu().double().numpy()
    lost = _relative(action, mean, data.weight)
    if first_stage.outcome_model is None and first_stage.pilot_mean is None:
        return lost, None
    return lost, _relative(data.outcome[:, None], first_stage.outcome_mean[:, None], data.weight)


def fold_losses(data: TrainingData, first_stage: FirstStage) -> tuple[FoldLoss, ...]:
    """Return the losses of every fold; of the one fold in sample where there is only one."""
    action, outcome = row_losses(data, first_stage)
    found = []
    for fold in range(int(first_stage.fold.max()) + 1):
        rows = np.flatnonzero((first_stage.fold == fold) & (data.weight > 0))
        if not len(rows):
            continue
        weight = data.weight[rows]
        lost = np.nan if outcome is None else float(np.average(outcome[rows], weights=weight))
        found.append(FoldLoss(fold, len(rows), float(np.average(action[rows], weights=weight)), float(lost)))
    return tuple(found)


def worst_fold(data: TrainingData, first_stage: FirstStage) -> float:
    """Return by how many standard errors the worst fold's loss exceeds that of the others.

    Not a number for a single fold.
    """
    excesses = []
    for losses in row_losses(data, first_stage):
        if losses is None:
            continue
        for fold in range(int(first_stage.fold.max()) + 1):
            inside = (first_stage.fold == fold) & (data.weight > 0)
            outside = (first_stage.fold != fold) & (data.weight > 0)
            if inside.sum() < 2 or outside.sum() < 2:
                continue
            parts = [losses[rows] * data.weight[rows] for rows in (inside, outside)]
            # The fold's own spread is large where one row is far off; that of all rows is the usual one.
            spread = np.concatenate(parts).std()
            error = spread * np.sqrt(1.0 / len(parts[0]) + 1.0 / len(parts[1]))
            if error > 0.0:
                excesses.append(float((parts[0].mean() - parts[1].mean()) / error))
    return max(excesses) if excesses else float("nan")


def _relative(values: FloatArray, predictions: FloatArray, weight: FloatArray) -> FloatArray:
    centred = values - np.average(values, axis=0, weights=weight)
    variance = np.average(centred**2, axis=0, weights=weight)
    varies = variance > 0.0
    if not varies.any():
        return np.zeros(len(values))
    shares = (values - predictions)[:, varies] ** 2 / variance[varies]
    return np.asarray(shares.mean(axis=1))
