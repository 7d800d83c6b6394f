"""The actions that a report shows: a grid along each action column, and the actions to choose from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dmliv.data import ActionSpec, FloatArray, IntArray
from dmliv.inference.counterfactual import Counterfactual
from dmliv.policy.spaces import Box, Interval
from dmliv.report.contents import ActionAxis

_POINTS = 41
# A list of candidates this long is drawn point by point.
_MOST_CANDIDATES = 60
_MOST_AXES = 3
_USUAL = (0.01, 0.99)
_MOVE = (0.25, 0.75)


def action_axes(
    counterfactual: Counterfactual, action: FloatArray | IntArray, offered: object
) -> tuple[ActionAxis, ...]:
    """Return the axes of up to three action columns.

    Parameters
    ----------
    counterfactual : Counterfactual
    action : ndarray, shape (n, d) or (n,)
        The actions of the rows, as the model reads them.
    offered : array-like, Interval, Box or None
        Actions to choose from; None for the usual actions of the rows.
    """
    spec = counterfactual.action
    if spec.kind == "discrete":
        return (_level_axis(counterfactual, action.astype(np.int64), offered),)
    numbers = np.asarray(spec.to_user(np.asarray(action, dtype=np.float64))).reshape(len(action), -1)
    return tuple(_number_axis(spec, numbers, place, offered) for place in range(min(spec.width, _MOST_AXES)))


def default_actions(axes: tuple[ActionAxis, ...], spec: ActionSpec, action: FloatArray | IntArray) -> object:
    """Return the actions to choose from by default: those that are usual in the rows."""
    if spec.kind == "discrete":
        return None
    if spec.width == 1:
        return axes[0].grid[axes[0].allowed]
    numbers = np.asarray(spec.to_user(np.asarray(action, dtype=np.float64)))
    low, high = np.quantile(numbers, _USUAL, axis=0)
    return Box(tuple(low.tolist()), tuple(high.tolist()))


def _level_axis(counterfactual: Counterfactual, codes: IntArray, offered: object) -> ActionAxis:
    spec = counterfactual.action
    n_levels = len(spec.levels)
    grid = np.arange(n_levels)
    vectors = spec.vectors(grid)
    counts = np.bincount(codes, minlength=n_levels)
    start, end = np.sort(np.argsort(-counts, kind="stable")[:2])
    allowed = np.ones(n_levels, dtype=bool)
    if offered is not None:
        allowed = np.isin(grid, np.asarray(spec.read(offered), dtype=np.int64))
    labels = tuple(str(level) for level in spec.levels)
    return ActionAxis(
        spec.names[0],
        grid.astype(np.float64),
        labels,
        vectors,
        allowed,
        codes.astype(np.float64),
        float(codes.min()),
        float(codes.max()),
        vectors[start],
        vectors[end],
        labels[start],
        labels[end],
    )


def _number_axis(spec: ActionSpec, numbers: FloatArray, place: int, offered: object) -> ActionAxis:
    observed = numbers[:, place]
    low, high = (float(each) for each in np.quantile(observed, _USUAL))
    candidates = _candidates(spec, offered, place)
    if candidates is not None and len(candidates) > _MOST_CANDIDATES:
        candidates = np.linspace(candidates.min(), candidates.max(), _POINTS)
    if candidates is None:
        # Equal steps inside the usual range, and the same steps on to the outermost rows.
        step = (high - low) / (_POINTS - 11) if high > low else 1.0
        candidates = np.linspace(low, high, _POINTS - 10) if high > low else np.array([low])
    else:
        step = max(float(np.ptp(np.append(candidates, observed))) / (_POINTS - 1), 1e-12)
    below = _steps(float(observed.min()), float(candidates.min()), step)
    above = _steps(float(candidates.max()), float(observed.max()), step)
    # A short list of candidates is too few points for a curve.
    few = len(candidates) < _POINTS // 2
    between = np.linspace(candidates.min(), candidates.max(), _POINTS if few else 2)
    grid = np.unique(np.concatenate([below, candidates, between, above]))
    vectors = np.tile(np.median(numbers, axis=0), (len(grid) + 2, 1))
    start, end = (float(each) for each in np.quantile(observed, _MOVE))
    vectors[:, place] = np.concatenate([grid, [start, end]])
    vectors = (vectors - spec.mean) / spec.scale
    return ActionAxis(
        spec.names[place],
        grid,
        (),
        vectors[:-2],
        _allowed(grid, candidates, offered),
        observed,
        low,
        high,
        vectors[-2],
        vectors[-1],
        f"{start:.4g}",
        f"{end:.4g}",
    )


def _candidates(spec: ActionSpec, offered: object, place: int) -> FloatArray | None:
    """Return the actions on offer for one column, shape (k,); None by default."""
    if offered is None:
        return None
    if isinstance(offered, (Interval, Box)):
        return np.linspace(np.atleast_1d(offered.low)[place], np.atleast_1d(offered.high)[place], _POINTS)
    return np.unique(spec.numbers(offered)[:, place])


def _allowed(grid: FloatArray, candidates: FloatArray, offered: object) -> npt.NDArray[np.bool_]:
    if isinstance(offered, (Interval, Box)):
        return np.asarray((grid >= candidates.min()) & (grid <= candidates.max()))
    return np.isin(grid, candidates)


def _steps(low: float, high: float, step: float) -> FloatArray:
    """Return the ends and at most five points between them; nothing where the range is empty."""
    if low >= high:
        return np.empty(0)
    return np.linspace(low, high, int(np.clip(np.ceil((high - low) / step), 1, 5)) + 1)
