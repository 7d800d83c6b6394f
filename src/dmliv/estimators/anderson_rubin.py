"""Anderson-Rubin confidence sets: right however weak the instruments are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy.linalg
from scipy.optimize import brentq
from scipy.stats import chi2, f

from dmliv.data import FloatArray
from dmliv.data.savable import savable
from dmliv.errors import InputError, NotFittedError
from dmliv.estimators.linear_rows import InstrumentSpace, LinearSystem
from dmliv.kernels.linear_algebra import residualised

SetKind = Literal["empty", "interval", "two rays", "whole line", "several intervals"]

# Imaginary parts below this, relative to the size of a root, are rounding errors of a real one.
_REAL = 1e-5


@savable
@dataclass(frozen=True)
class ConfidenceSet:
    """Values of one coefficient that a test does not reject.

    Attributes
    ----------
    intervals : tuple of (float, float)
        Closed intervals in ascending order, apart from each other; ends may be infinite.
    alpha : float
        Share of samples in which the set misses the truth, at most.
    """

    intervals: tuple[tuple[float, float], ...]
    alpha: float

    @property
    def kind(self) -> SetKind:
        """What the set looks like."""
        if not self.intervals:
            return "empty"
        ends = (math.isfinite(self.intervals[0][0]), math.isfinite(self.intervals[-1][1]))
        if len(self.intervals) == 1:
            return "interval" if any(ends) else "whole line"
        return "two rays" if len(self.intervals) == 2 and not any(ends) else "several intervals"

    @property
    def is_bounded(self) -> bool:
        """Whether the instruments are strong enough to bound the effect."""
        return all(math.isfinite(end) for interval in self.intervals for end in interval)

    @property
    def lower(self) -> float:
        """The lowest value in the set; not a number if it is empty."""
        return self.intervals[0][0] if self.intervals else math.nan

    @property
    def upper(self) -> float:
        """The highest value in the set; not a number if it is empty."""
        return self.intervals[-1][1] if self.intervals else math.nan

    def __contains__(self, value: float) -> bool:
        return any(low <= value <= high for low, high in self.intervals)

    def __str__(self) -> str:
        shown = [f"[{low:.6g}, {high:.6g}]".replace("[-inf", "(-inf") for low, high in self.intervals]
        joined = " and ".join(shown).replace("inf]", "inf)") or "empty: every value is rejected"
        return f"{100.0 * (1.0 - self.alpha):g} % Anderson-Rubin set: {joined}"


@savable
@dataclass(frozen=True, eq=False)
class InstrumentMoments:
    """What tests of one coefficient need of the rows: sums over them, whatever the coefficient.

    Context and constant are partialled out of everything. Axes of length 2 hold outcome and action.

    Attributes
    ----------
    explained : ndarray, shape (k, 2)
        Coordinates in an orthonormal basis of the k excluded instruments.
    unexplained : ndarray, shape (2, 2)
        Products of what the instruments leave open.
    scores : ndarray, shape (2, 2, k, k)
        The same products times those of the basis, summed over rows: for the robust variance.
    n_rows : int
    n_included : int
        Linearly independent columns that were partialled out.
    """

    explained: FloatArray
    unexplained: FloatArray
    scores: FloatArray
    n_rows: int
    n_included: int

    @classmethod
    def learn(cls, system: LinearSystem, space: InstrumentSpace) -> InstrumentMoments:
        """Sum over the rows of a system with one endogenous column."""
        pair = system.factored[:, [-1, system.n_exogenous]]
        rest = residualised(pair, space.everything)
        # Standardised in the system; the user's units come back here.
        units = np.array([1.0, 1.0 / system.factor[system.n_exogenous]])
        basis, fitted = space.inverse @ space.added, space.inverse @ pair
        scores = np.zeros((2, 2, space.n_added, space.n_added))
        for columns in system.blocks():
            instruments = system.instruments(columns)
            moved = instruments @ basis
            unexplained = (columns[:, [-1, system.n_exogenous]] - instruments @ fitted) * units
            for first, second in ((0, 0), (0, 1), (1, 1)):
                weighted = moved * (unexplained[:, first] * unexplained[:, second])[:, None]
                scores[first, second] += weighted.T @ moved
        scores[1, 0] = scores[0, 1]
        return cls(
            explained=(space.added.T @ pair) * units,
            unexplained=(rest.T @ rest) * np.outer(units, units),
            scores=scores,
            n_rows=system.n_rows,
            n_included=space.included.shape[1],
        )

    @property
    def n_instruments(self) -> int:
        """Linearly independent excluded instruments."""
        return len(self.explained)

    def statistic(self, value: float, *, robust: bool) -> float:
        """Return the Wald statistic, over k, of the instruments in a regression of outcome - value * action.

        With equal variances it has k and n - p - k degrees of freedom under the true value; the robust one
        times k is chi-squared with k degrees of freedom in large samples.
        """
        direction = np.array([1.0, -value])
        moment = self.explained @ direction
        if robust:
            variance = np.einsum("i,j,ijkl->kl", direction, direction, self.scores)
            return float(moment @ np.linalg.lstsq(variance, moment, rcond=None)[0]) / self.n_instruments
        variance_sum = float(direction @ self.unexplained @ direction)
        return float(moment @ moment) / variance_sum * self._free / self.n_instruments

    def confidence_set(self, alpha: float, *, robust: bool) -> ConfidenceSet:
        """Return all values that the test at level ``alpha`` does not reject."""
        k = self.n_instruments
        if not robust:
            bound = float(f.ppf(1.0 - alpha, k, self._free)) * k / self._free
            form = self.explained.T @ self.explained - bound * self.unexplained
            return ConfidenceSet(_where_not_positive(form[1, 1], -2.0 * form[0, 1], form[0, 0]), alpha)
        critical = float(chi2.ppf(1.0 - alpha, k))
        # Near the estimate and in units of its spread all numbers are of one size.
        centre = float(self.explained[:, 0] @ self.explained[:, 1] / (self.explained[:, 1] ** 2).sum())
        along = np.array([1.0, -centre])
        unit = math.sqrt(float(along @ self.unexplained @ along) / float(self.unexplained[1, 1]))
        turn = np.array([[1.0, -centre], [0.0, -unit]])
        moment = self.explained @ turn.T
        scores = np.einsum("ai,bj,ijkl->abkl", turn, turn, self.scores)

        def excess(place: float) -> float:
            """Return how far the test is from accepting the value at an angle of ``place``."""
            direction = np.array([math.cos(place), math.sin(place)])
            variance = np.einsum("i,j,ijkl->kl", direction, direction, scores)
            at = moment @ direction
            return float(at @ np.linalg.lstsq(variance, at, rcond=None)[0]) - critical

        crossings = np.arctan(_crossings(moment, scores, critical))
        places = np.unique(np.concatenate([[-np.pi / 2], crossings, [np.pi / 2]]))
        middles = 0.5 * (places[1:] + places[:-1])
        inside = [excess(middle) <= 0.0 for middle in middles]
        intervals: list[tuple[float, float]] = []
        start: float | None = -math.inf if inside[0] else None
        for left, right, before, after in zip(
            middles[:-1], middles[1:], inside[:-1], inside[1:], strict=True
        ):
            if before == after:
                continue
            end = centre + unit * math.tan(brentq(excess, left, right, xtol=1e-14, rtol=1e-14))
            if start is None:
                start = end
            else:
                intervals.append((start, end))
                start = None
        if start is not None:
            intervals.append((start, math.inf))
        return ConfidenceSet(tuple(intervals), alpha)

    @property
    def _free(self) -> int:
        return self.n_rows - self.n_included - self.n_instruments


class AndersonRubin:
    """Mixin of linear estimators: confidence sets that hold for weak instruments too."""

    covariance: str
    feature_names_: list[str]
    _moments: InstrumentMoments | None = None

    def anderson_rubin_interval(self, alpha: float = 0.05) -> ConfidenceSet:
        """Return the Anderson-Rubin confidence set: the coefficients that the test does not reject.

        A value is kept if, with it, the instruments explain nothing of the residual of the outcome. This is
        right however weak they are; if they are too weak to bound the effect, the set is unbounded, and it is
        empty if no value fits all instruments. It follows ``covariance``: an F test with ``"classical"``,
        exact for normal errors, and a chi-squared test with ``"robust"``.

        Parameters
        ----------
        alpha : float
            Share of samples in which the set may miss the truth.

        Returns
        -------
        ConfidenceSet

        Raises
        ------
        InputError
            If there is more than one endogenous feature, or ``alpha`` is no share.
        """
        if not hasattr(self, "feature_names_"):
            raise NotFittedError(
                f"Expected a fitted {type(self).__name__}, got one that was never fitted; call fit first."
            )
        if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number) or not 0.0 < alpha < 1.0:
            raise InputError(f"Expected alpha between 0 and 1, got {alpha!r}; pass 0.05, say.")
        if self._moments is None:
            raise InputError(
                "Expected one endogenous feature for an Anderson-Rubin set, got several; fit one action with "
                "degree=1, n_knots=0 and interactions=False."
            )
        return self._moments.confidence_set(float(alpha), robust=self.covariance == "robust")


def _where_not_positive(square: float, linear: float, constant: float) -> tuple[tuple[float, float], ...]:
    """Return where square x^2 + linear x + constant <= 0."""
    root = linear**2 - 4.0 * square * constant
    if square == 0.0 or root < 0.0:
        if square == 0.0 and linear != 0.0:
            end = -constant / linear
            return ((-math.inf, end),) if linear > 0.0 else ((end, math.inf),)
        return ((-math.inf, math.inf),) if (square or constant) <= 0.0 else ()
    # The larger of the two sums first: the other way round close numbers would cancel.
    larger = -0.5 * (linear + math.copysign(math.sqrt(root), linear))
    ends = sorted((larger / square, constant / larger if larger else 0.0))
    if square > 0.0:
        return ((ends[0], ends[1]),)
    return ((-math.inf, ends[0]), (ends[1], math.inf))


def _crossings(moment: FloatArray, scores: FloatArray, critical: float) -> npt.NDArray[np.float64]:
    """Return candidates t for g' V^-1 g = critical, where g = m_0 + t m_1 and V is quadratic in t.

    The equation says that the matrix [[critical, g'], [g, V]] is singular: a quadratic eigenvalue problem.
    """
    k = len(moment)
    powers = np.zeros((3, k + 1, k + 1))
    powers[0, 0, 0] = critical
    for power in (0, 1):
        powers[power, 0, 1:] = powers[power, 1:, 0] = moment[:, power]
    powers[0, 1:, 1:] = scores[0, 0]
    powers[1, 1:, 1:] = scores[0, 1] + scores[1, 0]
    powers[2, 1:, 1:] = scores[1, 1]
    one, nought = np.eye(k + 1), np.zeros((k + 1, k + 1))
    left = np.block([[nought, one], [-powers[0], -powers[1]]])
    right = np.block([[one, nought], [nought, powers[2]]])
    above, below = scipy.linalg.eig(left, right, right=False, homogeneous_eigvals=True)
    finite = np.abs(below) > 1e-12 * np.abs(above)
    roots = above[finite] / below[finite]
    return np.asarray(roots.real[np.abs(roots.imag) <= _REAL * (1.0 + np.abs(roots))])
