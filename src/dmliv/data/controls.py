"""Controls: columns that belong to the context of a model and are not asked for afterwards.

A model with controls learns from [X, W]. Questions name X alone, and are answered on average over W.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dmliv.data.savable import savable
from dmliv.data.schema import Column, FloatArray, IntArray, Source, Table, TableSchema
from dmliv.errors import InputError


@savable
@dataclass(frozen=True, eq=False)
class Controls:
    """Which columns of a context users pass as X and which as W.

    Attributes
    ----------
    context : TableSchema
        The columns of X.
    columns : TableSchema
        The columns of W that are not in X as well.
    """

    context: TableSchema
    columns: TableSchema

    @classmethod
    def learn(cls, context: TableSchema, table: Table, source: Source) -> Controls:
        """Learn the columns of W; what `table`, the rows of X, already holds is left out."""
        schema = TableSchema.learn(source, "control")
        values = schema.read(source)
        given = list(context.pairs(table))
        both_named = schema.named and context.named
        kept = [
            column
            for column, own in schema.pairs(values)
            if not any(_is_repeated(column, own, other, numbers, both_named) for other, numbers in given)
        ]
        # In the order of the schema, which pairs() leaves.
        columns = tuple(column for column in schema.columns if column in kept)
        order = tuple(name for name in schema.input_order if name in {column.name for column in kept})
        # Arrays are matched by position, so they keep the columns that are not used.
        return cls(
            context,
            replace(schema, columns=columns, input_order=order if schema.named else schema.input_order),
        )

    @property
    def together(self) -> TableSchema:
        """The columns of [X, W], which the model sees."""
        parts = [part for part in (self.context, self.columns) if part.columns]
        names = self.context.input_order + tuple(column.name for column in self.columns.columns)
        named = all(part.named for part in parts)
        return TableSchema("context", self.context.columns + self.columns.columns, names, named)

    def read(self, X: object, W: object, n_rows: int) -> Table:
        """Read rows of X and W as one context."""
        return joined(self.context.read(X, n_rows), self.columns.read(W, n_rows))

    def split(self, table: Table) -> tuple[Table, Table]:
        """Return the parts of a context [X, W]: X, and W."""
        numbers, codes = len(self.context.numeric), len(self.context.categorical)
        return (
            Table(table.numeric[:, :numbers], table.codes[:, :codes]),
            Table(table.numeric[:, numbers:], table.codes[:, codes:]),
        )


def joined(context: Table, controls: Table) -> Table:
    """Return rows of X and of W side by side."""
    return Table(np.hstack([context.numeric, controls.numeric]), np.hstack([context.codes, controls.codes]))


def crossed(context: Table, controls: Table) -> Table:
    """Return every row of X with every row of W, those of W running faster."""
    n, k = len(context), len(controls)
    rows, others = np.repeat(np.arange(n), k), np.tile(np.arange(k), n)
    return joined(context.take(rows), controls.take(others))


def _is_repeated(
    column: Column,
    values: FloatArray | IntArray,
    other: Column,
    other_values: FloatArray | IntArray,
    both_named: bool,
) -> bool:
    same_name = both_named and column.name == other.name
    # Comparing one row first keeps contexts of thousands of pixels cheap.
    alike = column.levels == other.levels and len(values) > 0 and values[0] == other_values[0]
    equal = bool(alike and np.array_equal(values, other_values))
    if same_name and not equal:
        raise InputError(
            f"Expected one meaning per column name, got {column.name!r} in X and with other values in W; "
            "rename it in one of them."
        )
    return equal
