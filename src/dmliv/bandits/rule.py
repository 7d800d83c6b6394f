"""Offline bandits that take the data at face value: what one would use if nothing were confounded.

All choose the action with the highest lower confidence bound, the estimated mean reward minus ``beta`` times
its uncertainty, among finitely many actions. Context and instrument together are their input: they have no
notion of an instrument. With a hidden confounder their estimate of the reward is biased however many rows
there are, and no caution about the rows at hand repairs that.

Outcomes are standardised and numeric inputs have mean zero and variance one inside, so that the usual
constants mean the same in any units; scores are in the units of the outcome.

References
----------
Jin, Yang and Wang, "Is Pessimism Provably Efficient for Offline RL?", ICML 2021 (PEVI, here LinLCB).

Valko, Korda, Munos, Flaounas and Cristianini, "Finite-Time Analysis of Kernelised Contextual Bandits", UAI
2013 (KernLCB, with an upper bound).

Nguyen-Tang, Gupta, Nguyen and Venkatesh, "Offline Neural Contextual Bandits: Pessimism, Optimization and
Generalization", ICLR 2022 (the neural ones and the constants).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from dmliv.bandits.inputs import BanditRows, InputReader, discretise, read_rows
from dmliv.bandits.rewards import KernelReward, LinearReward, RandomReward, RewardModel
from dmliv.data import ActionKind, FloatArray
from dmliv.errors import InputError, NotFittedError, check_number, check_whole
from dmliv.kernels.features import chunks


# As dataclasses the bandits name each parameter once: its type, its default and its place in get_params.
@dataclass(eq=False, repr=False, kw_only=True)
class OfflineBandit(BaseEstimator, ABC):  # type: ignore[misc]
    """Base of the bandits: ``_learn`` of a subclass fits a reward model, the verbs here use it.

    Attributes
    ----------
    actions_ : ndarray, shape (K,)
        The actions to choose from, in the user's units: levels, or centres of a continuous action.
    action_counts_ : ndarray of int, shape (K,)
        Training rows per action.
    reward_model_ : RewardModel
        Mean and width of every action, for a standardised outcome.
    """

    n_actions: int = 20
    action_range: tuple[float, float] | None = None
    action_kind: ActionKind = "auto"
    # Greedy and without a constant, unless a subclass makes these parameters.
    beta = 0.0
    intercept = False
    _needs_input: ClassVar[bool] = True

    def fit(self, Y: object, T: object, *, Z: object = None, X: object = None) -> Self:
        """Learn rewards from outcome, action, instrument and context.

        Parameters
        ----------
        Y : array-like, shape (n,)
            Outcome: the reward.
        T : array-like, shape (n,)
            Action: one column, continuous or discrete.
        Z, X : array-like or frame, shape (n, d), optional
            Instrument and context; both are inputs. The order of the rows matters to learners that stream.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If the data or a parameter cannot be used. The estimator is left as it was.
        TrainingDivergedError
            If a network's weights stop being finite. The estimator is left as it was.
        """
        self._check_parameters()
        data = read_rows(Y, T, Z, X, self.action_kind)
        actions, codes = discretise(data, T, self.n_actions, self.action_range)
        reader = InputReader.learn(data, bool(self.intercept))
        inputs = reader.encode(data.context, data.instrument)
        if not inputs.shape[1] and self._needs_input:
            raise InputError(
                "Expected a context or an instrument, got neither; pass X or Z, or intercept=True for one "
                "choice that suits all rows."
            )
        model = self._learn(BanditRows(inputs, codes, data.outcome, len(actions)))
        # Everything is ready: only now does the estimator change.
        self._reader, self._outcome_spec, self._beta = reader, data.outcome_spec, float(self.beta)
        self.actions_ = actions
        self.action_counts_ = np.bincount(codes, minlength=len(actions))
        self.reward_model_ = model
        return self

    def predict(self, X: object = None, Z: object = None) -> npt.NDArray[Any]:
        """Return the recommended action of each row in the user's units, shape (n,)."""
        best = [bounds.argmax(axis=1) for bounds in self._bounds(X, Z)]
        return np.asarray(self.actions_[np.concatenate([np.empty(0, dtype=np.int64), *best])])

    def scores(self, X: object = None, Z: object = None) -> FloatArray:
        """Return the lower confidence bound of every action in units of the outcome, shape (n, K)."""
        bounds = list(self._bounds(X, Z))
        return self._outcome_spec.to_user(np.vstack([np.empty((0, len(self.actions_))), *bounds]))

    def _bounds(self, X: object, Z: object) -> Iterator[FloatArray]:
        """Yield lower confidence bounds of a standardised outcome, some rows at a time."""
        inputs = self._read_inputs(X, Z)
        for part in chunks(len(inputs)):
            mean, width = self.reward_model_.estimate(inputs[part])
            yield mean - self._beta * width

    def _read_inputs(self, X: object, Z: object) -> FloatArray:
        if not hasattr(self, "reward_model_"):
            raise NotFittedError(
                f"Expected a fitted {type(self).__name__}, got one that was never fitted; call fit first."
            )
        return self._reader.read(X, Z)

    @abstractmethod
    def _learn(self, rows: BanditRows) -> RewardModel:
        """Fit the reward model."""

    def _check_parameters(self) -> None:
        check_whole(least=2, n_actions=self.n_actions)
        check_number(least=0.0, beta=self.beta)


@dataclass(eq=False, repr=False, kw_only=True)
class LinLCB(OfflineBandit):
    """Lower confidence bounds of one ridge regression per action; also known as PEVI.

    Parameters
    ----------
    beta : float
        Widths subtracted from the mean.
    ridge : float
        Penalty, and so the prior precision of every weight.
    n_actions : int
        Equally spaced centres a continuous action is rounded to; a discrete one has its own levels.
    action_range : (float, float), optional
        First and last centre; actions outside count as the nearest. Default: the range of the data.
    action_kind : {"auto", "continuous", "discrete"}
        As for :class:`dmliv.DMLIV`.
    intercept : bool
        Add a constant to the inputs. The literature has none, which is harmless where the inputs hold raw
        one-hot columns: they add up to one. With standardised columns alone an action would have no mean
        reward of its own, and all actions would be alike where every input is at its mean.
    """

    beta: float = field(default=0.1, kw_only=False)
    ridge: float = 0.1
    intercept: bool = True

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number(above=0.0, ridge=self.ridge)

    def _learn(self, rows: BanditRows) -> RewardModel:
        return LinearReward.fit(rows, float(self.ridge))


@dataclass(eq=False, repr=False, kw_only=True)
class KernLCB(OfflineBandit):
    """Lower confidence bounds of a Gaussian process on the disjoint encoding of input and action.

    With the published noise it all but interpolates the rewards.

    Parameters
    ----------
    length_scale : float
        Of the Gaussian kernel.
    noise : float
        Noise variance of a standardised outcome.
    max_rows : int
        Only the first so many rows are used: the cost grows with their cube.
    beta, n_actions, action_range, action_kind, intercept
        As for :class:`LinLCB`.
    """

    beta: float = field(default=0.1, kw_only=False)
    length_scale: float = 1.0
    noise: float = 1e-6
    max_rows: int = 1000
    intercept: bool = True

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number(above=0.0, length_scale=self.length_scale)
        check_number(least=0.0, noise=self.noise)
        check_whole(max_rows=self.max_rows)

    def _learn(self, rows: BanditRows) -> RewardModel:
        return KernelReward.fit(rows.first(int(self.max_rows)), float(self.length_scale), float(self.noise))


@dataclass(eq=False, repr=False, kw_only=True)
class RandomPolicy(OfflineBandit):
    """Every action with the same chance, whatever the input: the reference any policy should beat.

    Its scores are random numbers, the highest of which decides. As for scikit-learn's dummy estimators, every
    call starts from the seed of the fit: the same rows get the same actions.

    Parameters
    ----------
    random_state : int, RandomState or None
        Seed of the choices.
    n_actions, action_range, action_kind
        As for :class:`LinLCB`.
    """

    random_state: int | np.random.RandomState | None = None
    _needs_input: ClassVar[bool] = False

    def _learn(self, rows: BanditRows) -> RewardModel:
        return RandomReward(rows.n_actions, draw_seed(self.random_state))

    def _bounds(self, X: object, Z: object) -> Iterator[FloatArray]:
        # In one piece: pieces would repeat the same numbers.
        inputs = self._read_inputs(X, Z)
        yield self.reward_model_.estimate(inputs)[0]


def draw_seed(random_state: int | np.random.RandomState | None) -> int:
    """Return the seed a fit uses."""
    return int(check_random_state(random_state).randint(2**31 - 1))
