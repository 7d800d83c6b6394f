"""Problems with a discrete action, or with two actions at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dmliv.data import FloatArray
from dmliv.problems.suite.pieces import Rows, SuiteProblem


@dataclass(frozen=True)
class ThreeClinics(SuiteProblem):
    """Three treatments; the clinic favours one of them, and doctors see a hidden illness.

    With x1, x2 ~ U(-1, 1), tastes from Gumbel's distribution and noise that is bad where u is high::

        T  = argmax of 2 strength [the clinic favours it] + taste + u (0 for none, 1 for drug, 2 for surgery)
        h0 = 0 (none),  1.3 + x2 (drug),  2 [x1 > 0] (surgery),  plus 0.4 x1
    """

    name: ClassVar[str] = "three-clinics"
    n_contexts: ClassVar[int] = 2
    levels: ClassVar[tuple[str, ...]] = ("none", "drug", "surgery")
    confounding: float = -0.9
    noise_sd: float = 1.0

    def draw_instrument(self, rng: np.random.Generator, n: int) -> Rows:
        """Draw the treatment that the clinic favours."""
        return np.array(self.levels)[rng.integers(0, 3, (n, 1))]

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Treat the ill more."""
        favoured = Z[:, 0][:, None] == np.array(self.levels)
        utility = 2.0 * self.instrument_strength * favoured + rng.gumbel(size=(len(X), 3))
        utility += hidden[:, None] * np.arange(3.0)
        return np.asarray(utility.argmax(axis=1), dtype=np.float64)

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return the benefit: the drug helps some more, surgery helps only some."""
        benefits = np.column_stack([np.zeros(len(X)), 1.3 + X[:, 1], 2.0 * (X[:, 0] > 0.0)])
        return benefits[np.arange(len(X)), T.astype(np.int64)] + 0.4 * X[:, 0]


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
        del rng
        leaning = 2.0 * self.instrument_strength * Z[:, 0] - 1.0 + 0.5 * X[:, 0] + hidden
        return (leaning > 0.0).astype(np.float64)

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return an effect that differs, even in sign, and a base line."""
        effect = 1.0 + 1.2 * X[:, 1] + 0.8 * np.sin(3.0 * X[:, 0])
        return T * effect + 0.8 * X[:, 2]


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
