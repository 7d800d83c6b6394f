"""Two-stage least squares: h linear in features of action and context, with textbook standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from dmliv.counterfactual import Counterfactual
from dmliv.data import ActionKind, ActionSpec, FloatArray, OutcomeSpec, Table, TableSchema, prepare
from dmliv.errors import InputError, listed
from dmliv.estimators.anderson_rubin import AndersonRubin, InstrumentMoments
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.estimators.linear_uncertainty import LinearUncertainty
from dmliv.linear_algebra import RANK_TOLERANCE, orthonormal, standardise
from dmliv.nets.encoding import products
from dmliv.second_stage.base import action_vectors

Covariance = Literal["classical", "robust"]


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


def _learn_bases(names: Sequence[str], values: FloatArray, degree: int, n_knots: int) -> list[PowerBasis]:
    return [
        PowerBasis.learn(name, column, degree, n_knots) for name, column in zip(names, values.T, strict=True)
    ]


def _encode_bases(bases: Sequence[PowerBasis], values: FloatArray) -> FloatArray:
    blocks = [basis.encode(column) for basis, column in zip(bases, values.T, strict=True)]
    return np.hstack([np.empty((len(values), 0)), *blocks])


def _levels(schema: TableSchema, table: Table) -> FloatArray:
    """Return indicators of all levels but the first, shape (n, width)."""
    pairs = zip(schema.n_levels, table.codes.T, strict=True)
    return np.hstack([np.empty((len(table), 0)), *(np.eye(count)[codes][:, 1:] for count, codes in pairs)])


def _context_columns(schema: TableSchema, table: Table) -> FloatArray:
    return np.hstack([table.numeric, _levels(schema, table)])


@dataclass(frozen=True, eq=False)
class SieveModel:
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
        if self.action_spec.kind == "discrete":
            return action[:, 1:]
        return _encode_bases(self.bases, action * self.action_spec.scale + self.action_spec.mean)

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
        return np.hstack([np.ones((len(context), 1)), _context_columns(self.context_schema, context)])


class TwoStageLeastSquares(AndersonRubin, CounterfactualEstimator):
    """Two-stage least squares on chosen features of action, context and instrument.

    By default h is linear in action and context. Powers, truncated powers (splines) and products with the
    context turn it into a sieve; the instruments are expanded in the same way, so that there are as many of
    them as endogenous features. Estimates, standard errors and first-stage statistics are those of
    ``linearmodels.iv.IV2SLS`` without small-sample correction. Columns that depend linearly on others share
    their effect (the solution of least norm among standardised columns). Intervals need no ``inference``.

    Parameters
    ----------
    degree : int
        Highest power of the action columns.
    n_knots : int
        Inner knots per action column: each adds max(action - knot, 0)^degree.
    interactions : bool
        Whether action features are also multiplied with every context column.
    covariance : {"classical", "robust"}
        Equal error variances, or White's estimator, which allows them to differ.
    action_kind : {"auto", "continuous", "discrete"}
        As for :class:`dmliv.DMLIV`. A discrete action enters as indicators of all levels but the first.

    Attributes
    ----------
    feature_names_ : list of str
        ``"intercept"``, context columns, action features, products; categories as ``"column[level]"``.
    coef_, std_errors_ : ndarray, shape (p,)
        In the user's units, in the order of ``feature_names_``.
    cov_ : ndarray, shape (p, p)
        Covariance of ``coef_``.
    first_stage_f_ : dict of str to float
        Partial F statistic of the excluded instruments for every endogenous feature; with the robust
        covariance the robust Wald statistic divided by the number of excluded instruments.
    structural_model_ : SieveModel
    counterfactual_ : Counterfactual
    """

    feature_names_: list[str]
    coef_: FloatArray
    std_errors_: FloatArray
    cov_: FloatArray
    first_stage_f_: dict[str, float]
    structural_model_: SieveModel

    def __init__(
        self,
        degree: int = 1,
        *,
        n_knots: int = 0,
        interactions: bool = False,
        covariance: Covariance = "classical",
        action_kind: ActionKind = "auto",
    ) -> None:
        self.degree = degree
        self.n_knots = n_knots
        self.interactions = interactions
        self.covariance = covariance
        self.action_kind = action_kind

    def fit(
        self,
        Y: object,
        T: object,
        *,
        Z: object,
        X: object = None,
        W: object = None,
        sample_weight: object = None,
    ) -> Self:
        """Estimate the coefficients.

        Takes what :meth:`dmliv.DMLIV.fit` takes. Weights are inversely proportional to the error variances;
        rows of weight zero are left out.

        Raises
        ------
        InputError
            If the data cannot be used, or the instruments do not identify the features.
        """
        self._check_parameters()
        data = prepare(Y, T, Z=Z, X=X, W=W, sample_weight=sample_weight, action_kind=self.action_kind)
        used = np.flatnonzero(data.weight > 0)
        spec, schema = data.action_spec, data.context_schema
        context = _context_columns(schema, data.context)[used]
        action = action_vectors(spec, data.action)[used]
        if spec.kind == "discrete":
            bases: tuple[PowerBasis, ...] = ()
            endogenous = action[:, 1:]
            endogenous_names = [f"{spec.names[0]}[{level}]" for level in spec.levels[1:]]
        else:
            values = action * spec.scale + spec.mean
            bases = tuple(_learn_bases(spec.names, values, self.degree, self.n_knots))
            endogenous = _encode_bases(bases, values)
            endogenous_names = [name for basis in bases for name in basis.names]
        numeric = data.instrument.numeric[used]
        numeric_names = [column.name for column in data.instrument_schema.numeric]
        instruments = np.hstack(
            [
                _encode_bases(_learn_bases(numeric_names, numeric, self.degree, self.n_knots), numeric),
                _levels(data.instrument_schema, data.instrument)[used],
            ]
        )
        width = endogenous.shape[1]
        context_names = [column.name for column in schema.numeric]
        context_names += [
            f"{column.name}[{level}]" for column in schema.categorical for level in column.levels[1:]
        ]
        if self.interactions:
            endogenous = np.hstack([endogenous, products(context, endogenous)])
            instruments = np.hstack([instruments, products(context, instruments)])
            endogenous_names += [
                f"{column} * {name}" for column in context_names for name in endogenous_names
            ]
        outcome = data.outcome_spec.to_user(data.outcome[used])
        exogenous = np.hstack([np.ones((len(used), 1)), context])
        weight = data.weight[used] / data.weight[used].mean()
        coef, cov, partial_f = _two_stage_least_squares(
            outcome,
            exogenous,
            (endogenous, endogenous_names),
            instruments,
            weight,
            robust=self.covariance == "robust",
        )
        alone = endogenous.shape[1] == 1
        n_base = 1 + len(context_names)
        slopes = np.zeros((n_base, width))
        slopes.flat[: endogenous.shape[1]] = coef[n_base:]
        model = SieveModel(data.outcome_spec, spec, schema, bases, coef[:n_base], slopes)
        # Everything is ready: only now does the estimator change.
        self.feature_names_ = ["intercept", *context_names, *endogenous_names]
        self.coef_, self.cov_ = coef, cov
        self.std_errors_ = np.sqrt(np.diag(cov))
        self.first_stage_f_ = dict(zip(endogenous_names, partial_f.tolist(), strict=True))
        self._moments = (
            InstrumentMoments.learn(outcome, endogenous[:, 0], exogenous, instruments, weight)
            if alone
            else None
        )
        self.structural_model_ = model
        # Products that were not asked for have coefficients of zero, which are certain.
        covariance = np.zeros((n_base + slopes.size,) * 2)
        covariance[: len(cov), : len(cov)] = cov / data.outcome_spec.scale**2
        uncertainty = LinearUncertainty(model, covariance)
        self.counterfactual_ = Counterfactual.learned(model, data, uncertainty=uncertainty)
        return self

    def _check_parameters(self) -> None:
        for name, value, least in (("degree", self.degree, 1), ("n_knots", self.n_knots, 0)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise InputError(
                    f"Expected a whole number of at least {least}, got {name}={value!r}; pass one."
                )
        if not isinstance(self.interactions, (bool, np.bool_)):
            raise InputError(
                f"Expected interactions to be True or False, got {self.interactions!r}; pass one of them."
            )
        if self.covariance not in ("classical", "robust"):
            raise InputError(
                f"Expected covariance 'classical' or 'robust', got {self.covariance!r}; pass one of them."
            )


def _two_stage_least_squares(
    outcome: FloatArray,
    exogenous: FloatArray,
    endogenous_named: tuple[FloatArray, Sequence[str]],
    instruments: FloatArray,
    weight: FloatArray,
    *,
    robust: bool,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Regress ``outcome`` (n,) on the columns; the first exogenous column is the constant.

    Returns coefficients (p,) and covariance (p, p) in the columns' own units, and a partial F per endogenous
    column.
    """
    endogenous, names = endogenous_named
    root = np.sqrt(weight)[:, None]
    regressors = np.hstack([exogenous, endogenous])
    if len(outcome) <= max(regressors.shape[1], exogenous.shape[1] + instruments.shape[1]):
        raise InputError(
            f"Expected more rows than columns, got {len(outcome)} rows of positive weight for "
            f"{regressors.shape[1]} features and {instruments.shape[1]} excluded instruments; pass more rows "
            "or ask for fewer features."
        )
    to_user, design = standardise(regressors, weight)
    excluded = standardise(np.hstack([exogenous[:, :1], instruments]), weight)[1][:, 1:] * root
    design = design * root
    n_exogenous = exogenous.shape[1]
    included = orthonormal(design[:, :n_exogenous])
    all_instruments = orthonormal(np.hstack([design[:, :n_exogenous], excluded]))
    rank = orthonormal(design).shape[1]
    needed, offered = rank - included.shape[1], all_instruments.shape[1] - included.shape[1]
    if needed == 0:
        raise InputError(
            f"Expected endogenous features that vary given the context, got {listed(names)}, linear "
            "functions of context columns; drop these columns from X."
        )
    if offered < needed:
        raise InputError(
            f"Expected at least {needed} linearly independent excluded instruments for the endogenous "
            f"features {listed(names)}, got {offered}; add instruments or values of them, or ask for fewer "
            "features (degree, n_knots, interactions)."
        )
    projected = all_instruments @ (all_instruments.T @ design)
    left, sizes, right = np.linalg.svd(projected, full_matrices=False)
    kept = sizes > RANK_TOLERANCE * sizes[0]
    if int(kept.sum()) < rank:
        raise InputError(
            f"Expected instruments that move every endogenous feature ({listed(names)}), got ones whose "
            "projections are linearly dependent; use instruments related to the action."
        )
    inverse = (right[kept].T / sizes[kept]) @ left[:, kept].T
    target = outcome * root[:, 0]
    coef = inverse @ target
    residual = target - design @ coef
    spread = inverse * (residual if robust else np.sqrt(np.mean(residual**2)))
    cov = spread @ spread.T
    # What the excluded instruments add to the included ones (Frisch-Waugh-Lovell).
    added = orthonormal(all_instruments - included @ (included.T @ all_instruments), offered)
    partial_f = []
    for column in design[:, n_exogenous:].T:
        rest = column - all_instruments @ (all_instruments.T @ column)
        partial_f.append(_wald(added, added.T @ column, rest, robust) / offered)
    return to_user @ coef, to_user @ cov @ to_user.T, np.array(partial_f)


def _wald(basis: FloatArray, coef: FloatArray, residual: FloatArray, robust: bool) -> float:
    """Return the Wald statistic of ``coef`` (q,) on an orthonormal ``basis`` (n, q); infinite if exact."""
    if float(residual @ residual) <= RANK_TOLERANCE**2 * float(coef @ coef):
        return float("inf")
    if not robust:
        return float(coef @ coef) / float(np.mean(residual**2))
    scores = basis * residual[:, None]
    return float(coef @ np.linalg.lstsq(scores.T @ scores, coef, rcond=None)[0])
