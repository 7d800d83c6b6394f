"""Blocks of rows from Parquet: row groups in random order, gathered in a buffer and shuffled there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from dmliv.data import FloatArray, Table, TrainingData, read_outcome
from dmliv.first_stage.blocks import Block, sample_encoder
from dmliv.first_stage.features import ExogenousEncoder
from dmliv.first_stage.laws import ActionLaw, CategoricalLaw, MixtureLaw
from dmliv.nets.columns import Columns
from dmliv.nets.device import on_device
from dmliv.second_stage.base import StructuralModel, action_vectors
from dmliv.streaming.nuisances import NuisanceFiles
from dmliv.streaming.rows import ParquetRows, RowGroup, hashed_parts
from dmliv.streaming.scan import Scan


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
        What the first stage left; with it blocks have target and law.
    pilot : StructuralModel or None
        What is taken from every outcome.
    """

    rows: ParquetRows
    scan: Scan
    n_parts: int
    seed: int
    device: torch.device
    buffer_rows: int
    pass_rows: int | None = None
    nuisances: NuisanceFiles | None = None
    pilot: StructuralModel | None = None

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
        return outcome - self.pilot.predict(context, action_vectors(sample.action_spec, action))

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
        target, law = self.nuisances.read(group, self.device)
        return replace(block, target=target, law=law)

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

    return Block(
        columns([block.context for block in blocks]),
        columns([block.instrument for block in blocks]),
        torch.cat([block.outcome for block in blocks]),
        torch.cat([block.action for block in blocks]),
        torch.cat([block.part for block in blocks]),
        together([block.weight for block in blocks]),
        together([block.target for block in blocks]),
        _joined_laws([block.law for block in blocks if block.law is not None]),
    )


def _joined_laws(laws: list[ActionLaw]) -> ActionLaw | None:
    if mixtures := [law for law in laws if isinstance(law, MixtureLaw)]:
        return MixtureLaw(
            torch.cat([law.weights for law in mixtures]),
            torch.cat([law.means for law in mixtures]),
            torch.cat([law.factors for law in mixtures]),
        )
    classes = [law for law in laws if isinstance(law, CategoricalLaw)]
    return CategoricalLaw(torch.cat([law.probabilities for law in classes])) if classes else None
