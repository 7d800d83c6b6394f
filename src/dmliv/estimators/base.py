"""The verbs every estimator shares."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from dmliv.counterfactual import Counterfactual
from dmliv.data import FloatArray
from dmliv.errors import NotFittedError
from dmliv.policy.greedy import GreedyPolicy


class CounterfactualEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of all estimators: ``fit`` of a subclass sets ``counterfactual_``, the verbs here use it.

    Attributes
    ----------
    counterfactual_ : Counterfactual
        The fitted h in the user's units.
    """

    counterfactual_: Counterfactual

    def predict(self, T: object, X: object = None) -> FloatArray:
        """Return E[Y | do(T), X].

        Parameters
        ----------
        T : scalar or array-like, shape (n,) or (n, d_T)
            Actions; a scalar is used for every row of ``X``.
        X : array-like or frame, shape (n, d_X), or None
            Contexts, as in ``fit``.

        Returns
        -------
        ndarray, shape (n,)
        """
        return self._fitted().predict(T, X)

    def effect(self, X: object = None, *, T0: object = 0.0, T1: object = 1.0) -> FloatArray:
        """Return the effect of moving the action from ``T0`` to ``T1`` in each context.

        Parameters
        ----------
        X : array-like or frame, shape (n, d_X), or None
        T0, T1 : scalar or array-like, shape (n,) or (n, d_T)
            Actions compared; levels of a discrete action.

        Returns
        -------
        ndarray, shape (n,)
        """
        return self._fitted().effect(X, T0, T1)

    def ate(self, X: object = None, *, T0: object = 0.0, T1: object = 1.0) -> float:
        """Return the mean of :meth:`effect` over the rows of ``X``."""
        return float(np.mean(self.effect(X, T0=T0, T1=T1)))

    def marginal_effect(self, T: object, X: object = None) -> FloatArray:
        """Return the derivative of E[Y | do(T), X] in each action column, shape (n, d_T)."""
        return self._fitted().marginal_effect(T, X)

    def policy(self, candidates: object = None) -> GreedyPolicy:
        """Return the policy that takes the best of ``candidates`` in each context.

        Parameters
        ----------
        candidates : array-like, shape (m,) or (m, d_T), or None
            Actions to choose from; ``None`` takes all levels of a discrete action.
        """
        return GreedyPolicy(self._fitted(), candidates)

    def _fitted(self) -> Counterfactual:
        fitted: Any = getattr(self, "counterfactual_", None)
        if fitted is None:
            raise NotFittedError(
                f"Expected a fitted {type(self).__name__}, got one that was never fitted; call fit first."
            )
        counterfactual: Counterfactual = fitted
        return counterfactual
