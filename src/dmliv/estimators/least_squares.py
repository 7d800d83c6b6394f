"""Two-stage least squares: h linear in features of action and context, with textbook standard errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, Self

import numpy as np

from dmliv.data import ActionKind, FloatArray, TrainingData, prepare
from dmliv.errors import InputError, check_whole, listed
from dmliv.estimators.anderson_rubin import AndersonRubin, InstrumentMoments
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.estimators.linear_rows import InstrumentSpace, LinearRows, LinearSystem, LinearUncertainty
from dmliv.estimators.series import SeriesColumns, SeriesModel
from dmliv.inference.counterfactual import Counterfactual
from dmliv.kernels.linear_algebra import RANK_TOLERANCE, orthonormal

Covariance = Literal["classical", "robust"]

# Rows whose columns are made at a time.
_BLOCK_ROWS = 1 << 14


class TwoStageLeastSquares(AndersonRubin, CounterfactualEstimator):
    """Two-stage least squares on chosen features of action, context and instrument.

    By default h is linear in action and context. Powers, truncated powers (splines) and products with the
    context turn it into a series; the instruments are expanded in the same way, so that there are as many of
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
    structural_model_ : SeriesModel
    counterfactual_ : Counterfactual
    """

    feature_names_: list[str]
    coef_: FloatArray
    std_errors_: FloatArray
    cov_: FloatArray
    first_stage_f_: dict[str, float]
    structural_model_: SeriesModel

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
        return self.fit_prepared(
            prepare(Y, T, Z=Z, X=X, W=W, sample_weight=sample_weight, action_kind=self.action_kind)
        )

    def fit_prepared(self, data: TrainingData) -> Self:
        """Estimate the coefficients from rows that :func:`dmliv.data.prepare` has read."""

        def blocks(columns: SeriesColumns) -> Iterator[LinearRows]:
            for start in range(0, len(data), _BLOCK_ROWS):
                rows = np.arange(start, min(start + _BLOCK_ROWS, len(data)))
                yield columns.rows(
                    data.outcome_spec.to_user(data.outcome[rows]),
                    data.action[rows],
                    data.instrument.take(rows),
                    data.context.take(rows),
                    data.weight[rows],
                )

        return self.fit_blocks(data, blocks)

    def fit_blocks(
        self, sample: TrainingData, blocks: Callable[[SeriesColumns], Iterator[LinearRows]]
    ) -> Self:
        """Estimate the coefficients from rows that come block by block, several times over.

        Parameters
        ----------
        sample : TrainingData
            Rows that stand for all: they settle units, centres and knots.
        blocks : callable
            Starts a pass over all rows, and yields the columns of some of them at a time.
        """
        self._check_parameters()
        columns = SeriesColumns.learn(sample, self.degree, self.n_knots, self.interactions)
        names = columns.endogenous_names
        system = LinearSystem.learn(partial(blocks, columns))
        space = InstrumentSpace.learn(system)
        coef, cov, partial_f = _solve(system, space, names, robust=self.covariance == "robust")
        n_base = system.n_exogenous
        slopes = np.zeros((n_base, len(columns.action_names)))
        slopes.flat[: len(names)] = coef[n_base:]
        model = SeriesModel(
            sample.outcome_spec,
            sample.action_spec,
            sample.context_schema,
            columns.bases,
            coef[:n_base],
            slopes,
        )
        moments = InstrumentMoments.learn(system, space) if len(names) == 1 else None
        # Everything is ready: only now does the estimator change.
        self.feature_names_ = ["intercept", *columns.context_names, *names]
        self.coef_, self.cov_ = coef, cov
        self.std_errors_ = np.sqrt(np.diag(cov))
        self.first_stage_f_ = dict(zip(names, partial_f.tolist(), strict=True))
        self._moments = moments
        self.structural_model_ = model
        # Products that were not asked for have coefficients of zero, which are certain.
        covariance = np.zeros((n_base + slopes.size,) * 2)
        covariance[: len(cov), : len(cov)] = cov / sample.outcome_spec.scale**2
        uncertainty = LinearUncertainty(model, covariance)
        self.counterfactual_ = Counterfactual.learned(model, sample, uncertainty=uncertainty)
        return self

    def _check_parameters(self) -> None:
        check_whole(degree=self.degree)
        check_whole(least=0, n_knots=self.n_knots)
        if not isinstance(self.interactions, (bool, np.bool_)):
            raise InputError(
                f"Expected interactions to be True or False, got {self.interactions!r}; pass one of them."
            )
        if self.covariance not in ("classical", "robust"):
            raise InputError(
                f"Expected covariance 'classical' or 'robust', got {self.covariance!r}; pass one of them."
            )


def _solve(
    system: LinearSystem, space: InstrumentSpace, names: Sequence[str], *, robust: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Regress the outcome on exogenous and endogenous features; ``names`` are those of the latter.

    Returns coefficients (p,) and covariance (p, p) in the columns' own units, and a partial F per endogenous
    column.
    """
    n_rows = system.n_rows
    if n_rows <= max(system.n_features, system.n_exogenous + system.n_instruments):
        raise InputError(
            f"Expected more rows than columns, got {n_rows} rows of positive weight for "
            f"{system.n_features} features and {system.n_instruments} excluded instruments; pass more rows "
            "or ask for fewer features."
        )
    design = system.design(system.factored)
    rank = orthonormal(design).shape[1]
    needed = rank - space.included.shape[1]
    if needed == 0:
        raise InputError(
            f"Expected endogenous features that vary given the context, got {listed(names)}, linear "
            "functions of context columns; drop these columns from X."
        )
    if space.n_added < needed:
        raise InputError(
            f"Expected at least {needed} linearly independent excluded instruments for the endogenous "
            f"features {listed(names)}, got {space.n_added}; add instruments or values of them, or ask for "
            "fewer features (degree, n_knots, interactions)."
        )
    projected = space.everything @ (space.everything.T @ design)
    left, sizes, right = np.linalg.svd(projected, full_matrices=False)
    kept = sizes > RANK_TOLERANCE * sizes[0]
    if int(kept.sum()) < rank:
        raise InputError(
            f"Expected instruments that move every endogenous feature ({listed(names)}), got ones whose "
            "projections are linearly dependent; use instruments related to the action."
        )
    inverse = (right[kept].T / sizes[kept]) @ left[:, kept].T
    target, endogenous = system.factored[:, -1], system.endogenous(system.factored)
    coef = inverse @ target
    residual = target - design @ coef
    explained = space.added.T @ endogenous
    rest = endogenous - space.everything @ (space.everything.T @ endogenous)
    if robust:
        cov, first_stage = _robust_variances(system, space, inverse, coef)
    else:
        cov = inverse @ inverse.T * float(residual @ residual / n_rows)
        first_stage = (rest**2).sum(axis=0)[:, None, None] / n_rows * np.eye(space.n_added)
    partial_f = [
        _wald(moved, float(left_open @ left_open), variance) / space.n_added
        for moved, left_open, variance in zip(explained.T, rest.T, first_stage, strict=True)
    ]
    to_user = system.to_user
    user_coef = to_user @ coef
    user_coef[0] += system.mean[-1]
    return user_coef, to_user @ cov @ to_user.T, np.array(partial_f)


def _robust_variances(
    system: LinearSystem, space: InstrumentSpace, inverse: FloatArray, coef: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return White's variance of the coefficients (p, p), and of each first stage's (d, q, q)."""
    by_instrument = space.inverse @ inverse.T
    basis = space.inverse @ space.added
    fitted = space.inverse @ system.endogenous(system.factored)
    cov = np.zeros((len(coef), len(coef)))
    first_stage = np.zeros((system.n_endogenous, space.n_added, space.n_added))
    for columns in system.blocks():
        instruments = system.instruments(columns)
        residual = columns[:, -1] - system.design(columns) @ coef
        spread = (instruments @ by_instrument) * residual[:, None]
        cov += spread.T @ spread
        moved, rest = instruments @ basis, system.endogenous(columns) - instruments @ fitted
        for position, column in enumerate(rest.T):
            scores = moved * column[:, None]
            first_stage[position] += scores.T @ scores
    return cov, first_stage


def _wald(coef: FloatArray, residual_sum: float, variance: FloatArray) -> float:
    """Return the Wald statistic of ``coef`` (q,); infinite if nothing is left open."""
    if residual_sum <= RANK_TOLERANCE**2 * float(coef @ coef):
        return float("inf")
    return float(coef @ np.linalg.lstsq(variance, coef, rcond=None)[0])
