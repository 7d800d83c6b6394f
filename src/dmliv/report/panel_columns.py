"""The columns that the what-if panel lets one choose, and the contexts that settings of them stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dmliv.data import Column, FloatArray, IntArray, Table, TableSchema

_MOST_LEVELS = 12
_LADDER = (2, 3, 5, 9, 17, 33)
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


def ladder_of(schema: TableSchema, context: Table, column: Column) -> list[PanelColumn]:
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


def held_words(schema: TableSchema, typical: Table, shown: list[str]) -> str:
    """Return where the columns are held that are not shown, in words."""
    left = [
        f"{column.name} {column.levels[int(value[0])] if column.kind == 'categorical' else f'{value[0]:.4g}'}"
        for column, value in schema.pairs(typical)
        if column.name not in shown
    ]
    return ", ".join(left[:10]) + (f" and {len(left) - 10} more" if len(left) > 10 else "")
