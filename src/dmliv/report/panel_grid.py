"""The what-if panel's numbers: h on a grid of contexts, fine where h bends, with the error it leaves.

A browser cannot run the model. It can interpolate: between the nodes of numeric columns linearly, while
levels of categories are nodes themselves. How many nodes a column gets follows from how much h bends along
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.interpolate import RegularGridInterpolator

from dmliv.counterfactual import Counterfactual
from dmliv.data import Column, FloatArray, IntArray, Table, TableSchema

MOST_COLUMNS = 6
# Numbers in the grid: two bytes each, 400 kB in the file.
_MOST_NUMBERS = 150_000
_MOST_LEVELS = 12
_LADDER = (2, 3, 5, 9, 17, 33)
_PROBES = 24
_PROBED_ACTIONS = 7
# Nodes are added until the error along each column is below this part of the spread of h.
_GOOD_ENOUGH = 0.002
_CHECKED = 200
# Columns are left out while the mean error is above this part of the spread of h, down to so few.
_TOLERABLE = 0.01
_FEWEST_COLUMNS = 2
_RANGE = (0.01, 0.99)


@dataclass(frozen=True, eq=False)
class PanelColumn:
    """A column of the context that the panel lets one choose.

    Attributes
    ----------
    name : str
    kind : {"numeric", "categorical"}
    nodes : ndarray, shape (k,)
        Ascending numbers; for a category 0, 1, ... in the order of ``labels``.
    labels : tuple of str
        The levels on offer; empty for a number.
    typical : float
        The median, or the number of the most frequent level.
    whole : bool
        Whether only whole numbers occur.
    place : int
        Position among the numeric or among the categorical columns of the context.
    codes : ndarray, shape (k,)
        Codes of the levels on offer; empty for a number.
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
    """

    n_settings: int
    mean: float
    largest: float
    spread: float
    lost: float


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
        Bounds of a band around ``values``, where there are any.
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
    typical = _typical(context)
    ladders = [ladder for column in ordered if (ladder := _ladder(counterfactual.context, context, column))]
    ladders = _affordable(ladders[:MOST_COLUMNS], sum(len(vectors) for vectors in actions))
    if not ladders:
        return None
    while True:
        grid = _evaluated(counterfactual, typical, ladders, actions, allowed, np.random.default_rng(seed))
        # Fewer columns that are drawn well say more than many that are not.
        if len(ladders) <= _FEWEST_COLUMNS or grid.error.mean <= _TOLERABLE * grid.error.spread:
            return grid
        ladders = ladders[:-1]


def _evaluated(
    counterfactual: Counterfactual,
    typical: Table,
    ladders: list[list[PanelColumn]],
    actions: Sequence[FloatArray],
    allowed: npt.NDArray[np.bool_],
    rng: np.random.Generator,
) -> PanelGrid:
    """Choose the nodes of some columns, evaluate h on them, and judge the result."""
    n_actions = sum(len(vectors) for vectors in actions)
    probed = np.vstack(
        [vectors[np.linspace(0, len(vectors) - 1, _PROBED_ACTIONS).astype(np.int64)] for vectors in actions]
    )
    columns = _refined(counterfactual, typical, ladders, probed, n_actions, rng)
    nodes = np.meshgrid(*[column.nodes for column in columns], indexing="ij")
    table = contexts_at(typical, columns, np.column_stack([each.ravel() for each in nodes]))
    shape = tuple(len(column.nodes) for column in columns)
    values = tuple(counterfactual.value_grid(table, vectors).reshape(*shape, -1) for vectors in actions)
    settings = random_settings(columns, _CHECKED, rng)
    checked = contexts_at(typical, columns, settings)
    exact = [counterfactual.value_grid(checked, vectors) for vectors in actions]
    found = [_interpolated(columns, each, settings) for each in values]
    others = _others(counterfactual.context, typical, [column.name for column in columns])
    return PanelGrid(columns, values, _error(exact, found, allowed), others)


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


def _typical(context: Table) -> Table:
    """Return the median of every number and the most frequent level of every category as one row."""
    codes = [np.bincount(each).argmax() for each in context.codes.T]
    return Table(
        np.median(context.numeric, axis=0)[None, :], np.array([codes], dtype=np.int64).reshape(1, -1)
    )


def _ladder(schema: TableSchema, context: Table, column: Column) -> list[PanelColumn]:
    """Return the column with ever more nodes; nothing for one that does not vary."""
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
    rungs: list[PanelColumn] = []
    for count in _LADDER:
        nodes = np.linspace(low, high, count)
        nodes = np.unique(np.round(nodes)) if whole else nodes
        if rungs and len(nodes) <= len(rungs[-1].nodes):
            break
        middle = float(np.median(numbers))
        typical = round(middle) if whole else middle
        empty = np.empty(0, dtype=np.int64)
        rungs.append(PanelColumn(column.name, "numeric", nodes, (), typical, whole, place, empty))
    return rungs


def _affordable(ladders: list[list[PanelColumn]], n_actions: int) -> list[list[PanelColumn]]:
    """Leave out columns, the least important first, until the coarsest grid is small enough."""
    while ladders and math.prod(len(each[0].nodes) for each in ladders) * n_actions > _MOST_NUMBERS:
        ladders = ladders[:-1]
    return ladders


def _refined(
    counterfactual: Counterfactual,
    typical: Table,
    ladders: list[list[PanelColumn]],
    actions: FloatArray,
    n_actions: int,
    rng: np.random.Generator,
) -> tuple[PanelColumn, ...]:
    """Climb the ladders where that takes away most error for the room it costs."""
    finest = [ladder[-1] for ladder in ladders]
    errors: list[FloatArray] = []
    spread = 0.0
    for position, ladder in enumerate(ladders):
        settings = random_settings(finest, _PROBES, rng).repeat(len(finest[position].nodes), axis=0)
        settings[:, position] = np.tile(finest[position].nodes, _PROBES)
        values = counterfactual.value_grid(contexts_at(typical, finest, settings), actions)
        values = values.reshape(_PROBES, len(finest[position].nodes), -1).swapaxes(0, 1)
        spread = max(spread, float(np.ptp(values)))
        errors.append(np.array([_error_along(finest[position].nodes, rung.nodes, values) for rung in ladder]))
    rungs = [0] * len(ladders)

    def size(heights: Sequence[int]) -> int:
        sizes = (len(ladder[height].nodes) for ladder, height in zip(ladders, heights, strict=True))
        return math.prod(sizes) * n_actions

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
    gaps = np.concatenate([np.abs(one - other).ravel() for one, other in zip(exact, found, strict=True)])
    everything = np.concatenate([each.ravel() for each in exact])
    truth, guess = exact[0][:, allowed], found[0][:, allowed]
    lost = truth.max(axis=1) - truth[np.arange(len(truth)), guess.argmax(axis=1)]
    return GridError(
        len(exact[0]), float(gaps.mean()), float(gaps.max()), float(np.ptp(everything)), float(lost.mean())
    )


def _others(schema: TableSchema, typical: Table, shown: list[str]) -> str:
    left = [
        f"{column.name} {column.levels[int(value[0])] if column.kind == 'categorical' else f'{value[0]:.4g}'}"
        for column, value in schema.pairs(typical)
        if column.name not in shown
    ]
    return ", ".join(left[:10]) + (f" and {len(left) - 10} more" if len(left) > 10 else "")
