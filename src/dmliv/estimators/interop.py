"""Estimators in places that expect scikit-learn's ``fit(X, y)``: searches, cross-validation, pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import narwhals as nw
import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone

from dmliv.data import FloatArray
from dmliv.errors import InputError, NotFittedError, unknown_columns
from dmliv.estimators.base import CounterfactualEstimator

Columns = str | int | Sequence[str] | Sequence[int]


class TableEstimator(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator that takes action, instrument and context as columns of one table.

    Made by :func:`as_sklearn`.

    Parameters
    ----------
    estimator : CounterfactualEstimator
        Is cloned, never fitted itself; its parameters are ``estimator__n_folds`` and so on.
    action, instrument, context, controls : str, int or sequence of them
        Columns of each role: names of a frame's columns, or positions.

    Attributes
    ----------
    estimator_ : CounterfactualEstimator
        The fitted clone.
    """

    estimator_: CounterfactualEstimator

    def __init__(
        self,
        estimator: CounterfactualEstimator,
        action: Columns,
        instrument: Columns,
        context: Columns | None = None,
        controls: Columns | None = None,
    ) -> None:
        self.estimator = estimator
        self.action = action
        self.instrument = instrument
        self.context = context
        self.controls = controls

    def fit(self, X: object, y: object, sample_weight: object = None) -> Self:
        """Fit a clone of the estimator.

        Parameters
        ----------
        X : frame or array-like, shape (n, p)
            All columns.
        y : array-like, shape (n,)
            Outcome.
        sample_weight : array-like, shape (n,), optional

        Returns
        -------
        self
        """
        roles = {"T": self.action, **self._exogenous}
        given = {argument: _pick(X, columns) for argument, columns in roles.items()}
        fitted: Any = clone(self.estimator)
        self.estimator_ = fitted.fit(y, **given, sample_weight=sample_weight)
        return self

    def predict(self, X: object) -> FloatArray:
        """Return E[outcome | do(action), context] with action and context of each row, shape (n,)."""
        return self._fitted().predict(_pick(X, self.action), _pick(X, self.context))

    def score(self, X: object, y: object, sample_weight: object = None) -> float:
        """Return the estimator's own score, over the distribution of the action; see ``DMLIV.score``."""
        fitted: Any = self._fitted()
        if not hasattr(fitted, "score"):
            raise InputError(
                f"Expected an estimator with a score, got {type(fitted).__name__}; use DMLIV, CEDMLIV or "
                "DeepIV, or pass scoring= with a function of your own. A good fit to observed actions is no "
                "evidence."
            )
        given = {argument: _pick(X, columns) for argument, columns in self._exogenous.items()}
        return float(fitted.score(y, **given, sample_weight=sample_weight))

    @property
    def _exogenous(self) -> dict[str, Columns | None]:
        return {"Z": self.instrument, "X": self.context, "W": self.controls}

    def _fitted(self) -> CounterfactualEstimator:
        fitted = getattr(self, "estimator_", None)
        if fitted is None:
            raise NotFittedError(
                "Expected a fitted estimator, got one that was never fitted; call fit first."
            )
        estimator: CounterfactualEstimator = fitted
        return estimator


def as_sklearn(
    estimator: CounterfactualEstimator,
    *,
    action: Columns,
    instrument: Columns,
    context: Columns | None = None,
    controls: Columns | None = None,
) -> TableEstimator:
    """Return an estimator with scikit-learn's ``fit(X, y)``, ``predict(X)`` and ``score(X, y)``.

    It goes where scikit-learn hands around one table: ``GridSearchCV``, ``cross_val_score``, the end of a
    ``Pipeline``. The score is that of the estimator: how well the projection of h predicts the outcome, which
    is a fair ground for choosing, while errors at observed actions are not.

    Parameters
    ----------
    estimator : CounterfactualEstimator
    action, instrument, context, controls : str, int or sequence of them
        Columns of each role: names of a pandas or polars frame's columns, or positions.
    """
    return TableEstimator(estimator, action, instrument, context, controls)


def _pick(table: object, columns: Columns | None) -> Any:
    """Return some columns of a frame as a frame of its own kind, or of an array as an array."""
    if columns is None:
        return None
    wanted: list[Any] = [columns] if isinstance(columns, (str, int, np.integer)) else list(columns)
    frame: Any = nw.from_native(table, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        names = [str(name) for name in frame.columns]
        unknown = [name for name in wanted if isinstance(name, str) and name not in names]
        if unknown:
            raise unknown_columns("table", unknown, names)
        return frame[
            :, [names.index(name) if isinstance(name, str) else int(name) for name in wanted]
        ].to_native()
    named = [name for name in wanted if isinstance(name, str)]
    if named:
        raise InputError(
            f"Expected positions of columns for an array, got the name {named[0]!r}; pass positions or a "
            "frame. A transformer returns a frame after set_output(transform='pandas')."
        )
    return np.asarray(table)[:, wanted]
