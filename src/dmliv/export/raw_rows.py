"""Rows as the user has them, inside a graph: one named input per column, and what models see of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dmliv.data import ActionSpec, Table, TableSchema
from dmliv.errors import InputError, listed
from dmliv.export.graph import Block, GraphBuilder

# The number of the type of 64-bit floats in ONNX.
_DOUBLE = 11


@dataclass(frozen=True)
class ContextRows:
    """Contexts inside a graph.

    Attributes
    ----------
    numeric : Block
        Numeric columns as they are.
    levels : tuple of Block
        The categorical columns, one-hot.
    n_rows : str
        Value of shape (1,): the number of rows.
    """

    numeric: Block
    levels: tuple[Block, ...]
    n_rows: str

    def repeated(self, graph: GraphBuilder, times: int) -> ContextRows:
        """Return every row so many times, one after the other."""
        return ContextRows(
            graph.repeated(self.numeric, times, self.n_rows),
            tuple(graph.repeated(block, times, self.n_rows) for block in self.levels),
            graph.node("Mul", self.n_rows, graph.constant([times])),
        )

    def crossed(self, graph: GraphBuilder, controls: Table, n_levels: Sequence[int]) -> ContextRows:
        """Return every row with every row of the controls, those of the controls running faster."""
        wide = self.repeated(graph, len(controls))
        numeric = graph.tiled(controls.numeric, self.n_rows)
        levels = tuple(
            graph.tiled(np.eye(count)[codes], self.n_rows)
            for count, codes in zip(n_levels, controls.codes.T, strict=True)
        )
        return ContextRows(graph.side_by_side([wide.numeric, numeric]), wide.levels + levels, wide.n_rows)


class InputReader:
    """Adds the inputs of a graph and remembers which rows cannot be used.

    A missing or infinite number, and a category that was not among the training rows, make every output of
    their row NaN: operators would otherwise turn them into numbers that look right.
    """

    def __init__(self, graph: GraphBuilder) -> None:
        self._graph = graph
        self._unusable: list[str] = []
        self._n_rows: str | None = None
        self.columns: dict[str, dict[str, object]] = {}

    def context(self, schema: TableSchema) -> ContextRows:
        """Add the columns of a context; call it after :meth:`action`, where the action is an input."""
        numeric = [self._number(column.name, "context") for column in schema.numeric]
        levels = [self._text(column.name, "context", column.levels) for column in schema.categorical]
        return ContextRows(self._graph.side_by_side(numeric), tuple(levels), self.n_rows)

    def action(self, spec: ActionSpec) -> Block:
        """Add the columns of an action and return them as model inputs: standardised, or one-hot."""
        if spec.kind == "continuous":
            columns = self._graph.side_by_side([self._number(name, "action") for name in spec.names])
            return self._graph.scaled(columns, spec.mean, spec.scale)
        if all(isinstance(level, str) for level in spec.levels):
            return self._text(spec.names[0], "action", [str(level) for level in spec.levels])
        numbers = level_numbers(spec)
        column = self._number(spec.names[0], "action")
        return self._one_hot(
            self._graph.node("Equal", column.name, self._graph.constant(numbers)), len(numbers)
        )

    @property
    def n_rows(self) -> str:
        """Value of shape (1,): the number of rows of the first input."""
        if self._n_rows is None:
            raise InputError(
                "Expected a model with a context or an action as input, got one that always answers the "
                "same; ask it once and keep the answer."
            )
        return self._n_rows

    def with_nan(self, value: str) -> str:
        """Return a value (n, 1) with NaN in the rows that cannot be used."""
        bad = self.is_unusable()
        return self._graph.node("Where", bad, self._graph.constant(np.nan), value)

    def is_unusable(self) -> str:
        """Return whether rows cannot be used, shape (n, 1)."""
        bad = self._unusable[0]
        for other in self._unusable[1:]:
            bad = self._graph.node("Or", bad, other)
        return bad

    def _number(self, name: str, role: str) -> Block:
        column = self._column(name, text=False)
        self.columns[name] = {"role": role, "type": "number"}
        bad = self._graph.node(
            "Or", self._graph.node("IsNaN", column.name), self._graph.node("IsInf", column.name)
        )
        self._unusable.append(bad)
        return column

    def _text(self, name: str, role: str, levels: Sequence[str]) -> Block:
        column = self._column(name, text=True)
        self.columns[name] = {"role": role, "type": "text", "levels": list(levels)}
        codes = self._graph.node(
            "LabelEncoder",
            column.name,
            domain="ai.onnx.ml",
            keys_strings=list(levels),
            values_int64s=list(range(len(levels))),
            default_int64=-1,
        )
        return self._one_hot(
            self._graph.node("Equal", codes, self._graph.constant(np.arange(len(levels)))), len(levels)
        )

    def _column(self, name: str, *, text: bool) -> Block:
        column = self._graph.column_input(name, text=text)
        if self._n_rows is None:
            self._n_rows = self._graph.node("Shape", name)
        return column

    def _one_hot(self, matches: str, width: int) -> Block:
        block = Block(self._graph.node("Cast", matches, to=_DOUBLE), width)
        total = self._graph.row_sums(block.name)
        self._unusable.append(self._graph.node("Less", total, self._graph.constant(0.5)))
        return block


def level_numbers(spec: ActionSpec) -> npt.NDArray[np.float64]:
    """Return the levels of a discrete action as numbers, shape (m,)."""
    if any(isinstance(level, str) for level in spec.levels):
        raise InputError(
            f"Expected levels of one type for an export, got {listed(spec.levels)}; make all of them strings."
        )
    return np.array([float(level) for level in spec.levels])  # type: ignore[arg-type]
