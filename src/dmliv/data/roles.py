"""The boundary of the package: user input by role in, checked and encoded training data out.

Everything a user passes is validated here and nowhere else; code beyond this module trusts its arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np

from dmliv.data.controls import Controls, joined
from dmliv.data.schema import Column, FloatArray, IntArray, Source, Table, TableSchema
from dmliv.data.units import ActionKind, ActionSpec, OutcomeSpec
from dmliv.errors import InputError, common_length, constant_column, listed, unknown_columns

__all__ = ["ActionSpec", "IVData", "TrainingData", "prepare", "read_outcome", "read_weight"]
__all__ += ["ActionKind", "Column", "FloatArray", "IntArray", "OutcomeSpec", "Table", "TableSchema"]

_PERFECT_CORRELATION = 1.0 - 1e-10


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What estimators work on: checked, standardised and encoded rows, and how to read more of them.

    Outcome and weight have shape (n,); the outcome is standardised, the weight has mean one. The action has
    shape (n, d), standardised, or shape (n,), level codes. The context may have no columns; with `controls`
    its columns are those of X and then those of W.
    """

    outcome: FloatArray
    action: FloatArray | IntArray
    instrument: Table
    context: Table
    weight: FloatArray
    outcome_spec: OutcomeSpec
    action_spec: ActionSpec
    instrument_schema: TableSchema
    context_schema: TableSchema
    controls: Controls | None = None

    def __len__(self) -> int:
        return len(self.outcome)

    def with_positive_weight(self, min_rows: int) -> TrainingData:
        """Return the rows that count, weighing one on average; at least `min_rows` there must be."""
        used = np.flatnonzero(self.weight > 0)
        if len(used) < min_rows:
            raise InputError(
                f"Expected at least {min_rows} rows of positive weight, got {len(used)}; pass more data."
            )
        return self if len(used) == len(self) else self.take(used)

    def take(self, rows: IntArray) -> TrainingData:
        """Return the given rows, in the given order, weighing one on average; units stay as they are."""
        return replace(
            self,
            outcome=self.outcome[rows],
            action=self.action[rows],
            instrument=self.instrument.take(rows),
            context=self.context.take(rows),
            weight=self.weight[rows] / self.weight[rows].mean(),
        )


def prepare(
    Y: object,
    T: object,
    *,
    Z: object,
    X: object = None,
    W: object = None,
    sample_weight: object = None,
    action_kind: ActionKind = "auto",
    min_rows: int = 2,
) -> TrainingData:
    """Check the input of a fit and encode it.

    Parameters
    ----------
    Y, T, Z, X, W, sample_weight
        Outcome, action, instrument, context, controls and weights as frames, series, arrays or lists of n
        rows.
    action_kind
        See `ActionSpec.learn`.
    min_rows
        The fewest rows the caller can work with.
    """
    given = {"outcome": Y, "action": T, "instrument": Z, "context": X, "control": W, "weight": sample_weight}
    optional = ("context", "control", "weight")
    sources = {role: Source.of(v, role) for role, v in given.items() if v is not None or role not in optional}
    for role in ("context", "control"):
        if role in sources and not sources[role].columns:
            del sources[role]
    n = common_length({role: source.n_rows for role, source in sources.items()})
    check_row_count(n, min_rows)
    outcome = read_outcome(sources["outcome"])
    weight = read_weight(sources.get("weight"), n)
    action_spec = ActionSpec.learn(sources["action"], action_kind, weight)
    instrument_schema = TableSchema.learn(sources["instrument"], "instrument")
    context_schema = TableSchema.learn(sources.get("context"), "context")
    instrument = instrument_schema.read(sources["instrument"])
    context = context_schema.read(sources.get("context"), n)
    controls = None
    if "control" in sources:
        learned = Controls.learn(context_schema, context, sources["control"])
        if learned.columns.columns:
            controls, context_schema = learned, learned.together
            context = joined(context, learned.columns.read(sources["control"], n))
    from_controls = () if controls is None else controls.columns.columns
    _check_instrument(instrument_schema, instrument, context_schema, context, from_controls, outcome)
    outcome_spec = OutcomeSpec.learn(outcome, weight)
    return TrainingData(
        outcome=outcome_spec.to_model(outcome),
        action=action_spec.read(sources["action"]),
        instrument=instrument,
        context=context,
        weight=weight,
        outcome_spec=outcome_spec,
        action_spec=action_spec,
        instrument_schema=instrument_schema,
        context_schema=context_schema,
        controls=controls,
    )


def check_row_count(n_rows: int, least: int) -> None:
    """Refuse rows that are too few."""
    if n_rows < least:
        raise InputError(f"Expected at least {least} rows, got {n_rows}; pass more data.")


def read_outcome(values: object, n_rows: int | None = None) -> FloatArray:
    """Return outcomes in the user's units, shape (n,), after all checks."""
    return _read_single(values, "outcome", n_rows, "fit one model per outcome")


def read_weight(values: object, n_rows: int) -> FloatArray:
    """Return row weights with mean one, shape (n_rows,); ones for None."""
    if values is None:
        return np.ones(n_rows)
    weight = _read_single(values, "weight", n_rows, "pass one weight per row")
    if np.any(weight < 0):
        raise InputError(
            f"Expected weights of at least zero, got {weight.min():g}; set it to zero or drop the row."
        )
    if not np.any(weight > 0):
        raise InputError("Expected some positive weights, got only zeros; pass None to weigh all rows alike.")
    return weight * (n_rows / float(weight.sum()))


def read_labels(values: object, n_rows: int) -> IntArray:
    """Return a number for every label of groups of rows, shape (n_rows,)."""
    labels = np.asarray(values)
    if labels.shape not in ((n_rows,), (n_rows, 1)):
        raise InputError(
            f"Expected one cluster label per row ({n_rows}), got an array of shape {labels.shape}."
        )
    labels = labels.reshape(n_rows)
    # Only what is missing differs from itself; None is the other missing value.
    missing = int(sum(label is None or label != label for label in labels.tolist()))  # noqa: PLR0124
    if missing:
        raise InputError(
            f"Expected a cluster label in every row, got {missing} missing; give each such row a label of "
            "its own."
        )
    if labels.dtype == object:
        labels = labels.astype(str)
    return np.asarray(np.unique(labels, return_inverse=True)[1], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class IVData:
    """A data set by role, in the user's own types; n rows in each role.

    Y is the outcome, T the action (one or several columns), Z the instrument, X the context (None for none),
    `sample_weight` the row weights (None for equal ones) and W the controls (None for none).
    """

    Y: Any
    T: Any
    Z: Any
    X: Any = None
    sample_weight: Any = None
    W: Any = None

    def __post_init__(self) -> None:
        given = {name: values for name, values in vars(self).items() if values is not None}
        common_length({name: _length(name, values) for name, values in given.items()})

    @classmethod
    def from_frame(
        cls,
        frame: object,
        *,
        outcome: str,
        action: str | Sequence[str],
        instrument: str | Sequence[str],
        context: str | Sequence[str] | None = None,
        weight: str | None = None,
        control: str | Sequence[str] | None = None,
    ) -> IVData:
        """Pick the columns of each role from a pandas, polars or Arrow frame.

        Instrument, context, controls and an action of several columns stay frames; the rest become series.
        """
        source = Source.of(frame, "frame")
        if source.flat or not source.named:
            raise InputError(
                f"Expected a pandas, polars or Arrow frame, got {type(frame).__name__}; convert it."
            )
        roles = {
            "outcome": _as_names(outcome),
            "action": _as_names(action),
            "instrument": _as_names(instrument),
            "context": _as_names(context),
            "weight": _as_names(weight),
            "control": _as_names(control),
        }
        taken: dict[str, str] = {}
        for role, names in roles.items():
            if not names and role not in ("context", "weight", "control"):
                raise InputError(f"Expected a column as {role}, got none; name one: {listed(source.names)}.")
            unknown = [name for name in names if name not in source.names]
            if unknown:
                raise unknown_columns(role, unknown, source.names)
            for name in names:
                if name in taken:
                    raise InputError(
                        f"Expected every column in one role, got {name!r} as {taken[name]} and as {role}; "
                        "drop it from one of them."
                    )
                taken[name] = role
        table: Any = nw.from_native(frame, eager_only=True)
        # By position, because names that are not strings in pandas are strings here.
        positions = {role: [source.names.index(name) for name in names] for role, names in roles.items()}
        frames = {role: table[:, columns].to_native() for role, columns in positions.items() if columns}
        series = {
            role: source.columns[columns[0]].to_native() for role, columns in positions.items() if columns
        }
        T = series["action"] if len(roles["action"]) == 1 else frames["action"]
        return cls(
            series["outcome"],
            T,
            frames["instrument"],
            frames.get("context"),
            series.get("weight"),
            frames.get("control"),
        )

    def __len__(self) -> int:
        return len(self.Y)

    def take(self, rows: Any) -> IVData:
        """Return the rows of an integer index or boolean mask, in the same types."""
        rows = np.asarray(rows)
        try:
            # Indexing the row numbers turns masks and negative numbers into plain positions, and checks them.
            index = np.atleast_1d(np.arange(len(self))[rows if rows.size else rows.astype(np.int64)])
        except IndexError as error:
            raise InputError(
                f"Expected integer rows or a boolean mask for {len(self)} rows, got {rows.dtype} of shape "
                f"{rows.shape}: {error}; pass valid rows."
            ) from error
        return IVData(**{name: _take(values, index) for name, values in vars(self).items()})


def _read_single(values: object, role: str, n_rows: int | None, advice: str) -> FloatArray:
    source = Source.of(values, role)
    if len(source.columns) != 1:
        raise InputError(f"Expected one {role} column, got {len(source.columns)}; {advice}.")
    return source.match(source.names, source.named, n_rows)[0].numbers()


def _check_instrument(
    schema: TableSchema,
    table: Table,
    context_schema: TableSchema,
    context: Table,
    controls: Sequence[Column],
    outcome: FloatArray,
) -> None:
    """Refuse instruments that are constant, the outcome, or part of the context; `controls` is its W."""
    named = schema.named and context_schema.named
    for column, values in schema.pairs(table):
        if np.all(values == values[0]):
            raise constant_column("instrument", column.name)
        if column.kind == "numeric" and _perfectly_correlated(values, outcome):
            raise InputError(
                f"Expected instruments apart from the outcome, got {column.name!r}, an instrument that is "
                "also the outcome (their correlation is one); drop it from Z."
            )
        for other, other_values in context_schema.pairs(context):
            # Comparing one row first keeps contexts of thousands of pixels cheap.
            alike = column.levels == other.levels and values[0] == other_values[0]
            if (named and column.name == other.name) or (alike and np.array_equal(values, other_values)):
                argument = "W" if other in controls else "X"
                raise InputError(
                    f"Expected instruments apart from the context, got {column.name!r} in Z, equal to "
                    f"{other.name!r} in {argument}; drop it from Z, contexts already are instruments for "
                    "themselves."
                )


def _perfectly_correlated(first: FloatArray | IntArray, second: FloatArray) -> bool:
    # Two points always lie on a line, and a constant correlates with nothing.
    if len(second) <= 2 or np.all(second == second[0]):
        return False
    return bool(abs(np.corrcoef(first, second)[0, 1]) >= _PERFECT_CORRELATION)


def _as_names(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _length(name: str, values: Any) -> int:
    try:
        return len(values)
    except TypeError as error:
        raise InputError(
            f"Expected rows in {name}, got {type(values).__name__}; pass a frame or array."
        ) from error


def _take(values: Any, index: IntArray) -> Any:
    if values is None or isinstance(values, np.ndarray):
        return None if values is None else values[index]
    if isinstance(values, list | tuple):
        return type(values)(values[row] for row in index)
    native: Any = nw.from_native(values, eager_only=True, allow_series=True, pass_through=True)
    framed = isinstance(native, nw.Series | nw.DataFrame)
    return native[index].to_native() if framed else np.asarray(values)[index]
