"""Problems with waves in the action or in a context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dmliv.data import FloatArray
from dmliv.problems.suite.pieces import Rows, SuiteProblem


@dataclass(frozen=True)
class WavyResponse(SuiteProblem):
    """A sine in the action plus a line in the only context; noise grows with the context.

    ::

        T  = 0.5 x + strength 1.2 z + 0.7 u,     z ~ U(-sqrt(3), sqrt(3))
        h0 = 1.35 sin(1.3 T) + 0.5 x
        noise scale = sqrt(0.4 + 0.6 (1 + x))
    """

    name: ClassVar[str] = "wavy-response"

    def draw_instrument(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Draw uniform instruments of variance one."""
        return np.asarray(np.sqrt(3.0) * rng.uniform(-1.0, 1.0, (n, 1)))

    def noise_scale(self, X: Rows, Z: Rows) -> FloatArray:
        """Let the variance rise from 0.4 to 1.6 times its mean."""
        del Z
        return np.sqrt(0.4 + 0.6 * (1.0 + X[:, 0]))

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Move widely with the instrument, so that a whole wave is seen."""
        del rng
        return 0.5 * X[:, 0] + 1.2 * self.instrument_strength * Z[:, 0] + 0.7 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a wave and a line."""
        return 1.35 * np.sin(1.3 * T) + 0.5 * X[:, 0]


@dataclass(frozen=True)
class SeasonalSales(SuiteProblem):
    """Demand whose level and price sensitivity swing twice a year; time and two more contexts.

    With time x1 ~ U(0, 1) and x2, x3 ~ U(-1, 1)::

        T  = 0.4 cos(2 pi x1) + strength z + 0.8 u
        h0 = -0.65 T (1 + 0.8 sin(4 pi x1)) + 0.5 cos(4 pi x1) + 0.4 x2
    """

    name: ClassVar[str] = "seasonal-sales"
    n_contexts: ClassVar[int] = 3

    def draw_context(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Draw the time of the year first."""
        X = rng.uniform(-1.0, 1.0, (n, 3))
        X[:, 0] = (X[:, 0] + 1.0) / 2.0
        return X

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Follow the year once, and demand that was foreseen."""
        del rng
        return 0.4 * np.cos(2.0 * np.pi * X[:, 0]) + self.instrument_strength * Z[:, 0] + 0.8 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a line in the action whose slope is a wave."""
        phase = 4.0 * np.pi * X[:, 0]
        return -0.65 * T * (1.0 + 0.8 * np.sin(phase)) + 0.5 * np.cos(phase) + 0.4 * X[:, 1]


@dataclass(frozen=True)
class PeakHours(SuiteProblem):
    """A wave in the action that stands only in peak contexts; one of two instruments is a category.

    Noise depends on an instrument, which is no harm to it. With shifts a..e worth -2, -1, 0, 1, 2, equally
    likely, and a cost z ~ N(0, 1) beside them (a few levels alone would not identify a curve)::

        T  = 0.3 x2 + strength (0.4 shift + 0.9 z) + 0.8 u
        h0 = 1.2 cos(1.4 T) [x1 > -0.2] + 0.6 T + 0.4 x2
        noise scale = sqrt(0.5 + 0.25 shift^2)
    """

    name: ClassVar[str] = "peak-hours"
    shifts: ClassVar[tuple[str, ...]] = ("a", "b", "c", "d", "e")
    n_contexts: ClassVar[int] = 4
    n_instruments: ClassVar[int] = 2

    def draw_instrument(self, rng: np.random.Generator, n: int) -> Rows:
        """Draw shifts, as strings, and costs, as numbers."""
        Z = np.empty((n, 2), dtype=object)
        Z[:, 0] = np.array(self.shifts, dtype=object)[rng.integers(0, 5, n)]
        Z[:, 1] = rng.standard_normal(n)
        return Z

    def noise_scale(self, X: Rows, Z: Rows) -> FloatArray:
        """Make the outer shifts noisier."""
        del X
        return np.sqrt(0.5 + 0.25 * self._worth(Z) ** 2)

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Follow shift and cost."""
        del rng
        moved = 0.4 * self._worth(Z) + 0.9 * Z[:, 1].astype(np.float64)
        return np.asarray(0.3 * X[:, 1] + self.instrument_strength * moved + 0.8 * hidden)

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a wave for some rows, a line for all."""
        wave = 1.2 * np.cos(1.4 * T) * (X[:, 0] > -0.2)
        return wave + 0.6 * T + 0.4 * X[:, 1]

    def _worth(self, Z: Rows) -> FloatArray:
        return np.asarray((Z[:, :1] == np.array(self.shifts, dtype=object)) @ np.arange(-2.0, 3.0))
