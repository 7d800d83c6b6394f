"""Columns held once in single precision, and encoded a batch at a time.

An encoding can be twenty times as wide as the columns it is made of. Of a large table only the columns stay
in memory; what networks see is made from them whenever a batch is drawn, which costs about as much as
fetching the wide rows would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dmliv.data import Table
from dmliv.nets.device import on_device
from dmliv.nets.encoding import PiecewiseLinear, TableEncoder


@dataclass(frozen=True)
class Columns:
    """Rows of a table in single precision.

    Attributes
    ----------
    numeric : Tensor, shape (n, n_numeric)
        Standardised.
    codes : Tensor of int32, shape (n, n_categorical)
    """

    numeric: Tensor
    codes: Tensor

    @classmethod
    def of(cls, table: Table, encoder: TableEncoder, device: torch.device) -> Columns:
        """Standardise a table as ``encoder`` does; column by column, so that no wide copy is made."""
        numeric = np.empty((len(table), len(encoder.plain)), dtype=np.float32)
        for position, column in enumerate(encoder.plain):
            numeric[:, position] = (table.numeric[:, column] - encoder.centre[position]) / encoder.scale[
                position
            ]
        return cls(on_device(numeric, device), on_device(table.codes.astype(np.int32), device))

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.numeric.shape[0]

    def take(self, rows: Tensor) -> Columns:
        """Return the given rows, in the given order."""
        return Columns(self.numeric.index_select(0, rows), self.codes.index_select(0, rows))


class ColumnEncoder:
    """Makes the encodings of a :class:`~dmliv.nets.encoding.TableEncoder` from :class:`Columns`.

    Parameters
    ----------
    encoder : TableEncoder
        Without images.
    device : torch.device
    """

    def __init__(self, encoder: TableEncoder, device: torch.device) -> None:
        if encoder.image is not None:
            raise ValueError("Expected columns without pixels; encode images as a whole.")
        # Knots move to standardised units, in which the columns are.
        self._knots = [
            PiecewiseLinear((encoding.knots - centre) / scale, encoding.by_value)
            for encoding, centre, scale in zip(encoder.piecewise, encoder.centre, encoder.scale, strict=True)
        ]
        self._all_bins = _Bins(self._knots, device)
        self._own_bins = [_Bins([knots], device) for knots in self._knots]
        self._n_levels = encoder.n_levels
        self._centre = torch.as_tensor(encoder.centre, dtype=torch.float32, device=device)
        self._scale = torch.as_tensor(encoder.scale, dtype=torch.float32, device=device)

    def no_rows(self) -> Columns:
        """Return columns without rows: what is made of them tells the width of an encoding."""
        numeric = torch.empty((0, len(self._knots)), dtype=torch.float32, device=self._scale.device)
        codes = torch.empty((0, len(self._n_levels)), dtype=torch.int32, device=self._scale.device)
        return Columns(numeric, codes)

    def raw(self, columns: Columns) -> Tensor:
        """Return numeric columns as they were and one-hot categories, shape (n, width)."""
        return torch.cat([columns.numeric * self._scale + self._centre, *self._rest(columns)], dim=1)

    def standardised(self, columns: Columns) -> Tensor:
        """Return standardised numeric columns and one-hot categories, shape (n, width)."""
        return torch.cat([columns.numeric, *self._rest(columns)], dim=1)

    def piecewise_linear(self, columns: Columns) -> Tensor:
        """Return piecewise-linear numeric columns and one-hot categories, shape (n, width)."""
        return torch.cat([self._all_bins.encode(columns.numeric), *self._rest(columns)], dim=1)

    def levels(self, columns: Columns) -> Tensor:
        """Return few-valued columns level by level and the other numeric ones standardised, (n, width)."""
        parts = [
            bins.encode(column) if knots.by_value else column
            for bins, knots, column in zip(
                self._own_bins, self._knots, torch.split(columns.numeric, 1, dim=1), strict=True
            )
        ]
        return torch.cat([columns.numeric[:, :0], *parts, *self._rest(columns)], dim=1)

    def _rest(self, columns: Columns) -> list[Tensor]:
        return [
            one_hot(codes.long(), levels).to(torch.float32)
            for codes, levels in zip(columns.codes.unbind(1), self._n_levels, strict=True)
        ]


class _Bins:
    """Piecewise-linear features of several columns in three passes over the result."""

    def __init__(self, encodings: Sequence[PiecewiseLinear], device: torch.device) -> None:
        column, slope, offset, low, high = [], [], [], [], []
        for position, encoding in enumerate(encodings):
            inside_low, inside_high = np.zeros(encoding.width), np.ones(encoding.width)
            inside_low[0], inside_high[-1] = -np.inf, np.inf
            step = np.diff(encoding.knots)
            column.append(np.full(encoding.width, position))
            slope.append(1.0 / step)
            offset.append(-encoding.knots[:-1] / step)
            low.append(inside_low)
            high.append(inside_high)
        whole = [np.concatenate([np.empty(0), *parts]) for parts in (slope, offset, low, high)]
        self._column = torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int64), *column])).to(device)
        self._slope, self._offset, self._low, self._high = (
            torch.as_tensor(part, dtype=torch.float32, device=device) for part in whole
        )

    def encode(self, numeric: Tensor) -> Tensor:
        """Encode (n, columns) to (n, total width)."""
        spread = numeric.index_select(1, self._column)
        spread.mul_(self._slope).add_(self._offset)
        return torch.clamp(spread, self._low, self._high)
