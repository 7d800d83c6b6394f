"""The verbs every estimator shares."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from dmliv.data import ActionKind, FloatArray, TrainingData, prepare
from dmliv.estimators.intervals import IntervalVerbs
from dmliv.inference.counterfactual import Counterfactual
from dmliv.policy.greedy import GreedyPolicy
from dmliv.policy.support import ActionSupport
from dmliv.second_stage.structural import StructuralModel


class CounterfactualEstimator(IntervalVerbs, BaseEstimator):  # type: ignore[misc]
    """Base of all estimators: ``fit`` of a subclass sets ``counterfactual_``, the verbs here use it.

    Attributes
    ----------
    counterfactual_ : Counterfactual
        The fitted h in the user's units.
    """

    #: Attributes that a saved file leaves out.
    _unsaved: ClassVar[frozenset[str]] = frozenset()

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

    def policy(
        self, candidates: object = None, *, cost: object = None, min_support: float | None = None
    ) -> GreedyPolicy:
        """Return the policy that takes the action with the highest estimated outcome in each context.

        Parameters
        ----------
        candidates : array-like of shape (m,) or (m, d_T), Interval, Box, or None
            Actions to choose from; ``None`` takes all levels of a discrete action.
        cost : callable, mapping or array-like, optional
            Cost of an action in units of the outcome: a function from actions (k,) or (k, d_T) to costs (k,),
            a number per label, or one number per candidate.
        min_support : float, optional
            Forbid actions that the estimated action distribution makes less likely than this in a context,
            whatever the instrument; a continuous action is as likely as landing within a quarter of a
            standard deviation of it. Needs an estimator with an action distribution.
        """
        fitted = self._fitted()
        support = None if min_support is None else self._action_support()
        return GreedyPolicy(fitted, candidates, cost=cost, min_support=min_support, support=support)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to one file; :func:`dmliv.load` reads it.

        The file holds parameters and everything that was learned, but not the training data. (Kernels keep
        the rows that are their landmarks; a first stage keeps its predictions for every row and some rows of
        the instrument; models with controls keep up to 200 rows of these.) It is written as a whole or not at
        all; an older file of that name stays until the new one is complete.

        Parameters
        ----------
        path : str or path
            Customarily ends in ``.dmliv``.

        Raises
        ------
        InputError
            If a parameter cannot be saved: a function, or an object of another library.
        ModelFileError
            If the file cannot be written.
        """
        # Imported here, because what saves an estimator has to know all of them.
        from dmliv.persistence import save  # noqa: PLC0415

        save(self, path)

    def _action_support(self) -> ActionSupport | None:
        """Return what knows how likely actions are, or None for estimators without an action distribution."""
        return None


_FEWEST_ROWS = 20


class DirectIV(CounterfactualEstimator, ABC):
    """Base of estimators that learn h from all rows at once.

    A subclass says in ``_learn`` how.
    """

    action_kind: ActionKind
    random_state: int | np.random.RandomState | None

    def fit(
        self,
        Y: object,
        T: object,
        *,
        Z: object,
        X: object = None,
        W: object = None,
        sample_weight: object = None,
    ) -> Self:
        """Learn h from outcome, action, instrument and context.

        Takes what :meth:`dmliv.DMLIV.fit` takes. Rows of weight zero are left out.

        Raises
        ------
        InputError
            If the data or a parameter cannot be used. The estimator is left as it was.
        TrainingDivergedError
            If training does not stay finite. The estimator is left as it was.
        """
        self._check_parameters()
        kind = self.action_kind
        return self.fit_prepared(
            prepare(Y, T, Z=Z, X=X, W=W, sample_weight=sample_weight, action_kind=kind, min_rows=_FEWEST_ROWS)
        )

    def fit_prepared(self, data: TrainingData) -> Self:
        """Learn h from rows that :func:`dmliv.data.prepare` has read, so that they are not read again."""
        self._check_parameters()
        data = data.with_positive_weight(_FEWEST_ROWS)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        model, told = self._learn(data, seed)
        # Everything is ready: only now does the estimator change.
        for name, value in told.items():
            setattr(self, name, value)
        self.structural_model_ = model
        self.counterfactual_ = Counterfactual.learned(model, data, seed=seed)
        return self

    @abstractmethod
    def _check_parameters(self) -> None:
        """Refuse parameters that cannot be used whatever the data are."""

    @abstractmethod
    def _learn(self, data: TrainingData, seed: int) -> tuple[StructuralModel, Mapping[str, object]]:
        """Return h, and what else a fitted estimator tells, by attribute."""
