"""Ordinary regression of the outcome on context and action, which ignores the instrument."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

import numpy as np

from dmliv.data import FloatArray, IVData, TrainingData, prepare
from dmliv.first_stage.nuisances import Exogenous, OutcomeModel
from dmliv.learners import neural
from dmliv.nets.device import resolve_device, single_thread
from dmliv.parallel.runtime import Runtime
from dmliv.progress import Advance, ProgressReporter, progress_for

# As many networks as DML-IV averages in its second stage, for a fair comparison.
_N_MEMBERS = 3


@dataclass(frozen=True)
class OrdinaryRegression:
    """A fitted regression of the outcome on (context, action) that treats the action as exogenous.

    It is the network of DML-IV's outcome model, encodings chosen by held-out loss included, with the action
    in place of the instrument. It predicts observed outcomes well; under confounding it does not estimate the
    outcome if the action is *set*.

    Attributes
    ----------
    model : OutcomeModel
    data : TrainingData
        Training rows and the schemas that read new ones.
    """

    model: OutcomeModel
    data: TrainingData

    @classmethod
    def fit(cls, data: IVData, *, seed: int, verbose: bool = False) -> Self:
        """Fit the regression.

        Parameters
        ----------
        data : IVData
            One continuous action; the instrument is not used.
        seed : int
        verbose : bool
            Show progress bars.

        Returns
        -------
        OrdinaryRegression
        """
        # An outcome learner reads context and instrument, never the action: the two trade places here.
        prepared = prepare(data.Y, data.Z, Z=data.T, X=data.X)
        everything = np.arange(len(prepared))
        runtime = Runtime(resolve_device("auto"), _Renamed(progress_for(verbose)), n_jobs=1)
        with single_thread():
            model = neural().outcome.fit(prepared, [everything] * _N_MEMBERS, seed=seed, runtime=runtime)
        return cls(model, prepared)

    def predict(self, T: FloatArray, X: FloatArray) -> FloatArray:
        """Return the predicted outcome, shape (n,), for actions (n,) and contexts (n, d_X)."""
        rows = np.arange(len(T))
        exogenous = Exogenous(
            self.data.context_schema.read(X, len(T)), self.data.instrument_schema.read(T, len(T))
        )
        with single_thread():
            members = self.model.predict(exogenous, [rows] * _N_MEMBERS)
        return self.data.outcome_spec.to_user(np.mean(members, axis=0))

    def recommend(self, X: FloatArray, candidates: FloatArray) -> FloatArray:
        """Return the candidate (m,) with the highest prediction for every context, shape (n,)."""
        values = self.predict(np.tile(candidates, len(X)), np.repeat(X, len(candidates), axis=0))
        best: FloatArray = candidates[values.reshape(len(X), len(candidates)).argmax(axis=1)]
        return best


@dataclass(frozen=True)
class _Renamed:
    """Progress under the name of the regression: the learner calls itself an outcome model."""

    progress: ProgressReporter

    def stage(self, name: str, total: int) -> AbstractContextManager[Advance]:
        return self.progress.stage(name.replace("outcome model", "regression"), total)
