"""One pass over all rows before anything is learned: every value is checked, and a sample is taken."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from dmliv.data import ActionKind, IntArray, TrainingData, prepare, read_weight
from dmliv.errors import InputError
from dmliv.first_stage.base import Runtime
from dmliv.nets.settings import LARGE_ROWS
from dmliv.progress import BarProgress
from dmliv.schema import Source
from dmliv.streaming.rows import ParquetRows, RowGroup, hashed

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
    rows: ParquetRows, most_rows: int, action_kind: ActionKind, *, min_rows: int, seed: int, runtime: Runtime
) -> Scan:
    """Check every value and take about ``most_rows`` rows by the hash of their numbers."""
    n_rows = rows.n_rows
    share = min(1.0, most_rows / n_rows)
    limit = np.uint64(min(share * 2.0**64, 2.0**64 - 2048))
    known: dict[str, set[object]] = {}
    tables, ids, total_weight = [], [], 0.0
    with runtime.progress.stage("reading rows", len(rows.groups)) as advance:
        for group in rows.groups:
            table = rows.read(group)
            _check(rows, table, group)
            keep = np.ones(group.n_rows, dtype=bool)
            if share < 1.0:
                keep = hashed(group.row_ids, seed) < limit
            keep[_first_of_each_level(rows, table, known, action_kind)] = True
            tables.append(_plain_text(table.filter(pa.array(keep))))
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


def sample_of(rows: ParquetRows, action_kind: ActionKind, seed: int) -> TrainingData:
    """Return rows that stand for all, with progress shown: what a person looks at before a fit."""
    runtime = Runtime(torch.device("cpu"), BarProgress(), 1)
    return scan(rows, LARGE_ROWS, action_kind, min_rows=2, seed=seed, runtime=runtime).sample


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
            plain = _plain(column)
            for value in pc.unique(plain).to_pylist():
                if value not in seen:
                    seen.add(value)
                    found.append(pc.index(plain, value).as_py())
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


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _plain_text(table: pa.Table) -> pa.Table:
    # Dictionaries of different row groups differ; plain text can be joined.
    return pa.table({name: _plain(table.column(name)) for name in table.column_names})
