"""Linear functionals of h, such as effects, derivatives and values, and the intervals around them.

A functional is a list of points (context, action) with coefficients, row by row or on average over rows. It
can be applied to whatever is defined on such points: to h itself, to the features of a correction, to the
replicates of a bootstrap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Protocol

import numpy as np
from scipy.stats import norm

from dmliv.data import FloatArray, Table
from dmliv.errors import InputError

# Gauss-Hermite points per action column for one, two and three columns.
_SMOOTHING_POINTS = {1: 5, 2: 3, 3: 3}

#: What intervals with a normal distribution are.
POINTWISE: Final = (
    "Bands and intervals are pointwise 95 % confidence intervals, valid if the instrument is valid"
)

Evaluate = Callable[[Table, FloatArray], FloatArray]
"""Takes contexts of n rows and actions (n, d), returns values (n, w)."""
Terms = tuple[tuple[float, FloatArray], ...]
"""Coefficients and actions (n, d)."""


@dataclass(frozen=True, eq=False)
class Functional:
    """``sum_k coefficient_k * h(context, action_k)``, for every row of a context or for their mean.

    Attributes
    ----------
    context : Table
        Of n rows.
    terms : tuple of (float, ndarray)
        Coefficients and actions in model units, shape (n, d).
    weight : ndarray, shape (n,), or None
        Weights of a mean over rows, which sum to one; None keeps every row apart.
    """

    context: Table
    terms: Terms
    weight: FloatArray | None = None

    def averaged(self) -> Functional:
        """Return the mean over rows."""
        n_rows = len(self.context)
        if not n_rows:
            raise InputError("Expected at least one row to average over, got none; pass some.")
        return replace(self, weight=np.full(n_rows, 1.0 / n_rows))

    def smoothed(self, smoothing: float) -> Functional:
        """Return the functional with every action spread out by so many model units; see :func:`around`."""
        terms = [
            (coefficient * share, place)
            for coefficient, action in self.terms
            for share, place in around(action, smoothing)
        ]
        return replace(self, terms=tuple(terms))

    def apply(self, evaluate: Evaluate) -> FloatArray:
        """Return the functional of everything that is evaluated, shape (n, w), or (1, w) for a mean."""
        parts = [coefficient * evaluate(self.context, action) for coefficient, action in self.terms]
        total = np.sum(parts, axis=0)
        return np.asarray(total if self.weight is None else (self.weight @ total)[None, :])

    @property
    def level(self) -> float:
        """The functional of the constant one: 0 for differences, 1 for outcomes."""
        return float(sum(coefficient for coefficient, _ in self.terms))


@dataclass(frozen=True, eq=False)
class Band:
    """Estimates with their intervals, each of shape (n,) or (1,) for a mean.

    Attributes
    ----------
    estimate : ndarray
        Corrected for the estimated bias of h, where the uncertainty has such a correction.
    lower, upper : ndarray
    standard_error : ndarray
    """

    estimate: FloatArray
    lower: FloatArray
    upper: FloatArray
    standard_error: FloatArray

    @classmethod
    def normal(cls, estimate: FloatArray, variance: FloatArray, alpha: float) -> Band:
        """Return the band of normal estimates with these variances, both of shape (n,)."""
        error = np.sqrt(np.maximum(variance, 0.0))
        half = float(norm.ppf(1.0 - alpha / 2.0)) * error
        return cls(estimate, estimate - half, estimate + half, error)

    def in_units(self, scale: float, shift: float) -> Band:
        """Return the band of ``scale * value + shift``, for a positive scale."""
        return Band(
            self.estimate * scale + shift,
            self.lower * scale + shift,
            self.upper * scale + shift,
            self.standard_error * scale,
        )


class Uncertainty(Protocol):
    """What is known of the errors of a fitted h, in model units."""

    name: ClassVar[str]
    """What an estimator's ``inference_`` says."""

    @property
    def width(self) -> int:
        """Columns of :meth:`evaluate`."""
        ...

    @property
    def words(self) -> str:
        """What the intervals are, for people; one or more sentences."""
        ...

    def evaluate(self, context: Table, action: FloatArray) -> FloatArray:
        """Return what the uncertainty needs to know of a point, shape (n, w)."""
        ...

    def unseen(self, functional: Functional, applied: FloatArray) -> FloatArray:
        """Return the variance of what :meth:`evaluate` cannot see of a functional, shape (n,) or (1,)."""
        ...

    def band(self, plug_in: FloatArray, applied: FloatArray, unseen: FloatArray, alpha: float) -> Band:
        """Return the band around functionals of h.

        Parameters
        ----------
        plug_in : ndarray, shape (n,)
            The functionals of the fitted h.
        applied : ndarray, shape (n, w)
            The functionals of :meth:`evaluate`.
        unseen : ndarray, shape (n,)
            As :meth:`unseen` returns it.
        alpha : float
            One minus the confidence level.
        """
        ...


def around(action: FloatArray, smoothing: float) -> Terms:
    """Return the terms of a mean over actions that are normal around the given ones.

    The value at one action is the limit of means over ever fewer rows, and hardly seen in data. A mean over
    actions nearby is seen well, and what somebody who rounds, haggles or slips really gets.

    Parameters
    ----------
    action : ndarray, shape (n, d)
        In model units.
    smoothing : float
        Standard deviation in each column, in model units; 0 leaves actions as they are.
    """
    if smoothing == 0.0:
        return ((1.0, action),)
    width = action.shape[1]
    if width not in _SMOOTHING_POINTS:
        raise InputError(
            f"Expected at most {max(_SMOOTHING_POINTS)} action columns to smooth over, got {width}; leave "
            "smoothing at 0."
        )
    points, weights = np.polynomial.hermite_e.hermegauss(_SMOOTHING_POINTS[width])
    places, shares = points * smoothing, weights / weights.sum()
    grid = np.stack(np.meshgrid(*[places] * width, indexing="ij"), axis=-1).reshape(-1, width)
    joint = np.stack(np.meshgrid(*[shares] * width, indexing="ij"), axis=-1).prod(axis=-1).ravel()
    return tuple((float(share), action + place) for share, place in zip(joint, grid, strict=True))


def check_smoothing(smoothing: float, *, discrete: bool) -> float:
    """Return how far actions are smoothed over, or say what is wrong with it."""
    if not isinstance(smoothing, (int, float, np.number)) or not 0.0 <= smoothing < np.inf:
        raise InputError(
            f"Expected a smoothing of at least 0 standard deviations of the action, got {smoothing!r}; pass "
            "0.25, say."
        )
    if discrete and smoothing > 0.0:
        raise InputError(
            f"Expected smoothing=0 for a discrete action, whose levels have no neighbours, got {smoothing!r}."
        )
    return float(smoothing)


def check_alpha(alpha: float) -> float:
    """Return the level, or say what is wrong with it."""
    if not isinstance(alpha, (int, float, np.number)) or not 0.0 < alpha < 1.0:
        raise InputError(f"Expected alpha between 0 and 1, got {alpha!r}; 0.05 gives 95 % intervals.")
    return float(alpha)
