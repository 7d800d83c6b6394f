"""The problems of the suite that are only ever reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from dmliv.data import FloatArray
from dmliv.problems.drawn import Rows
from dmliv.problems.suite.pieces import SuiteProblem, student_noise


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
        return 0.4 * np.cos(2.0 * np.pi * X[:, 0]) + self.instrument_strength * Z[:, 0] + 0.8 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a line in the action whose slope is a wave."""
        phase = 4.0 * np.pi * X[:, 0]
        return -0.65 * T * (1.0 + 0.8 * np.sin(phase)) + 0.5 * np.cos(phase) + 0.4 * X[:, 1]


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
        moved = 0.7 * Z[:, 0] + 0.5 * Z[:, 1] + 0.3 * Z[:, 2]
        return 0.4 * X[:, 0] + self.instrument_strength * moved - 0.8 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a parabola in the action, additive in two further contexts."""
        return 0.7 * (T - 0.6 * X[:, 0]) ** 2 + 0.5 * X[:, 1] + 0.4 * X[:, 2] ** 2 - 1.0


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
        moved = 0.8 * Z[:, 0] + 0.5 * Z[:, 1]
        return 0.4 * X[:, 0] - 0.3 * X[:, 1] + self.instrument_strength * moved + 0.8 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return what rises, then falls."""
        return 0.9 * T * np.exp(-(T**2) / 4.0) * (1.5 + X[:, 0]) + 0.5 * X[:, 2]


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
        return np.sqrt(0.5 + 0.25 * self._worth(Z) ** 2)

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Follow shift and cost."""
        moved = 0.4 * self._worth(Z) + 0.9 * Z[:, 1].astype(np.float64)
        return np.asarray(0.3 * X[:, 1] + self.instrument_strength * moved + 0.8 * hidden)

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a wave for some rows, a line for all."""
        wave = 1.2 * np.cos(1.4 * T) * (X[:, 0] > -0.2)
        return wave + 0.6 * T + 0.4 * X[:, 1]

    def _worth(self, Z: Rows) -> FloatArray:
        return np.asarray((Z[:, :1] == np.array(self.shifts, dtype=object)) @ np.arange(-2.0, 3.0))


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
class PriceAndPromotion(SuiteProblem):
    """Two actions at once that strengthen each other; two contexts, three instruments.

    ::

        T1 = 0.4 x1 + strength (0.9 z1 + 0.3 z3) + 0.8 u
        T2 = 0.3 x2 + strength (0.9 z2 - 0.3 z3) - 0.5 u + 0.3 N(0, 1)
        h0 = -0.6 T1 + 0.75 tanh(1.5 T2) - 0.3 T1 T2 + 0.4 x1 T2
    """

    name: ClassVar[str] = "price-and-promotion"
    n_contexts: ClassVar[int] = 2
    n_instruments: ClassVar[int] = 3
    n_actions: ClassVar[int] = 2

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Raise the price and save promotion where demand is foreseen."""
        price = 0.9 * Z[:, 0] + 0.3 * Z[:, 2]
        promotion = 0.9 * Z[:, 1] - 0.3 * Z[:, 2]
        own = 0.3 * rng.standard_normal(len(X))
        first = 0.4 * X[:, 0] + self.instrument_strength * price + 0.8 * hidden
        second = 0.3 * X[:, 1] + self.instrument_strength * promotion - 0.5 * hidden + own
        return np.column_stack([first, second])

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Let promotion saturate and make people sensitive to prices."""
        price, promotion = T[:, 0], T[:, 1]
        alone = -0.6 * price + 0.75 * np.tanh(1.5 * promotion)
        return alone - 0.3 * price * promotion + 0.4 * X[:, 0] * promotion


@dataclass(frozen=True)
class EncouragedTraining(SuiteProblem):
    """A training that some are encouraged to take; many do not comply. Five contexts, three matter.

    Encouragement z is 0 or 1 with equal chances::

        T  = 1 if 2 strength z - 1 + 0.5 x1 + u > 0, else 0
        h0 = T (1 + 1.2 x2 + 0.8 sin(3 x1)) + 0.8 x3
    """

    name: ClassVar[str] = "encouraged-training"
    n_contexts: ClassVar[int] = 5
    levels: ClassVar[tuple[float, ...]] = (0.0, 1.0)
    noise_sd: float = 0.8

    def draw_instrument(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Encourage half of the people."""
        return rng.integers(0, 2, (n, 1)).astype(np.float64)

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Let the able take the training unasked, and others refuse it."""
        leaning = 2.0 * self.instrument_strength * Z[:, 0] - 1.0 + 0.5 * X[:, 0] + hidden
        return (leaning > 0.0).astype(np.float64)

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return an effect that differs, even in sign, and a base line."""
        effect = 1.0 + 1.2 * X[:, 1] + 0.8 * np.sin(3.0 * X[:, 0])
        return T * effect + 0.8 * X[:, 2]


REPORTED_ONLY: Final[tuple[SuiteProblem, ...]] = (
    SeasonalSales(),
    UShapedLoad(),
    HeavyTailedReturns(),
    PeakHours(),
    CrowdedRoad(),
    PriceAndPromotion(),
    EncouragedTraining(),
)
"""Problems that no setting was ever chosen on."""
