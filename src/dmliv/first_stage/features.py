"""Encodings of the exogenous input (c, z)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dmliv.data import TableSchema
from dmliv.errors import InputError
from dmliv.first_stage.base import Exogenous
from dmliv.nets.encoding import TableEncoder, products

Float32Array = npt.NDArray[np.float32]

#: Encodings a first-stage network can choose from.
EXOGENOUS_ENCODINGS = ("standardised", "piecewise", "piecewise_context", "products")


def n_levels(schema: TableSchema) -> tuple[int, ...]:
    """Return the number of levels of each categorical column."""
    return tuple(len(column.levels) for column in schema.categorical)


@dataclass(frozen=True)
class ExogenousEncoder:
    """Encodes context and instrument together.

    The encodings are ``"standardised"`` (numeric columns centred and scaled, one-hot categories),
    ``"piecewise"`` (numeric columns piecewise linear on quantile bins), ``"piecewise_context"`` (the same for
    the context, with a standardised instrument) and ``"products"`` (standardised, plus every product of an
    instrument level or column with a context column).
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
    ) -> ExogenousEncoder:
        """Learn all encodings from training rows; outcomes and actions are not looked at."""
        return cls(
            TableEncoder.learn(exogenous.context, n_levels(context_schema), n_bins),
            TableEncoder.learn(exogenous.instrument, n_levels(instrument_schema), n_bins),
        )

    def encode(self, exogenous: Exogenous, encoding: str) -> Float32Array:
        """Return network inputs, shape (n, width)."""
        context, instrument = exogenous.context, exogenous.instrument
        if encoding == "standardised":
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
        return np.hstack(blocks).astype(np.float32)
