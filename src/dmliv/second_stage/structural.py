"""What a second-stage learner and the structural model it returns promise.

Only :class:`StructuralLearner` and :class:`StructuralModel` have to be fulfilled. The other protocols are
recognised by their methods: a learner that has them can do more, or the same faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from dmliv.data import Table, TrainingData
from dmliv.first_stage.blocks import BlockSource
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.distributions import ActionDistribution
from dmliv.first_stage.resampling import Resample
from dmliv.parallel.runtime import Runtime

FloatArray = npt.NDArray[np.float64]

# Quadrature points per action column in the mean of h over an action distribution.
_POINTS = 3
# Structural rows (rows x nodes) evaluated at once.
_CHUNK_ROWS = 200_000


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

    @property
    def streams(self) -> bool:
        """Whether the learner, as it is set, can do so."""
        ...

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


@runtime_checkable
class ResamplingLearner(Protocol):
    """Fits h to many resampled data sets at once, with the choices of an earlier fit."""

    def can_fit_again(self, model: StructuralModel) -> bool:
        """Return whether the choices of a fitted model can be used again on resampled rows."""
        ...

    def most_replicates(self, model: StructuralModel) -> int:
        """Return how many replicates are worth fitting at once."""
        ...

    def fit_again(
        self,
        data: TrainingData,
        model: StructuralModel,
        first_stages: Sequence[FirstStage],
        resamples: Sequence[Resample],
        *,
        runtime: Runtime,
    ) -> Sequence[StructuralModel]:
        """Return h of every resample.

        Parameters
        ----------
        data : TrainingData
        model : StructuralModel
            What the learner learned from all rows.
        first_stages : sequence of FirstStage
            What the first stage left of each resample.
        resamples : sequence of Resample
        runtime : Runtime
        """
        ...


@runtime_checkable
class ProjectingModel(Protocol):
    """Knows the mean of h over an action distribution better than by quadrature."""

    def project(self, context: Table, distribution: ActionDistribution) -> FloatArray:
        """Return the mean of h over the action distribution of every row, shape (n,)."""
        ...


def project(model: StructuralModel, context: Table, distribution: ActionDistribution) -> FloatArray:
    """Return the mean of h over the distribution of every row, shape (n,)."""
    if isinstance(model, ProjectingModel):
        return model.project(context, distribution)
    step = max(1, _CHUNK_ROWS // distribution.n_nodes(_POINTS))
    parts = [np.empty(0)]
    for start in range(0, len(context), step):
        rows = np.arange(start, min(start + step, len(context)))
        nodes = distribution.evaluation_nodes(torch.from_numpy(rows).to(distribution.device), _POINTS)
        n_nodes = nodes.weights.shape[-1]
        actions = nodes.actions.reshape(len(rows) * n_nodes, -1).cpu().double().numpy()
        values = model.predict(context.take(np.repeat(rows, n_nodes)), actions).reshape(len(rows), n_nodes)
        parts.append((nodes.weights.cpu().double().numpy() * values).sum(axis=1))
    return np.concatenate(parts)
