"""A test that the residuals of h are unrelated to the instrument: E[R - h(C, A) | C, Z] = 0.

The residuals R - h(C, A) come from an h that was fitted to the same rows with a penalty, and errs by more
than sampling noise. So the test adjusts h first: by a multiple of itself, by powers of the action and by
products of the action with the context. Powers of the ranks of the instruments and their products with the
context are the moments; functions of the context are partialled out. The statistic is the lowest value, over
adjustments of h, of the robust distance of the moments from zero (a J statistic). It does not change if h
errs along the adjustments, and its degrees of freedom are the moments minus the adjustments. An adjustment
that the moments do not identify is no parameter; the error that h may have along it adds to the variance of
the moments.

The moments are fixed functions. Predictions of the action would have more power, but held-out ones are
correlated with the confounder of their own fold, which the test would detect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2, rankdata

from dmliv.data import FloatArray, TrainingData
from dmliv.diagnostics.held_out import ROWS_PER_COLUMN, flexible_columns, leading, plain_columns
from dmliv.diagnostics.strength import WEAK_F, FirstStageRows
from dmliv.kernels.linear_algebra import residualised
from dmliv.nets.encoding import products
from dmliv.second_stage.structural import StructuralModel

_CONTEXT_BINS = 6
_MOMENT_BINS = 3
# Context columns whose products with the action adjust h.
_MOST_MODIFIERS = 8
_MOST_INSTRUMENTS = 6
_ROWS_PER_MOMENT = 40
# More moments than needed would spread the power of the test.
_ENOUGH = 3
_ROUNDS = 12
# Error that h may have along an adjustment that the moments do not identify, in standard deviations of the
# outcome.
_UNIDENTIFIED_ERROR = 0.1
# A column counts as new if this share of its length is not in the span of those before it.
_NEW = 0.05


@dataclass(frozen=True)
class MomentTest:
    """Outcome of the test.

    Attributes
    ----------
    statistic : float
        Chi-squared with ``freedom`` degrees of freedom if the moments hold.
    freedom : int
        Moments minus adjustments of h; 0 if there is nothing to test.
    p_value : float
        Not a number if there is nothing to test.
    """

    statistic: float
    freedom: int
    p_value: float


def moment_test(
    data: TrainingData, model: StructuralModel, first: FirstStageRows, outcome_from_context: FloatArray
) -> MomentTest:
    """Test whether the residuals of h are unrelated to the instrument given the context.

    Parameters
    ----------
    data : TrainingData
    model : StructuralModel
        h, fitted on the same rows.
    first : FirstStageRows
        Says which rows are used; its prediction from the context is partialled out.
    outcome_from_context : ndarray, shape (m, 1)
        Held-out predictions of the outcome on these rows, partialled out as well.

    Returns
    -------
    MomentTest
    """
    rows, weight = first.rows, first.weight
    context = data.context.take(rows)
    action = data.action_spec.vectors(data.action)[rows]
    outcome = data.outcome[rows]
    plain = plain_columns(data.context_schema, data.context)[rows]
    fitted = model.predict(context, action)
    # Columns of the context, and the predictions of flexible models from them.
    learned = np.hstack([first.from_context, outcome_from_context])
    ones = np.ones((len(rows), 1))
    most = len(rows) // ROWS_PER_COLUMN
    included = np.hstack([ones, learned, flexible_columns(data.context_schema, context, _CONTEXT_BINS, most)])
    modifiers = np.hstack([leading(plain, _MOST_MODIFIERS), learned])
    endogenous = np.column_stack([_adjustments(action, modifiers, data.action_spec.kind), fitted])
    columns = _scaled_ranks(plain_columns(data.instrument_schema, data.instrument)[rows])
    flexible = flexible_columns(data.context_schema, context, _MOMENT_BINS, most)
    blocks = _moments(leading(columns, _MOST_INSTRUMENTS), leading(plain, _MOST_MODIFIERS), flexible)
    return overidentification(outcome - fitted, included, endogenous, blocks, weight)


def overidentification(
    residual: FloatArray,
    included: FloatArray,
    endogenous: FloatArray,
    blocks: Sequence[FloatArray],
    weight: FloatArray,
) -> MomentTest:
    """Test that some combination of endogenous columns turns ``residual`` orthogonal to all instruments.

    Parameters
    ----------
    residual : ndarray, shape (n,)
        In standard deviations of the outcome.
    included : ndarray, shape (n, p)
        Partialled out of everything.
    endogenous : ndarray, shape (n, q)
    blocks : sequence of ndarray, shape (n, k)
        Instruments, taken block by block until there are three more than endogenous columns.
    weight : ndarray, shape (n,)
    """
    root = np.sqrt(weight)[:, None]
    basis = _independent(included * root, np.empty((len(root), 0)))
    residual = residualised(residual * root[:, 0], basis)
    features = _independent(residualised(endogenous * root, basis), basis)
    moments = np.empty((len(root), 0))
    most = len(root) // _ROWS_PER_MOMENT
    for block in blocks:
        if moments.shape[1] >= features.shape[1] + _ENOUGH:
            break
        added = _independent(residualised(block * root, basis), np.hstack([basis, moments]))
        moments = np.hstack([moments, added])[:, :most]
    features, unclear = _by_strength(features, moments)
    freedom = moments.shape[1] - features.shape[1]
    if freedom <= 0:
        return MomentTest(math.nan, 0, math.nan)
    cross = moments.T @ features
    target = moments.T @ residual
    # Columns are of length one: this is the error along each of them that has the mean square asked for.
    unidentified = _UNIDENTIFIED_ERROR * math.sqrt(float(weight.sum())) * (moments.T @ unclear)
    adjustments = np.linalg.lstsq(cross, target, rcond=None)[0]
    lowest = math.inf
    # The adjustments and the variance that weighs them, in turn: near the lowest value they agree.
    for _ in range(_ROUNDS):
        scores = moments * (residual - features @ adjustments)[:, None]
        variance = scores.T @ scores + unidentified @ unidentified.T
        gap = target - cross @ adjustments
        lowest = min(lowest, float(gap @ np.linalg.lstsq(variance, gap, rcond=None)[0]))
        half = np.linalg.cholesky(variance + 1e-12 * np.trace(variance) * np.eye(len(variance)))
        adjustments = np.linalg.lstsq(
            np.linalg.solve(half, cross), np.linalg.solve(half, target), rcond=None
        )[0]
    return MomentTest(lowest, freedom, float(chi2.sf(lowest, freedom)))


def _by_strength(features: FloatArray, moments: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the directions of orthonormal features that the moments identify, and the others, (n, r) each.

    The others hardly change any moment, but would take degrees of freedom as if they did.
    """
    _, sizes, directions = np.linalg.svd(moments.T @ features, full_matrices=False)
    open_share = np.maximum(1.0 - sizes**2, np.finfo(np.float64).tiny)
    strength = sizes**2 / open_share * len(moments) / max(moments.shape[1], 1)
    clear = strength > WEAK_F
    return np.asarray(features @ directions[clear].T), np.asarray(features @ directions[~clear].T)


def _adjustments(action: FloatArray, modifiers: FloatArray, kind: str) -> FloatArray:
    """Return the columns that adjust h: the action, its squares, and its products with the context."""
    if kind == "discrete":
        # The levels sum to one.
        base, squares = action[:, 1:], np.empty((len(action), 0))
    else:
        base, squares = action, action**2
    return np.hstack([base, squares, products(base, modifiers)])


def _moments(columns: FloatArray, plain: FloatArray, flexible: FloatArray) -> list[FloatArray]:
    """Return blocks of functions of instrument and context, the most informative first."""
    first, second = np.triu_indices(columns.shape[1])
    seconds = columns[:, first] * columns[:, second]
    blocks = [np.hstack([columns, seconds]), products(columns, plain), columns**3]
    return [*blocks, products(columns, flexible), products(seconds, plain)]


def _scaled_ranks(columns: FloatArray) -> FloatArray:
    """Return ranks, centred and of variance one: in any units no row weighs much more than others."""
    ranks = rankdata(columns, axis=0)
    centred = ranks - ranks.mean(axis=0)
    return np.asarray(centred / np.maximum(centred.std(axis=0), 0.5))


def _independent(columns: FloatArray, given: FloatArray) -> FloatArray:
    """Return an orthonormal basis of the columns (n, p) that add something to ``given`` and to each other."""
    basis: list[FloatArray] = []
    for column in columns.T:
        length = float(np.linalg.norm(column))
        rest = column - given @ (given.T @ column)
        for each in basis:
            rest = rest - each * float(each @ rest)
        remaining = float(np.linalg.norm(rest))
        if remaining > _NEW * length and remaining > 1e-10 * math.sqrt(len(column)):
            basis.append(rest / remaining)
    return np.column_stack(basis) if basis else np.empty((len(columns), 0))
