"""Series: powers, truncated powers and products of columns, and an h that is linear in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dmliv.data import ActionSpec, FloatArray, IntArray, OutcomeSpec, Table, TableSchema, TrainingData
from dmliv.data.savable import savable
from dmliv.estimators.linear_rows import LinearRows
from dmliv.nets.encoding import products


@savable
@dataclass(frozen=True, eq=False)
class PowerBasis:
    """Powers and truncated powers of one numeric column, in the user's units.

    The features are x, (x - centre)^2, ..., (x - centre)^degree and, for every knot, max(x - knot, 0)^degree.
    Centring keeps the powers apart numerically and spans the same functions as raw powers.
    """

    name: str
    centre: float
    degree: int
    knots: FloatArray

    @classmethod
    def learn(cls, name: str, values: FloatArray, degree: int, n_knots: int) -> PowerBasis:
        """Centre at the mean and put ``n_knots`` knots at inner quantiles of ``values`` (n,)."""
        inner = np.unique(np.quantile(values, np.linspace(0.0, 1.0, n_knots + 2)[1:-1]))
        return cls(name, float(values.mean()), degree, inner)

    @property
    def names(self) -> list[str]:
        """One name per feature."""
        powers = [f"({self.name} - {self.centre:.6g})^{power}" for power in range(2, self.degree + 1)]
        end = "" if self.degree == 1 else f"^{self.degree}"
        return [self.name, *powers, *(f"max({self.name} - {knot:.6g}, 0){end}" for knot in self.knots)]

    def encode(self, values: FloatArray) -> FloatArray:
        """Return the features of ``values`` (n,), shape (n, width)."""
        powers = [(values - self.centre) ** power for power in range(2, self.degree + 1)]
        beyond = np.maximum(values[:, None] - self.knots, 0.0)
        return np.column_stack([values, *powers, beyond**self.degree])

    def slopes(self, values: FloatArray) -> FloatArray:
        """Return the derivatives of the features at ``values`` (n,), shape (n, width)."""
        powers = [power * (values - self.centre) ** (power - 1) for power in range(2, self.degree + 1)]
        beyond = values[:, None] - self.knots
        hinges = np.where(beyond > 0.0, self.degree * np.maximum(beyond, 0.0) ** (self.degree - 1), 0.0)
        return np.column_stack([np.ones(len(values)), *powers, hinges])


def learn_bases(
    names: Sequence[str], values: FloatArray, degree: int, n_knots: int
) -> tuple[PowerBasis, ...]:
    """Learn one basis per column of ``values`` (n, d)."""
    pairs = zip(names, values.T, strict=True)
    return tuple(PowerBasis.learn(name, column, degree, n_knots) for name, column in pairs)


def encode_bases(bases: Sequence[PowerBasis], values: FloatArray) -> FloatArray:
    """Return the features of all columns of ``values`` (n, d), shape (n, width)."""
    blocks = [basis.encode(column) for basis, column in zip(bases, values.T, strict=True)]
    return np.hstack([np.empty((len(values), 0)), *blocks])


def indicators(schema: TableSchema, table: Table) -> FloatArray:
    """Return indicators of all levels but the first, shape (n, width)."""
    pairs = zip(schema.n_levels, table.codes.T, strict=True)
    return np.hstack([np.empty((len(table), 0)), *(np.eye(count)[codes][:, 1:] for count, codes in pairs)])


def context_columns(schema: TableSchema, table: Table) -> FloatArray:
    """Return numeric columns and indicators of levels, shape (n, width)."""
    return np.hstack([table.numeric, indicators(schema, table)])


def _action_features(spec: ActionSpec, bases: Sequence[PowerBasis], action: FloatArray) -> FloatArray:
    if spec.kind == "discrete":
        return action[:, 1:]
    return encode_bases(bases, action * spec.scale + spec.mean)


@savable(formerly=("SieveModel",))
@dataclass(frozen=True, eq=False)
class SeriesModel:
    """A fitted h, linear in features of the action, each with an effect that may depend on the context.

    Attributes
    ----------
    outcome_spec, action_spec, context_schema
        How to read model units.
    bases : tuple of PowerBasis
        One per action column; empty for a discrete action, whose features are indicators of its levels.
    base : ndarray, shape (1 + context width,)
        Intercept and context coefficients in the user's units.
    slopes : ndarray, shape (1 + context width, action features)
        Coefficients of the action features and of their products with context columns (zero if not used).
    """

    outcome_spec: OutcomeSpec
    action_spec: ActionSpec
    context_schema: TableSchema
    bases: tuple[PowerBasis, ...]
    base: FloatArray
    slopes: FloatArray

    def action_features(self, action: FloatArray) -> FloatArray:
        """Return the features of actions in model units (n, d), shape (n, p)."""
        return _action_features(self.action_spec, self.bases, action)

    def features(self, context: Table, action: FloatArray) -> FloatArray:
        """Return what the coefficients stand before: context, action features, then all their products."""
        columns, features = self._columns(context), self.action_features(action)
        crossed = (columns[:, :, None] * features[:, None, :]).reshape(len(columns), -1)
        return np.hstack([columns, crossed])

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""
        columns = self._columns(context)
        effects = np.sum((columns @ self.slopes) * self.action_features(action), axis=1)
        return self.outcome_spec.to_model(columns @ self.base + effects)

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action."""
        columns = self._columns(context)
        effects = columns @ self.slopes @ self.action_features(actions).T
        return self.outcome_spec.to_model((columns @ self.base)[:, None] + effects)

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative in each action column, in model units."""
        slopes = self._columns(context) @ self.slopes
        if self.action_spec.kind == "discrete":
            return np.hstack([np.zeros((len(slopes), 1)), slopes]) / self.outcome_spec.scale
        values = action * self.action_spec.scale + self.action_spec.mean
        ends = np.cumsum([len(basis.names) for basis in self.bases])
        parts = [
            np.sum(basis.slopes(column) * block, axis=1)
            for basis, column, block in zip(
                self.bases, values.T, np.split(slopes, ends[:-1], axis=1), strict=True
            )
        ]
        return np.column_stack(parts) * (self.action_spec.scale / self.outcome_spec.scale)

    def describe(self) -> dict[str, object]:
        """Return the coefficients."""
        return {"base": self.base.tolist(), "slopes": self.slopes.tolist()}

    def _columns(self, context: Table) -> FloatArray:
        return np.hstack([np.ones((len(context), 1)), context_columns(self.context_schema, context)])


@savable(formerly=("SieveColumns",))
@dataclass(frozen=True, eq=False)
class SeriesColumns:
    """Makes the columns of a linear model from rows of a table.

    Attributes
    ----------
    action_spec, context_schema, instrument_schema
        How to read model units.
    bases : tuple of PowerBasis
        One per action column; empty for a discrete action.
    instrument_bases : tuple of PowerBasis
        One per numeric instrument.
    interactions : bool
        Whether features of action and instrument are also multiplied with every context column.
    """

    action_spec: ActionSpec
    context_schema: TableSchema
    instrument_schema: TableSchema
    bases: tuple[PowerBasis, ...]
    instrument_bases: tuple[PowerBasis, ...]
    interactions: bool

    @classmethod
    def learn(cls, data: TrainingData, degree: int, n_knots: int, interactions: bool) -> SeriesColumns:
        """Learn centres and knots from the rows of positive weight."""
        used, spec = data.weight > 0, data.action_spec
        bases: tuple[PowerBasis, ...] = ()
        if spec.kind == "continuous":
            bases = learn_bases(spec.names, data.action[used] * spec.scale + spec.mean, degree, n_knots)
        names = [column.name for column in data.instrument_schema.numeric]
        return cls(
            spec,
            data.context_schema,
            data.instrument_schema,
            bases,
            learn_bases(names, data.instrument.numeric[used], degree, n_knots),
            interactions,
        )

    @property
    def context_names(self) -> list[str]:
        """One name per context column."""
        return [column.name for column in self.context_schema.numeric] + [
            f"{column.name}[{level}]"
            for column in self.context_schema.categorical
            for level in column.levels[1:]
        ]

    @property
    def action_names(self) -> list[str]:
        """One name per action feature."""
        spec = self.action_spec
        if spec.kind == "discrete":
            return [f"{spec.names[0]}[{level}]" for level in spec.levels[1:]]
        return [name for basis in self.bases for name in basis.names]

    @property
    def endogenous_names(self) -> list[str]:
        """One name per action feature and product of one with a context column."""
        crossed = [f"{column} * {name}" for column in self.context_names for name in self.action_names]
        return self.action_names + (crossed if self.interactions else [])

    def rows(
        self,
        outcome: FloatArray,
        action: FloatArray | IntArray,
        instrument: Table,
        context: Table,
        weight: FloatArray,
    ) -> LinearRows:
        """Return the columns of rows that count; outcomes in the user's units, the rest in model units."""
        used = np.flatnonzero(weight > 0)
        context, instrument = context.take(used), instrument.take(used)
        columns = context_columns(self.context_schema, context)
        endogenous = _action_features(self.action_spec, self.bases, self.action_spec.vectors(action[used]))
        excluded = np.hstack(
            [
                encode_bases(self.instrument_bases, instrument.numeric),
                indicators(self.instrument_schema, instrument),
            ]
        )
        if self.interactions:
            endogenous = np.hstack([endogenous, products(columns, endogenous)])
            excluded = np.hstack([excluded, products(columns, excluded)])
        constant = np.ones((len(used), 1))
        return LinearRows(outcome[used], np.hstack([constant, columns]), endogenous, excluded, weight[used])
