"""The strength of the instrument in groups of contexts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from dmliv.data import Column, FloatArray, IntArray, TrainingData
from dmliv.data.savable import savable
from dmliv.diagnostics.house_style import DMLIV_COLOUR, ORDINARY_COLOUR, QUIET_TEXT, house_style
from dmliv.diagnostics.strength import WEAK_F, FirstStageRows, projected_f

_BINS = 5
# A number with at most this many distinct values is grouped by value.
_FEW_VALUES = 7
_MOST_COLUMNS = 40
_FEWEST_ROWS = 30
_MOST_BARS = 24


@savable
@dataclass(frozen=True)
class ContextCell:
    """Strength of the instrument among the rows of one group.

    Attributes
    ----------
    column : str
        Context column that makes the group.
    group : str
        A level, a value, or a range of values.
    row_share : float
        Share of the rows.
    explained : float
        Partial R2 of the instrument on held-out rows; of several action columns the lowest.
    projected_f : float
        Nonlinear first-stage F statistic in the group.
    """

    column: str
    group: str
    row_share: float
    explained: float
    projected_f: float

    @property
    def is_weak(self) -> bool:
        """Whether the instrument is too weak to learn effects from this group alone."""
        return self.projected_f < WEAK_F


def strength_by_context(data: TrainingData, first: FirstStageRows) -> tuple[ContextCell, ...]:
    """Return the strength in five bins of every number and in every level, the weakest first.

    Groups of fewer than 30 rows are left out, and of more than 40 columns all but the first 40.
    """
    cells = []
    table = data.context.take(first.rows)
    for column, values in list(data.context_schema.pairs(table))[:_MOST_COLUMNS]:
        labels, codes = _groups(column, values)
        for code, label in enumerate(labels):
            rows = np.flatnonzero(codes == code)
            if len(rows) >= _FEWEST_ROWS:
                cells.append(_cell(column.name, label, first, rows))
    return tuple(sorted(cells, key=lambda cell: (cell.projected_f, cell.column, cell.group)))


def weak_share(cells: tuple[ContextCell, ...]) -> float:
    """Return the share of rows in weak groups, for the column where it is largest; 0 without groups."""
    columns = {cell.column for cell in cells}
    return max(
        (sum(cell.row_share for cell in cells if cell.column == name and cell.is_weak) for name in columns),
        default=0.0,
    )


def strength_figure(cells: tuple[ContextCell, ...]) -> Figure:
    """Draw the partial R2 of the instrument in the weakest groups, weak ones in another colour."""
    shown = cells[:_MOST_BARS][::-1]
    with house_style():
        figure = Figure(figsize=(7.0, 1.2 + 0.28 * max(len(shown), 1)), layout="constrained")
        axes = figure.subplots()
        axes.barh(
            range(len(shown)),
            [max(cell.explained, 0.0) for cell in shown],
            color=[ORDINARY_COLOUR if cell.is_weak else DMLIV_COLOUR for cell in shown],
        )
        # Names of columns are shown as they are: a dollar sign in one starts no formula.
        labels = [f"{cell.column} {cell.group}".replace("$", r"\$") for cell in shown]
        axes.set_yticks(range(len(shown)), labels, color=QUIET_TEXT)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("partial R2 of the instrument")
        axes.set_title(f"Groups of contexts with the weakest instrument (orange: F below {WEAK_F:g})")
    return figure


def _cell(column: str, group: str, first: FirstStageRows, rows: IntArray) -> ContextCell:
    weight = first.weight[rows]
    residual, predicted = (
        values[rows] - np.average(values[rows], axis=0, weights=weight)
        for values in (first.residual, first.prediction)
    )
    total = np.average(residual**2, axis=0, weights=weight)
    error = np.average((residual - predicted) ** 2, axis=0, weights=weight)
    shares = 1.0 - error / np.maximum(total, np.finfo(np.float64).tiny)
    return ContextCell(
        column=column,
        group=group,
        row_share=float(weight.sum() / first.weight.sum()),
        explained=float(max(0.0, shares.min())),
        projected_f=projected_f(first, rows),
    )


def _groups(column: Column, values: FloatArray | IntArray) -> tuple[list[str], IntArray]:
    """Return the names of a column's groups and the group of every row."""
    if column.kind == "categorical":
        return [f"= {level}" for level in column.levels], values.astype(np.int64)
    distinct, codes = np.unique(values, return_inverse=True)
    if len(distinct) <= _FEW_VALUES:
        return [f"= {value:.4g}" for value in distinct], codes.astype(np.int64)
    edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, _BINS + 1)))
    inner = edges[1:-1]
    labels = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
    return labels, np.searchsorted(inner, values, side="right").astype(np.int64)
