"""The numbers of the what-if panel: h on a grid of contexts, with the error of interpolating between them.

A browser cannot run the model, but it can interpolate: linearly between the nodes of a numeric column, while
the levels of a category are nodes themselves. A column gets the more nodes, the more h bends along it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.interpolate import RegularGridInterpolator

from dmliv.data import Column, FloatArray, IntArray, Table, TableSchema
from dmliv.inference.counterfactual import Counterfactual
from dmliv.report.bands import grid_band
from dmliv.second_stage.averaged import AveragedModel

Surfaces = Callable[[Table, FloatArray], list[FloatArray]]
"""From contexts of n rows and actions (m, d) to h and, with a band, its ends, each of shape (n, m)."""

MOST_COLUMNS = 6
_MOST_LEVELS = 12
_MOST_HELD = 10
# Numbers of nodes that a numeric column may have, and the quantiles they span.
_NODE_COUNTS = (2, 3, 5, 9, 17, 33)
_RANGE = (0.01, 0.99)
# Numbers in the page, of the curve and of its band: two bytes each, 400 kB in the file.
_MOST_NUMBERS = 150_000
_PROBES = 24
_PROBED_ACTIONS = 7
# Nodes are added until the error along each column is below this part of the spread of h.
_GOOD_ENOUGH = 0.002
# The ends of a band need not be as exact as the curve: their errors count by this part.
_BAND_WEIGHT = 0.2
_CHECKED = 200
# Columns are left out while the mean error is above this part of the spread of h, down to so few.
_TOLERABLE = 0.01
_FEWEST_COLUMNS = 2


@dataclass(frozen=True, eq=False)
class PanelColumn:
    """A column of the context that the user of the panel can set.

    Attributes
    ----------
    name : str
    kind : {"numeric", "categorical"}
    nodes : ndarray, shape (k,)
        Ascending numbers; for a category 0, 1, ... in the order of ``labels``.
    labels : tuple of str
        The levels to choose from; empty for a number.
    typical : float
        The median, or the number of the most frequent level.
    whole : bool
        Whether only whole numbers occur.
    place : int
        Position among the numeric or among the categorical columns of the context.
    codes : ndarray, shape (k,)
        Codes of these levels; empty for a number.
    """

    name: str
    kind: Literal["numeric", "categorical"]
    nodes: FloatArray
    labels: tuple[str, ...]
    typical: float
    whole: bool
    place: int
    codes: IntArray


@dataclass(frozen=True)
class GridError:
    """Interpolated curves compared with the model's, at random settings of the panel.

    Attributes
    ----------
    n_settings : int
    mean, largest : float
        Absolute difference, in units of the outcome.
    spread : float
        Highest minus lowest outcome of the model over all these curves.
    lost : float
        Expected outcome lost by the panel's recommended action, on average over settings; for
        the first action column.
    band : float
        Mean absolute difference of the ends of the band; 0 without a band.
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
        Columns that the panel leaves out, with the values they are held at; empty if there are none.
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
    """Choose nodes, evaluate h on them, and measure the error of interpolation.

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
    choices = [
        found for column in ordered if (found := node_choices(counterfactual.context, context, column))
    ]
    choices = _affordable(choices[:MOST_COLUMNS], n_numbers)
    if not choices:
        return None
    probed = np.vstack(
        [vectors[np.linspace(0, len(vectors) - 1, _PROBED_ACTIONS).astype(np.int64)] for vectors in actions]
    )
    while True:
        rng = np.random.default_rng(seed)
        columns = _refined(surfaces, typical, choices, probed, n_numbers, rng)
        others = held_words(counterfactual.context, typical, [column.name for column in columns])
        grid = _evaluated(surfaces, typical, columns, actions, allowed, others, rng)
        # A few columns with an exact curve are better than many with a wrong one.
        if len(choices) <= _FEWEST_COLUMNS or grid.error.mean <= _TOLERABLE * grid.error.spread:
            return grid
        choices = choices[:-1]


def has_band(counterfactual: Counterfactual) -> bool:
    """Return whether the panel shows a band: not where every point is a mean over hundreds of controls."""
    return counterfactual.uncertainty is not None and not isinstance(counterfactual.model, AveragedModel)


def _surfaces(counterfactual: Counterfactual) -> Surfaces:
    def values(context: Table, vectors: FloatArray) -> list[FloatArray]:
        ends = grid_band(counterfactual, context, vectors) if has_band(counterfactual) else ()
        return [counterfactual.value_grid(context, vectors), *(each for each in ends if each is not None)]

    return values


def _evaluated(
    surfaces: Surfaces,
    typical: Table,
    columns: tuple[PanelColumn, ...],
    actions: Sequence[FloatArray],
    allowed: npt.NDArray[np.bool_],
    others: str,
    rng: np.random.Generator,
) -> PanelGrid:
    """Evaluate h and its band on the nodes, and measure the error between them."""
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


def _affordable(choices: list[list[PanelColumn]], n_numbers: int) -> list[list[PanelColumn]]:
    """Leave out columns, the least important first, until the coarsest grid is small enough."""
    while choices and math.prod(len(each[0].nodes) for each in choices) * n_numbers > _MOST_NUMBERS:
        choices = choices[:-1]
    return choices


def _refined(
    surfaces: Surfaces,
    typical: Table,
    choices: list[list[PanelColumn]],
    actions: FloatArray,
    n_numbers: int,
    rng: np.random.Generator,
) -> tuple[PanelColumn, ...]:
    """Add nodes where that reduces the error most for the space they take."""
    finest = [column_choices[-1] for column_choices in choices]
    errors: list[FloatArray] = []
    spread = 0.0
    for position, column_choices in enumerate(choices):
        settings = random_settings(finest, _PROBES, rng).repeat(len(finest[position].nodes), axis=0)
        settings[:, position] = np.tile(finest[position].nodes, _PROBES)
        nodes = finest[position].nodes
        found = [
            each.reshape(_PROBES, len(nodes), -1).swapaxes(0, 1)
            for each in surfaces(contexts_at(typical, finest, settings), actions)
        ]
        spread = max(spread, float(np.ptp(found[0])))
        shares = [1.0, *[_BAND_WEIGHT] * (len(found) - 1)]
        by_choice = [
            max(
                share * _error_along(nodes, each.nodes, part)
                for share, part in zip(shares, found, strict=True)
            )
            for each in column_choices
        ]
        errors.append(np.array(by_choice))
    chosen = [0] * len(choices)

    def size(numbers: Sequence[int]) -> int:
        sizes = (len(column[number].nodes) for column, number in zip(choices, numbers, strict=True))
        return math.prod(sizes) * n_numbers

    while True:
        best, best_gain = -1, 0.0
        for position, column_choices in enumerate(choices):
            if chosen[position] + 1 >= len(column_choices) or errors[position][chosen[position]] <= (
                _GOOD_ENOUGH * spread
            ):
                continue
            higher = [number + (each == position) for each, number in enumerate(chosen)]
            if size(higher) > _MOST_NUMBERS:
                continue
            here, there = errors[position][chosen[position]], errors[position][chosen[position] + 1]
            gain = (here**2 - there**2) / math.log(size(higher) / size(chosen))
            # Three nodes may be no better than two where five are, so a small gain counts in any case.
            gain = max(gain, 1e-3 * here**2)
            if gain > best_gain:
                best, best_gain = position, gain
        if best < 0:
            return tuple(column[number] for column, number in zip(choices, chosen, strict=True))
        chosen[best] += 1


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


def random_settings(columns: Sequence[PanelColumn], n: int, rng: np.random.Generator) -> FloatArray:
    """Draw settings that the panel can show, shape (n, c), in units of the nodes."""
    drawn = [
        rng.integers(len(column.nodes), size=n).astype(np.float64)
        if column.kind == "categorical"
        else rng.integers(int(column.nodes[0]), int(column.nodes[-1]) + 1, size=n).astype(np.float64)
        if column.whole
        else rng.uniform(column.nodes[0], column.nodes[-1], size=n)
        for column in columns
    ]
    return np.column_stack(drawn)


def contexts_at(typical: Table, columns: Sequence[PanelColumn], settings: FloatArray) -> Table:
    """Return contexts with some columns set (n, c) and all others as in the one row ``typical``."""
    rows = typical.take(np.zeros(len(settings), dtype=np.int64))
    for column, chosen in zip(columns, settings.T, strict=True):
        if column.kind == "numeric":
            rows.numeric[:, column.place] = chosen
        else:
            rows.codes[:, column.place] = column.codes[chosen.astype(np.int64)]
    return rows


def typical_row(context: Table) -> Table:
    """Return the median of every number and the most frequent level of every category as one row."""
    codes = [np.bincount(each).argmax() for each in context.codes.T]
    return Table(
        np.median(context.numeric, axis=0)[None, :], np.array([codes], dtype=np.int64).reshape(1, -1)
    )


def node_choices(schema: TableSchema, context: Table, column: Column) -> list[PanelColumn]:
    """Return the column with ever more nodes; nothing for a column that does not vary."""
    if column.kind == "categorical":
        place = schema.categorical.index(column)
        counts = np.bincount(context.codes[:, place], minlength=len(column.levels))
        frequent = np.argsort(-counts, kind="stable")[:_MOST_LEVELS]
        codes = np.sort(frequent[counts[frequent] > 0])
        if len(codes) < 2:
            return []
        labels = tuple(column.levels[code] for code in codes)
        typical = float(np.flatnonzero(codes == counts.argmax())[0])
        nodes = np.arange(len(codes), dtype=np.float64)
        return [PanelColumn(column.name, "categorical", nodes, labels, typical, False, place, codes)]
    place = schema.numeric.index(column)
    numbers = context.numeric[:, place]
    whole = bool(np.all(numbers == np.round(numbers)))
    low, high = np.quantile(numbers, _RANGE, method="nearest")
    if low == high:
        low, high = numbers.min(), numbers.max()
    if low == high:
        return []
    found: list[PanelColumn] = []
    for count in _NODE_COUNTS:
        nodes = np.linspace(low, high, count)
        nodes = np.unique(np.round(nodes)) if whole else nodes
        if found and len(nodes) <= len(found[-1].nodes):
            break
        middle = float(np.median(numbers))
        typical = round(middle) if whole else middle
        empty = np.empty(0, dtype=np.int64)
        found.append(PanelColumn(column.name, "numeric", nodes, (), typical, whole, place, empty))
    return found


def held_words(schema: TableSchema, typical: Table, shown: list[str]) -> str:
    """Return the values at which the columns that are not shown are held, in words."""
    held = [
        f"{column.name} {column.levels[int(value[0])] if column.kind == 'categorical' else f'{value[0]:.4g}'}"
        for column, value in schema.pairs(typical)
        if column.name not in shown
    ]
    return ", ".join(held[:_MOST_HELD]) + (
        f" and {more} more" if (more := len(held) - _MOST_HELD) > 0 else ""
    )
