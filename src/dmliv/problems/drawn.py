"""Problems that draw contexts, instruments, hidden causes and noise, each from a random stream of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dmliv.data import FloatArray, IVData
from dmliv.problems.arguments import check_count, check_shift

Rows = NDArray[Any]
"""Contexts or instruments (n, d): floats, or an object array where some columns hold strings."""

# Changing one ingredient leaves the draws of the others.
CONTEXT, INSTRUMENT, HIDDEN, OWN, ACTION, OTHER_HIDDEN = range(6)

TEST_POINTS: Final = 2000
# Far from the seeds of samples.
TEST_SEED: Final = 20_240_501


def stream(seed: int, ingredient: int) -> np.random.Generator:
    """Return the generator of one ingredient of the rows of a seed."""
    return np.random.default_rng([seed, ingredient])


class DrawnProblem(ABC):
    """A problem whose outcome is its counterfactual plus noise that a hidden cause shares with the action."""

    _hidden_streams: ClassVar[tuple[int, int]] = (HIDDEN, OTHER_HIDDEN)
    """Of the hidden cause that actions follow, and of another one that no action knows."""

    @abstractmethod
    def counterfactual(self, X: ArrayLike, T: Any) -> FloatArray:
        """Return the true mean outcome under do(T) in contexts (n, d_X), shape (n,)."""

    @abstractmethod
    def draw_context(self, rng: np.random.Generator, n: int) -> Rows:
        """Draw contexts, shape (n, d_X)."""

    @abstractmethod
    def _exogenous(self, n: int, seed: int) -> tuple[Rows, Rows]:
        """Draw contexts (n, d_X) and instruments (n, d_Z)."""

    @abstractmethod
    def _actions(self, X: Rows, Z: Rows, seed: int) -> Rows:
        """Draw the actions taken, shape (n,) or (n, d_T)."""

    @abstractmethod
    def _noise(self, X: Rows, Z: Rows, seed: int, hidden: int) -> FloatArray:
        """Draw noise of mean zero given X and Z, shape (n,); ``hidden`` is the stream of its hidden cause."""

    @abstractmethod
    def _test_actions(self, rng: np.random.Generator) -> Rows:
        """Draw the actions of the test points."""

    def sample(self, n: int, seed: int = 0) -> IVData:
        """Draw ``n`` observed rows: ``Y`` (n,), ``T`` (n,) or (n, d_T), ``Z`` (n, d_Z) and ``X`` (n, d_X)."""
        return self._sample(n, seed, self._hidden_streams[0])

    def sample_unconfounded(self, n: int, seed: int = 0) -> IVData:
        """Draw the contexts, instruments and actions of :meth:`sample`, with noise of another hidden cause.

        The noise has the same distribution given context and instrument, but the actions know nothing of it:
        what an experiment with the same actions would have recorded.
        """
        return self._sample(n, seed, self._hidden_streams[1])

    def sample_intervention(self, n: int, T: Any, seed: int = 0) -> tuple[Rows, FloatArray]:
        """Draw contexts (n, d_X) and outcomes (n,) of a world where everybody's action is set to ``T``."""
        check_count(n)
        X, Z = self._exogenous(n, seed)
        return X, self.counterfactual(X, T) + self._noise(X, Z, seed, self._hidden_streams[0])

    def contexts(self, n: int, seed: int = 1, shift: float = 0.0) -> Rows:
        """Draw contexts, shape (n, d_X); ``shift`` is added to the first column."""
        check_count(n)
        check_shift(shift)
        X = self.draw_context(stream(seed, CONTEXT), n)
        X[:, 0] += shift
        return X

    def test_set(self) -> tuple[Rows, Rows, FloatArray]:
        """Return 2000 contexts from their distribution, actions over the range of interest, and the truth."""
        X = self.contexts(TEST_POINTS, seed=TEST_SEED)
        T = self._test_actions(stream(TEST_SEED, ACTION))
        return X, T, self.counterfactual(X, T)

    def _sample(self, n: int, seed: int, hidden: int) -> IVData:
        check_count(n)
        X, Z = self._exogenous(n, seed)
        T = self._actions(X, Z, seed)
        return IVData(Y=self.counterfactual(X, T) + self._noise(X, Z, seed, hidden), T=T, Z=Z, X=X)
