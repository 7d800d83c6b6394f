"""Tables in files: the columns that are needed of a CSV or Parquet file in, results out.

Numbers are read as numbers and text as categories, each distinct text held once. Only the columns that are
asked for are read, so that wide files cost what is used of them.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from dmliv.errors import InputError, listed, unknown_columns

Format = Literal["CSV", "Parquet"]

_FORMATS: dict[str, Format] = {
    ".csv": "CSV",
    ".tsv": "CSV",
    ".txt": "CSV",
    ".parquet": "Parquet",
    ".pq": "Parquet",
}
_PARQUET_MARK = b"PAR1"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_DELIMITERS = (";", "\t", "|", ",")
_LONGEST_QUOTE = 200
#: What is read of a CSV file at a time.
CHUNK_BYTES = 1 << 20
# A column of text with more different numbers than this is a column of numbers that went wrong.
_MOST_NUMERIC_LEVELS = 20


def file_format(path: Path) -> Format:
    """Return the format that the name of a file says."""
    found = _FORMATS.get(path.suffix.lower())
    if found is None:
        raise InputError(
            f"Expected a file name that ends in {listed(_FORMATS)}, got {str(path)!r}; convert or rename it."
        )
    return found


def column_names(path: Path, delimiter: str | None = None) -> list[str]:
    """Return the names of a file's columns, all different.

    Raises
    ------
    InputError
        If the file cannot be read, or two columns have one name.
    """
    kind = _checked_format(path)
    try:
        if kind == "Parquet":
            names = list(pa.parquet.read_schema(path).names)
        else:
            reading = pa.csv.ReadOptions(use_threads=False)
            with pa.csv.open_csv(path, reading, _parsing(path, delimiter)) as reader:
                names = list(reader.schema.names)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(path, kind, error) from error
    repeated = (
        sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    )
    if repeated:
        raise InputError(
            f"Expected different names for all columns of {str(path)!r}, got {listed(repeated)} twice; "
            "rename them."
        )
    return names


def read_columns(
    path: Path,
    roles: Mapping[str, Sequence[str]],
    *,
    delimiter: str | None = None,
    available: Sequence[str] | None = None,
) -> pa.Table:
    """Read the columns of some roles.

    Parameters
    ----------
    path : Path
        A CSV file (``.csv``, ``.tsv``, ``.txt``, UTF-8) or a Parquet file (``.parquet``, ``.pq``).
    roles : mapping of str to sequence of str
        Names of columns by the role they play; roles are for messages.
    delimiter : str, optional
        Between the columns of a CSV file; by default a comma, or a tab for ``.tsv``.
    available : sequence of str, optional
        What ``column_names`` returned, if it was called: a look at the file that need not be taken again.

    Returns
    -------
    pyarrow.Table
        Text as dictionaries, everything else as it is.

    Raises
    ------
    InputError
        If the file cannot be read or lacks columns; the message offers names that are alike.
    """
    wanted = wanted_columns(path, roles, delimiter, available)
    kind = file_format(path)
    try:
        if kind == "Parquet":
            table = pa.parquet.read_table(path, columns=wanted)
        else:
            table = _read_csv(path, wanted, delimiter)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(path, kind, error) from error
    return pa.table({name: _as_category(name, table.column(name)) for name in wanted})


def wanted_columns(
    path: Path,
    roles: Mapping[str, Sequence[str]],
    delimiter: str | None = None,
    available: Sequence[str] | None = None,
) -> list[str]:
    """Return the columns of all roles, each once, after a look at the file's own unless they are known.

    Raises
    ------
    InputError
        If the file cannot be read or lacks columns; the message offers names that are alike.
    """
    if available is None:
        available = column_names(path, delimiter)
    for role, names in roles.items():
        unknown = [name for name in names if name not in available]
        if unknown:
            raise _separated_otherwise(path, available, delimiter) or unknown_columns(
                role, unknown, available
            )
    return list(dict.fromkeys(name for names in roles.values() for name in names))


def drop_missing(table: pa.Table) -> tuple[pa.Table, int]:
    """Return the rows without missing values, and how many were dropped."""
    keep = np.ones(len(table), dtype=bool)
    for column in table.columns:
        keep &= np.asarray(pc.is_valid(column))
        if pa.types.is_floating(column.type):
            keep &= ~np.asarray(pc.fill_null(pc.is_nan(column), True))
    dropped = int((~keep).sum())
    return (table.filter(pa.array(keep)) if dropped else table), dropped


def write_columns(path: Path, columns: Mapping[str, npt.NDArray[Any] | pa.ChunkedArray]) -> None:
    """Write columns to a CSV or Parquet file, as its name says; as a whole or not at all."""
    kind, buffer = file_format(path), io.BytesIO()
    table = pa.table(dict(columns))
    if kind == "Parquet":
        pa.parquet.write_table(table, buffer)
    else:
        options = pa.csv.WriteOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        pa.csv.write_csv(plain_text(table), buffer, options)
    try:
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"Expected a place to write results, got {str(path)!r}: {reason}; choose another path."
        ) from error


def _parsing(path: Path, delimiter: str | None) -> pa.csv.ParseOptions:
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    if delimiter is not None and len(delimiter) != 1:
        raise InputError(f"Expected one character between columns, got {delimiter!r}; pass ',' or ';', say.")
    return pa.csv.ParseOptions(delimiter=delimiter or usual, newlines_in_values=True)


def open_csv(
    path: Path, wanted: list[str], delimiter: str | None, types: Mapping[str, pa.DataType] | None = None
) -> pa.csv.CSVStreamingReader:
    """Open a CSV file to read it part by part, with given types or those of the first part."""
    conversion = _conversion(wanted)
    conversion.column_types = dict(types or {})
    reading = pa.csv.ReadOptions(use_threads=False, block_size=CHUNK_BYTES)
    return pa.csv.open_csv(path, reading, _parsing(path, delimiter), conversion)


def inferred(table: pa.Table) -> pa.Table:
    """Return a table of texts as if it had been read from a CSV file, each column with a type of its own."""
    buffer = io.BytesIO()
    pa.csv.write_csv(table, buffer)
    buffer.seek(0)
    parsing = pa.csv.ParseOptions(newlines_in_values=True)
    return pa.csv.read_csv(buffer, parse_options=parsing, convert_options=_conversion(table.column_names))


def _conversion(wanted: list[str]) -> pa.csv.ConvertOptions:
    return pa.csv.ConvertOptions(
        include_columns=wanted,
        # Each different text is held once, however many there are.
        auto_dict_encode=True,
        auto_dict_max_cardinality=np.iinfo(np.int32).max,
        # An empty cell is missing, also among texts; a quoted "NA" is a text.
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _read_csv(path: Path, wanted: list[str], delimiter: str | None) -> pa.Table:
    if path.stat().st_size > CHUNK_BYTES:
        # Part by part, with the types of the first part: the text of the file is never in memory as a whole.
        # If they suit all parts they are the types that the whole file has.
        with suppress(pa.ArrowInvalid), open_csv(path, wanted, delimiter) as reader:
            return pa.Table.from_batches(reader, reader.schema)
    return pa.csv.read_csv(path, parse_options=_parsing(path, delimiter), convert_options=_conversion(wanted))


def _as_category(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return text as a dictionary, unless it is numbers with something else among them."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.dictionary_encode()
    if not pa.types.is_dictionary(column.type):
        return column
    column = column.unify_dictionaries()
    if column.num_chunks == 0:
        return column
    levels = column.chunk(0).dictionary
    require_text(name, levels.type)
    if pa.types.is_string(levels.type) or pa.types.is_large_string(levels.type):
        require_categories(name, levels.to_pylist())
    return column


def require_text(name: str, kind: pa.DataType) -> None:
    """Refuse text that is no UTF-8, which the reader keeps as bytes."""
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise InputError(
            f"Expected text in UTF-8 in column {name!r}, got other bytes; save the file in UTF-8."
        )


def require_categories(name: str, levels: Sequence[str | None]) -> None:
    """Refuse the different texts of a column if they are numbers with something else among them."""
    numeric = np.array([_is_number(level) for level in levels], dtype=bool)
    if int(numeric.sum()) > max(_MOST_NUMERIC_LEVELS, len(numeric) // 2) and not numeric.all():
        first = levels[int(np.argmin(numeric))] or ""
        raise InputError(
            f"Expected one type in column {name!r}, got {int(numeric.sum())} different numbers and also text "
            f"such as {_quoted(first)}; correct these cells, or leave them empty if they are missing."
        )


def _is_number(text: str | None) -> bool:
    try:
        float(text or "")
    except ValueError:
        return False
    return True


def plain_text(table: pa.Table) -> pa.Table:
    """Return a table with text in place of dictionaries, which differ from part to part."""
    return pa.table({name: plain(table.column(name)) for name in table.column_names})


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with text in place of a dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _checked_format(path: Path) -> Format:
    """Return the format after a look at the first bytes."""
    kind = file_format(path)
    if path.is_dir():
        raise InputError(f"Expected a {kind} file, got the folder {str(path)!r}; name a file in it.")
    try:
        with path.open("rb") as stream:
            start = stream.read(4096)
    except OSError as error:
        raise unreadable(path, kind, error) from error
    if not start.strip():
        raise InputError(f"Expected a {kind} file with a header, got the empty file {str(path)!r}.")
    is_parquet = start[:4] == _PARQUET_MARK
    if is_parquet != (kind == "Parquet"):
        got = "a Parquet file" if is_parquet else "something else"
        ending = ".parquet" if is_parquet else ".csv if it is text"
        raise InputError(f"Expected a {kind} file, got {got}, {str(path)!r}; rename it to end in {ending}.")
    if kind == "CSV" and (start[:2] in _UTF16_MARKS or b"\0" in start):
        what = "UTF-16" if start[:2] in _UTF16_MARKS else "bytes that are no text"
        raise InputError(f"Expected text in UTF-8, got {what} in {str(path)!r}; save it as CSV in UTF-8.")
    if kind == "CSV" and _count_quotes(path) % 2:
        # The reader would take everything up to the next mark, or the end, for one cell.
        raise InputError(
            f"Expected quotation marks in pairs in {str(path)!r}, got an odd number; close the one that is "
            "open, or remove it."
        )
    return kind


def _count_quotes(path: Path) -> int:
    with path.open("rb") as stream:
        return sum(part.count(b'"') for part in iter(lambda: stream.read(CHUNK_BYTES), b""))


def _separated_otherwise(path: Path, names: Iterable[str], delimiter: str | None) -> InputError | None:
    """Return the error for a file whose only column looks like several."""
    only = list(names)
    if len(only) != 1 or file_format(path) != "CSV":
        return None
    used = _parsing(path, delimiter).delimiter
    likely = next((each for each in _DELIMITERS if each in only[0] and each != used), None)
    if likely is None:
        return None
    return InputError(
        f"Expected columns separated by {used!r} in {str(path)!r}, got the one column {_quoted(only[0])}; "
        f"pass --delimiter {likely!r}."
    )


def unreadable(path: Path, kind: Format, error: Exception) -> InputError:
    """Return the error for a file that the reader of its format gave up."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"Expected a {kind} file, got no file at {str(path)!r}; check the path.")
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return InputError(
        f"Expected a readable {kind} file, got {str(path)!r}: {reason[:_LONGEST_QUOTE].rstrip('.')}; repair "
        "it or export it again."
    )


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "...")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file next to its place and then move it there; an old file stays until that moment.

    Raises
    ------
    OSError
        If the file cannot be written. Nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # Makes the new name durable; where a system cannot do that for folders, the content still is.
    with suppress(OSError):
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
