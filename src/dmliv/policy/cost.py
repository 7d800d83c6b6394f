"""What actions cost, in the units of the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dmliv.data import FloatArray
from dmliv.errors import InputError, listed
from dmliv.inference.counterfactual import Counterfactual
from dmliv.policy.spaces import ActionSpace

# Half the width of the central difference of a cost, in standard deviations of the action.
_GRADIENT_STEP = 1e-4


@dataclass(frozen=True, eq=False)
class ActionCost:
    """The cost of each candidate and, in a continuum, of any action.

    Attributes
    ----------
    counterfactual : Counterfactual
        Knows the user's units.
    space : ActionSpace
    cost : callable, mapping, array-like or None
        As given by the user; see :meth:`of`.
    of_candidates : ndarray, shape (m,)
    """

    counterfactual: Counterfactual
    space: ActionSpace
    cost: object
    of_candidates: FloatArray

    @classmethod
    def of(cls, counterfactual: Counterfactual, space: ActionSpace, cost: object) -> ActionCost:
        """Read a cost: a function of actions (k,) or (k, d), a number per label, or one per candidate."""
        m = len(space.vectors)
        if cost is None:
            return cls(counterfactual, space, None, np.zeros(m))
        if callable(cost):
            return cls(counterfactual, space, cost, _called(cost, space.candidates))
        if space.low is not None:
            raise InputError(
                f"Expected a function as the cost of a continuum of actions, got {type(cost).__name__}; "
                "pass a function from actions to costs."
            )
        if isinstance(cost, Mapping):
            offered = space.candidates.tolist()
            missing = [candidate for candidate in offered if candidate not in cost]
            if missing:
                raise InputError(
                    f"Expected a cost for every candidate, got none for {listed(missing)}; add them."
                )
            cost = [cost[candidate] for candidate in offered]
        return cls(counterfactual, space, cost, _numbers(cost, m))

    def at(self, vectors: FloatArray) -> FloatArray:
        """Return the cost of actions (n, d) in model units, shape (n,)."""
        if self.cost is None:
            return np.zeros(len(vectors))
        if callable(self.cost):
            return _called(self.cost, self.counterfactual.action_to_user(vectors))
        distance = np.abs(vectors[:, None, :] - self.space.vectors[None, :, :]).max(axis=2)
        return np.asarray(self.of_candidates[distance.argmin(axis=1)])

    def gradient(self, vectors: FloatArray) -> FloatArray:
        """Return the derivative of the cost at actions (n, d) in model units, shape (n, d)."""
        slopes = np.zeros_like(vectors)
        if self.cost is None:
            return slopes
        for column in range(vectors.shape[1]):
            shift = np.zeros(vectors.shape[1])
            shift[column] = _GRADIENT_STEP
            slopes[:, column] = self.at(vectors + shift) - self.at(vectors - shift)
        return slopes / (2.0 * _GRADIENT_STEP)


def _called(cost: object, actions: object) -> FloatArray:
    return _numbers(cost(actions), len(actions))  # type: ignore[operator, arg-type]


def _numbers(values: object, count: int) -> FloatArray:
    try:
        costs = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        costs = np.full(1, np.nan)
    if costs.shape != (count,) or not np.isfinite(costs).all():
        raise InputError(
            f"Expected a finite cost for each of {count} actions, got {type(values).__name__} of shape "
            f"{np.shape(costs)}; return one number per action."
        )
    return costs
