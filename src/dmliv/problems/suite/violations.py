"""Problems in which no residual of the action carries the confounding: where control functions go wrong.

A control-function regression takes the residual of the action given context and instrument, or its rank, for
all that action and noise share, and adds a function of it to h0(context, action). That is right in the suite.
In each of these problems it is wrong for a reason of its own. The instrument is valid in all of them: given
context and instrument the noise has mean zero, so methods that rest on the instrument alone have what they
need.

Half of the problems may be used to choose settings, the other half is only ever reported:

========================= ===============================================================================
``VIOLATIONS_TUNED_ON``   why a control function is wrong
========================= ===============================================================================
contextual-confounding    sign and size of the confounding depend on the context
spreading-action          the spread of the action depends on the instrument
folded-action             the action is not monotone in the hidden cause
========================= ===============================================================================

============================ ============================================================================
``VIOLATIONS_REPORTED_ONLY`` why a control function is wrong
============================ ============================================================================
random-coefficient           rows react to the instrument differently, and the noise knows how
changing-causes              of two hidden causes one confounds; the instrument decides which one acts
hidden-types                 two hidden types differ in how they react, in their spread and in their noise
============================ ============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np

from dmliv.data import FloatArray
from dmliv.problems.drawn import Rows
from dmliv.problems.suite.pieces import SuiteProblem


@dataclass(frozen=True)
class ContextualConfounding(SuiteProblem):
    """A hidden cause that raises the outcome in some contexts and lowers it in others; two contexts.

    ::

        T      = 0.4 x1 + strength 0.45 z + 0.8 u
        shared = u (0.5 + 1.5 x1)
        h0     = (0.9 - 0.7 x2) T + 0.6 sin(2 x1)

    Given the residual of the action the mean of the noise depends on the context.
    """

    name: ClassVar[str] = "contextual-confounding"
    n_contexts: ClassVar[int] = 2

    def confounder(self, X: Rows, hidden: FloatArray) -> FloatArray:
        """Let the context decide what the hidden cause does; the mean square of its factor is one."""
        return hidden * (0.5 + 1.5 * X[:, 0])

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Follow the hidden cause in all contexts alike."""
        return 0.4 * X[:, 0] + 0.45 * self.instrument_strength * Z[:, 0] + 0.8 * hidden

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a line in the action whose slope depends on a context, and a curve in the other."""
        return (0.9 - 0.7 * X[:, 1]) * T + 0.6 * np.sin(2.0 * X[:, 0])


@dataclass(frozen=True)
class RandomCoefficient(SuiteProblem):
    """Rows that react to the instruments more or less, as the noise knows; three contexts, two instruments.

    With hidden u and w::

        T      = 0.4 x1 + strength (1 + 0.7 w) (0.5 z1 + 0.3 z2) + 0.7 u
        shared = 0.6 u + 0.8 w
        h0     = 1.3 tanh(1.2 T - 0.5 x1) + 0.4 T x2 + 0.4 x3

    A high residual means a high w where z1 and z2 are high, and a low w where they are low.
    """

    name: ClassVar[str] = "random-coefficient"
    n_contexts: ClassVar[int] = 3
    n_instruments: ClassVar[int] = 2
    n_hidden: ClassVar[int] = 2

    def confounder(self, X: Rows, hidden: FloatArray) -> FloatArray:
        """Mix both hidden causes."""
        return 0.6 * hidden[:, 0] + 0.8 * hidden[:, 1]

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Follow the instruments with a coefficient of one's own."""
        moved = (1.0 + 0.7 * hidden[:, 1]) * (0.5 * Z[:, 0] + 0.3 * Z[:, 1])
        return 0.4 * X[:, 0] + self.instrument_strength * moved + 0.7 * hidden[:, 0]

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a saturating curve and a product."""
        return 1.3 * np.tanh(1.2 * T - 0.5 * X[:, 0]) + 0.4 * T * X[:, 1] + 0.4 * X[:, 2]


@dataclass(frozen=True)
class SpreadingAction(SuiteProblem):
    """An instrument that moves the spread of the action along with its mean; one context.

    With z ~ U(-1.7, 1.7)::

        T  = 0.5 x + strength 0.6 z + 0.7 exp(0.5 strength z) u + 0.3 N(0, 1)
        h0 = 0.8 log(1 + exp(2 T)) + 0.5 cos(2 x) - 1

    The same residual means much of u where z is low, little where it is high. The rank of the action is not
    that of u either: part of the action is noise of its own, whose spread does not change.
    """

    name: ClassVar[str] = "spreading-action"

    def draw_instrument(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Draw uniform instruments of variance about one."""
        return rng.uniform(-1.7, 1.7, (n, 1))

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Spread more where the instrument is high."""
        moved = self.instrument_strength * Z[:, 0]
        own = 0.3 * rng.standard_normal(len(X))
        return 0.5 * X[:, 0] + 0.6 * moved + 0.7 * np.exp(0.5 * moved) * hidden + own

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return what is flat first, then bends into a line."""
        return 0.8 * np.logaddexp(0.0, 2.0 * T) + 0.5 * np.cos(2.0 * X[:, 0]) - 1.0


@dataclass(frozen=True)
class ChangingCauses(SuiteProblem):
    """Two hidden causes of which one confounds; the instrument decides which one moves the action.

    Two contexts. With hidden u and w::

        angle  = 0.7 + 0.7 tanh(1.5 strength z)
        T      = 0.4 x2 + strength 0.4 z + 0.8 (cos(angle) u + sin(angle) w)
        shared = u
        h0     = 0.95 (T - 0.5 x1)^2 - x2 T - 0.7

    The residual is N(0, 0.64) whatever context and instrument are, so that no look at the action shows
    anything wrong; what it says about the noise depends on the instrument all the same.
    """

    name: ClassVar[str] = "changing-causes"
    n_contexts: ClassVar[int] = 2
    n_hidden: ClassVar[int] = 2

    def confounder(self, X: Rows, hidden: FloatArray) -> FloatArray:
        """Return the first of the hidden causes."""
        return hidden[:, 0]

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Turn from the cause that confounds to the one that does not as the instrument rises."""
        angle = 0.7 + 0.7 * np.tanh(1.5 * self.instrument_strength * Z[:, 0])
        cause = np.cos(angle) * hidden[:, 0] + np.sin(angle) * hidden[:, 1]
        return 0.4 * X[:, 1] + 0.4 * self.instrument_strength * Z[:, 0] + 0.8 * cause

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a parabola whose place depends on one context, and a product with the other."""
        return 0.95 * (T - 0.5 * X[:, 0]) ** 2 - X[:, 1] * T - 0.7


@dataclass(frozen=True)
class FoldedAction(SuiteProblem):
    """An action that is high where the hidden cause is high or very low; one context.

    ::

        T  = 0.4 x + strength 0.3 z + 0.9 |u + 0.6 + 0.6 strength z|
        h0 = 1.2 arctan(1.5 (T - 1)) + 0.6 x

    Two values of u lead to the same action, and the instrument moves the fold between them.
    """

    name: ClassVar[str] = "folded-action"

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Do much in good times, and in very bad ones."""
        moved = self.instrument_strength * Z[:, 0]
        return 0.4 * X[:, 0] + 0.3 * moved + 0.9 * np.abs(hidden + 0.6 + 0.6 * moved)

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a curve that levels off on both sides, plus a line in the context."""
        return 1.2 * np.arctan(1.5 * (T - 1.0)) + 0.6 * X[:, 0]


@dataclass(frozen=True)
class HiddenTypes(SuiteProblem):
    """Two hidden types: one follows the instrument closely, the other hardly; three contexts.

    With hidden u and w, the follower is the row with w > 0::

        T      = 0.3 x1 + strength 1.1 z + 0.4 u                (followers)
        T      = 0.3 x1 + strength 0.2 z + 0.9 u + 0.5          (others)
        shared = 0.5 u - 0.8                                    (followers)
        shared = 0.8 u + 0.8, all divided by its root mean square
        h0     = (0.5 x1 - 0.9) T + 0.8 x2 x3

    The distribution of the action given context and instrument is a mixture whose two parts mean different
    noise.
    """

    name: ClassVar[str] = "hidden-types"
    n_contexts: ClassVar[int] = 3
    n_hidden: ClassVar[int] = 2

    def confounder(self, X: Rows, hidden: FloatArray) -> FloatArray:
        """Give each type a mean and a confounding of its own; types are equally frequent."""
        follows = hidden[:, 1] > 0.0
        shared = np.where(follows, 0.5 * hidden[:, 0] - 0.8, 0.8 * hidden[:, 0] + 0.8)
        return np.asarray(shared / np.sqrt(0.5 * (0.5**2 + 0.8**2) + 0.8**2))

    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Follow the instrument, or mostly one's own mind."""
        follows = hidden[:, 1] > 0.0
        moved = self.instrument_strength * np.where(follows, 1.1, 0.2) * Z[:, 0]
        own = np.where(follows, 0.4 * hidden[:, 0], 0.9 * hidden[:, 0] + 0.5)
        return np.asarray(0.3 * X[:, 0] + moved + own)

    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return a line whose slope depends on one context, and a product of the two others."""
        return (0.5 * X[:, 0] - 0.9) * T + 0.8 * X[:, 1] * X[:, 2]


VIOLATIONS_TUNED_ON: Final[tuple[SuiteProblem, ...]] = (
    ContextualConfounding(),
    SpreadingAction(),
    FoldedAction(),
)
"""Problems without a control function on which settings may be chosen."""

VIOLATIONS_REPORTED_ONLY: Final[tuple[SuiteProblem, ...]] = (
    RandomCoefficient(),
    ChangingCauses(),
    HiddenTypes(),
)
"""Problems without a control function that no setting was ever chosen on."""

VIOLATIONS: Final = MappingProxyType(
    {problem.name: problem for problem in (*VIOLATIONS_TUNED_ON, *VIOLATIONS_REPORTED_ONLY)}
)
"""All problems without a control function by their names."""
