"""What a second-stage learner and the structural model it returns promise."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dmliv.data import Table, TrainingData
from dmliv.first_stage.blocks import BlockSource
from dmliv.first_stage.crossfit import FirstStage
from dmliv.parallel.runtime import Runtime

FloatArray = npt.NDArray[np.float64]


class StructuralModel(Protocol):
    """A fitted h(context, action). Actions and values are in model units (standardised, or one-hot)."""

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row: context of n rows, action (n, d), result (n,)."""
        ...

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action: actions (m, d), result (n, m)."""
        ...

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative of h in the action, shape (n, d)."""
        ...

    def describe(self) -> dict[str, object]:
        """Return what was chosen and how training went, in plain values."""
        ...


class StructuralLearner(Protocol):
    """Fits h to the rows the first stage left."""

    @property
    def needs_validation(self) -> bool:
        """Whether the learner chooses among settings and so needs fair splits from the first stage."""
        ...

    def fit(
        self, data: TrainingData, first_stage: FirstStage, *, seed: int, runtime: Runtime
    ) -> StructuralModel:
        """Fit h; looks at context, target and action distribution, never at folds."""
        ...


@runtime_checkable
class StreamingLearner(Protocol):
    """Fits h to rows that come block by block."""

    def fit_source(
        self,
        sample: TrainingData,
        first_stage: FirstStage,
        source: BlockSource,
        *,
        seed: int,
        runtime: Runtime,
    ) -> StructuralModel:
        """Make choices on a sample with what the first stage left for it, and learn from all rows."""
        ...
