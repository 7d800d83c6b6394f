"""Problems with a smooth h0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dmliv.data import FloatArray
from dmliv.problems.suite.pieces import Rows, SuiteProblem, student_noise


@dataclass(frozen=True)
class SaturatingDose(SuiteProblem):
    """A dose whose benefit levels off, sooner for some patients; two contexts, one strong instrument.

    ::

        T  = 0.5 x2 + strength z + 0.8 u
        h0 = 2.4 (1 + 0.5 x1) / (1 + exp(-2 T + x2)) - 1.2
    """

    name: ClassVar[str] = "saturating-dose"
    n_contexts: ClassVar[int] = 2

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Give more to those who are seen to do well."""
        del rng
        return 0.5 * X[:, 1] + self.instrument_strength * Z[:, 0] + 0.8 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a logistic curve whose height and place depend on the patient."""
        return 2.4 * (1.0 + 0.5 * X[:, 0]) / (1.0 + np.exp(-2.0 * T + X[:, 1])) - 1.2


@dataclass(frozen=True)
class UShapedLoad(SuiteProblem):
    """A load that harms when too low or too high; ten contexts of which three matter, three instruments.

    ::

        T  = 0.4 x1 + strength (0.7 z1 + 0.5 z2 + 0.3 z3) - 0.8 u
        h0 = 0.7 (T - 0.6 x1)^2 + 0.5 x2 + 0.4 x3^2 - 1
    """

    name: ClassVar[str] = "u-shaped-load"
    n_contexts: ClassVar[int] = 10
    n_instruments: ClassVar[int] = 3

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Give less to those who are seen to bear it badly."""
        del rng
        moved = 0.7 * Z[:, 0] + 0.5 * Z[:, 1] + 0.3 * Z[:, 2]
        return 0.4 * X[:, 0] + self.instrument_strength * moved - 0.8 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a parabola in the action, additive in two further contexts."""
        return 0.7 * (T - 0.6 * X[:, 0]) ** 2 + 0.5 * X[:, 1] + 0.4 * X[:, 2] ** 2 - 1.0


@dataclass(frozen=True)
class TwentyColumns(SuiteProblem):
    """Twenty correlated contexts of which four matter, five instruments of falling strength.

    Contexts are normal and share a factor: x_j = sqrt(0.7) N(0, 1) + sqrt(0.3) f. ::

        T  = 0.3 x1 + strength (0.6 z1 + 0.5 z2 + 0.4 z3 + 0.3 z4 + 0.2 z5) + 0.8 u
        h0 = 1.1 tanh(T) + 0.35 T x2 + 0.5 sin(1.5 x3) - 0.3 x4
    """

    name: ClassVar[str] = "twenty-columns"
    n_contexts: ClassVar[int] = 20
    n_instruments: ClassVar[int] = 5

    def draw_context(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Draw columns with a common factor."""
        own = np.sqrt(0.7) * rng.standard_normal((n, self.n_contexts))
        return np.asarray(own + np.sqrt(0.3) * rng.standard_normal((n, 1)))

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Follow five instruments that push the same way."""
        del rng
        moved = Z @ np.array([0.6, 0.5, 0.4, 0.3, 0.2])
        return np.asarray(0.3 * X[:, 0] + self.instrument_strength * moved + 0.8 * hidden)

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a curve in the action, one product, and two further terms."""
        return 1.1 * np.tanh(T) + 0.35 * T * X[:, 1] + 0.5 * np.sin(1.5 * X[:, 2]) - 0.3 * X[:, 3]


@dataclass(frozen=True)
class WeakNudge(SuiteProblem):
    """Five weak instruments that together explain some six percent of the action; three contexts.

    ::

        T  = 0.4 x1 + strength 0.11 (z1 + z2 + z3 + z4 + z5) + 0.95 u
        h0 = 1.2 arctan(1.5 T) + 0.5 x2
    """

    name: ClassVar[str] = "weak-nudge"
    n_contexts: ClassVar[int] = 3
    n_instruments: ClassVar[int] = 5

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Follow mostly one's own mind."""
        del rng
        moved = 0.11 * Z.sum(axis=1)
        return np.asarray(0.4 * X[:, 0] + self.instrument_strength * moved + 0.95 * hidden)

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a saturating curve plus a line in one context; the third context does nothing."""
        return 1.2 * np.arctan(1.5 * T) + 0.5 * X[:, 1]


@dataclass(frozen=True)
class HeavyTailedReturns(SuiteProblem):
    """Noise with wild outliers, Student's t with 3 degrees of freedom; four contexts, two instruments.

    ::

        T  = 0.4 x1 - 0.3 x2 + strength (0.8 z1 + 0.5 z2) + 0.8 u
        h0 = 0.9 T exp(-T^2 / 4) (1.5 + x1) + 0.5 x3

    with noise 0.8 u + 0.6 t3 / sqrt(3) times its standard deviation.
    """

    name: ClassVar[str] = "heavy-tailed-returns"
    n_contexts: ClassVar[int] = 4
    n_instruments: ClassVar[int] = 2
    confounding: float = 0.8
    noise_sd: float = 1.0

    def draw_own_noise(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Draw outliers."""
        return student_noise(rng, n)

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Invest more when returns are foreseen."""
        del rng
        moved = 0.8 * Z[:, 0] + 0.5 * Z[:, 1]
        return 0.4 * X[:, 0] - 0.3 * X[:, 1] + self.instrument_strength * moved + 0.8 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return what rises, then falls."""
        return 0.9 * T * np.exp(-(T**2) / 4.0) * (1.5 + X[:, 0]) + 0.5 * X[:, 2]
