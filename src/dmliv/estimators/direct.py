"""Estimators that learn h in one piece, without folds or nuisances of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import numpy as np
from sklearn.utils import check_random_state

from dmliv.counterfactual import Counterfactual
from dmliv.data import ActionKind, TrainingData, prepare
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.second_stage.base import StructuralModel

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
        data = prepare(
            Y, T, Z=Z, X=X, W=W, sample_weight=sample_weight, action_kind=kind, min_rows=_FEWEST_ROWS
        )
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
