"""The strength of the instrument given the context: F statistics, linear and nonlinear, and partial R2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import ncx2

from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.data.savable import savable
from dmliv.diagnostics.held_out import ROWS_PER_COLUMN, explained, flexible_columns, plain_columns, predicted
from dmliv.kernels.linear_algebra import orthonormal, residualised, standardise
from dmliv.progress import ProgressReporter, SilentProgress

# More rows would not change the verdict, and every fit stays well below a second.
_MOST_ROWS = 5000
_CONTEXT_BINS = 16
#: Below this nonlinear F statistic an instrument is called weak; see docs/results/diagnostics.md.
WEAK_F = 10.0
# The effective F is compared with the value above which the bias of two-stage least squares is, with 95 %
# confidence, at most a tenth of a worst-case bias.
_BIAS = 0.1
_LEVEL = 0.05


@savable
@dataclass(frozen=True)
class InstrumentStrength:
    """How strongly the action depends on the instrument given the context.

    Attributes
    ----------
    context_r2 : float
        Held-out R2 of the action from the context alone, in the mean over its columns or levels.
    full_r2 : float
        The same from context and instrument.
    effective_f : float
        Robust F statistic of Montiel Olea and Pflueger: linear first stage, context partialled out. The
        lowest over the columns of the action.
    critical_f : float
        Their critical value for that column: above it the bias of two-stage least squares is, with 95 %
        confidence, at most a tenth of the worst case.
    projected_f : float
        Nonlinear counterpart: robust F statistic of one constructed instrument per action column, the
        held-out prediction from context and instrument with the context partialled out. Of several columns
        the lowest, given the others.
    n_rows : int
        Rows of the data.
    """

    context_r2: float
    full_r2: float
    effective_f: float
    critical_f: float
    projected_f: float
    n_rows: int

    @property
    def partial_r2(self) -> float:
        """Share of the action's variance given the context that the instrument explains; at least 0."""
        return max(0.0, (self.full_r2 - self.context_r2) / max(1.0 - self.context_r2, 1e-12))

    @property
    def is_weak(self) -> bool:
        """Whether the instrument explains too little of the action to learn effects from."""
        return self.projected_f < WEAK_F


@savable
@dataclass(frozen=True, eq=False)
class FirstStageRows:
    """A first stage by simple models: held-out predictions of the action, one column per action column.

    A discrete action has one column for every level but the last.

    Attributes
    ----------
    rows : ndarray of int, shape (m,)
        Rows of the data.
    weight : ndarray, shape (m,)
    action : ndarray, shape (m, d)
    from_context : ndarray, shape (m, d)
        Predictions from the context.
    from_both : ndarray, shape (m, d)
        Predictions from context and instrument.
    residual : ndarray, shape (m, d)
        The action with the context partialled out.
    prediction : ndarray, shape (m, d)
        The prediction from context and instrument with the context partialled out.
    n_rows : int
        Rows of positive weight in the data.
    """

    rows: IntArray
    weight: FloatArray
    action: FloatArray
    from_context: FloatArray
    from_both: FloatArray
    residual: FloatArray
    prediction: FloatArray
    n_rows: int

    @property
    def scale(self) -> float:
        """Rows of the data per row used here."""
        return self.n_rows / len(self.rows)


def instrument_strength(
    data: TrainingData, *, seed: int = 0, progress: ProgressReporter | None = None
) -> InstrumentStrength:
    """Measure how well the action is predicted with and without the instrument.

    Parameters
    ----------
    data : TrainingData
    seed : int
        Draws the folds and, where there are many rows, the rows.
    progress : ProgressReporter, optional
    """
    return strength_of(data, predict_action(data, seed=seed, progress=progress))


def predict_action(
    data: TrainingData, *, seed: int, progress: ProgressReporter | None = None
) -> FirstStageRows:
    """Predict the action on held-out rows, at most 5000, with and without the instrument."""
    used = np.flatnonzero(data.weight > 0)
    rows = np.random.default_rng(seed).permutation(used)[:_MOST_ROWS]
    weight = data.weight[rows] / data.weight[rows].mean()
    action = data.action_spec.vectors(data.action)[rows]
    if data.action_spec.kind == "discrete":
        # The last level is one minus the others.
        action = action[:, :-1]
    context = plain_columns(data.context_schema, data.context)[rows]
    both = np.hstack([context, plain_columns(data.instrument_schema, data.instrument)[rows]])
    with (progress or SilentProgress()).stage("instrument strength", 3) as advance:
        from_context = predicted(context, action, weight, seed)
        advance()
        from_both = predicted(both, action, weight, seed)
        advance()
        of_both = predicted(context, from_both, weight, seed)
        advance()
    # The prediction from both depends on the context too, which is partialled out of it and of the action.
    # Subtracting the prediction from the context instead would leave its errors in both, a spurious strength.
    most = len(rows) // ROWS_PER_COLUMN
    flexible = flexible_columns(data.context_schema, data.context.take(rows), _CONTEXT_BINS, most)
    root = np.sqrt(weight)[:, None]
    known = np.hstack([np.ones((len(rows), 1)), from_context, of_both, flexible])
    basis = orthonormal(standardise(known, weight)[1] * root)
    residual, prediction = (residualised(values * root, basis) / root for values in (action, from_both))
    return FirstStageRows(rows, weight, action, from_context, from_both, residual, prediction, len(used))


def strength_of(data: TrainingData, first: FirstStageRows) -> InstrumentStrength:
    """Return the strength of the instrument from a first stage by simple models."""
    context_r2 = 0.0
    if data.context_schema.columns:
        context_r2 = explained(first.action, first.from_context, first.weight)
    effective, critical = _effective_f(data, first)
    return InstrumentStrength(
        context_r2=context_r2,
        full_r2=explained(first.action, first.from_both, first.weight),
        effective_f=effective,
        critical_f=critical,
        projected_f=projected_f(first, np.arange(len(first.rows))),
        n_rows=first.n_rows,
    )


def projected_f(first: FirstStageRows, rows: IntArray) -> float:
    """Return the nonlinear F statistic among some of the rows; 0 where the prediction points the wrong way.

    Of several action columns each is tested given the others (Sanderson and Windmeijer): whether the
    instruments explain more of it than goes along with the others.
    """
    root = np.sqrt(first.weight[rows])[:, None]
    constant = root / np.linalg.norm(root)
    action = residualised(first.residual[rows] * root, constant)
    instruments = residualised(first.prediction[rows] * root, constant)
    basis = orthonormal(instruments)
    if basis.shape[1] < action.shape[1]:
        return 0.0
    statistics = []
    for number in range(action.shape[1]):
        others = np.delete(action, number, axis=1)
        along = np.linalg.lstsq(basis.T @ others, basis.T @ action[:, number], rcond=None)[0]
        own = action[:, number] - others @ along
        coordinates = basis.T @ own
        scores = basis * residualised(own, basis)[:, None]
        # Predictions that point the wrong way are noise, however large.
        right_way = action.shape[1] > 1 or float(instruments[:, 0] @ own) > 0.0
        variance = scores.T @ scores
        wald = float(coordinates @ np.linalg.lstsq(variance, coordinates, rcond=None)[0])
        statistics.append(wald if right_way else 0.0)
    return _scaled(min(statistics), first.scale)


def _effective_f(data: TrainingData, first: FirstStageRows) -> tuple[float, float]:
    """Return the lowest effective F over the action columns, and its critical value."""
    rows, weight = first.rows, first.weight
    root = np.sqrt(weight)[:, None]
    ones = np.ones((len(rows), 1))
    context = plain_columns(data.context_schema, data.context)[rows]
    instruments = plain_columns(data.instrument_schema, data.instrument)[rows]
    columns = standardise(np.hstack([ones, context, instruments]), weight)[1] * root
    included = orthonormal(columns[:, : 1 + context.shape[1]])
    everything = orthonormal(columns)
    n_excluded = everything.shape[1] - included.shape[1]
    if n_excluded == 0:
        return 0.0, float(ncx2.ppf(1.0 - _LEVEL, 1.0, 1.0 / _BIAS))
    basis = orthonormal(residualised(everything, included), n_excluded)
    found = []
    for column in first.action.T:
        own = residualised(column * root[:, 0], included)
        coordinates = basis.T @ own
        scores = basis * residualised(own, basis)[:, None]
        variance = scores.T @ scores
        trace = float(np.trace(variance))
        statistic = float(coordinates @ coordinates) / trace if trace > 0.0 else float("inf")
        found.append((_scaled(statistic, first.scale), _critical_value(variance)))
    return min(found)


def _critical_value(variance: FloatArray) -> float:
    """Return the simplified critical value of Montiel Olea and Pflueger for a robust variance (k, k)."""
    ratio = 1.0 / _BIAS
    sizes = np.linalg.eigvalsh(variance)
    total = float(sizes.sum())
    if total <= 0.0:
        return float(ncx2.ppf(1.0 - _LEVEL, 1.0, ratio))
    freedom = (
        total**2 * (1.0 + 2.0 * ratio) / (float((sizes**2).sum()) + 2.0 * ratio * total * float(sizes[-1]))
    )
    return float(ncx2.ppf(1.0 - _LEVEL, freedom, ratio * freedom)) / freedom


def _scaled(statistic: float, factor: float) -> float:
    """Return the F statistic that all rows would have, from that of a part of them; noise gives 1 in both."""
    return statistic if factor == 1.0 else max(0.0, 1.0 + (statistic - 1.0) * factor)
