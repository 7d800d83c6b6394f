"""What a policy is really worth: its mean reward where the truth is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dmliv.data import FloatArray
from dmliv.errors import InputError
from dmliv.policy.spaces import Box, Interval, grid_points


class Policy(Protocol):
    """Anything that recommends an action per row."""

    def predict(self, X: Any, /) -> npt.NDArray[Any]:
        """Return actions, shape (n,) or (n, d)."""
        ...


class Truth(Protocol):
    """Anything that knows the outcome of an action, such as a benchmark problem."""

    def counterfactual(self, X: Any, T: Any) -> FloatArray:
        """Return the true mean outcome under do(T) in context X, shape (n,)."""
        ...


@dataclass(frozen=True)
class RewardRange:
    """What can be had on a set of contexts from the actions of a space.

    Attributes
    ----------
    optimum, worst : float
        Mean reward of the best and of the worst action, context by context.
    random : float
        Expected mean reward of an action drawn uniformly.
    best_constant : float
        Mean reward of the best single action for all contexts.
    """

    optimum: float
    worst: float
    random: float
    best_constant: float


def policy_value(policy: Policy, problem: Truth, contexts: Any, *, instrument: Any = None) -> float:
    """Return the true mean reward of a policy.

    Parameters
    ----------
    policy : Policy
    problem : Truth
        Knows the counterfactual.
    contexts : array-like, shape (n, d_X)
    instrument : array-like, shape (n,) or (n, d_Z), optional
        For policies that look at the instrument too, as the offline bandits do.
    """
    chosen = policy.predict(contexts) if instrument is None else policy.predict(contexts, instrument)  # type: ignore[call-arg]
    rewards = problem.counterfactual(contexts, chosen)
    if not len(rewards):
        raise InputError("Expected at least one context to value a policy on, got none; pass some.")
    return float(np.mean(rewards))


def reward_range(problem: Truth, contexts: Any, actions: Any) -> RewardRange:
    """Return the best, worst and mean reward over an action space.

    Parameters
    ----------
    problem : Truth
    contexts : array-like, shape (n, d_X)
    actions : array-like of shape (m,) or (m, d), Interval or Box
        A continuum is looked at on its grid.
    """
    candidates = grid_points(actions) if isinstance(actions, (Interval, Box)) else np.asarray(actions)
    if candidates.ndim == 0 or not len(candidates):
        raise InputError("Expected at least one candidate action, got none; pass some.")
    n_rows = len(contexts)
    best, worst, total = np.full(n_rows, -np.inf), np.full(n_rows, np.inf), np.zeros(n_rows)
    best_constant = -np.inf
    for position in range(len(candidates)):
        rewards = problem.counterfactual(contexts, candidates[np.full(n_rows, position)])
        best, worst, total = np.maximum(best, rewards), np.minimum(worst, rewards), total + rewards
        best_constant = max(best_constant, float(rewards.mean()))
    return RewardRange(
        float(best.mean()), float(worst.mean()), float(total.mean() / len(candidates)), best_constant
    )


def suboptimality(
    policy: Policy, problem: Truth, contexts: Any, actions: Any, *, instrument: Any = None
) -> float:
    """Return how much mean reward a policy leaves to the best actions of a space."""
    value = policy_value(policy, problem, contexts, instrument=instrument)
    return reward_range(problem, contexts, actions).optimum - value
