"""A large CSV file as a folder of Parquet files, written part by part: never in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from dmliv.data.files import (
    CHUNK_BYTES,
    drop_missing,
    inferred,
    open_csv,
    plain_text,
    require_categories,
    require_text,
    unreadable,
    wanted_columns,
)
from dmliv.errors import InputError
from dmliv.progress import ProgressReporter

# Rows of a row group: few, because what networks see of them is twenty times as wide.
_GROUP_ROWS = 1 << 14
_FILE_GROUPS = 64


@dataclass(frozen=True)
class WrittenRows:
    """What was made of a CSV file.

    Attributes
    ----------
    folder : Path
        Of Parquet files.
    n_rows, n_dropped : int
        Rows that were written, and those with missing values that were left out.
    """

    folder: Path
    n_rows: int
    n_dropped: int


@contextmanager
def csv_as_parquet(
    path: Path,
    roles: Mapping[str, Sequence[str]],
    *,
    place: Path,
    progress: ProgressReporter,
    delimiter: str | None = None,
    dropping: bool = False,
) -> Iterator[WrittenRows]:
    """Write the columns of some roles as Parquet files, which are gone when the context ends.

    Types are those that suit all rows, as if the file had been read as a whole.

    Parameters
    ----------
    path : Path
        A CSV file.
    roles : mapping of str to sequence of str
        Names of columns by the role they play.
    place : Path
        Folder in which a hidden folder is made for the files.
    progress : ProgressReporter
    delimiter : str, optional
        As for :func:`dmliv.data.files.read_columns`.
    dropping : bool
        Whether rows with missing values are left out.

    Raises
    ------
    InputError
        As :func:`dmliv.data.files.read_columns` does.
    """
    wanted = wanted_columns(path, roles, delimiter)
    with TemporaryDirectory(prefix=".dmliv-rows-", dir=place) as folder:
        parts = _Parts(path, wanted, delimiter, dropping, Path(folder) / "rows", progress)
        try:
            try:
                written = parts.write(None)
            except pa.ArrowInvalid:
                # A later part does not suit the types of the first, or the file is damaged, which will show.
                written = parts.write(parts.types())
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise unreadable(path, "CSV", error) from error
        yield written


@dataclass(frozen=True)
class _Parts:
    path: Path
    wanted: list[str]
    delimiter: str | None
    dropping: bool
    folder: Path
    progress: ProgressReporter

    def write(self, types: dict[str, pa.DataType] | None) -> WrittenRows:
        """Write all parts, with the given types or those of the first part."""
        rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        n_rows = n_dropped = number = 0
        levels: dict[str, dict[str | None, None]] = {}
        writer: pa.parquet.ParquetWriter | None = None
        try:
            for table in self._tables(types):
                for name in table.column_names:
                    if pa.types.is_string(table.schema.field(name).type):
                        found = pc.unique(table.column(name)).to_pylist()
                        levels.setdefault(name, {}).update(dict.fromkeys(found))
                kept, dropped = drop_missing(table) if self.dropping else (table, 0)
                n_rows, n_dropped = n_rows + len(kept), n_dropped + dropped
                if not len(kept):
                    continue
                if writer is not None and number % _FILE_GROUPS == 0:
                    writer.close()
                    writer = None
                if writer is None:
                    file = self.folder / f"part-{number // _FILE_GROUPS:06d}.parquet"
                    writer = pa.parquet.ParquetWriter(file, kept.schema)
                writer.write_table(kept, row_group_size=max(1, len(kept)))
                number += 1
        finally:
            if writer is not None:
                writer.close()
        for name, found in levels.items():
            require_categories(name, [level for level in found if level is not None])
        if n_rows < 1:
            raise InputError(f"Expected at least 2 rows, got {n_rows}; pass more data.")
        return WrittenRows(self.folder, n_rows, n_dropped)

    def types(self) -> dict[str, pa.DataType]:
        """Return the types that suit all rows, found part by part."""
        found: dict[str, pa.DataType] = dict.fromkeys(self.wanted, pa.null())
        # As bytes, which anything is.
        for table in self._tables(dict.fromkeys(self.wanted, pa.binary()), checked=False):
            for name, kind in _types(inferred(table)):
                found[name] = _wider(found[name], kind)
        return found

    def _tables(self, types: dict[str, pa.DataType] | None, *, checked: bool = True) -> Iterator[pa.Table]:
        """Yield parts of the file as long as row groups; bytes are refused if ``checked``."""
        n_chunks = ceil(self.path.stat().st_size / CHUNK_BYTES)
        waiting: list[pa.RecordBatch] = []
        with (
            self.progress.stage("reading the file in parts", n_chunks) as advance,
            open_csv(self.path, self.wanted, self.delimiter, types) as reader,
        ):
            for name, kind in _types(reader) if checked else ():
                require_text(name, kind)
            for batch in reader:
                waiting.append(batch)
                if sum(map(len, waiting)) >= _GROUP_ROWS:
                    yield plain_text(pa.Table.from_batches(waiting))
                    waiting = []
                advance()
            if waiting:
                yield plain_text(pa.Table.from_batches(waiting))


def _types(table: pa.Table | pa.csv.CSVStreamingReader) -> Iterator[tuple[str, pa.DataType]]:
    for field in table.schema:
        kind = field.type
        yield field.name, kind.value_type if pa.types.is_dictionary(kind) else kind


def _wider(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Return the type that holds the cells of two parts."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    pair = {first, second}
    if pair == {pa.int64(), pa.float64()}:
        return pa.float64()
    # Bytes that are no text stay bytes, so that they are noticed.
    return pa.binary() if pa.binary() in pair else pa.string()
