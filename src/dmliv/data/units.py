"""What is known of outcome and action: units of numbers, levels of choices, and the way back to the user."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dmliv.data.savable import savable
from dmliv.data.schema import FloatArray, IntArray, RawColumn, Source
from dmliv.errors import InputError, constant_column, listed, unseen_levels

ActionKind = Literal["auto", "continuous", "discrete"]

_SCALARS = (str, numbers.Number, np.generic)
_MOST_NUMERIC_LEVELS = 50


@savable
@dataclass(frozen=True)
class OutcomeSpec:
    """Location and scale of the outcome; the scale of a constant outcome is one."""

    mean: float
    scale: float

    @classmethod
    def learn(cls, values: FloatArray, weight: FloatArray | None = None) -> OutcomeSpec:
        """Learn from outcomes of shape (n,), weighted by `weight` of the same shape."""
        mean, scale = moments(values, weight)
        used = values if weight is None else values[weight > 0]
        return cls(float(mean), 1.0 if np.all(used == used[0]) else float(scale))

    def to_model(self, values: FloatArray) -> FloatArray:
        """Standardise outcomes of any shape."""
        return (values - self.mean) / self.scale

    def to_user(self, values: FloatArray) -> FloatArray:
        """Return standardised outcomes of any shape in the user's units."""
        return values * self.scale + self.mean


@savable
@dataclass(frozen=True, eq=False)
class ActionSpec:
    """What is known of the action: its levels, or the location and scale of its columns.

    Parameters
    ----------
    kind
        "continuous" or "discrete".
    names
        Column names in the user's order; one for a discrete action.
    levels
        Discrete: the user's own values as Python scalars, sorted.
    mean, scale
        Continuous: shape (d,), of the training rows (standard deviation with ddof 0). Else empty.
    named
        Whether the names are the user's, so that frames are matched by name.
    """

    kind: Literal["continuous", "discrete"]
    names: tuple[str, ...]
    levels: tuple[object, ...] = ()
    mean: FloatArray = field(default_factory=lambda: np.empty(0))
    scale: FloatArray = field(default_factory=lambda: np.empty(0))
    named: bool = False

    @classmethod
    def learn(cls, values: object, kind: ActionKind = "auto", weight: FloatArray | None = None) -> ActionSpec:
        """Learn the action from training rows, weighted by `weight` of shape (n,) in mean and scale.

        The kind "auto" means discrete for strings, categories, booleans and numbers with two distinct values,
        continuous otherwise. Several columns of numbers or booleans are continuous.
        """
        if kind not in ("auto", "continuous", "discrete"):
            raise InputError(
                f"Expected action_kind 'auto', 'continuous' or 'discrete', got {kind!r}; pass one of them."
            )
        source = Source.of(values, "action")
        raw = source.match(source.names, source.named)
        if not raw:
            raise InputError("Expected at least one action column, got none; pass the action as T.")
        if kind == "discrete" or (kind == "auto" and _looks_discrete(raw)):
            if len(raw) > 1:
                raise InputError(
                    f"Expected one column for a discrete action, got {listed(source.names)}; "
                    "combine them into one column whose levels are the combinations, or make them numbers."
                )
            return cls("discrete", source.names, _learn_levels(raw[0]), named=source.named)
        matrix = np.column_stack([column.numbers() for column in raw])
        used = matrix if weight is None else matrix[weight > 0]
        for name, constant in zip(source.names, np.all(used == used[:1], axis=0), strict=True):
            if constant:
                raise constant_column("action", name)
        mean, scale = moments(matrix, weight)
        return cls("continuous", source.names, (), mean, scale, source.named)

    @property
    def width(self) -> int:
        """Number of columns of a continuous action, of levels of a discrete one."""
        return len(self.names) if self.kind == "continuous" else len(self.levels)

    def read(self, values: object, n_rows: int | None = None) -> FloatArray | IntArray:
        """Read actions as the models see them: shape (n, d), standardised, or shape (n,), level codes.

        `n_rows` is the number of rows there must be. With it `values` may also be one action for all rows: a
        scalar, or a sequence with one number per column when there are several columns.
        """
        if isinstance(values, _SCALARS) or (isinstance(values, np.ndarray) and values.ndim == 0):
            if n_rows is None:
                raise InputError(f"Expected one action per row, got the scalar {values!r}; pass an array.")
            return self._repeat([values], n_rows)
        source, d = Source.of(values, "action"), len(self.names)
        if source.flat and source.n_rows == d > 1 and n_rows is not None:
            return self._repeat(np.asarray(values).reshape(1, -1), n_rows)
        if self.kind == "discrete":
            return self._encode(source.match(self.names, self.named, n_rows)[0])
        return (self.numbers(source, n_rows) - self.mean) / self.scale

    def numbers(self, values: object, n_rows: int | None = None) -> FloatArray:
        """Read continuous actions in the user's units, shape (n, d), columns in training order."""
        raw = Source.of(values, "action").match(self.names, self.named, n_rows)
        return np.column_stack([column.numbers() for column in raw])

    def vectors(self, values: FloatArray | IntArray) -> FloatArray:
        """Return what `read` gave as inputs of h (n, width): standardised, or one-hot rows of levels."""
        if self.kind == "discrete":
            return np.eye(self.width)[values.astype(np.int64)]
        return np.asarray(values, dtype=np.float64).reshape(len(values), self.width)

    def to_user(self, values: FloatArray | IntArray) -> npt.NDArray[Any]:
        """Return what `read` gave in the user's own units or levels; shape (n,), or (n, d) for d > 1."""
        if self.kind == "continuous":
            original = values * self.scale + self.mean
            return original[:, 0] if self.width == 1 else original
        natural = len({type(level) for level in self.levels}) == 1
        return np.array(self.levels, dtype=None if natural else object)[values]

    def _repeat(self, row: object, n_rows: int) -> FloatArray | IntArray:
        return self.read(row)[np.zeros(n_rows, dtype=np.int64)]

    def _encode(self, raw: RawColumn) -> IntArray:
        # Python holds True, 1 and 1.0 for one key, so equal values of another type find their level.
        position = {level: code for code, level in enumerate(self.levels)}
        codes = np.array([position.get(value, -1) for value in raw.values.tolist()], dtype=np.int64)
        unseen = np.flatnonzero(codes < 0)
        if unseen.size:
            advice = "Pass only levels seen in training."
            if isinstance(self.levels[0], numbers.Number):
                advice += ' Pass action_kind="continuous" if the action is meant to vary continuously.'
            values = dict.fromkeys(raw.values[unseen].tolist())
            raise unseen_levels(raw.role, raw.name, values, int(unseen[0]), self.levels, advice)
        return codes


def moments(values: FloatArray, weight: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation (ddof 0) over the first axis, weighted by `weight` of shape (n,)."""
    mean = np.average(values, axis=0, weights=weight)
    return mean, np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))


def _looks_discrete(raw: list[RawColumn]) -> bool:
    if any(column.kind != "numeric" for column in raw):
        return True
    values = raw[0].values
    return len(raw) == 1 and (values.dtype.kind == "b" or len(np.unique(values)) == 2)


def _learn_levels(raw: RawColumn) -> tuple[object, ...]:
    numeric = raw.single_kind() == "numeric"
    distinct = {value.item() if isinstance(value, np.generic) else value for value in raw.values.tolist()}
    if len(distinct) < 2:
        raise constant_column("action", raw.name)
    if numeric and len(distinct) > _MOST_NUMERIC_LEVELS:
        raise InputError(
            f"Expected at most {_MOST_NUMERIC_LEVELS} distinct numbers as levels of a discrete action, "
            f"got {len(distinct)} in column {raw.name!r}, which looks continuous; "
            'pass action_kind="continuous".'
        )
    return tuple(sorted(distinct, key=lambda level: (isinstance(level, str), level)))
