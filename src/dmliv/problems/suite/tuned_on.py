"""The problems of the suite on which settings may be chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from dmliv.data import FloatArray
from dmliv.errors import InputError
from dmliv.problems.drawn import Rows
from dmliv.problems.suite.pieces import SuiteProblem


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
        return 0.5 * X[:, 1] + self.instrument_strength * Z[:, 0] + 0.8 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a logistic curve whose height and place depend on the patient."""
        return 2.4 * (1.0 + 0.5 * X[:, 0]) / (1.0 + np.exp(-2.0 * T + X[:, 1])) - 1.2


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
        return 0.3 * X[:, 1] + self.instrument_strength * (Z[:, 0] + 0.5 * Z[:, 1]) + 0.9 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return two steps up in the action, one down in a context."""
        steps = 1.0 * (T > -0.5) + 1.0 * (T > 0.8) - 1.2 * (X[:, 0] > 0.3)
        return np.asarray(steps + 0.4 * X[:, 1] - 1.0)


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
        return np.sqrt(0.4 + 0.6 * (1.0 + X[:, 0]))

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Move widely with the instrument, so that a whole wave is seen."""
        return 0.5 * X[:, 0] + 1.2 * self.instrument_strength * Z[:, 0] + 0.7 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a wave and a line."""
        return 1.35 * np.sin(1.3 * T) + 0.5 * X[:, 0]


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
        moved = 0.11 * Z.sum(axis=1)
        return np.asarray(0.4 * X[:, 0] + self.instrument_strength * moved + 0.95 * hidden)

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a saturating curve plus a line in one context; the third context does nothing."""
        return 1.2 * np.arctan(1.5 * T) + 0.5 * X[:, 1]


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


TUNED_ON: Final[tuple[SuiteProblem, ...]] = (
    SaturatingDose(),
    SteppedTariff(),
    WavyResponse(),
    TwentyColumns(),
    WeakNudge(),
    StoreChain(),
    ThreeClinics(),
)
"""Problems on which settings may be chosen."""
