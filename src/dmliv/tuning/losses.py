"""Losses, row by row, on rows that the judged model never saw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import gaussian_kde, multivariate_normal

from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.first_stage.crossfit import FirstStage, make_folds
from dmliv.first_stage.distributions import (
    ActionDistribution,
    CategoricalDistribution,
    MixtureDistribution,
    ResidualDistribution,
)
from dmliv.first_stage.nuisances import ActionLearner, Exogenous, OutcomeLearner
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.score import distribution_log_density, projected_outcome
from dmliv.second_stage.structural import StructuralLearner

_FOLDS = 3
# Residuals that stand for a pool: more make a density slower, not better.
_MOST_RESIDUALS = 1000
# A little of a wide Gaussian in the density of residuals, so that one far action does not decide.
_WIDE_SHARE = 0.01
_WIDE_FACTOR = 3.0


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
        losses[rows] = -log_likelihood(distribution, data.action[rows], len(data) - len(rows), seed)
    if data.action_spec.kind == "discrete":
        return losses
    return losses + float(np.log(data.action_spec.scale).sum())


def structural_losses(
    learner: StructuralLearner,
    data: TrainingData,
    first_stage: FirstStage,
    judging: TrainingData,
    *,
    seed: int,
    runtime: Runtime,
) -> FloatArray:
    """Fit h on ``data`` and return (outcome - projection)^2 on the rows of ``judging``, in the user's units.

    Neither h nor the models of ``first_stage`` may have seen these rows.
    """
    model = learner.fit(data, first_stage, seed=seed, runtime=runtime)
    exogenous = Exogenous(judging.context, judging.instrument)
    projected = projected_outcome(model, first_stage, exogenous)
    losses: FloatArray = (judging.outcome - projected) ** 2 * judging.outcome_spec.scale**2
    return losses


def log_likelihood(
    distribution: ActionDistribution, action: FloatArray | IntArray, n_fit_rows: int, seed: int
) -> FloatArray:
    """Return the log-likelihood of one action per row, shape (n,), in model units.

    Residuals have no density of their own and get the one of a kernel estimate. A level to which a
    classifier gives no probability at all gets that of half a training row.
    """
    if isinstance(distribution, CategoricalDistribution):
        probabilities = distribution.probabilities.cpu().double().numpy()
        own = probabilities[np.arange(len(action)), action.astype(np.int64)]
        return np.asarray(np.log(np.maximum(own, 0.5 / n_fit_rows)))
    if isinstance(distribution, MixtureDistribution):
        actions = torch.from_numpy(action.astype(np.float32)).to(distribution.means.device)
        return distribution_log_density(distribution, actions).cpu().double().numpy()
    if not isinstance(distribution, ResidualDistribution):
        raise TypeError(f"Expected a mixture, classes or residuals, got {type(distribution).__name__}.")
    offset = action.astype(np.float64) - distribution.location.cpu().double().numpy()
    pool = distribution.pool.cpu().numpy()
    values = np.empty(len(action))
    for number, residuals in enumerate(distribution.residuals.cpu().double().numpy()):
        rows = np.flatnonzero(pool == number)
        if rows.size:
            values[rows] = _residual_log_density(residuals, offset[rows], seed)
    return values


def _residual_log_density(residuals: FloatArray, offset: FloatArray, seed: int) -> FloatArray:
    """Return the log density (n,) of residuals (J, d) at offsets (n, d)."""
    chosen = np.random.default_rng(seed).permutation(len(residuals))[:_MOST_RESIDUALS]
    # A regressor that fits an action exactly leaves no spread at all; then the narrowest counts.
    covariance = np.atleast_2d(np.cov(residuals.T)) + np.eye(residuals.shape[1]) * 1e-12
    root = np.linalg.cholesky(covariance)
    whitened, points = (np.linalg.solve(root, part.T) for part in (residuals[chosen], offset))
    wide = multivariate_normal(cov=np.eye(len(root)) * _WIDE_FACTOR**2).logpdf(points.T)
    narrow = _kernel_log_density(whitened, points)
    mixed = np.logaddexp(np.log1p(-_WIDE_SHARE) + narrow, np.log(_WIDE_SHARE) + wide)
    return np.asarray(mixed - np.log(np.diagonal(root)).sum())


def _kernel_log_density(whitened: FloatArray, points: FloatArray) -> FloatArray:
    if whitened.shape[1] <= len(whitened) or np.allclose(whitened, whitened[:, :1]):
        # Too few residuals for an estimate of their shape: a Gaussian.
        return np.asarray(multivariate_normal(cov=np.eye(len(whitened))).logpdf(points.T))
    return np.asarray(gaussian_kde(whitened).logpdf(points))


def _folds(data: TrainingData, seed: int) -> tuple[list[IntArray], list[IntArray]]:
    fold = make_folds(len(data), _FOLDS, np.random.default_rng(seed))
    members: Sequence[int] = range(_FOLDS)
    return [np.flatnonzero(fold == k) for k in members], [np.flatnonzero(fold != k) for k in members]
