"""What bandits see of the data: context and instrument joined as one input, and finitely many actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dmliv.data import (
    ActionKind,
    ActionSpec,
    FloatArray,
    IntArray,
    OutcomeSpec,
    Table,
    TableSchema,
    TrainingData,
    prepare,
    read_outcome,
    read_weight,
)
from dmliv.data.schema import Source
from dmliv.errors import InputError, common_length
from dmliv.nets.encoding import TableEncoder

_FEWEST_ROWS = 2
_UNUSED_BINS = 2


@dataclass(frozen=True, eq=False)
class BanditRows:
    """Training rows as reward models take them.

    Attributes
    ----------
    inputs : ndarray, shape (n, d)
    codes : ndarray of int, shape (n,)
        Positions of the actions taken among the K actions to choose from.
    reward : ndarray, shape (n,)
        Standardised.
    n_actions : int
        K.
    """

    inputs: FloatArray
    codes: IntArray
    reward: FloatArray
    n_actions: int

    def __len__(self) -> int:
        return len(self.reward)

    def first(self, n: int) -> BanditRows:
        """Return the first ``n`` rows."""
        return BanditRows(self.inputs[:n], self.codes[:n], self.reward[:n], self.n_actions)


def read_rows(Y: object, T: object, Z: object, X: object, action_kind: ActionKind) -> TrainingData:
    """Check and encode the input of a fit; unlike an estimator's, it may have no instrument."""
    if Z is not None:
        return prepare(Y, T, Z=Z, X=X, action_kind=action_kind, min_rows=_FEWEST_ROWS)
    sources = {"outcome": Source.of(Y, "outcome"), "action": Source.of(T, "action")}
    if X is not None:
        sources["context"] = Source.of(X, "context")
    n = common_length({role: source.n_rows for role, source in sources.items()})
    if n < _FEWEST_ROWS:
        raise InputError(f"Expected at least {_FEWEST_ROWS} rows, got {n}; pass more data.")
    outcome, action_spec = read_outcome(sources["outcome"]), ActionSpec.learn(sources["action"], action_kind)
    outcome_spec = OutcomeSpec.learn(outcome)
    context_schema = TableSchema.learn(sources.get("context"), "context")
    instrument_schema = TableSchema("instrument", (), (), named=False)
    return TrainingData(
        outcome=outcome_spec.to_model(outcome),
        action=action_spec.read(sources["action"]),
        instrument=instrument_schema.read(None, n),
        context=context_schema.read(sources.get("context"), n),
        weight=read_weight(None, n),
        outcome_spec=outcome_spec,
        action_spec=action_spec,
        instrument_schema=instrument_schema,
        context_schema=context_schema,
    )


def discretise(
    data: TrainingData, T: object, n_actions: int, action_range: tuple[float, float] | None
) -> tuple[npt.NDArray[Any], IntArray]:
    """Return the actions to choose from, shape (K,), and the position of every row's action among them.

    A continuous action is rounded to the nearest of ``n_actions`` equally spaced centres from one end of
    ``action_range`` to the other. ``T`` is the action as the user gave it, with no rounding from units.
    """
    spec = data.action_spec
    if spec.kind == "discrete":
        if action_range is not None:
            raise InputError(
                f"Expected action_range=None for a discrete action with levels {list(spec.levels)}, "
                f"got {action_range!r}; leave it out."
            )
        return spec.to_user(np.arange(len(spec.levels))), data.action.astype(np.int64)
    if spec.width > 1:
        raise InputError(
            f"Expected one action column, got {spec.width}; combine them into one column of levels, since "
            "bandits choose among single actions."
        )
    action = spec.numbers(T)[:, 0]
    low, high = (action.min(), action.max()) if action_range is None else _read_range(action_range)
    position = np.rint((np.clip(action, low, high) - low) / (high - low) * (n_actions - 1))
    return np.linspace(low, high, n_actions), position.astype(np.int64)


def _read_range(action_range: object) -> tuple[float, float]:
    try:
        low, high = (float(bound) for bound in action_range)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        low = high = np.nan
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise InputError(
            f"Expected action_range as two numbers (low, high) with low below high, got {action_range!r}; "
            "pass None for the range of the data."
        )
    return low, high


@dataclass(frozen=True, eq=False)
class InputReader:
    """Reads contexts and instruments, in the columns of the training rows, as one standardised input.

    Attributes
    ----------
    context, instrument : TableSchema
    encoders : pair of TableEncoder
        Of context and instrument.
    intercept : bool
        Whether inputs end with a one.
    """

    context: TableSchema
    instrument: TableSchema
    encoders: tuple[TableEncoder, TableEncoder]
    intercept: bool

    @classmethod
    def learn(cls, data: TrainingData, intercept: bool) -> InputReader:
        """Learn means, scales and levels of training rows."""
        schemas = data.context_schema, data.instrument_schema
        context, instrument = (
            TableEncoder.learn(table, schema.n_levels, _UNUSED_BINS)
            for table, schema in zip((data.context, data.instrument), schemas, strict=True)
        )
        return cls(*schemas, (context, instrument), intercept)

    def encode(self, context: Table, instrument: Table) -> FloatArray:
        """Return inputs of shape (n, d)."""
        parts = [
            encoder.standardised(table)
            for encoder, table in zip(self.encoders, (context, instrument), strict=True)
        ]
        return np.hstack([*parts, np.ones((len(context), int(self.intercept)))])

    def read(self, X: object, Z: object) -> FloatArray:
        """Check contexts and instruments of new rows and return inputs of shape (n, d)."""
        if self.context.columns:
            context = self.context.read(X)
            return self.encode(context, self.instrument.read(Z, len(context)))
        # Without any input there is one situation to decide for.
        instrument = self.instrument.read(Z, None if self.instrument.columns else 1)
        return self.encode(self.context.read(X, len(instrument)), instrument)
