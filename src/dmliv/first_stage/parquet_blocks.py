"""Blocks of rows from Parquet: row groups in random order, gathered in a buffer and shuffled there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import torch
from torch import Tensor

from dmliv.data import FloatArray, Table, TrainingData, read_outcome
from dmliv.data.parquet import ParquetRows, RowGroup, Scan, hashed_parts
from dmliv.data.savable import saving_of
from dmliv.errors import InputError
from dmliv.first_stage.blocks import Block, sample_encoder
from dmliv.first_stage.distributions import ActionDistribution, concatenated
from dmliv.first_stage.exogenous import ExogenousEncoder
from dmliv.nets.columns import Columns
from dmliv.nets.device import on_device

# Key of the schema's metadata that says which action distribution a file holds.
_DISTRIBUTION = b"distribution"


@dataclass(frozen=True, eq=False)
class ParquetSource:
    """Rows of a folder as blocks.

    Attributes
    ----------
    rows : ParquetRows
    scan : Scan
    n_parts : int
        Parts of the data, by the hash of row numbers.
    seed : int
        Of that hash.
    device : torch.device
    buffer_rows : int
        Rows that are held and shuffled together, about.
    pass_rows : int or None
        Rows of one pass; other row groups are read in each. None reads all of them.
    nuisances : NuisanceFiles or None
        What the first stage left; with it blocks have target and distribution.
    pilot : callable or None
        Of contexts and actions (n, d): what is taken from every outcome.
    """

    rows: ParquetRows
    scan: Scan
    n_parts: int
    seed: int
    device: torch.device
    buffer_rows: int
    pass_rows: int | None = None
    nuisances: NuisanceFiles | None = None
    pilot: Callable[[Table, FloatArray], FloatArray] | None = None

    @property
    def n_rows(self) -> int:
        """Rows of one pass."""
        return self.rows.n_rows if self.pass_rows is None else min(self.pass_rows, self.rows.n_rows)

    def blocks(self, generator: np.random.Generator) -> Iterator[Block]:
        """Yield blocks of row groups in random order."""
        waiting: list[Block] = []
        held, left = 0, self.n_rows
        for position in generator.permutation(len(self.rows.groups)):
            group = self.rows.groups[position]
            waiting.append(self.block(group))
            held += group.n_rows
            left -= group.n_rows
            if held >= self.buffer_rows or left <= 0:
                yield joined(waiting)
                waiting, held = [], 0
            if left <= 0:
                return

    def tables(self, group: RowGroup) -> tuple[Table, Table, pa.Table]:
        """Return context and instrument of a row group as the models read them, and all it holds."""
        table, sample = self.rows.read(group), self.scan.sample
        return (
            sample.context_schema.read(self.rows.part(table, "context"), group.n_rows),
            sample.instrument_schema.read(self.rows.part(table, "instrument"), group.n_rows),
            table,
        )

    def parts(self, group: RowGroup) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the part of each row, shape (n,)."""
        return hashed_parts(group.row_ids, self.n_parts, self.seed)

    def outcome(self, context: Table, table: pa.Table) -> FloatArray:
        """Return the outcomes of a row group in model units, or what the pilot leaves of them, shape (n,)."""
        sample = self.scan.sample
        outcome = sample.outcome_spec.to_model(read_outcome(table.column(self.rows.outcome).to_numpy()))
        if self.pilot is None:
            return outcome
        action = sample.action_spec.read(self.rows.part(table, "action"))
        return outcome - self.pilot(context, sample.action_spec.vectors(action))

    def block(self, group: RowGroup) -> Block:
        """Return one row group."""
        context, instrument, table = self.tables(group)
        sample, weight = self.scan.sample, None
        outcome = self.outcome(context, table)
        action = sample.action_spec.read(self.rows.part(table, "action"))
        if self.rows.weight is not None:
            values = table.column(self.rows.weight).to_numpy() / self.scan.mean_weight
            weight = self._tensor(values)
        block = Block(
            Columns.of(context, self._units.context, self.device),
            Columns.of(instrument, self._units.instrument, self.device),
            self._tensor(outcome),
            self._tensor(action),
            on_device(self.parts(group), self.device),
            weight,
        )
        if self.nuisances is None:
            return block
        target, distribution = self.nuisances.read(group, self.device)
        return replace(block, target=target, distribution=distribution)

    @cached_property
    def _units(self) -> ExogenousEncoder:
        return units_of(self.scan.sample)

    def _tensor(self, values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
        return on_device(values.astype(np.float32), self.device)


def units_of(sample: TrainingData) -> ExogenousEncoder:
    """Return what standardises columns; bins are of no concern here."""
    return sample_encoder(sample, 2)


def joined(blocks: list[Block]) -> Block:
    """Return several blocks as one."""
    if len(blocks) == 1:
        return blocks[0]

    def together(parts: list[Tensor | None]) -> Tensor | None:
        present = [part for part in parts if part is not None]
        return torch.cat(present) if present else None

    def columns(parts: list[Columns]) -> Columns:
        return Columns(torch.cat([part.numeric for part in parts]), torch.cat([part.codes for part in parts]))

    distributions = [block.distribution for block in blocks if block.distribution is not None]
    return Block(
        columns([block.context for block in blocks]),
        columns([block.instrument for block in blocks]),
        torch.cat([block.outcome for block in blocks]),
        torch.cat([block.action for block in blocks]),
        torch.cat([block.part for block in blocks]),
        together([block.weight for block in blocks]),
        together([block.target for block in blocks]),
        concatenated(distributions) if distributions else None,
    )


@dataclass(frozen=True)
class Prediction:
    """What the nuisances say about the rows of one row group.

    Attributes
    ----------
    fold : ndarray of int, shape (n,)
    target : ndarray, shape (n,)
        In standardised units.
    distribution : ActionDistribution
    """

    fold: npt.NDArray[np.int64]
    target: npt.NDArray[np.float32]
    distribution: ActionDistribution


@dataclass(frozen=True)
class NuisanceFiles:
    """A folder with one file of predictions per file of rows, of the same name and with the same row groups.

    Columns are ``fold``, ``target`` (the outcome model, standardised) and those of the distribution of the
    action, such as ``distribution_weights``; each of these holds a list of numbers per row. The metadata of
    the schema say which distribution it is, and the shapes of its tensors.

    Attributes
    ----------
    folder : Path
    """

    folder: Path

    def write(self, predictions: Iterable[tuple[RowGroup, Prediction]]) -> None:
        """Write predictions of all row groups, which come in order; a file appears when it is complete."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path, part in groupby(predictions, key=lambda pair: pair[0].path):
            unfinished = self.folder / f".{path.name}.unfinished"
            writer, written = None, 0
            try:
                for group, prediction in part:
                    table = _as_table(prediction)
                    writer = writer or pa.parquet.ParquetWriter(unfinished, table.schema)
                    # Row groups without rows are not read, but they count.
                    while written < group.number:
                        writer.write_table(table.slice(0, 0), row_group_size=1)
                        written += 1
                    writer.write_table(table, row_group_size=len(table))
                    written += 1
            finally:
                if writer is not None:
                    writer.close()
            unfinished.replace(self.folder / path.name)

    def read(self, group: RowGroup, device: torch.device) -> tuple[Tensor, ActionDistribution]:
        """Return target (n,) and distribution of one row group."""
        path = self.folder / group.path.name
        try:
            with pa.parquet.ParquetFile(path) as file:
                table = file.read_row_group(group.number, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"Expected predictions of the first stage in {str(path)!r}, got: "
                f"{str(error).splitlines()[0]}; fit again."
            ) from error
        if len(table) != group.n_rows:
            raise InputError(
                f"Expected {group.n_rows} predictions in row group {group.number} of {str(path)!r}, got "
                f"{len(table)}; the files have changed since, so fit again."
            )
        target = on_device(table.column("target").to_numpy().copy(), device)
        described = json.loads(table.schema.metadata[_DISTRIBUTION])
        saving = saving_of(described["class"])
        if saving is None:
            raise TypeError(f"Expected a savable action distribution, got {described['class']}.")
        columns = {
            name: _tensor(table, f"distribution_{name}", shape, device)
            for name, shape in described["shapes"].items()
        }
        distribution: ActionDistribution = saving.cls.from_columns(columns)
        return target, distribution


def _as_table(prediction: Prediction) -> pa.Table:
    columns = {"fold": pa.array(prediction.fold.astype(np.int16)), "target": pa.array(prediction.target)}
    parts = prediction.distribution.columns()
    columns |= {f"distribution_{name}": _lists(values) for name, values in parts.items()}
    described = {
        "class": type(prediction.distribution).__name__,
        "shapes": {name: list(values.shape[1:]) for name, values in parts.items()},
    }
    return pa.table(columns).replace_schema_metadata({_DISTRIBUTION: json.dumps(described)})


def _lists(values: Tensor) -> pa.FixedSizeListArray:
    flat = values.detach().cpu().reshape(len(values), -1).numpy()
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])


def _tensor(table: pa.Table, name: str, shape: list[int], device: torch.device) -> Tensor:
    flat = table.column(name).combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return on_device(flat.reshape(len(table), *shape).copy(), device)
