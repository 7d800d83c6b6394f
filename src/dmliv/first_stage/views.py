"""What a stack of first-stage networks sees when all rows are encoded beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dmliv.first_stage.exogenous import ExogenousEncoder
from dmliv.first_stage.nuisances import Exogenous, FloatArray, IntArray
from dmliv.nets.device import on_device
from dmliv.nets.heads import Head
from dmliv.nets.stacked import StackedMLP

# Rows that are encoded at a time.
_CHUNK_ROWS = 1 << 12


@dataclass(frozen=True)
class EncodedViews:
    """Rows in several encodings, one below the other, so that members with different encodings share a stack.

    Attributes
    ----------
    inputs : Tensor, shape (V * n, width)
        Narrow encodings are filled with zero columns.
    pixels : Tensor, shape (n, n_pixels), or None
        The same for all encodings.
    view : tuple of int, length M
        Which block of n rows a member reads.
    n_rows : int
    """

    inputs: Tensor
    pixels: Tensor | None
    view: tuple[int, ...]
    n_rows: int

    @classmethod
    def of(
        cls, encoder: ExogenousEncoder, exogenous: Exogenous, encodings: Sequence[str], device: torch.device
    ) -> EncodedViews:
        """Encode all rows once per encoding."""
        used, n_rows = list(dict.fromkeys(encodings)), len(exogenous)
        # Images are encoded as a whole; other rows a few at a time, because they are twice as large before
        # they become single precision.
        step = max(1, n_rows) if encoder.context.image is not None else _CHUNK_ROWS
        starts = range(0, max(1, n_rows), step)
        first = [encoder.encode(_rows(exogenous, 0, step), name) for name in used]
        width = max(block.shape[1] for block in first)
        filled = np.zeros((len(used) * n_rows, width), dtype=np.float32)
        for view, (name, block) in enumerate(zip(used, first, strict=True)):
            for start in starts:
                part = encoder.encode(_rows(exogenous, start, step), name) if start else block
                offset = view * n_rows + start
                filled[offset : offset + len(part), : part.shape[1]] = part
        inputs = on_device(filled, device)
        pixels = encoder.context.pixels(exogenous.context)
        return cls(
            inputs,
            None if pixels is None else on_device(pixels, device),
            tuple(used.index(name) for name in encodings),
            len(exogenous),
        )

    def shift(self, row_sets: Sequence[IntArray]) -> list[IntArray]:
        """Return each member's rows as positions in its own block."""
        return [rows + view * self.n_rows for rows, view in zip(row_sets, self.view, strict=True)]

    def at(self, rows: Tensor) -> Tensor:
        """Return inputs (M, B, width + n_pixels) at shifted rows (M, B)."""
        dense = self.inputs[rows]
        if self.pixels is None:
            return dense
        return torch.cat([dense, self.pixels[rows % self.n_rows]], dim=-1)


@dataclass(frozen=True)
class Supervised:
    """Objective of a network on fixed inputs and targets."""

    net: StackedMLP
    head: Head
    views: EncodedViews
    target: Tensor

    def row_loss(self, rows: Tensor, *, training: bool) -> Tensor:
        """Return one loss per member and row, shape (M, B)."""
        del training
        # Targets are the same in every block of rows.
        return self.head.row_loss(self.net(self.views.at(rows)), self.target[rows % self.views.n_rows])


def _rows(exogenous: Exogenous, start: int, n_rows: int) -> Exogenous:
    rows = np.arange(start, min(start + n_rows, len(exogenous)))
    return Exogenous(exogenous.context.take(rows), exogenous.instrument.take(rows))


def row_weights(weight: FloatArray, copies: int, device: torch.device) -> Tensor | None:
    """Return row weights once per encoding, or None when all weigh one."""
    if np.all(weight == 1.0):
        return None
    return on_device(np.tile(weight, copies).astype(np.float32), device)
