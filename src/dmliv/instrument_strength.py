"""How much of the action the instrument explains beyond the context, measured on rows not learned from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold

from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.nets.encoding import TableEncoder
from dmliv.progress import ProgressReporter, SilentProgress
from dmliv.second_stage.base import action_vectors

# More rows would not change the verdict, and every fit stays well below a second.
_MOST_ROWS = 5000
_FOLDS = 3
_UNUSED_BINS = 2
_PENALTIES = tuple(np.logspace(-3.0, 3.0, 7))
#: Below this partial F statistic, by the usual rule of thumb, an instrument is weak.
WEAK_F = 10.0


@dataclass(frozen=True)
class InstrumentStrength:
    """Out-of-fold R2 of the action, in the mean over its columns or levels.

    Attributes
    ----------
    context_r2 : float
        From the context alone; 0 without one.
    full_r2 : float
        From context and instrument.
    n_rows : int
        Rows of the data.
    """

    context_r2: float
    full_r2: float
    n_rows: int

    @property
    def partial_r2(self) -> float:
        """Share of what the context leaves open that the instrument explains; at least 0."""
        return max(0.0, (self.full_r2 - self.context_r2) / max(1.0 - self.context_r2, 1e-12))

    @property
    def partial_f(self) -> float:
        """The F statistic that one linear instrument with this partial R2 would have."""
        return self.partial_r2 * self.n_rows / max(1.0 - self.partial_r2, 1e-12)

    @property
    def is_weak(self) -> bool:
        """Whether the rule of thumb calls the instrument weak."""
        return self.partial_f < WEAK_F


def instrument_strength(
    data: TrainingData, *, seed: int = 0, progress: ProgressReporter | None = None
) -> InstrumentStrength:
    """Compare how well the action is predicted with and without the instrument.

    A linear model and boosted trees predict it; of the two the one that is better on held-out rows counts,
    for each set of columns.

    Parameters
    ----------
    data : TrainingData
    seed : int
        Draws the folds and, where there are many rows, the rows.
    progress : ProgressReporter, optional
    """
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(data.weight > 0))[:_MOST_ROWS]
    action = action_vectors(data.action_spec, data.action)[rows]
    if data.action_spec.kind == "discrete":
        # The last level is one minus the others.
        action = action[:, :-1]
    weight = data.weight[rows]
    context = _columns(data, "context")[rows]
    both = np.hstack([context, _columns(data, "instrument")[rows]])
    progress = progress or SilentProgress()
    with progress.stage("instrument strength", 2) as advance:
        context_r2 = _predicted_share(context, action, weight, seed) if context.shape[1] else 0.0
        advance()
        full_r2 = _predicted_share(both, action, weight, seed)
        advance()
    return InstrumentStrength(context_r2, full_r2, int(np.count_nonzero(data.weight > 0)))


def _columns(data: TrainingData, role: str) -> FloatArray:
    table = data.context if role == "context" else data.instrument
    schema = data.context_schema if role == "context" else data.instrument_schema
    return TableEncoder.learn(table, schema.n_levels, _UNUSED_BINS).standardised(table)


def _predicted_share(inputs: FloatArray, action: FloatArray, weight: FloatArray, seed: int) -> float:
    """Return the better of two models' out-of-fold R2, in the mean over the columns of the action."""
    folds = KFold(min(_FOLDS, len(inputs)), shuffle=True, random_state=seed)
    shares = []
    for column in action.T:
        centred = column - np.average(column, weights=weight)
        total = float(np.average(centred**2, weights=weight))
        if total == 0.0:
            continue
        errors = np.zeros(2)
        for fit_rows, judged in folds.split(inputs):
            predictions = _predictions(inputs, column, weight, (fit_rows, judged), seed)
            errors += np.sum(weight[judged] * (column[judged] - predictions) ** 2, axis=1)
        shares.append(1.0 - errors.min() / (total * weight.sum()))
    return float(np.mean(shares)) if shares else 0.0


def _predictions(
    inputs: FloatArray, column: FloatArray, weight: FloatArray, split: tuple[IntArray, IntArray], seed: int
) -> FloatArray:
    """Return the predictions of both models for the judged rows, shape (2, rows)."""
    fit_rows, judged = split
    models = (
        RidgeCV(_PENALTIES),
        HistGradientBoostingRegressor(
            learning_rate=0.2,
            max_iter=30,
            max_leaf_nodes=8,
            min_samples_leaf=10,
            early_stopping=False,
            random_state=seed,
        ),
    )
    return np.stack(
        [
            model.fit(inputs[fit_rows], column[fit_rows], sample_weight=weight[fit_rows]).predict(
                inputs[judged]
            )
            for model in models
        ]
    )
