"""A linear model with instruments, summed up block by block: memory does not grow with the rows.

The columns A of all rows have a triangular factor R with A'A = R'R. It is small, and whatever products of
columns a regression needs are those of the columns of R. Blocks of rows are added to it one by one through
orthogonal transformations, which lose no digits, unlike sums of squares. Only what weighs rows by their own
residuals (robust variances) needs another pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from dmliv.data import FloatArray, Table
from dmliv.data.savable import savable
from dmliv.inference.functionals import POINTWISE, Band, Functional
from dmliv.kernels.linear_algebra import RANK_TOLERANCE, orthonormal, residualised

# Spread over size below which a column is a constant with rounding errors.
_LEAST_SPREAD = 1e-12


@dataclass(frozen=True, eq=False)
class LinearRows:
    """Some rows of a linear model, all of positive weight.

    Attributes
    ----------
    outcome, weight : ndarray, shape (n,)
    exogenous : ndarray, shape (n, p)
        The first column is the constant, one.
    endogenous : ndarray, shape (n, d)
    instruments : ndarray, shape (n, k)
        Those that are excluded from the model.
    """

    outcome: FloatArray
    exogenous: FloatArray
    endogenous: FloatArray
    instruments: FloatArray
    weight: FloatArray

    def joined(self) -> FloatArray:
        """Return all columns, the outcome last, shape (n, p + d + k + 1)."""
        return np.hstack([self.exogenous, self.endogenous, self.instruments, self.outcome[:, None]])


#: Starts a new pass over all rows.
Passes = Callable[[], Iterator[LinearRows]]


@dataclass(frozen=True, eq=False)
class LinearSystem:
    """All rows of a linear model, as the triangular factor of their standardised, weighted columns.

    Columns stand in the order of :meth:`LinearRows.joined`. The outcome is centred but not scaled.

    Attributes
    ----------
    passes : callable
    n_rows : int
    n_exogenous, n_endogenous : int
    mean, factor : ndarray, shape (p + d + k + 1,)
        What is subtracted from a column and what it is multiplied by; zero for one that does not vary.
    mean_weight : float
    factored : ndarray, shape (r, p + d + k + 1)
        The factor.
    """

    passes: Passes
    n_rows: int
    n_exogenous: int
    n_endogenous: int
    mean: FloatArray
    factor: FloatArray
    mean_weight: float
    factored: FloatArray

    @classmethod
    def learn(cls, passes: Passes) -> LinearSystem:
        """Sum up the rows in two passes, of which the first finds the means."""
        n_rows, weight_sum, n_exogenous, n_endogenous = 0, 0.0, 0, 0
        sums, largest = np.zeros(1), np.zeros(1)
        for rows in passes():
            columns = rows.joined()
            n_rows += len(columns)
            weight_sum += float(rows.weight.sum())
            sums = sums + rows.weight @ columns
            largest = np.maximum(largest, np.abs(columns).max(axis=0, initial=0.0))
            n_exogenous, n_endogenous = rows.exogenous.shape[1], rows.endogenous.shape[1]
        mean = sums / weight_sum
        mean[0] = 0.0
        mean_weight = weight_sum / n_rows
        whole = np.ones_like(mean)
        factored = np.empty((0, len(mean)))
        for rows in passes():
            weighted = _standardised(rows, mean, whole, mean_weight)
            factored = np.asarray(np.linalg.qr(np.vstack([factored, weighted]), mode="r"), dtype=np.float64)
        spread = np.sqrt((factored**2).sum(axis=0) / n_rows)
        varies = spread > _LEAST_SPREAD * largest
        # A column without variation carries nothing beyond the constant, only rounding errors.
        factor = np.where(varies, 1.0 / np.where(varies, spread, 1.0), 0.0)
        factor[[0, -1]] = 1.0
        return cls(passes, n_rows, n_exogenous, n_endogenous, mean, factor, mean_weight, factored * factor)

    @property
    def n_features(self) -> int:
        """Columns of the model: exogenous, then endogenous."""
        return self.n_exogenous + self.n_endogenous

    @property
    def n_instruments(self) -> int:
        """Excluded instruments."""
        return len(self.mean) - self.n_features - 1

    @property
    def to_user(self) -> FloatArray:
        """Turns coefficients of the standardised features into those of the user's, shape (p + d, p + d)."""
        factor = self.factor[: self.n_features]
        turned = np.diag(factor)
        turned[0, 1:] = -(self.mean[: self.n_features] * factor)[1:]
        return turned

    def design(self, columns: FloatArray) -> FloatArray:
        """Return the features among all columns, shape (n, p + d)."""
        return columns[:, : self.n_features]

    def exogenous(self, columns: FloatArray) -> FloatArray:
        """Return the exogenous features, shape (n, p)."""
        return columns[:, : self.n_exogenous]

    def endogenous(self, columns: FloatArray) -> FloatArray:
        """Return the endogenous features, shape (n, d)."""
        return columns[:, self.n_exogenous : self.n_features]

    def instruments(self, columns: FloatArray) -> FloatArray:
        """Return all instruments, the exogenous features among them, shape (n, p + k)."""
        return np.hstack([self.exogenous(columns), columns[:, self.n_features : -1]])

    def blocks(self) -> Iterator[FloatArray]:
        """Yield all columns of some rows at a time, standardised and times the root of the weight."""
        for rows in self.passes():
            yield _standardised(rows, self.mean, self.factor, self.mean_weight)


@dataclass(frozen=True, eq=False)
class InstrumentSpace:
    """What the instruments of a system span, as orthonormal bases of columns of its factor.

    Attributes
    ----------
    included : ndarray, shape (r, i)
        Of the exogenous features.
    everything : ndarray, shape (r, i + q)
        Of all instruments.
    added : ndarray, shape (r, q)
        Of what the excluded instruments add to the exogenous features (Frisch-Waugh-Lovell).
    inverse : ndarray, shape (p + k, r)
        Turns a column of this space into coefficients of the instruments, and so into values row by row.
    """

    included: FloatArray
    everything: FloatArray
    added: FloatArray
    inverse: FloatArray

    @classmethod
    def learn(cls, system: LinearSystem) -> InstrumentSpace:
        """Find the bases."""
        instruments = system.instruments(system.factored)
        included, everything = orthonormal(system.exogenous(system.factored)), orthonormal(instruments)
        offered = max(0, everything.shape[1] - included.shape[1])
        added = orthonormal(residualised(everything, included), offered)
        inverse = np.asarray(np.linalg.pinv(instruments, rcond=RANK_TOLERANCE), dtype=np.float64)
        return cls(included, everything, added, inverse)

    @property
    def n_added(self) -> int:
        """Linearly independent excluded instruments."""
        return int(self.added.shape[1])


def _standardised(rows: LinearRows, mean: FloatArray, factor: FloatArray, mean_weight: float) -> FloatArray:
    columns = rows.joined()
    columns -= mean
    columns *= factor
    columns *= np.sqrt(rows.weight / mean_weight)[:, None]
    return columns


class Design(Protocol):
    """Anything whose prediction is a row of features times coefficients."""

    def features(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the features of every row in the order of the coefficients, shape (n, p)."""
        ...


@savable
@dataclass(frozen=True, eq=False)
class LinearUncertainty:
    """The covariance of coefficients.

    Attributes
    ----------
    design : Design
    covariance : ndarray, shape (p, p)
        For outcomes in model units.
    """

    design: Design
    covariance: FloatArray

    name: ClassVar[str] = "asymptotic"

    @property
    def width(self) -> int:
        """Number of coefficients."""
        return len(self.covariance)

    @property
    def words(self) -> str:
        """What the intervals are."""
        return f"{POINTWISE}."

    def evaluate(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the features of every row, shape (n, p)."""
        return self.design.features(context, action)

    def unseen(self, functional: Functional, applied: FloatArray) -> FloatArray:
        """Return zeros: nothing is hidden."""
        del functional
        return np.zeros(len(applied))

    def band(self, plug_in: FloatArray, applied: FloatArray, unseen: FloatArray, alpha: float) -> Band:
        """Return normal intervals around the estimates."""
        del unseen
        return Band.normal(plug_in, np.einsum("np,pq,nq->n", applied, self.covariance, applied), alpha)
