"""Columns of any frame or array, read once into checked numbers and category codes.

A `Source` is whatever the user passed, seen as columns. A `TableSchema` remembers the columns of the
training rows of one role and reads later rows in the same terms, matched by name or by position.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import narwhals as nw
import numpy as np
import numpy.typing as npt
from narwhals.exceptions import DuplicateError

from dmliv.data.savable import savable
from dmliv.errors import InputError, listed, unknown_columns, unseen_levels, unsupported_type, unusable_values

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_LARGEST = 1e100
_ARGUMENTS = {
    "outcome": "Y",
    "action": "T",
    "instrument": "Z",
    "context": "X",
    "control": "W",
    "weight": "sample_weight",
}


@savable
@dataclass(frozen=True, eq=False)
class RawColumn:
    """The checked values of one column, before they are matched to anything learned.

    `values` has shape (n,); bool, integer or float dtype when numeric, else object dtype. A "mixed" column
    holds both numbers and strings.
    """

    role: str
    name: str
    kind: Literal["numeric", "categorical", "mixed"]
    values: npt.NDArray[Any]

    def numbers(self) -> FloatArray:
        """Return the values as floats, shape (n,)."""
        if self.kind != "numeric":
            text = (value for value in self.values if isinstance(value, str) or self.kind != "mixed")
            example = next(text, "a category without rows")
            raise InputError(
                f"Expected numbers in {self.role} column {self.name!r}, got values such as {example!r}; "
                "convert the column to numbers."
            )
        return self.values.astype(np.float64)

    def labels(self) -> list[str]:
        """Return the values as category labels, n of them; 1 and 1.0 have one label."""
        return [
            str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
            for value in self.values.tolist()
        ]

    def single_kind(self) -> Literal["numeric", "categorical"]:
        """Return the kind, refusing numbers and strings in one column."""
        if self.kind == "mixed":
            raise InputError(
                f"Expected one type in {self.role} column {self.name!r}, got both numbers and strings; "
                "convert it to numbers or to strings."
            )
        return self.kind


@savable
@dataclass(frozen=True, eq=False)
class Source:
    """User input of one role, seen as named or numbered columns that are not read yet.

    `columns` are narwhals series or arrays of shape (n_rows,). `named` says whether the names are the user's
    or made from the role, `flat` whether the input had one dimension.
    """

    role: str
    names: tuple[str, ...]
    columns: tuple[Any, ...]
    n_rows: int
    named: bool
    flat: bool

    @classmethod
    def of(cls, values: object, role: str) -> Source:
        """View a frame, series, array or nested list as columns."""
        if isinstance(values, Source):
            return values
        try:
            native: Any = nw.from_native(values, eager_only=True, allow_series=True, pass_through=True)
        except DuplicateError as error:
            raise InputError(f"Expected unique {role} column names, got {error}; rename them.") from error
        if isinstance(native, nw.Series):
            named = native.name not in (None, "")
            return cls(role, (str(native.name) if named else role,), (native,), len(native), named, flat=True)
        if isinstance(native, nw.DataFrame):
            # pandas allows names that are not strings, and two of them may read the same.
            names = tuple(str(name) for name in native.columns)
            repeated = sorted({name for name in names if names.count(name) > 1})
            if repeated:
                raise InputError(
                    f"Expected unique {role} column names, got {listed(repeated)} twice; rename them."
                )
            columns = tuple(native.get_column(name) for name in native.columns)
            return cls(role, names, columns, len(native), named=True, flat=False)
        array = _as_array(values, role)
        rows = array.reshape(-1, 1) if array.ndim == 1 else array
        width = rows.shape[1]
        names = (role,) if width == 1 else tuple(f"{role}_{position}" for position in range(width))
        return cls(role, names, tuple(rows.T), len(rows), named=False, flat=array.ndim == 1)

    def match(self, names: Sequence[str], named: bool, n_rows: int | None = None) -> list[RawColumn]:
        """Read the columns that were called `names` at training, in that order.

        Parameters
        ----------
        names
            The training columns in the order the user gave them.
        named
            Whether `names` came from the user; then a frame is matched by name, and columns it has beyond
            these are ignored. Arrays, series and frames for nameless training data are matched by position.
        n_rows
            The number of rows there must be, if known.
        """
        role, argument = self.role, _ARGUMENTS[self.role]
        if named and self.named and not self.flat:
            missing = [name for name in names if name not in self.names]
            if missing:
                raise unknown_columns(role, missing, self.names)
            positions = [self.names.index(name) for name in names]
        elif self.flat and len(names) > 1:
            hint = "values.reshape(1, -1) if this is one row" if self.n_rows == len(names) else "all columns"
            raise InputError(
                f"Expected {role} of shape (n, {len(names)}) for columns {listed(names)}, "
                f"got one dimension of length {self.n_rows}; pass {hint}."
            )
        elif len(self.columns) != len(names):
            hint = f"the columns {listed(names)} in this order" if names else f"{argument}=None"
            raise InputError(
                f"Expected {role} with {len(names)} columns, got {len(self.columns)}; pass {hint}."
            )
        else:
            positions = list(range(len(names)))
        if n_rows is not None and self.n_rows != n_rows:
            raise InputError(
                f"Expected {role} with {n_rows} rows, got {self.n_rows}; align {argument} with the others."
            )
        return [self._read(position, name) for position, name in zip(positions, names, strict=True)]

    def _read(self, position: int, name: str) -> RawColumn:
        column, declared = self.columns[position], False
        if isinstance(column, nw.Series):
            declared = isinstance(column.dtype, nw.Categorical | nw.Enum)
            column = column.to_numpy()
        return _read_column(self.role, name, column, declared)


@savable
@dataclass(frozen=True)
class Column:
    """One learned column; `levels` are the sorted labels of a categorical one."""

    name: str
    kind: Literal["numeric", "categorical"]
    levels: tuple[str, ...] = ()


@savable
@dataclass(frozen=True, eq=False)
class Table:
    """Validated rows of one role.

    Parameters
    ----------
    numeric
        Shape (n, n_numeric).
    codes
        Shape (n, n_categorical), the level index per categorical column.
    """

    numeric: FloatArray
    codes: IntArray

    def __len__(self) -> int:
        return len(self.numeric)

    def take(self, rows: IntArray) -> Table:
        """Return the given rows, in the given order."""
        return Table(self.numeric[rows], self.codes[rows])


@savable
@dataclass(frozen=True)
class TableSchema:
    """The columns of the training rows of one role.

    Parameters
    ----------
    role
        "instrument", "context" or "control"; used in messages.
    columns
        In canonical order: sorted by name when the training input had names, so that a fit does not depend
        on the order of a frame's columns; else as given.
    input_order
        Column names in the order the user gave them.
    named
        Whether the training input had names.
    """

    role: str
    columns: tuple[Column, ...]
    input_order: tuple[str, ...]
    named: bool

    @classmethod
    def learn(cls, values: object, role: str) -> TableSchema:
        """Learn the columns of training rows; None for a context means no columns."""
        if values is None and role == "context":
            return cls(role, (), (), named=False)
        source = Source.of(values, role)
        if not source.columns:
            if role != "context":
                raise InputError(
                    f"Expected at least one {role} column, got none; pass them as {_ARGUMENTS[role]}."
                )
            return cls(role, (), (), named=False)
        columns = []
        for raw in source.match(source.names, source.named):
            kind = raw.single_kind()
            columns.append(
                Column(raw.name, kind, tuple(sorted(set(raw.labels()))) if kind == "categorical" else ())
            )
        if source.named:
            columns.sort(key=lambda column: column.name)
        return cls(role, tuple(columns), source.names, source.named)

    @property
    def numeric(self) -> tuple[Column, ...]:
        """The numeric columns in canonical order."""
        return tuple(column for column in self.columns if column.kind == "numeric")

    @property
    def categorical(self) -> tuple[Column, ...]:
        """The categorical columns in canonical order."""
        return tuple(column for column in self.columns if column.kind == "categorical")

    @property
    def n_levels(self) -> tuple[int, ...]:
        """Number of levels of each categorical column."""
        return tuple(len(column.levels) for column in self.categorical)

    def pairs(self, table: Table) -> Iterator[tuple[Column, FloatArray | IntArray]]:
        """Yield every column with its values in the table, shape (n,)."""
        yield from zip(self.numeric, table.numeric.T, strict=True)
        yield from zip(self.categorical, table.codes.T, strict=True)

    def read(self, values: object, n_rows: int | None = None) -> Table:
        """Read rows in terms of the learned columns.

        Parameters
        ----------
        values
            Frame, array or list with the training columns; None when there are none.
        n_rows
            The number of rows there must be; required for None.
        """
        source = None if values is None else Source.of(values, self.role)
        if source is None or not source.columns:
            return self._read_none(source.n_rows if source and n_rows is None else n_rows)
        raw = {column.name: column for column in source.match(self.input_order, self.named, n_rows)}
        numeric = np.empty((source.n_rows, len(self.numeric)))
        codes = np.empty((source.n_rows, len(self.categorical)), dtype=np.int64)
        for position, column in enumerate(self.numeric):
            numeric[:, position] = raw[column.name].numbers()
        for position, column in enumerate(self.categorical):
            codes[:, position] = _encode(raw[column.name], column.levels)
        return Table(numeric, codes)

    def _read_none(self, n_rows: int | None) -> Table:
        argument = _ARGUMENTS[self.role]
        if self.columns:
            raise InputError(
                f"Expected {self.role} columns {listed(self.input_order)}, got none; pass them as {argument}."
            )
        if n_rows is None:
            raise InputError(f"Expected a number of rows for {argument}=None, got none; pass n_rows.")
        return Table(np.empty((n_rows, 0)), np.empty((n_rows, 0), dtype=np.int64))


def _as_array(values: object, role: str) -> npt.NDArray[Any]:
    """Return user input that is no frame as an array of one or two dimensions."""
    if isinstance(values, np.ma.MaskedArray):
        # A plain conversion would silently reveal the masked values.
        mask, values = np.ma.getmaskarray(values), values.data.astype(object)
        values[mask] = None
    try:
        array: npt.NDArray[Any] = np.asarray(values)
    except ValueError as error:
        raise InputError(
            f"Expected {role} rows of equal length, got ragged ones; pad or drop them."
        ) from error
    if isinstance(values, list | tuple) and array.dtype.kind == "U":
        # NumPy turns the numbers of a list that also holds strings into strings.
        array = np.asarray(values, dtype=object)
    if array.ndim == 0:
        raise InputError(
            f"Expected {role} as an array, a list, or a frame in memory, got {type(values).__name__}; "
            "convert it (collect a lazy frame, densify a sparse matrix)."
        )
    if array.ndim > 2:
        raise InputError(
            f"Expected {role} with one or two dimensions, got shape {array.shape}; "
            "pass values.reshape(len(values), -1)."
        )
    return array


def _read_column(role: str, name: str, values: npt.NDArray[Any], declared: bool) -> RawColumn:
    """Check one column; `declared` says that its dtype is a category, whatever the values are."""
    if values.dtype.kind in "biuf":
        if values.dtype.kind == "f":
            _refuse(role, name, np.isnan(values), "missing values (NaN or None)")
            _refuse(role, name, np.isinf(values), "infinite values")
            # Squares of larger numbers, and sums of them, have no place among floating-point numbers.
            _refuse(role, name, np.abs(values.astype(np.float64)) > _LARGEST, f"values beyond {_LARGEST:g}")
        if declared:
            return RawColumn(role, name, "categorical", values.astype(object))
        return RawColumn(role, name, "numeric", values)
    if values.dtype.kind not in "OUT":
        raise unsupported_type(role, name, str(values.dtype))
    values = values.astype(object)
    types = set(map(type, values.tolist()))
    if types == {str}:
        return RawColumn(role, name, "categorical", values)
    missing = np.fromiter(map(_is_missing, values.tolist()), dtype=bool, count=len(values))
    _refuse(role, name, missing, "missing values (NaN or None)")
    if declared:
        return RawColumn(role, name, "categorical", values)
    unsupported = [kind for kind in types if not issubclass(kind, str | numbers.Real | Decimal | np.bool_)]
    if unsupported:
        raise unsupported_type(role, name, unsupported[0].__name__)
    if any(issubclass(kind, str) for kind in types):
        textual = all(issubclass(kind, str) for kind in types)
        return RawColumn(role, name, "categorical" if textual else "mixed", values)
    array = np.array(values.tolist())
    if array.dtype.kind not in "biuf":
        array = array.astype(np.float64)
    return _read_column(role, name, array, declared)


def _is_missing(value: Any) -> bool:
    if value is None:
        return True
    try:
        return bool(value != value)  # noqa: PLR0124 - true of every kind of NaN and NaT
    except TypeError:  # pandas.NA refuses to be compared
        return True
    except ValueError:  # an array inside a cell; refused later by its type
        return False


def _refuse(role: str, name: str, bad: npt.NDArray[np.bool_], what: str) -> None:
    if bad.any():
        raise unusable_values(role, name, what, int(bad.sum()), int(np.argmax(bad)))


def _encode(raw: RawColumn, levels: tuple[str, ...]) -> IntArray:
    """Return the level index of every value, shape (n,)."""
    position = {level: code for code, level in enumerate(levels)}
    labels = raw.labels()
    codes = np.array([position.get(label, -1) for label in labels], dtype=np.int64)
    unseen = np.flatnonzero(codes < 0)
    if unseen.size:
        values = sorted({labels[row] for row in unseen})
        advice = "Fit with rows of the new levels, or map them to known ones."
        raise unseen_levels(raw.role, raw.name, values, int(unseen[0]), levels, advice)
    return codes
