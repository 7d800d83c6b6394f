"""The pieces that the problems of the suite share: draws, noise, test points and candidate actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dmliv.data import FloatArray, IVData
from dmliv.errors import InputError
from dmliv.problems.checks import as_column, check_count, is_finite_number

Rows = NDArray[Any]
"""Contexts or instruments (n, d): floats, or an object array where some columns hold strings."""

_TEST_SEED = 20_240_501
_TEST_POINTS = 2000
_RANGE_ROWS = 50_000
# Errors are reported where data are: between these quantiles of the observed actions.
_CENTRAL = (0.05, 0.95)
_CANDIDATES = 61
_CANDIDATES_PER_COLUMN = 13

# Every ingredient has a stream of its own, so that changing one leaves the draws of the others.
_CONTEXT, _INSTRUMENT, _HIDDEN, _OWN, _ACTION, _OTHER_HIDDEN = range(6)


@dataclass(frozen=True)
class SuiteProblem(ABC):
    """A problem whose outcome is h0(context, action) plus noise that a hidden cause shares with the action.

    With a hidden cause u ~ N(0, 1), or several, and own noise v of mean zero and variance one, all of them
    independent of context and instrument::

        action  = act(context, instrument, u)
        shared  = confounder(context, u), which is u itself unless a problem says otherwise
        noise   = noise_sd * scale(context, instrument) * (confounding shared + sqrt(1 - confounding^2) v)
        outcome = h0(context, action) + noise

    Given context and instrument the noise has mean zero; given the action it has not. A problem states its
    distributions, its action equation and h0; everything else is here.

    Parameters
    ----------
    instrument_strength : float
        Factor on the instruments in the action equation, at least 0.
    confounding : float
        Correlation of the noise and what it shares with the action, in [-1, 1].
    noise_sd : float
        Standard deviation of the noise, at least 0.
    """

    name: ClassVar[str]
    """Short name in records and tables."""
    n_contexts: ClassVar[int] = 1
    n_instruments: ClassVar[int] = 1
    n_actions: ClassVar[int] = 1
    """Columns of the action."""
    n_hidden: ClassVar[int] = 1
    """Hidden causes; several are the columns of an array."""
    levels: ClassVar[tuple[str, ...] | tuple[float, ...]] = ()
    """The values of a discrete action; none for a continuous one."""

    instrument_strength: float = 1.0
    confounding: float = 0.9
    noise_sd: float = 0.9

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("instrument_strength", "noise_sd"):
            value = getattr(self, name)
            if not (is_finite_number(value) and value >= 0):
                raise InputError(f"Expected {name} to be a finite number of at least 0, got {value!r}.")
        if not (is_finite_number(self.confounding) and -1 <= self.confounding <= 1):
            raise InputError(f"Expected confounding to be a number in [-1, 1], got {self.confounding!r}.")

    # ------------------------------------------------------------------------------- what a problem states

    @abstractmethod
    def structural(self, X: Rows, T: FloatArray) -> FloatArray:
        """Return h0, shape (n,), for contexts (n, d_X) and actions (n,), (n, d_T), or positions of levels."""

    @abstractmethod
    def act(self, X: Rows, Z: Rows, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return the actions taken, shape (n,) or (n, d_T); positions of levels for a discrete action.

        Hidden causes are (n,), or (n, n_hidden) where there are several.
        """

    def draw_context(self, rng: np.random.Generator, n: int) -> Rows:
        """Draw contexts, shape (n, d_X); U(-1, 1) unless a problem says otherwise."""
        return rng.uniform(-1.0, 1.0, (n, self.n_contexts))

    def draw_instrument(self, rng: np.random.Generator, n: int) -> Rows:
        """Draw instruments, shape (n, d_Z); N(0, 1) unless a problem says otherwise."""
        return rng.standard_normal((n, self.n_instruments))

    def draw_own_noise(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Draw noise that no action knows, shape (n,), with mean zero and variance one."""
        return rng.standard_normal(n)

    def confounder(self, X: Rows, hidden: FloatArray) -> FloatArray:
        """Return what the noise shares with the action, shape (n,), for hidden causes (n,) or (n, n_hidden).

        It must have mean zero given the context, and mean square one. It is not told the instrument, so that
        the noise has mean zero given context and instrument.
        """
        del X
        return hidden

    def noise_scale(self, X: Rows, Z: Rows) -> FloatArray:
        """Return the factor on the noise of each row, shape (n,), of mean square one."""
        del Z
        return np.ones(len(X))

    # -------------------------------------------------------------------------------------------- sampling

    def draw_hidden(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Draw hidden causes, shape (n,), or (n, n_hidden) where there are several."""
        return rng.standard_normal(n if self.n_hidden == 1 else (n, self.n_hidden))

    def sample(self, n: int, seed: int = 0) -> IVData:
        """Draw ``n`` observed rows: ``Y`` (n,), ``T`` (n,) or (n, d_T), ``Z`` (n, d_Z) and ``X`` (n, d_X)."""
        return self._sample(n, seed, hidden_of_noise=_HIDDEN)

    def sample_unconfounded(self, n: int, seed: int = 0) -> IVData:
        """Draw the contexts, instruments and actions of :meth:`sample`, with noise of another hidden cause.

        The noise has the same distribution given context and instrument, but the actions know nothing of it:
        what an experiment with the same actions would have recorded.
        """
        return self._sample(n, seed, hidden_of_noise=_OTHER_HIDDEN)

    def sample_intervention(self, n: int, T: Any, seed: int = 0) -> tuple[Rows, FloatArray]:
        """Draw contexts (n, d_X) and outcomes (n,) of a world where everybody's action is set to ``T``."""
        check_count(n)
        X, Z = self._exogenous(n, seed)
        return X, self.counterfactual(X, T) + self._noise(X, Z, seed, _HIDDEN)

    def contexts(self, n: int, seed: int = 1, shift: float = 0.0) -> Rows:
        """Draw contexts, shape (n, d_X); ``shift`` is added to the first column."""
        check_count(n)
        if not is_finite_number(shift):
            raise InputError(f"Expected shift to be a finite number, got {shift!r}.")
        X = self.draw_context(_stream(seed, _CONTEXT), n)
        X[:, 0] += shift
        return X

    def test_set(self) -> tuple[Rows, Rows, FloatArray]:
        """Return 2000 contexts, actions and the truth there.

        Contexts follow their distribution; actions are uniform on :attr:`action_range`, or on the levels.
        """
        X = self.contexts(_TEST_POINTS, seed=_TEST_SEED)
        rng = _stream(_TEST_SEED, _ACTION)
        T: Rows
        if self.levels:
            T = np.array(self.levels)[rng.integers(0, len(self.levels), _TEST_POINTS)]
        else:
            low, high = np.asarray(self.action_range)
            T = rng.uniform(low, high, (_TEST_POINTS, self.n_actions) if self.n_actions > 1 else _TEST_POINTS)
        return X, T, self.counterfactual(X, T)

    # --------------------------------------------------------------------------------------------- answers

    @property
    def action_range(self) -> Any:
        """Lowest and highest action of the central range of the data; of each column, if there are several.

        The 5 and 95 percent quantiles of what was observed. A discrete action has none.
        """
        if self.levels:
            raise InputError(f"Expected a continuous action for a range, got the levels {self.levels}.")
        return _central_range(self)

    def candidates(self) -> Rows:
        """Return actions that a policy may choose from, shape (m,) or (m, d_T)."""
        if self.levels:
            return np.array(self.levels)
        if self.n_actions == 1:
            low, high = self.action_range
            return np.linspace(low, high, _CANDIDATES)
        lows, highs = np.asarray(self.action_range)
        axes = np.linspace(lows, highs, _CANDIDATES_PER_COLUMN).T
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, self.n_actions)

    def counterfactual(self, X: ArrayLike, T: Any) -> FloatArray:
        """Return the true mean outcome under do(T), shape (n,), for contexts (n, d_X) and actions.

        Actions are (n,) or (n, 1), (n, d_T) for several columns, or one action for all rows.
        """
        context = np.asarray(X)
        if context.ndim != 2 or context.shape[1] != self.n_contexts:
            raise InputError(
                f"Expected X of shape (n, {self.n_contexts}), got shape {context.shape}; pass all contexts."
            )
        return np.asarray(self.structural(context, self._read_actions(T, len(context))), dtype=np.float64)

    def reward(self, X: ArrayLike, T: Any) -> FloatArray:
        """Return the noise-free reward of actions in contexts, shape (n,): the counterfactual."""
        return self.counterfactual(X, T)

    def optimal_value(self, X: ArrayLike) -> float:
        """Return the mean reward of the best of the candidates in each context."""
        values = [self.counterfactual(X, action) for action in self.candidates()]
        return float(np.max(values, axis=0).mean())

    # --------------------------------------------------------------------------------------------- private

    def _sample(self, n: int, seed: int, *, hidden_of_noise: int) -> IVData:
        check_count(n)
        X, Z = self._exogenous(n, seed)
        hidden = self.draw_hidden(_stream(seed, _HIDDEN), n)
        T: Rows = self.act(X, Z, hidden, _stream(seed, _ACTION))
        if self.levels:
            T = np.array(self.levels)[T.astype(np.int64)]
        Y = self.counterfactual(X, T) + self._noise(X, Z, seed, hidden_of_noise)
        return IVData(Y=Y, T=T, Z=Z, X=X)

    def _exogenous(self, n: int, seed: int) -> tuple[Rows, Rows]:
        X = self.draw_context(_stream(seed, _CONTEXT), n)
        return X, self.draw_instrument(_stream(seed, _INSTRUMENT), n)

    def _noise(self, X: Rows, Z: Rows, seed: int, hidden_of_noise: int) -> FloatArray:
        shared = self.confounder(X, self.draw_hidden(_stream(seed, hidden_of_noise), len(X)))
        own = self.draw_own_noise(_stream(seed, _OWN), len(X))
        mixed = self.confounding * shared + np.sqrt(1.0 - self.confounding**2) * own
        return np.asarray(self.noise_sd * self.noise_scale(X, Z) * mixed)

    def _read_actions(self, T: Any, n: int) -> FloatArray:
        """Return actions as (n,) or (n, d_T) numbers, or the positions of their levels."""
        if self.levels:
            given = np.asarray(T)
            if given.shape not in {(), (n,), (n, 1)}:
                raise InputError(
                    f"Expected T of shape ({n},) or ({n}, 1), one value per row of X, got shape "
                    f"{given.shape}; pass as many values as contexts, or one for all."
                )
            labels = np.broadcast_to(given.reshape(-1) if given.ndim else given, (n,)).tolist()
            unknown = sorted({str(label) for label in labels if label not in self.levels})
            if unknown:
                raise InputError(f"Expected actions among {self.levels}, got {unknown}; pass known ones.")
            return np.array([self.levels.index(label) for label in labels], dtype=np.float64)
        if self.n_actions == 1:
            return as_column(T, n, "T")
        try:
            return np.broadcast_to(np.asarray(T, dtype=np.float64), (n, self.n_actions))
        except ValueError:
            raise InputError(
                f"Expected T of shape ({n}, {self.n_actions}) or ({self.n_actions},), got shape "
                f"{np.shape(T)}; pass one action per row of X, or one for all."
            ) from None


def student_noise(rng: np.random.Generator, n: int) -> FloatArray:
    """Draw from Student's t with 3 degrees of freedom, shape (n,), scaled to variance one."""
    return np.asarray(rng.standard_t(3.0, n) / np.sqrt(3.0))


def _stream(seed: int, ingredient: int) -> np.random.Generator:
    return np.random.default_rng([seed, ingredient])


@lru_cache
def _central_range(problem: SuiteProblem) -> Any:
    actions = problem.sample(_RANGE_ROWS, seed=_TEST_SEED).T
    low, high = np.quantile(actions, _CENTRAL, axis=0).round(2).tolist()
    return (low, high) if problem.n_actions == 1 else (tuple(low), tuple(high))
