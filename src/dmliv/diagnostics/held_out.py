"""Predictions of simple models on held-out rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold

from dmliv.data import FloatArray, IntArray, Table, TableSchema
from dmliv.first_stage.regressors import fit_clone, predict_rows
from dmliv.nets.encoding import TableEncoder

#: Rows that every column that is partialled out needs.
ROWS_PER_COLUMN = 25
_FOLDS = 3
_UNUSED_BINS = 2
_LEARNERS: Final = (
    RidgeCV(tuple(np.logspace(-3.0, 3.0, 7))),
    HistGradientBoostingRegressor(
        learning_rate=0.2, max_iter=30, max_leaf_nodes=8, min_samples_leaf=10, early_stopping=False
    ),
)


def plain_columns(schema: TableSchema, table: Table) -> FloatArray:
    """Return standardised numbers and indicators of levels, shape (n, width)."""
    return TableEncoder.learn(table, schema.n_levels, _UNUSED_BINS).standardised(table)


def flexible_columns(schema: TableSchema, table: Table, n_bins: int, most: int) -> FloatArray:
    """Return piecewise-linear functions of numbers and indicators of levels, at most ``most`` columns.

    Where there would be more, plain columns take their place, or the leading directions of these.
    """
    plain = plain_columns(schema, table)
    if plain.shape[1] > most:
        return leading(plain, most)
    flexible = TableEncoder.learn(table, schema.n_levels, n_bins).piecewise_linear(table)
    return flexible if flexible.shape[1] <= most else plain


def leading(columns: FloatArray, most: int) -> FloatArray:
    """Return the columns, or their leading principal components if they are more than ``most``."""
    if columns.shape[1] <= most:
        return columns
    left, sizes, _ = np.linalg.svd(columns - columns.mean(axis=0), full_matrices=False)
    return np.asarray(left[:, :most] * sizes[:most])


def predicted(inputs: FloatArray, targets: FloatArray, weight: FloatArray, seed: int) -> FloatArray:
    """Return the better of two models' held-out predictions for each target.

    A linear model and boosted trees are fitted on two thirds of the rows and predict the others. For every
    target the one with the lower error counts. Without inputs, or enough rows, the mean is predicted.

    Parameters
    ----------
    inputs : ndarray, shape (n, p)
    targets : ndarray, shape (n, d)
    weight : ndarray, shape (n,)
    seed : int
        Draws the folds; the same seed has the same folds for all targets and inputs.

    Returns
    -------
    ndarray, shape (n, d)
    """
    mean = np.average(targets, axis=0, weights=weight)
    best = np.tile(mean, (len(targets), 1))
    if not inputs.shape[1] or len(inputs) <= _FOLDS:
        return best
    folds = list(KFold(_FOLDS, shuffle=True, random_state=seed).split(inputs))
    for number, target in enumerate(targets.T):
        if np.all(target == target[0]):
            continue
        candidates = [_cross_fitted(learner, inputs, target, weight, folds, seed) for learner in _LEARNERS]
        errors = [float(weight @ (target - candidate) ** 2) for candidate in candidates]
        best[:, number] = candidates[int(np.argmin(errors))]
    return best


def explained(targets: FloatArray, predictions: FloatArray, weight: FloatArray) -> float:
    """Return the R2 of predictions (n, d), in the mean over the columns that vary; 0 if none does."""
    centred = targets - np.average(targets, axis=0, weights=weight)
    total = np.average(centred**2, axis=0, weights=weight)
    error = np.average((targets - predictions) ** 2, axis=0, weights=weight)
    varies = total > 0.0
    return float(np.mean(1.0 - error[varies] / total[varies])) if varies.any() else 0.0


def _cross_fitted(
    learner: Any,
    inputs: FloatArray,
    target: FloatArray,
    weight: FloatArray,
    folds: list[tuple[IntArray, IntArray]],
    seed: int,
) -> FloatArray:
    values = np.empty(len(target))
    for fit_rows, held_out in folds:
        model = fit_clone(learner, inputs[fit_rows], target[fit_rows], weight[fit_rows], seed)
        values[held_out] = predict_rows(model, inputs[held_out])
    return values
