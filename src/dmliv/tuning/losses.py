"""Held-out losses, row by row: each row is predicted by a model that was not fitted on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.first_stage.crossfit import FirstStage, make_folds
from dmliv.first_stage.nuisances import ActionLearner, Exogenous, OutcomeLearner
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.score import projected_outcome
from dmliv.second_stage.structural import StructuralLearner

_FOLDS = 3


def outcome_losses(learner: OutcomeLearner, data: TrainingData, *, seed: int, runtime: Runtime) -> FloatArray:
    """Return the out-of-fold squared error of every row, shape (n,), in the user's units."""
    folds, complements = _folds(data, seed)
    model = learner.fit(data, complements, seed=seed, runtime=runtime)
    losses = np.empty(len(data))
    predicted = model.predict(Exogenous(data.context, data.instrument), folds)
    for rows, values in zip(folds, predicted, strict=True):
        losses[rows] = (data.outcome[rows] - values) ** 2
    return losses * data.outcome_spec.scale**2


def action_losses(learner: ActionLearner, data: TrainingData, *, seed: int, runtime: Runtime) -> FloatArray:
    """Return the out-of-fold negative log-likelihood of every row, shape (n,), in the user's units."""
    folds, complements = _folds(data, seed)
    model = learner.fit(data, complements, seed=seed, runtime=runtime)
    losses = np.empty(len(data))
    distributions = model.distributions(Exogenous(data.context, data.instrument), folds)
    for rows, distribution in zip(folds, distributions, strict=True):
        found = distribution.held_out_log_density(
            data.action[rows], n_fit_rows=len(data) - len(rows), seed=seed
        )
        if found is None:
            raise TypeError(f"Expected a distribution with a density, got {type(distribution).__name__}.")
        losses[rows] = -found
    if data.action_spec.kind == "discrete":
        return losses
    return losses + float(np.log(data.action_spec.scale).sum())


def structural_losses(
    learner: StructuralLearner,
    data: TrainingData,
    first_stage: FirstStage,
    validation: TrainingData,
    *,
    seed: int,
    runtime: Runtime,
) -> FloatArray:
    """Fit h on ``data`` and return (outcome - projection)^2 on the validation rows, in the user's units.

    Neither h nor the models of ``first_stage`` may have seen these rows.
    """
    model = learner.fit(data, first_stage, seed=seed, runtime=runtime)
    exogenous = Exogenous(validation.context, validation.instrument)
    projected = projected_outcome(model, first_stage, exogenous)
    losses: FloatArray = (validation.outcome - projected) ** 2 * validation.outcome_spec.scale**2
    return losses


def _folds(data: TrainingData, seed: int) -> tuple[list[IntArray], list[IntArray]]:
    fold = make_folds(len(data), _FOLDS, np.random.default_rng(seed))
    members: Sequence[int] = range(_FOLDS)
    return [np.flatnonzero(fold == k) for k in members], [np.flatnonzero(fold != k) for k in members]
