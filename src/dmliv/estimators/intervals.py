"""The verbs that answer with intervals."""

from __future__ import annotations

from typing import Any

import numpy as np

from dmliv.data import FloatArray
from dmliv.errors import NotFittedError
from dmliv.inference.counterfactual import Counterfactual
from dmliv.inference.functionals import Functional


class IntervalVerbs:
    """Intervals of effects and outcomes, for estimators that were fitted with ``inference=``.

    The middle of a debiased interval is the debiased estimate, which is not the plug-in estimate that the
    verb without ``_interval`` returns. An average is one over the rows that are passed, taken as given: the
    interval is about h, not about which rows were drawn.
    """

    def _fitted(self) -> Counterfactual:
        fitted: Any = getattr(self, "counterfactual_", None)
        if fitted is None:
            raise NotFittedError(
                f"Expected a fitted {type(self).__name__}, got one that was never fitted; call fit first."
            )
        counterfactual: Counterfactual = fitted
        return counterfactual

    def predict_interval(
        self, T: object, X: object = None, *, alpha: float = 0.05, smoothing: float = 0.0
    ) -> tuple[FloatArray, FloatArray]:
        """Return pointwise intervals of E[Y | do(T), X], such as the band of a dose-response curve.

        Parameters
        ----------
        T : scalar or array-like, shape (n,) or (n, d_T)
        X : array-like or frame, shape (n, d_X), or None
        alpha : float
            One minus the confidence level.
        smoothing : float
            Ask for the mean over actions that are normal around ``T`` with so many standard deviations of the
            action, in place of ``T`` itself. Continuous actions only; 0.25, say. What is asked for is less
            sharp, and better seen in data.

        Returns
        -------
        lower, upper : ndarray, shape (n,)
        """
        fitted = self._fitted()
        return _ends(fitted, fitted.level_functional(T, X, smoothing), alpha)

    def effect_interval(
        self,
        X: object = None,
        *,
        T0: object = 0.0,
        T1: object = 1.0,
        alpha: float = 0.05,
        smoothing: float = 0.0,
    ) -> tuple[FloatArray, FloatArray]:
        """Return intervals of the effect in each context.

        Parameters
        ----------
        X, T0, T1
            As for :meth:`effect`.
        alpha, smoothing
            As for :meth:`predict_interval`; both actions are smoothed.

        Returns
        -------
        lower, upper : ndarray, shape (n,)
        """
        fitted = self._fitted()
        return _ends(fitted, fitted.effect_functional(X, T0, T1, smoothing), alpha)

    def ate_interval(
        self,
        X: object = None,
        *,
        T0: object = 0.0,
        T1: object = 1.0,
        alpha: float = 0.05,
        smoothing: float = 0.0,
    ) -> tuple[float, float]:
        """Return an interval of the mean effect over the rows of ``X``.

        Parameters
        ----------
        X, T0, T1, alpha, smoothing
            As for :meth:`effect_interval`.

        Returns
        -------
        lower, upper : float
        """
        fitted = self._fitted()
        return _mean_ends(fitted, fitted.effect_functional(X, T0, T1, smoothing), alpha)

    def marginal_effect_interval(
        self, T: object, X: object = None, *, alpha: float = 0.05
    ) -> tuple[FloatArray, FloatArray]:
        """Return intervals of the derivative in each action column, row by row.

        The derivative is a difference over a tenth of the action's standard deviation.

        Returns
        -------
        lower, upper : ndarray, shape (n, d_T)
        """
        fitted = self._fitted()
        bands = [
            fitted.band(fitted.derivative_functional(T, X, column), alpha, scale=_per_unit(fitted, column))
            for column in range(fitted.action.width)
        ]
        return np.column_stack([band.lower for band in bands]), np.column_stack([b.upper for b in bands])

    def average_marginal_effect(self, T: object, X: object = None) -> FloatArray:
        """Return the mean derivative in each action column over the given rows, shape (d_T,)."""
        return np.asarray(self._fitted().marginal_effect(T, X).mean(axis=0))

    def average_marginal_effect_interval(
        self, T: object, X: object = None, *, alpha: float = 0.05
    ) -> tuple[FloatArray, FloatArray]:
        """Return intervals of :meth:`average_marginal_effect`.

        Returns
        -------
        lower, upper : ndarray, shape (d_T,)
        """
        fitted = self._fitted()
        bands = [
            fitted.band(
                fitted.derivative_functional(T, X, column).averaged(), alpha, scale=_per_unit(fitted, column)
            )
            for column in range(fitted.action.width)
        ]
        return np.concatenate([band.lower for band in bands]), np.concatenate([b.upper for b in bands])

    def shift_effect(self, T: object, X: object = None, *, delta: object) -> float:
        """Return the mean effect of adding ``delta`` to every action, over the given rows.

        Parameters
        ----------
        T : array-like, shape (n,) or (n, d_T)
            Actions today.
        X : array-like or frame, shape (n, d_X), or None
        delta : float or array-like, shape (d_T,)
        """
        fitted = self._fitted()
        functional = fitted.shift_functional(T, X, delta).averaged()
        return float(fitted.plug_in(functional)[0] * fitted.outcome.scale)

    def shift_effect_interval(
        self, T: object, X: object = None, *, delta: object, alpha: float = 0.05
    ) -> tuple[float, float]:
        """Return an interval of :meth:`shift_effect`."""
        fitted = self._fitted()
        return _mean_ends(fitted, fitted.shift_functional(T, X, delta), alpha)


def _ends(fitted: Counterfactual, functional: Functional, alpha: float) -> tuple[FloatArray, FloatArray]:
    band = fitted.band(functional, alpha)
    return band.lower, band.upper


def _mean_ends(fitted: Counterfactual, functional: Functional, alpha: float) -> tuple[float, float]:
    band = fitted.band(functional.averaged(), alpha)
    return float(band.lower[0]), float(band.upper[0])


def _per_unit(fitted: Counterfactual, column: int) -> float:
    return 1.0 / float(np.broadcast_to(fitted.action.scale, fitted.action.width)[column])
