"""Local search: from a good action uphill to the best one nearby."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dmliv.data import FloatArray

# Halving a step this often shrinks it far below what a policy can tell apart.
_STEPS = 24

Objective = Callable[[FloatArray], FloatArray]


def climb(
    value: Objective, gradient: Objective, start: FloatArray, low: FloatArray, high: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Climb from each row's start inside its box and return the best point met, and its value.

    Each coordinate moves by its own step in the direction of its derivative, and the step halves when the
    direction turns (the sign rule of resilient propagation). In one dimension that is bisection. A stepwise
    function, such as a tree, cannot mislead it: a point is kept only if its value is higher.

    Parameters
    ----------
    value : callable
        Points (n, d) to values (n,).
    gradient : callable
        Points (n, d) to derivatives (n, d).
    start, low, high : ndarray, shape (n, d)

    Returns
    -------
    best : ndarray, shape (n, d)
    best_value : ndarray, shape (n,)
    """
    best, best_value = start.copy(), value(start)
    point, step, before = start, (high - low) / 4.0, np.zeros_like(start)
    for _ in range(_STEPS):
        direction = np.sign(gradient(point))
        step = np.where(direction * before < 0.0, step / 2.0, step)
        before = direction
        point = np.clip(point + direction * step, low, high)
        reached = value(point)
        better = reached > best_value
        best[better], best_value[better] = point[better], reached[better]
    return best, best_value
