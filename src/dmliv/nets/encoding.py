"""How columns become network inputs: standardised, piecewise linear on quantile bins, one-hot, products.

Which encoding is best depends on the table, so an encoder learns the numbers of *all* encodings once, and the
models choose among them by held-out loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dmliv.data import IntArray, Table, TableSchema
from dmliv.data.savable import savable
from dmliv.nets.images import ImageColumns, ImageEncoder

FloatArray = npt.NDArray[np.float64]

# A numeric column with at most this many distinct values gets one knot per value, not per quantile.
_FEW_VALUES = 12


@savable
@dataclass(frozen=True)
class PiecewiseLinear:
    """Piecewise-linear encoding of one numeric column.

    Feature t runs from 0 to 1 across bin t and is constant outside it; the first and the last feature go on
    linearly beyond the end knots, so that a network can still extrapolate.

    Parameters
    ----------
    knots : ndarray, shape (n_bins + 1,)
        Strictly increasing bin edges.
    by_value : bool
        Whether every distinct training value is a knot.
    """

    knots: FloatArray
    by_value: bool

    @classmethod
    def learn(cls, values: FloatArray, n_bins: int) -> PiecewiseLinear:
        """Put knots at quantiles of ``values`` (n,), or at the values themselves when they are few."""
        distinct = np.unique(values)
        by_value = distinct.size <= _FEW_VALUES
        if not by_value:
            distinct = np.unique(np.quantile(values, np.linspace(0.0, 1.0, n_bins + 1)))
        if distinct.size == 1:
            distinct = np.array([distinct[0], distinct[0] + 1.0])
        return cls(distinct, by_value)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.knots) - 1

    def encode(self, values: FloatArray) -> FloatArray:
        """Encode ``values`` (n,) to (n, width)."""
        position = (values[:, None] - self.knots[:-1]) / np.diff(self.knots)
        low = np.zeros(self.width)
        high = np.ones(self.width)
        low[0], high[-1] = -np.inf, np.inf
        return np.clip(position, low, high, out=position)


class PiecewiseLinearTensor:
    """The same encoding for tensors whose last axis holds the columns: for actions drawn in training."""

    def __init__(self, encodings: list[PiecewiseLinear], device: torch.device) -> None:
        self._columns = []
        for encoding in encodings:
            low = np.zeros(encoding.width)
            high = np.ones(encoding.width)
            low[0], high[-1] = -np.inf, np.inf
            self._columns.append(
                tuple(
                    torch.as_tensor(part, dtype=torch.float32, device=device)
                    for part in (encoding.knots[:-1], np.diff(encoding.knots), low, high)
                )
            )

    def encode(self, values: Tensor) -> Tensor:
        """Encode (..., d) to (..., total width)."""
        parts = [
            torch.clamp((values[..., index : index + 1] - start) / step, low, high)
            for index, (start, step, low, high) in enumerate(self._columns)
        ]
        return torch.cat(parts, dim=-1)


@savable
@dataclass(frozen=True)
class TableEncoder:
    """Encodings of one table, learned on the training rows.

    Pixels are left out of the encodings of numeric columns. They come back as fixed image features at the end
    of every encoding, or as :meth:`pixels` for networks with convolutions.

    Attributes
    ----------
    centre, scale : ndarray, shape (n_plain,)
        Mean and standard deviation of the numeric columns that are no pixels.
    piecewise : tuple of PiecewiseLinear
        One per such column.
    n_levels : tuple of int
        Levels of the categorical columns.
    plain : ndarray of int, shape (n_plain,)
        Positions of these columns among the numeric ones.
    image : ImageEncoder or None
    """

    centre: FloatArray
    scale: FloatArray
    piecewise: tuple[PiecewiseLinear, ...]
    n_levels: tuple[int, ...]
    plain: IntArray
    image: ImageEncoder | None = None

    @classmethod
    def learn(
        cls,
        table: Table,
        n_levels: tuple[int, ...],
        n_bins: int,
        image: ImageColumns | None = None,
        schema: TableSchema | None = None,
    ) -> TableEncoder:
        """Learn centres, scales, knots and image features from training rows.

        ``schema`` is needed to find the columns of an ``image``.
        """
        plain, encoder = np.arange(table.numeric.shape[1]), None
        if image is not None and schema is not None:
            encoder = ImageEncoder.learn(table, image, schema)
            plain = np.setdiff1d(plain, encoder.positions)
        columns = table.numeric[:, plain]
        # Rounding can leave a constant column a tiny standard deviation; dividing by it would blow it up.
        constant = np.all(columns == columns[:1], axis=0)
        return cls(
            centre=columns.mean(axis=0),
            scale=np.where(constant, 1.0, columns.std(axis=0)),
            piecewise=tuple(PiecewiseLinear.learn(column, n_bins) for column in columns.T),
            n_levels=n_levels,
            plain=plain,
            image=encoder,
        )

    @property
    def n_image_features(self) -> int:
        """Number of fixed features of the image: the last columns of every encoding."""
        gradients = None if self.image is None else self.image.gradients
        return 0 if gradients is None else gradients.components.shape[1]

    def raw(self, table: Table) -> FloatArray:
        """Return numeric columns as they are and one-hot categories, shape (n, width)."""
        return np.hstack([table.numeric[:, self.plain], *self._rest(table)])

    def standardised(self, table: Table) -> FloatArray:
        """Return standardised numeric columns and one-hot categories, shape (n, width)."""
        columns = (table.numeric[:, self.plain] - self.centre) / self.scale
        return np.hstack([columns, *self._rest(table)])

    def piecewise_linear(self, table: Table) -> FloatArray:
        """Return piecewise-linear numeric columns and one-hot categories, shape (n, width)."""
        columns = [
            encoding.encode(column)
            for encoding, column in zip(self.piecewise, table.numeric[:, self.plain].T, strict=True)
        ]
        return np.hstack([np.empty((len(table), 0)), *columns, *self._rest(table)])

    def levels(self, table: Table) -> FloatArray:
        """Return few-valued columns level by level and the other numeric ones standardised, (n, width)."""
        columns = [
            encoding.encode(column) if encoding.by_value else ((column - mean) / scale)[:, None]
            for encoding, column, mean, scale in zip(
                self.piecewise, table.numeric[:, self.plain].T, self.centre, self.scale, strict=True
            )
        ]
        return np.hstack([np.empty((len(table), 0)), *columns, *self._rest(table)])

    def pixels(self, table: Table) -> npt.NDArray[np.float32] | None:
        """Return pixels for convolutions, shape (n, n_pixels), or None when there are none to train on."""
        if self.image is None or self.image.gradients is not None:
            return None
        return table.numeric[:, self.image.positions].astype(np.float32)

    def _rest(self, table: Table) -> list[FloatArray]:
        blocks = [np.eye(levels)[codes] for levels, codes in zip(self.n_levels, table.codes.T, strict=True)]
        features = None if self.image is None else self.image.features(table)
        return blocks if features is None else [*blocks, features]


def products(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return all products of a column of ``left`` (n, p) with one of ``right`` (n, q), shape (n, p * q)."""
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), -1)
