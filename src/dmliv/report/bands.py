"""Confidence intervals and bands in a report, for models that were fitted with intervals."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from dmliv.data import FloatArray, Table
from dmliv.inference.counterfactual import Counterfactual
from dmliv.inference.functionals import Functional

Interval: TypeAlias = tuple[float, float]
"""Lower and upper end."""

ALPHA = 0.05
# Points (context with action) whose features are in memory at once.
_CHUNK_POINTS = 20_000


def mean_interval(
    fitted: Counterfactual, context: Table, actions: FloatArray, against: FloatArray | None = None
) -> Interval | None:
    """Return the interval of the mean outcome over rows, or of its difference to that of other actions.

    Parameters
    ----------
    fitted : Counterfactual
    context : Table
        Of n rows.
    actions, against : ndarray, shape (n, d)
        In model units.

    Returns
    -------
    tuple of float or None
        None for a model without intervals.
    """
    if fitted.uncertainty is None:
        return None
    terms = [(1.0, actions)] if against is None else [(1.0, actions), (-1.0, against)]
    band = fitted.band(Functional(context, tuple(terms)).averaged(), ALPHA)
    return float(band.lower[0]), float(band.upper[0])


def mean_band(
    fitted: Counterfactual, context: Table, vectors: FloatArray
) -> tuple[FloatArray, FloatArray] | tuple[None, None]:
    """Return the ends of the mean outcome over rows for each action (m, d), each of shape (m,)."""
    if fitted.uncertainty is None:
        return None, None
    ends = [mean_interval(fitted, context, np.tile(vector, (len(context), 1))) for vector in vectors]
    lower, upper = np.array(ends, dtype=np.float64).T
    return lower, upper


def grid_band(
    fitted: Counterfactual, context: Table, vectors: FloatArray
) -> tuple[FloatArray, FloatArray] | tuple[None, None]:
    """Return the ends of the outcome for every context with every action (m, d), each of shape (n, m)."""
    if fitted.uncertainty is None:
        return None, None
    n_rows, n_actions = len(context), len(vectors)
    lower, upper = np.empty((n_rows, n_actions)), np.empty((n_rows, n_actions))
    step = max(1, _CHUNK_POINTS // n_actions)
    for start in range(0, n_rows, step):
        rows = np.arange(start, min(start + step, n_rows))
        points = context.take(rows.repeat(n_actions))
        band = fitted.band(Functional(points, ((1.0, np.tile(vectors, (len(rows), 1))),)), ALPHA)
        lower[rows], upper[rows] = (each.reshape(len(rows), -1) for each in (band.lower, band.upper))
    return lower, upper
