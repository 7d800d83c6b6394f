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

from dmliv.data import FloatArray, IVData
from dmliv.errors import InputError
from dmliv.problems.checks import as_column, check_choice, check_count, is_finite_number
from dmliv.problems.protocol import EvaluationSet

EffectShape = Literal["constant", "linear", "curved"]

_N_CONTEXTS: Final = 10
_TEST_SEED: Final = 20_240_501
_TEST_POINTS: Final = 2000
# Every ingredient has a stream of its own, so that changing one leaves the draws of the others.
_CONTEXT, _INSTRUMENT, _HIDDEN, _OWN, _ACTION, _OTHER_HIDDEN = range(6)


@dataclass(frozen=True)
class Encouragement:
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
        """Check the shape."""
        check_choice("effect_shape", self.effect_shape, get_args(EffectShape))

    @property
    def mean_effect(self) -> float:
        """The mean of the effect over all contexts."""
        return {"constant": 10.0, "linear": 0.0, "curved": 3.0}[self.effect_shape]

    def effect(self, X: ArrayLike) -> FloatArray:
        """Return the effect of the treatment in contexts (n, 10), shape (n,)."""
        context = _read_contexts(X)
        if self.effect_shape == "constant":
            return np.full(len(context), 10.0)
        if self.effect_shape == "linear":
            return 5.0 * context[:, 0]
        return np.asarray(3.0 * context[:, 0] ** 2 - 2.0 * context[:, 1])

    def counterfactual(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the mean outcome under do(T), shape (n,), for contexts (n, 10) and actions (n,) or one."""
        context = _read_contexts(X)
        # The means of 2 nu and 0.1 U(0, 1).
        base = 5.0 * (context[:, 3] > 0.0) + 10.0 + 0.05
        return np.asarray(self.effect(context) * as_column(T, len(context), "T") + base)

    def sample(self, n: int, seed: int = 0) -> IVData:
        """Draw ``n`` observed rows: ``Y`` (n,), ``T`` (n,) of 0 and 1, ``Z`` (n, 1) and ``X`` (n, 10)."""
        return self._sample(n, seed, hidden_of_outcome=_HIDDEN)

    def sample_unconfounded(self, n: int, seed: int = 0) -> IVData:
        """Draw contexts, instruments and actions of :meth:`sample`, and outcomes of another hidden cause."""
        return self._sample(n, seed, hidden_of_outcome=_OTHER_HIDDEN)

    def sample_intervention(self, n: int, T: ArrayLike, seed: int = 0) -> tuple[FloatArray, FloatArray]:
        """Draw contexts (n, 10) and outcomes (n,) of a world where everybody's action is set to ``T``."""
        X = self.contexts(n, seed)
        return X, self.counterfactual(X, T) + _noise(n, seed, _HIDDEN)

    def contexts(self, n: int, seed: int = 1, shift: float = 0.0) -> FloatArray:
        """Draw contexts, shape (n, 10); ``shift`` is added to the first column."""
        check_count(n)
        if not is_finite_number(shift):
            raise InputError(f"Expected shift to be a finite number, got {shift!r}; pass one.")
        X = _stream(seed, _CONTEXT).standard_normal((n, _N_CONTEXTS))
        X[:, 0] += shift
        return X

    def test_set(self) -> EvaluationSet:
        """Return 2000 contexts, actions that are 0 or 1 with equal chances, and the truth there."""
        X = self.contexts(_TEST_POINTS, seed=_TEST_SEED)
        T = _stream(_TEST_SEED, _ACTION).integers(0, 2, _TEST_POINTS).astype(np.float64)
        return X, T, self.counterfactual(X, T)

    def _sample(self, n: int, seed: int, *, hidden_of_outcome: int) -> IVData:
        X = self.contexts(n, seed)
        Z = _stream(seed, _INSTRUMENT).integers(0, 2, (n, 1)).astype(np.float64)
        chance = 0.8 * expit(0.4 * X[:, 0] + _hidden(n, seed, _HIDDEN))
        rng = _stream(seed, _ACTION)
        complies = rng.uniform(size=n) < chance
        uninvited = rng.uniform(size=n) < 0.006
        T = np.where(Z[:, 0] == 1.0, complies, uninvited).astype(np.float64)
        return IVData(Y=self.counterfactual(X, T) + _noise(n, seed, hidden_of_outcome), T=T, Z=Z, X=X)


def _hidden(n: int, seed: int, stream: int) -> FloatArray:
    return _stream(seed, stream).uniform(0.0, 10.0, n)


def _noise(n: int, seed: int, stream: int) -> FloatArray:
    own = _stream(seed, _OWN).uniform(size=n)
    return np.asarray(2.0 * (_hidden(n, seed, stream) - 5.0) + 0.1 * (own - 0.5))


def _read_contexts(X: ArrayLike) -> FloatArray:
    context = np.asarray(X, dtype=np.float64)
    if context.ndim != 2 or context.shape[1] != _N_CONTEXTS:
        raise InputError(
            f"Expected X of shape (n, {_N_CONTEXTS}), got shape {context.shape}; pass all contexts."
        )
    return context


def _stream(seed: int, ingredient: int) -> np.random.Generator:
    return np.random.default_rng([seed, ingredient])
