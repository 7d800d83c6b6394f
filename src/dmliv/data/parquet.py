"""A folder of Parquet files as one table of numbered rows, read a row group at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from dmliv.data.files import plain, plain_text
from dmliv.data.roles import TrainingData, prepare, read_weight
from dmliv.data.schema import IntArray, Source
from dmliv.data.units import ActionKind
from dmliv.errors import InputError, unknown_columns
from dmliv.progress import ProgressReporter

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class RowGroup:
    """Rows that are read together.

    Attributes
    ----------
    path : Path
    number : int
        Of the row group in its file.
    start : int
        Number of its first row among all rows.
    n_rows : int
    """

    path: Path
    number: int
    start: int
    n_rows: int

    @property
    def row_ids(self) -> IntArray:
        """Numbers of its rows among all rows, shape (n_rows,)."""
        return np.arange(self.start, self.start + self.n_rows)


@dataclass(frozen=True)
class ParquetRows:
    """Rows of all Parquet files of a folder, in the order of their names, with the role of each column.

    A row is known by its number in this order. Files whose names start with a dot or an underscore are left
    out.

    Parameters
    ----------
    folder : str or path
        A folder of Parquet files with the same columns, or one such file.
    outcome : str
    action, instrument, context : str or sequence of str
        Names of columns.
    weight : str, optional
        Column of row weights.
    label : str, optional
        What messages call the rows when the files are parts of something else.
    """

    folder: str | os.PathLike[str]
    outcome: str
    action: str | Sequence[str]
    instrument: str | Sequence[str]
    context: str | Sequence[str] = ()
    weight: str | None = None
    label: str | None = None
    roles: dict[str, list[str]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Find the files and check that all of them have the columns."""
        roles = {
            "outcome": [self.outcome],
            "action": _names(self.action),
            "instrument": _names(self.instrument),
            "context": _names(self.context),
            "weight": [] if self.weight is None else [self.weight],
        }
        object.__setattr__(self, "roles", roles)
        taken: dict[str, str] = {}
        for role, names in roles.items():
            if not names and role not in ("context", "weight"):
                raise InputError(f"Expected a column as {role}, got none; name one.")
            for name in names:
                if name in taken:
                    raise InputError(
                        f"Expected every column in one role, got {name!r} as {taken[name]} and as {role}; "
                        "drop it from one of them."
                    )
                taken[name] = role
        if not self.groups:
            raise InputError(f"Expected rows in {str(self.folder)!r}, got none; write some first.")

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The files, sorted by name."""
        folder = Path(self.folder)
        if folder.is_file():
            return (folder,)
        found = sorted(
            path
            for path in folder.glob("*")
            if path.suffix.lower() in (".parquet", ".pq") and not path.name.startswith((".", "_"))
        )
        if not found:
            raise InputError(
                f"Expected a folder of Parquet files (.parquet, .pq), got none in {str(folder)!r}; "
                "look at the path."
            )
        return tuple(found)

    @cached_property
    def groups(self) -> tuple[RowGroup, ...]:
        """All row groups that hold rows, in order."""
        found, start = [], 0
        for path in self.files:
            try:
                read = pa.parquet.read_metadata(path)
                names = pa.parquet.read_schema(path).names
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(path, error) from error
            for role, wanted in self.roles.items():
                unknown = [name for name in wanted if name not in names]
                if unknown:
                    raise unknown_columns(role, unknown, names)
            for number in range(read.num_row_groups):
                n_rows = read.row_group(number).num_rows
                if n_rows:
                    found.append(RowGroup(path, number, start, n_rows))
                start += n_rows
        return tuple(found)

    @property
    def n_rows(self) -> int:
        """Number of all rows."""
        return sum(group.n_rows for group in self.groups)

    def whereabouts(self, group: RowGroup) -> str:
        """Return how rows of a row group are counted, for messages about one of them."""
        if self.label is not None:
            return f"(Rows are counted from row {group.start} of {self.label!r}.)"
        return (
            f"(In {group.path.name!r}, row group {group.number}: rows are counted from its first, which is "
            f"row {group.start} of all.)"
        )

    def read(self, group: RowGroup) -> pa.Table:
        """Return the columns of one row group that have a role; text as dictionaries."""
        columns = [name for names in self.roles.values() for name in names]
        try:
            with pa.parquet.ParquetFile(group.path) as file:
                table = file.read_row_group(group.number, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(group.path, error) from error
        return pa.table({name: _as_category(table.column(name)) for name in columns})

    def part(self, table: pa.Table, role: str) -> pa.Table | None:
        """Return the columns of one role, or None when it has none."""
        names = self.roles[role]
        return table.select(names) if names else None


def hashed(row_ids: IntArray, seed: int) -> npt.NDArray[np.uint64]:
    """Return well-mixed bits of row numbers (n,), the same on every machine (the SplitMix64 finaliser)."""
    with np.errstate(over="ignore"):
        mixed = row_ids.astype(np.uint64) * _GOLDEN + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def hashed_parts(row_ids: IntArray, n_parts: int, seed: int) -> IntArray:
    """Return the part of each row, shape (n,): a hash of its number, so that no list of folds is kept."""
    return np.asarray(hashed(row_ids, seed) % np.uint64(n_parts)).astype(np.int64)


def _as_category(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return pc.dictionary_encode(column)
    return column


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(
        f"Expected a Parquet file, got {str(path)!r}, which cannot be read: {str(error).splitlines()[0]}; "
        "write it again."
    )


# Different numbers that may still be the levels of a discrete action.
_MOST_NUMERIC_LEVELS = 50


@dataclass(frozen=True, eq=False)
class Scan:
    """What one pass over the rows found.

    Attributes
    ----------
    sample : TrainingData
        Rows that stand for all, among them one of each category.
    row_ids : ndarray of int, shape (len(sample),)
        Their numbers.
    mean_weight : float
        Mean of the weight column over all rows; 1 without one.
    """

    sample: TrainingData
    row_ids: IntArray
    mean_weight: float


def scan(
    rows: ParquetRows,
    most_rows: int,
    action_kind: ActionKind,
    *,
    min_rows: int,
    seed: int,
    progress: ProgressReporter,
) -> Scan:
    """Check every value and take about ``most_rows`` rows by the hash of their numbers."""
    n_rows = rows.n_rows
    share = min(1.0, most_rows / n_rows)
    limit = np.uint64(min(share * 2.0**64, 2.0**64 - 2048))
    known: dict[str, set[object]] = {}
    tables, ids, total_weight = [], [], 0.0
    with progress.stage("reading rows", len(rows.groups)) as advance:
        for group in rows.groups:
            table = rows.read(group)
            _check(rows, table, group)
            keep = np.ones(group.n_rows, dtype=bool)
            if share < 1.0:
                keep = hashed(group.row_ids, seed) < limit
            keep[_first_of_each_level(rows, table, known, action_kind)] = True
            tables.append(plain_text(table.filter(pa.array(keep))))
            ids.append(group.row_ids[keep])
            total_weight += _sum_of_weights(rows, table)
            advance()
    if rows.weight is not None and total_weight <= 0.0:
        raise InputError("Expected some positive weights, got only zeros; pass None to weigh all rows alike.")
    taken = pa.concat_tables(tables)
    sample = prepare(
        taken.column(rows.outcome).to_numpy(),
        rows.part(taken, "action"),
        Z=rows.part(taken, "instrument"),
        X=rows.part(taken, "context"),
        sample_weight=None if rows.weight is None else taken.column(rows.weight).to_numpy(),
        action_kind=action_kind,
        min_rows=min_rows,
    )
    return Scan(sample, np.concatenate(ids), 1.0 if rows.weight is None else total_weight / n_rows)


def _check(rows: ParquetRows, table: pa.Table, group: RowGroup) -> None:
    for role, names in rows.roles.items():
        part = rows.part(table, role)
        if part is None:
            continue
        try:
            columns = Source.of(part, role).match(names, named=True)
            if role in ("outcome", "weight"):
                columns[0].numbers()
        except InputError as error:
            raise InputError(f"{error} {rows.whereabouts(group)}") from error


def _first_of_each_level(
    rows: ParquetRows, table: pa.Table, known: dict[str, set[object]], action_kind: ActionKind
) -> list[int]:
    """Return the rows with a level that was not seen before; rare ones would be missing from a sample."""
    found = []
    for role in ("action", "instrument", "context"):
        for name in rows.roles[role]:
            column = table.column(name)
            text = pa.types.is_dictionary(column.type)
            if not text and not (role == "action" and action_kind != "continuous"):
                continue
            seen = known.setdefault(name, set())
            if not text and len(seen) > _MOST_NUMERIC_LEVELS:
                continue
            values = plain(column)
            for value in pc.unique(values).to_pylist():
                if value not in seen:
                    seen.add(value)
                    found.append(pc.index(values, value).as_py())
                if not text and len(seen) > _MOST_NUMERIC_LEVELS:
                    break
    return found


def _sum_of_weights(rows: ParquetRows, table: pa.Table) -> float:
    if rows.weight is None:
        return 0.0
    weights = table.column(rows.weight).to_numpy()
    if weights.any():
        read_weight(weights, len(weights))
    return float(weights.sum())
