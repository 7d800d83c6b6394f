"""How much the instrument moves the action beyond the context: by lines, and by what simple models see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import ncx2

from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.data.savable import savable
from dmliv.diagnostics.held_out import ROWS_PER_COLUMN, bent_columns, explained, plain_columns, predicted
from dmliv.kernels.linear_algebra import orthonormal, residualised, standardise
from dmliv.progress import ProgressReporter, SilentProgress

# More rows would not change the verdict, and every fit stays well below a second.
_MOST_ROWS = 5000
_CONTEXT_BINS = 16
#: Below this F of the moved action an instrument is called weak; see docs/results/diagnostics.md.
WEAK_F = 10.0
# The effective F is compared with the value above which the bias of two-stage least squares is, with 95 %
# confidence, at most a tenth of a worst-case bias.
_BIAS = 0.1
_LEVEL = 0.05


@savable
@dataclass(frozen=True)
class InstrumentStrength:
    """How strongly the instrument moves the action, beyond what the context says of it.

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
        Robust F statistic of one constructed instrument per action column, the held-out prediction from
        context and instrument minus what the context says of it: a nonlinear effective F. Of several columns
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
        """Share of what the context leaves open that the instrument explains; at least 0."""
        return max(0.0, (self.full_r2 - self.context_r2) / max(1.0 - self.context_r2, 1e-12))

    @property
    def is_weak(self) -> bool:
        """Whether the instrument moves the action too little to learn from."""
        return self.projected_f < WEAK_F


@savable
@dataclass(frozen=True, eq=False)
class MovedAction:
    """Held-out predictions of the action on rows of the data, one column per action column.

    A discrete action has one column for every level but the last.

    Attributes
    ----------
    rows : ndarray of int, shape (m,)
        Rows looked at.
    weight : ndarray, shape (m,)
    action : ndarray, shape (m, d)
    from_context : ndarray, shape (m, d)
        Predictions from the context.
    from_both : ndarray, shape (m, d)
        Predictions from context and instrument.
    left_open : ndarray, shape (m, d)
        What the context leaves open of the action.
    moved : ndarray, shape (m, d)
        What context and instrument say of the action, without what the context alone says.
    n_rows : int
        Rows that count in the data.
    """

    rows: IntArray
    weight: FloatArray
    action: FloatArray
    from_context: FloatArray
    from_both: FloatArray
    left_open: FloatArray
    moved: FloatArray
    n_rows: int

    @property
    def scale(self) -> float:
        """Rows of the data per row looked at."""
        return self.n_rows / len(self.rows)


def instrument_strength(
    data: TrainingData, *, seed: int = 0, progress: ProgressReporter | None = None
) -> InstrumentStrength:
    """Compare how well the action is predicted with and without the instrument.

    Parameters
    ----------
    data : TrainingData
    seed : int
        Draws the folds and, where there are many rows, the rows.
    progress : ProgressReporter, optional
    """
    return strength_of(data, moved_action(data, seed=seed, progress=progress))


def moved_action(data: TrainingData, *, seed: int, progress: ProgressReporter | None = None) -> MovedAction:
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
    # Predictions from both also hold what the context says. Partialling it out beats subtracting predictions:
    # their errors would enter action and instrument alike and look like strength.
    most = len(rows) // ROWS_PER_COLUMN
    bent = bent_columns(data.context_schema, data.context.take(rows), _CONTEXT_BINS, most)
    root = np.sqrt(weight)[:, None]
    known = np.hstack([np.ones((len(rows), 1)), from_context, of_both, bent])
    basis = orthonormal(standardise(known, weight)[1] * root)
    left_open, moved = (residualised(values * root, basis) / root for values in (action, from_both))
    return MovedAction(rows, weight, action, from_context, from_both, left_open, moved, len(used))


def strength_of(data: TrainingData, moved: MovedAction) -> InstrumentStrength:
    """Sum up the predictions of an action that was moved."""
    context_r2 = 0.0
    if data.context_schema.columns:
        context_r2 = explained(moved.action, moved.from_context, moved.weight)
    effective, critical = _effective_f(data, moved)
    return InstrumentStrength(
        context_r2=context_r2,
        full_r2=explained(moved.action, moved.from_both, moved.weight),
        effective_f=effective,
        critical_f=critical,
        projected_f=projected_f(moved, np.arange(len(moved.rows))),
        n_rows=moved.n_rows,
    )


def projected_f(moved: MovedAction, rows: IntArray) -> float:
    """Return the F statistic of the moved action among some of its rows; 0 where it predicts badly.

    Of several action columns each is looked at given the others (Sanderson and Windmeijer): what the
    instruments move of it beyond what they move along with them.
    """
    root = np.sqrt(moved.weight[rows])[:, None]
    constant = root / np.linalg.norm(root)
    action = residualised(moved.left_open[rows] * root, constant)
    instruments = residualised(moved.moved[rows] * root, constant)
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
        # Predictions that point the wrong way are noise, however loud.
        right_way = action.shape[1] > 1 or float(instruments[:, 0] @ own) > 0.0
        variance = scores.T @ scores
        wald = float(coordinates @ np.linalg.lstsq(variance, coordinates, rcond=None)[0])
        statistics.append(wald if right_way else 0.0)
    return _scaled(min(statistics), moved.scale)


def _effective_f(data: TrainingData, moved: MovedAction) -> tuple[float, float]:
    """Return the lowest effective F over the action columns, and its critical value."""
    rows, weight = moved.rows, moved.weight
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
    for column in moved.action.T:
        own = residualised(column * root[:, 0], included)
        coordinates = basis.T @ own
        scores = basis * residualised(own, basis)[:, None]
        variance = scores.T @ scores
        trace = float(np.trace(variance))
        statistic = float(coordinates @ coordinates) / trace if trace > 0.0 else float("inf")
        found.append((_scaled(statistic, moved.scale), _critical_value(variance)))
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
