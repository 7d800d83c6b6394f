"""What the problems of the suite share: distributions, noise, the range of actions and candidates."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dmliv.data import FloatArray
from dmliv.errors import InputError
from dmliv.problems.arguments import as_column, as_contexts, check_confounding, check_not_negative
from dmliv.problems.drawn import (
    ACTION,
    CONTEXT,
    HIDDEN,
    INSTRUMENT,
    OWN,
    TEST_POINTS,
    TEST_SEED,
    DrawnProblem,
    Rows,
    stream,
)

_RANGE_ROWS = 50_000
# Errors are reported where data are: between these quantiles of the observed actions.
_CENTRAL = (0.05, 0.95)
_CANDIDATES = 61
_CANDIDATES_PER_COLUMN = 13


@dataclass(frozen=True)
class SuiteProblem(DrawnProblem):
    """A problem whose outcome is h0(context, action) plus noise that a hidden cause shares with the action.

    With a hidden cause u ~ N(0, 1), or several, and own noise v of mean zero and variance one, all of them
    independent of context and instrument::

        action  = act(context, instrument, u)
        shared  = confounder(context, u), which is u itself unless a problem says otherwise
        noise   = noise_sd * scale(context, instrument) * (confounding shared + sqrt(1 - confounding^2) v)
        outcome = h0(context, action) + noise

    Given context and instrument the noise has mean zero; given the action it has not. A problem states its
    distributions, its action equation and h0; everything else is here, or in
    :class:`~dmliv.problems.drawn.DrawnProblem`: ``sample``, ``sample_unconfounded``, ``sample_intervention``,
    ``contexts`` and ``test_set``.

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
        check_not_negative("instrument_strength", self.instrument_strength)
        check_not_negative("noise_sd", self.noise_sd)
        check_confounding(self.confounding)

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

    def draw_hidden(self, rng: np.random.Generator, n: int) -> FloatArray:
        """Draw hidden causes, shape (n,), or (n, n_hidden) where there are several."""
        return rng.standard_normal(n if self.n_hidden == 1 else (n, self.n_hidden))

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
        context = as_contexts(X, self.n_contexts, dtype=None)
        return np.asarray(self.structural(context, self._read_actions(T, len(context))), dtype=np.float64)

    def reward(self, X: ArrayLike, T: Any) -> FloatArray:
        """Return the noise-free reward of actions in contexts, shape (n,): the counterfactual."""
        return self.counterfactual(X, T)

    def optimal_value(self, X: ArrayLike) -> float:
        """Return the mean reward of the best of the candidates in each context."""
        values = [self.counterfactual(X, action) for action in self.candidates()]
        return float(np.max(values, axis=0).mean())

    # --------------------------------------------------------------------------------------------- private

    def _exogenous(self, n: int, seed: int) -> tuple[Rows, Rows]:
        X = self.draw_context(stream(seed, CONTEXT), n)
        return X, self.draw_instrument(stream(seed, INSTRUMENT), n)

    def _actions(self, X: Rows, Z: Rows, seed: int) -> Rows:
        hidden = self.draw_hidden(stream(seed, HIDDEN), len(X))
        T = self.act(X, Z, hidden, stream(seed, ACTION))
        return np.array(self.levels)[T.astype(np.int64)] if self.levels else T

    def _noise(self, X: Rows, Z: Rows, seed: int, hidden: int) -> FloatArray:
        shared = self.confounder(X, self.draw_hidden(stream(seed, hidden), len(X)))
        own = self.draw_own_noise(stream(seed, OWN), len(X))
        mixed = self.confounding * shared + np.sqrt(1.0 - self.confounding**2) * own
        return np.asarray(self.noise_sd * self.noise_scale(X, Z) * mixed)

    def _test_actions(self, rng: np.random.Generator) -> Rows:
        """Draw uniform actions on the range, or on the levels."""
        if self.levels:
            return np.array(self.levels)[rng.integers(0, len(self.levels), TEST_POINTS)]
        low, high = np.asarray(self.action_range)
        return rng.uniform(low, high, (TEST_POINTS, self.n_actions) if self.n_actions > 1 else TEST_POINTS)

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


@lru_cache
def _central_range(problem: SuiteProblem) -> Any:
    actions = problem.sample(_RANGE_ROWS, seed=TEST_SEED).T
    low, high = np.quantile(actions, _CENTRAL, axis=0).round(2).tolist()
    return (low, high) if problem.n_actions == 1 else (tuple(low), tuple(high))
