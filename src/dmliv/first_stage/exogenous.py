"""Encodings of the exogenous input (c, z)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dmliv.data import TableSchema
from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.first_stage.nuisances import Exogenous, FloatArray
from dmliv.nets.columns import ColumnEncoder, Columns
from dmliv.nets.encoding import TableEncoder, products
from dmliv.nets.images import ImageColumns

#: Encodings a first-stage network can choose from.
EXOGENOUS_ENCODINGS = ("raw", "standardised", "piecewise", "piecewise_context", "products")


@savable
@dataclass(frozen=True)
class ExogenousEncoder:
    """Encodes context and instrument together.

    The encodings are ``"raw"`` (numeric columns as they are, one-hot categories), ``"standardised"`` (numeric
    columns centred and scaled), ``"piecewise"`` (numeric columns piecewise linear on quantile bins),
    ``"piecewise_context"`` (the same for the context, with a standardised instrument) and ``"products"``
    (standardised, plus every product of an instrument level or column with a context column).
    """

    context: TableEncoder
    instrument: TableEncoder

    @classmethod
    def learn(
        cls,
        exogenous: Exogenous,
        context_schema: TableSchema,
        instrument_schema: TableSchema,
        n_bins: int,
        image: ImageColumns | None = None,
    ) -> ExogenousEncoder:
        """Learn all encodings from training rows; outcomes and actions are not looked at."""
        return cls(
            TableEncoder.learn(exogenous.context, context_schema.n_levels, n_bins, image, context_schema),
            TableEncoder.learn(exogenous.instrument, instrument_schema.n_levels, n_bins),
        )

    def encode(self, exogenous: Exogenous, encoding: str) -> FloatArray:
        """Return inputs of a model, shape (n, width)."""
        context, instrument = exogenous.context, exogenous.instrument
        if encoding == "raw":
            blocks = [self.context.raw(context), self.instrument.raw(instrument)]
        elif encoding == "standardised":
            blocks = [self.context.standardised(context), self.instrument.standardised(instrument)]
        elif encoding == "piecewise":
            blocks = [self.context.piecewise_linear(context), self.instrument.piecewise_linear(instrument)]
        elif encoding == "piecewise_context":
            blocks = [self.context.piecewise_linear(context), self.instrument.standardised(instrument)]
        elif encoding == "products":
            plain = self.context.standardised(context)
            levels = self.instrument.levels(instrument)
            blocks = [plain, levels, products(levels, plain)]
        else:
            raise InputError(f"Expected first-stage encodings among {EXOGENOUS_ENCODINGS}, got {encoding!r}.")
        return np.hstack(blocks)


class ExogenousColumns:
    """Makes the encodings of an :class:`ExogenousEncoder` from columns, for a batch at a time."""

    def __init__(self, encoder: ExogenousEncoder, device: torch.device) -> None:
        self._context = ColumnEncoder(encoder.context, device)
        self._instrument = ColumnEncoder(encoder.instrument, device)

    def width(self, encoding: str) -> int:
        """Return the number of inputs."""
        return self.encode(self._context.no_rows(), self._instrument.no_rows(), encoding).shape[1]

    def encode(self, context: Columns, instrument: Columns, encoding: str) -> Tensor:
        """Return inputs of a model, shape (n, width)."""
        if encoding == "raw":
            blocks = [self._context.raw(context), self._instrument.raw(instrument)]
        elif encoding == "standardised":
            blocks = [self._context.standardised(context), self._instrument.standardised(instrument)]
        elif encoding == "piecewise":
            blocks = [self._context.piecewise_linear(context), self._instrument.piecewise_linear(instrument)]
        elif encoding == "piecewise_context":
            blocks = [self._context.piecewise_linear(context), self._instrument.standardised(instrument)]
        elif encoding == "products":
            plain = self._context.standardised(context)
            levels = self._instrument.levels(instrument)
            blocks = [plain, levels, (levels.unsqueeze(2) * plain.unsqueeze(1)).flatten(1)]
        else:
            raise InputError(f"Expected first-stage encodings among {EXOGENOUS_ENCODINGS}, got {encoding!r}.")
        return torch.cat(blocks, dim=1)
