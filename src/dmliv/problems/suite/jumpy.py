"""Problems whose h0 has steps, kinks or categories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dmliv.data import FloatArray
from dmliv.errors import InputError
from dmliv.problems.suite.pieces import Rows, SuiteProblem, student_noise


@dataclass(frozen=True)
class SteppedTariff(SuiteProblem):
    """Steps in the action and in a context; three contexts of which two matter, two instruments.

    ::

        T  = 0.3 x2 + strength (z1 + 0.5 z2) + 0.9 u
        h0 = [T > -0.5] + [T > 0.8] - 1.2 [x1 > 0.3] + 0.4 x2 - 1
    """

    name: ClassVar[str] = "stepped-tariff"
    n_contexts: ClassVar[int] = 3
    n_instruments: ClassVar[int] = 2

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Use more or less of what the tariff is for."""
        del rng
        return 0.3 * X[:, 1] + self.instrument_strength * (Z[:, 0] + 0.5 * Z[:, 1]) + 0.9 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return two steps up in the action, one down in a context."""
        steps = 1.0 * (T > -0.5) + 1.0 * (T > 0.8) - 1.2 * (X[:, 0] > 0.3)
        return np.asarray(steps + 0.4 * X[:, 1] - 1.0)


@dataclass(frozen=True)
class CrowdedRoad(SuiteProblem):
    """A kink whose place jumps with a context; heavy tails that widen, an instrument not equally strong.

    Six contexts of which three matter::

        T  = 0.4 x2 + strength (0.7 + 0.5 x3) z + 0.75 u + 0.2 N(0, 1)
        h0 = 1.25 max(0, T - c) - 0.5 x2,   c = -0.8 if x1 < 0, else 0.4
        noise scale = sqrt(1 + 0.8 x2),   own noise Student's t with 3 degrees of freedom
    """

    name: ClassVar[str] = "crowded-road"
    n_contexts: ClassVar[int] = 6

    def draw_own_noise(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Draw outliers."""
        return student_noise(rng, n)

    def noise_scale(self, X: Rows, Z: Rows) -> FloatArray:
        """Let the variance rise from 0.2 to 1.8 times its mean."""
        del Z
        return np.sqrt(1.0 + 0.8 * X[:, 1])

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Let the instrument be weak where x3 is low."""
        moved = self.instrument_strength * (0.7 + 0.5 * X[:, 2]) * Z[:, 0]
        return 0.4 * X[:, 1] + moved + 0.75 * hidden + 0.2 * rng.standard_normal(len(X))

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return what is flat up to capacity, then a line."""
        capacity = np.where(X[:, 0] < 0.0, -0.8, 0.4)
        return 1.25 * np.maximum(0.0, T - capacity) - 0.5 * X[:, 1]


@dataclass(frozen=True)
class StoreChain(SuiteProblem):
    """Thirty stores, named by strings, each with a level and a price slope of its own.

    The context is (season, store), an object array; season x ~ U(-1, 1), stores k = 1..30 equally likely::

        T  = 0.4 x + 0.3 cos(k) + strength z + 0.8 u
        h0 = 0.7 sin(1.7 k) - (0.6 + 0.5 cos(2.3 k)) T + 0.5 x^2
    """

    name: ClassVar[str] = "store-chain"
    n_contexts: ClassVar[int] = 2
    stores: ClassVar[tuple[str, ...]] = tuple(f"store-{number:02d}" for number in range(1, 31))

    def draw_context(self, rng: np.random.Generator, n: int) -> Rows:
        """Draw seasons, as numbers, and stores, as strings."""
        X = np.empty((n, 2), dtype=object)
        X[:, 0] = rng.uniform(-1.0, 1.0, n)
        X[:, 1] = np.array(self.stores, dtype=object)[rng.integers(0, len(self.stores), n)]
        return X

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Set prices around what is usual in the store."""
        del rng
        season, number = self._read(X)
        usual = 0.4 * season + 0.3 * np.cos(number)
        return usual + self.instrument_strength * Z[:, 0] + 0.8 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a line for each store, and the season."""
        season, number = self._read(X)
        slope = 0.6 + 0.5 * np.cos(2.3 * number)
        return 0.7 * np.sin(1.7 * number) - slope * T + 0.5 * season**2

    def _read(self, X: Rows) -> tuple[FloatArray, FloatArray]:
        position = {store: float(number) for number, store in enumerate(self.stores, start=1)}
        unknown = sorted({str(store) for store in X[:, 1]} - set(position))
        if unknown:
            raise InputError(f"Expected stores store-01 to store-30 in the second column, got {unknown[:3]}.")
        return X[:, 0].astype(np.float64), np.array([position[str(store)] for store in X[:, 1]])
