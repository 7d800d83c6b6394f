"""Rows as the user has them, inside a graph: one named input per column, and what models see of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from dmliv.data import ActionSpec, Table, TableSchema
from dmliv.errors import InputError, listed
from dmliv.export.graph import Block, GraphBuilder, side_by_side

# The number of the type of 64-bit floats in ONNX.
_DOUBLE = 11


@dataclass(frozen=True)
class ContextRows:
    """Contexts inside a graph.

    Attributes
    ----------
    numeric : Block, shape (n, k)
        Numeric columns as they are.
    levels : tuple of Block
        The categorical columns, one-hot.
    """

    numeric: Block
    levels: tuple[Block, ...]

    def repeated(self, times: int) -> ContextRows:
        """Return every row so many times, one after the other."""
        return ContextRows(self.numeric.repeated(times), tuple(each.repeated(times) for each in self.levels))

    def crossed(self, controls: Table, n_levels: Sequence[int]) -> ContextRows:
        """Return every row with every row of the controls, those of the controls running faster."""
        wide = self.repeated(len(controls))
        numeric = side_by_side([wide.numeric, self.numeric.tiled(controls.numeric)])
        levels = tuple(
            self.numeric.tiled(np.eye(count)[codes])
            for count, codes in zip(n_levels, controls.codes.T, strict=True)
        )
        return ContextRows(numeric, wide.levels + levels)


class InputReader:
    """Adds the inputs of a graph and remembers which rows cannot be used.

    A missing or infinite number, and a category that was not among the training rows, make every output of
    their row NaN: operators would otherwise turn them into numbers that look right.
    """

    def __init__(self) -> None:
        self.graph = GraphBuilder()
        self._unusable: list[Block] = []
        self.columns: dict[str, dict[str, object]] = {}

    def context(self, schema: TableSchema) -> ContextRows:
        """Add the columns of a context; call it after :meth:`action`, where the action is an input."""
        numeric = [self._number(column.name, "context") for column in schema.numeric]
        levels = [self._text(column.name, "context", column.levels) for column in schema.categorical]
        if not self._unusable:
            raise InputError(
                "Expected a model with a context or an action as input, got one that always answers the "
                "same; ask it once and keep the answer."
            )
        # Without numeric columns, a block of none still knows the number of rows.
        none = self._unusable[0].apply("Cast", to=_DOUBLE).pick([])
        return ContextRows(side_by_side([none, *numeric]), tuple(levels))

    def action(self, spec: ActionSpec) -> Block:
        """Add the columns of an action and return them as model inputs: standardised, or one-hot."""
        if spec.kind == "continuous":
            columns = side_by_side([self._number(name, "action") for name in spec.names])
            return (columns - spec.mean) / spec.scale
        if all(isinstance(level, str) for level in spec.levels):
            return self._text(spec.names[0], "action", [str(level) for level in spec.levels])
        return self._one_hot(self._number(spec.names[0], "action"), level_numbers(spec))

    def is_unusable(self) -> Block:
        """Return whether rows cannot be used, shape (n, 1)."""
        return reduce(lambda some, other: some.apply("Or", other), self._unusable)

    def _number(self, name: str, role: str) -> Block:
        column = self.graph.column_input(name, text=False)
        self.columns[name] = {"role": role, "type": "number"}
        self._unusable.append(column.apply("IsNaN").apply("Or", column.apply("IsInf")))
        return column

    def _text(self, name: str, role: str, levels: Sequence[str]) -> Block:
        column = self.graph.column_input(name, text=True)
        self.columns[name] = {"role": role, "type": "text", "levels": list(levels)}
        numbers = np.arange(len(levels))
        codes = column.apply(
            "LabelEncoder",
            domain="ai.onnx.ml",
            keys_strings=list(levels),
            values_int64s=numbers.tolist(),
            default_int64=-1,
        )
        return self._one_hot(codes, numbers)

    def _one_hot(self, column: Block, levels: npt.NDArray[Any]) -> Block:
        block = column.apply("Equal", levels).apply("Cast", to=_DOUBLE)
        self._unusable.append(block.row_sums().apply("Less", 0.5))
        return block


def level_numbers(spec: ActionSpec) -> npt.NDArray[np.float64]:
    """Return the levels of a discrete action as numbers, shape (m,)."""
    if any(isinstance(level, str) for level in spec.levels):
        raise InputError(
            f"Expected levels of one type for an export, got {listed(spec.levels)}; make all of them strings."
        )
    return np.array([float(level) for level in spec.levels])  # type: ignore[arg-type]
