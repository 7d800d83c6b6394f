"""Rows as blocks of single-precision tensors: a whole table in memory, or a part of one that streams."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from dmliv.data import TrainingData
from dmliv.first_stage.distributions import ActionDistribution
from dmliv.first_stage.exogenous import ExogenousEncoder
from dmliv.first_stage.nuisances import Exogenous, IntArray
from dmliv.nets.columns import Columns
from dmliv.nets.device import on_device
from dmliv.nets.settings import LARGE_ROWS

# The columns of a block are standardised, not binned.
_UNUSED_BINS = 2


@dataclass(frozen=True)
class Block:
    """Rows with everything that training may ask of them.

    Attributes
    ----------
    context, instrument : Columns
    outcome : Tensor, shape (n,)
    action : Tensor, shape (n, d), or (n,) with level codes
    part : Tensor of int, shape (n,)
        Which part of the data (a fold) a row belongs to.
    weight : Tensor, shape (n,), or None
        None when all rows weigh one.
    target : Tensor, shape (n,), or None
        What the first stage left for the second; None before.
    distribution : ActionDistribution or None
        The same.
    """

    context: Columns
    instrument: Columns
    outcome: Tensor
    action: Tensor
    part: Tensor
    weight: Tensor | None = None
    target: Tensor | None = None
    distribution: ActionDistribution | None = None

    @classmethod
    def of(cls, data: TrainingData, encoder: ExogenousEncoder, device: torch.device) -> Block:
        """Return training data as one block of one part, standardised as ``encoder`` does."""
        weight = None
        if not np.all(data.weight == 1.0):
            weight = on_device(data.weight.astype(np.float32), device)
        return cls(
            Columns.of(data.context, encoder.context, device),
            Columns.of(data.instrument, encoder.instrument, device),
            on_device(data.outcome.astype(np.float32), device),
            on_device(data.action.astype(np.float32), device),
            torch.zeros(len(data), dtype=torch.int64, device=device),
            weight,
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.outcome.shape[0]

    def take(self, rows: Tensor) -> Block:
        """Return the given rows, in the given order."""
        # Selecting is up to four times as fast as indexing.
        return Block(
            self.context.take(rows),
            self.instrument.take(rows),
            self.outcome.index_select(0, rows),
            self.action.index_select(0, rows),
            self.part.index_select(0, rows),
            None if self.weight is None else self.weight.index_select(0, rows),
            None if self.target is None else self.target.index_select(0, rows),
            None if self.distribution is None else self.distribution.take(rows),
        )


class BlockSource(Protocol):
    """Where blocks come from."""

    @property
    def n_rows(self) -> int:
        """Rows of one pass."""
        ...

    def blocks(self, generator: np.random.Generator) -> Iterator[Block]:
        """Yield blocks of a new pass; a source that streams draws their order from ``generator``."""
        ...


@dataclass(frozen=True)
class MemorySource:
    """All rows as one block."""

    block: Block

    @property
    def n_rows(self) -> int:
        """Rows of one pass."""
        return len(self.block)

    def blocks(self, generator: np.random.Generator) -> Iterator[Block]:
        """Yield the block."""
        del generator
        yield self.block

    def with_parts(self, parts: IntArray) -> MemorySource:
        """Return the same rows with other part numbers; columns are shared."""
        part = on_device(parts, self.block.part.device)
        return MemorySource(replace(self.block, part=part))


def batches(source: BlockSource, batch_size: int, generator: np.random.Generator) -> Iterator[Block]:
    """Yield the rows of one pass in shuffled batches; those of a block differ in size by at most one row."""
    for block in source.blocks(generator):
        order = on_device(generator.permutation(len(block)), block.outcome.device)
        for rows in torch.tensor_split(order, math.ceil(len(block) / batch_size)):
            yield block.take(rows)


def parts_of(row_sets: Sequence[IntArray], n_rows: int) -> tuple[IntArray, Tensor]:
    """Return the coarsest parts such that every row set is a union of parts.

    Parameters
    ----------
    row_sets : sequence of M index arrays
    n_rows : int

    Returns
    -------
    parts : ndarray of int, shape (n_rows,)
    uses : Tensor, shape (M, n_parts)
        One where a member learns from the rows of a part, else zero.
    """
    parts = np.zeros(n_rows, dtype=np.int64)
    for rows in row_sets:
        inside = np.zeros(n_rows, dtype=np.int64)
        inside[rows] = 1
        parts = np.unique(2 * parts + inside, return_inverse=True)[1]
    uses = torch.zeros(len(row_sets), int(parts.max()) + 1, dtype=torch.float32)
    for member, rows in enumerate(row_sets):
        uses[member, torch.from_numpy(np.unique(parts[rows]))] = 1.0
    return parts, uses


def member_weights(batch: Block, uses: Tensor) -> Tensor:
    """Return the weight of every row for every member, (M, B): zero where the member may not look."""
    used = uses.index_select(1, batch.part)
    return used if batch.weight is None else used * batch.weight


def weighted_means(losses: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean over the rows of a batch, (M,), zero for a member without rows in it."""
    return (losses * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(torch.finfo(torch.float32).tiny)


def sample_rows(n_rows: int, most: int) -> IntArray:
    """Return sorted rows that stand for all: every row if there are no more than ``most``."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(n_rows).permutation(n_rows)[:most])


def data_at(data: TrainingData, rows: IntArray) -> TrainingData:
    """Return some rows of training data, in units of the whole."""
    return replace(
        data,
        outcome=data.outcome[rows],
        action=data.action[rows],
        instrument=data.instrument.take(rows),
        context=data.context.take(rows),
        weight=data.weight[rows],
    )


def sample_encoder(sample: TrainingData, n_bins: int) -> ExogenousEncoder:
    """Learn the encodings of both nuisances on rows that stand for all."""
    exogenous = Exogenous(sample.context, sample.instrument)
    return ExogenousEncoder.learn(exogenous, sample.context_schema, sample.instrument_schema, n_bins)


# Tables that are being fitted, so that both nuisances and h share one copy of the columns.
_RESIDENT: WeakKeyDictionary[TrainingData, MemorySource] = WeakKeyDictionary()
_RESIDENT_LOCK = Lock()


def resident(data: TrainingData, device: torch.device) -> MemorySource:
    """Return all rows of training data as one block; the same block as long as the data live."""
    with _RESIDENT_LOCK:
        source = _RESIDENT.get(data)
        if source is None or source.block.outcome.device != device:
            units = sample_encoder(data_at(data, sample_rows(len(data), LARGE_ROWS)), _UNUSED_BINS)
            source = _RESIDENT[data] = MemorySource(Block.of(data, units, device))
    return source
