"""Encouragement to take a treatment: the design of EconML's example, with effects that are known.

After V. Syrgkanis, V. Lei, M. Oprescu, M. Hei, K. Battocchi and G. Lewis, "Machine learning estimation of
heterogeneous treatment effects with instruments", 2019, and the notebook that comes with EconML.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from dmliv.data import FloatArray
from dmliv.problems.arguments import as_column, as_contexts, check_choice
from dmliv.problems.drawn import ACTION, CONTEXT, HIDDEN, INSTRUMENT, OWN, TEST_POINTS, DrawnProblem, stream

EffectShape = Literal["constant", "linear", "curved"]

_N_CONTEXTS: Final = 10


@dataclass(frozen=True)
class Encouragement(DrawnProblem):
    """A treatment that half of the people are encouraged to take, and many of them refuse.

    With ten contexts X ~ N(0, I), of which the first, second and fourth may matter, encouragement
    Z ~ Bernoulli(0.5) and a hidden nu ~ U(0, 10)::

        complies with probability 0.8 / (1 + exp(-0.4 X1 - nu))
        T = 1 if encouraged and complying, or not encouraged, with probability 0.006; else 0
        Y = effect(X) T + 2 nu + 5 [X4 > 0] + 0.1 U(0, 1)

    The hidden cause raises outcomes and compliance alike. Most of the action is decided by the encouragement:
    an instrument of this strength is found in experiments, hardly elsewhere.

    Parameters
    ----------
    effect_shape : {"constant", "linear", "curved"}
        The effect of the treatment: 10, 5 X1, or 3 X1^2 - 2 X2. Its mean is 10, 0 or 3.
    """

    n_contexts: ClassVar[int] = _N_CONTEXTS
    levels: ClassVar[tuple[float, ...]] = (0.0, 1.0)
    """The values of the action."""
    contrast: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The two actions whose difference is the effect."""

    effect_shape: EffectShape = "constant"

    def __post_init__(self) -> None:
        check_choice("effect_shape", self.effect_shape, get_args(EffectShape))

    @property
    def mean_effect(self) -> float:
        """The mean of the effect over all contexts."""
        return {"constant": 10.0, "linear": 0.0, "curved": 3.0}[self.effect_shape]

    def effect(self, X: ArrayLike) -> FloatArray:
        """Return the effect of the treatment in contexts (n, 10), shape (n,)."""
        context = as_contexts(X, _N_CONTEXTS)
        if self.effect_shape == "constant":
            return np.full(len(context), 10.0)
        if self.effect_shape == "linear":
            return 5.0 * context[:, 0]
        return np.asarray(3.0 * context[:, 0] ** 2 - 2.0 * context[:, 1])

    def counterfactual(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the mean outcome under do(T), shape (n,), for contexts (n, 10) and actions (n,) or one."""
        context = as_contexts(X, _N_CONTEXTS)
        # The means of 2 nu and 0.1 U(0, 1).
        base = 5.0 * (context[:, 3] > 0.0) + 10.0 + 0.05
        return np.asarray(self.effect(context) * as_column(T, len(context), "T") + base)

    def draw_context(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Draw ten independent columns."""
        return rng.standard_normal((n, _N_CONTEXTS))

    def _exogenous(self, n: int, seed: int) -> tuple[FloatArray, FloatArray]:
        Z = stream(seed, INSTRUMENT).integers(0, 2, (n, 1)).astype(np.float64)
        return self.draw_context(stream(seed, CONTEXT), n), Z

    def _actions(self, X: FloatArray, Z: FloatArray, seed: int) -> FloatArray:
        chance = 0.8 * expit(0.4 * X[:, 0] + _hidden(len(X), seed, HIDDEN))
        rng = stream(seed, ACTION)
        complies = rng.uniform(size=len(X)) < chance
        uninvited = rng.uniform(size=len(X)) < 0.006
        return np.where(Z[:, 0] == 1.0, complies, uninvited).astype(np.float64)

    def _noise(self, X: FloatArray, Z: FloatArray, seed: int, hidden: int) -> FloatArray:
        own = stream(seed, OWN).uniform(size=len(X))
        return np.asarray(2.0 * (_hidden(len(X), seed, hidden) - 5.0) + 0.1 * (own - 0.5))

    def _test_actions(self, rng: np.random.Generator) -> FloatArray:
        return rng.integers(0, 2, TEST_POINTS).astype(np.float64)


def _hidden(n: int, seed: int, ingredient: int) -> FloatArray:
    return stream(seed, ingredient).uniform(0.0, 10.0, n)
