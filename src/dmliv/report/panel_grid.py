"""The what-if panel's numbers: h on a grid of contexts, fine where h bends, with the error it leaves.

A browser cannot run the model. It can interpolate: between the nodes of numeric columns linearly, while
levels of categories are nodes themselves. How many nodes a column gets follows from how much h bends along
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.interpolate import RegularGridInterpolator

from dmliv.data import Column, FloatArray, Table
from dmliv.inference.counterfactual import Counterfactual
from dmliv.report.bands import grid_band
from dmliv.report.panel_columns import (
    PanelColumn,
    contexts_at,
    held_words,
    ladder_of,
    random_settings,
    typical_row,
)
from dmliv.second_stage.averaged import AveragedModel

Surfaces = Callable[[Table, FloatArray], list[FloatArray]]
"""Contexts of n rows and actions (m, d) in; out come h and, with a band, its ends, each of shape (n, m)."""

MOST_COLUMNS = 6
# Numbers in the page, of the curve and of its band: two bytes each, 400 kB in the file.
_MOST_NUMBERS = 150_000
_PROBES = 24
_PROBED_ACTIONS = 7
# Nodes are added until the error along each column is below this part of the spread of h.
_GOOD_ENOUGH = 0.002
# Ends of a band need not be as exact as the curve: an error there counts by this part.
_BAND_CARE = 0.2
_CHECKED = 200
# Columns are left out while the mean error is above this part of the spread of h, down to so few.
_TOLERABLE = 0.01
_FEWEST_COLUMNS = 2


@dataclass(frozen=True)
class GridError:
    """Interpolated curves against the model's own, at random settings of the panel.

    Attributes
    ----------
    n_settings : int
    mean, largest : float
        Absolute difference, in units of the outcome.
    spread : float
        Highest minus lowest outcome of the model over all these curves.
    lost : float
        How much expected outcome the panel's recommended action gives away, in the mean over settings; over
        the first action column.
    band : float
        Absolute difference of the ends of the band in the mean; 0 without a band.
    """

    n_settings: int
    mean: float
    largest: float
    spread: float
    lost: float
    band: float = 0.0


@dataclass(frozen=True, eq=False)
class PanelGrid:
    """Expected outcomes on a grid of contexts, for each action column.

    Attributes
    ----------
    columns : tuple of PanelColumn
    values : tuple of ndarray, each of shape (k_1, ..., k_c, m)
        One per action column; m are the points of its axis.
    error : GridError
    others : str
        Where the columns are held that the panel leaves out; empty when there are none.
    lower, upper : tuple of ndarray, or None
        Ends of a pointwise 95 % band, where the model has intervals that take no time.
    """

    columns: tuple[PanelColumn, ...]
    values: tuple[FloatArray, ...]
    error: GridError
    others: str
    lower: tuple[FloatArray, ...] | None = None
    upper: tuple[FloatArray, ...] | None = None

    def curves(self, settings: FloatArray, axis: int = 0) -> FloatArray:
        """Return interpolated outcomes, shape (n, m), for settings (n, c) in units of the nodes."""
        return _interpolated(self.columns, self.values[axis], settings)


def design_panel(
    counterfactual: Counterfactual,
    context: Table,
    ordered: Sequence[Column],
    actions: Sequence[FloatArray],
    allowed: npt.NDArray[np.bool_],
    seed: int,
) -> PanelGrid | None:
    """Choose nodes, evaluate h on them, and measure what interpolation costs.

    Parameters
    ----------
    counterfactual : Counterfactual
    context : Table
        Rows that say which values are typical.
    ordered : sequence of Column
        Of the context, the most important first.
    actions : sequence of ndarray, each of shape (m, d)
        For each action column the actions of its axis, in model units.
    allowed : ndarray of bool, shape (m,)
        Which points of the first axis a recommendation may name.
    seed : int
        Draws the settings that are looked at.

    Returns
    -------
    PanelGrid or None
        None when no column varies.
    """
    typical = typical_row(context)
    surfaces = _surfaces(counterfactual)
    n_numbers = sum(len(vectors) for vectors in actions) * (3 if has_band(counterfactual) else 1)
    ladders = [ladder for column in ordered if (ladder := ladder_of(counterfactual.context, context, column))]
    ladders = _affordable(ladders[:MOST_COLUMNS], n_numbers)
    if not ladders:
        return None
    while True:
        rng = np.random.default_rng(seed)
        columns = _chosen_nodes(surfaces, typical, ladders, actions, n_numbers, rng)
        others = held_words(counterfactual.context, typical, [column.name for column in columns])
        grid = _evaluated(surfaces, typical, columns, actions, allowed, others, rng)
        # Fewer columns that are drawn well say more than many that are not.
        if len(ladders) <= _FEWEST_COLUMNS or grid.error.mean <= _TOLERABLE * grid.error.spread:
            return grid
        ladders = ladders[:-1]


def has_band(counterfactual: Counterfactual) -> bool:
    """Say whether the panel shows a band: not where every point is a mean over hundreds of controls."""
    return counterfactual.uncertainty is not None and not isinstance(counterfactual.model, AveragedModel)


def _surfaces(counterfactual: Counterfactual) -> Surfaces:
    def values(context: Table, vectors: FloatArray) -> list[FloatArray]:
        ends = grid_band(counterfactual, context, vectors) if has_band(counterfactual) else ()
        return [counterfactual.value_grid(context, vectors), *(each for each in ends if each is not None)]

    return values


def _chosen_nodes(
    surfaces: Surfaces,
    typical: Table,
    ladders: list[list[PanelColumn]],
    actions: Sequence[FloatArray],
    n_numbers: int,
    rng: np.random.Generator,
) -> tuple[PanelColumn, ...]:
    probed = np.vstack(
        [vectors[np.linspace(0, len(vectors) - 1, _PROBED_ACTIONS).astype(np.int64)] for vectors in actions]
    )
    return _refined(surfaces, typical, ladders, probed, n_numbers, rng)


def _evaluated(
    surfaces: Surfaces,
    typical: Table,
    columns: tuple[PanelColumn, ...],
    actions: Sequence[FloatArray],
    allowed: npt.NDArray[np.bool_],
    others: str,
    rng: np.random.Generator,
) -> PanelGrid:
    """Evaluate h and its band on the nodes, and judge what lies between."""
    nodes = np.meshgrid(*[column.nodes for column in columns], indexing="ij")
    table = contexts_at(typical, columns, np.column_stack([each.ravel() for each in nodes]))
    shape = tuple(len(column.nodes) for column in columns)
    # For each surface, h first, the grids of all action columns.
    grids = [
        tuple(each.reshape(*shape, -1) for each in parts)
        for parts in zip(*(surfaces(table, vectors) for vectors in actions), strict=True)
    ]
    settings = random_settings(columns, _CHECKED, rng)
    checked = contexts_at(typical, columns, settings)
    exact = [list(parts) for parts in zip(*(surfaces(checked, vectors) for vectors in actions), strict=True)]
    found = [[_interpolated(columns, each, settings) for each in grid] for grid in grids]
    error = _error(exact[0], found[0], allowed)
    if len(grids) == 1:
        return PanelGrid(columns, grids[0], error, others)
    gaps = [_gaps(one, other) for one, other in zip(exact[1:], found[1:], strict=True)]
    error = replace(error, band=float(np.mean(gaps)))
    return PanelGrid(columns, grids[0], error, others, grids[1], grids[2])


def _affordable(ladders: list[list[PanelColumn]], n_numbers: int) -> list[list[PanelColumn]]:
    """Leave out columns, the least important first, until the coarsest grid is small enough."""
    while ladders and math.prod(len(each[0].nodes) for each in ladders) * n_numbers > _MOST_NUMBERS:
        ladders = ladders[:-1]
    return ladders


def _refined(
    surfaces: Surfaces,
    typical: Table,
    ladders: list[list[PanelColumn]],
    actions: FloatArray,
    n_numbers: int,
    rng: np.random.Generator,
) -> tuple[PanelColumn, ...]:
    """Climb the ladders where that takes away most error for the room it costs."""
    finest = [ladder[-1] for ladder in ladders]
    errors: list[FloatArray] = []
    spread = 0.0
    for position, ladder in enumerate(ladders):
        settings = random_settings(finest, _PROBES, rng).repeat(len(finest[position].nodes), axis=0)
        settings[:, position] = np.tile(finest[position].nodes, _PROBES)
        nodes = finest[position].nodes
        found = [
            each.reshape(_PROBES, len(nodes), -1).swapaxes(0, 1)
            for each in surfaces(contexts_at(typical, finest, settings), actions)
        ]
        spread = max(spread, float(np.ptp(found[0])))
        care = [1.0, *[_BAND_CARE] * (len(found) - 1)]
        by_rung = [
            max(part * _error_along(nodes, rung.nodes, each) for part, each in zip(care, found, strict=True))
            for rung in ladder
        ]
        errors.append(np.array(by_rung))
    rungs = [0] * len(ladders)

    def size(heights: Sequence[int]) -> int:
        sizes = (len(ladder[height].nodes) for ladder, height in zip(ladders, heights, strict=True))
        return math.prod(sizes) * n_numbers

    while True:
        best, best_gain = -1, 0.0
        for position, ladder in enumerate(ladders):
            if rungs[position] + 1 >= len(ladder) or errors[position][rungs[position]] <= (
                _GOOD_ENOUGH * spread
            ):
                continue
            higher = [height + (each == position) for each, height in enumerate(rungs)]
            if size(higher) > _MOST_NUMBERS:
                continue
            here, there = errors[position][rungs[position]], errors[position][rungs[position] + 1]
            gain = (here**2 - there**2) / math.log(size(higher) / size(rungs))
            # Three nodes may be no better than two where five are: a little hope keeps the climb going.
            gain = max(gain, 1e-3 * here**2)
            if gain > best_gain:
                best, best_gain = position, gain
        if best < 0:
            return tuple(ladder[height] for ladder, height in zip(ladders, rungs, strict=True))
        rungs[best] += 1


def _error_along(fine: FloatArray, nodes: FloatArray, values: FloatArray) -> float:
    """Return the root mean squared error of interpolating values (k, ...) at ``fine`` from fewer nodes."""
    if len(nodes) == len(fine):
        return 0.0
    kept = np.array([np.abs(fine - node).argmin() for node in nodes])
    interpolate = RegularGridInterpolator((fine[kept],), values[kept])
    return float(np.sqrt(np.mean((interpolate(fine[:, None]) - values) ** 2)))


def _interpolated(columns: Sequence[PanelColumn], values: FloatArray, settings: FloatArray) -> FloatArray:
    interpolate = RegularGridInterpolator(tuple(column.nodes for column in columns), values)
    return np.asarray(interpolate(settings))


def _error(exact: list[FloatArray], found: list[FloatArray], allowed: npt.NDArray[np.bool_]) -> GridError:
    gaps = _gaps(exact, found)
    everything = np.concatenate([each.ravel() for each in exact])
    truth, guess = exact[0][:, allowed], found[0][:, allowed]
    lost = truth.max(axis=1) - truth[np.arange(len(truth)), guess.argmax(axis=1)]
    return GridError(
        len(exact[0]), float(gaps.mean()), float(gaps.max()), float(np.ptp(everything)), float(lost.mean())
    )


def _gaps(exact: list[FloatArray], found: list[FloatArray]) -> FloatArray:
    return np.concatenate([np.abs(one - other).ravel() for one, other in zip(exact, found, strict=True)])
