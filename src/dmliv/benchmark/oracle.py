"""References: an ordinary regression, and an oracle that sees data without confounding.

Both fit the default's structural learner to the observed outcome at the observed action. What an instrument
is needed for drops out: the distribution of the action is the action itself. On confounded rows that is an
ordinary regression and shows what confounding costs. On rows of the same size whose noise the actions know
nothing of it is an oracle, and shows how much of an error is learning error that no instrument could take
away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from dmliv.data import FloatArray, IntArray, IVData, TrainingData
from dmliv.estimators import DeepIV
from dmliv.first_stage.distributions import ActionDistribution, CategoricalDistribution, ResidualDistribution
from dmliv.first_stage.nuisances import Exogenous
from dmliv.parallel.runtime import Runtime


@runtime_checkable
class Unconfounded(Protocol):
    """A problem that can also draw rows whose noise is independent of the action."""

    def sample_unconfounded(self, n: int, seed: int = 0) -> IVData:
        """Draw ``n`` rows with the contexts, instruments and actions of a sample of that seed."""
        ...


@dataclass(frozen=True)
class ObservedAction:
    """Action learner that learns nothing: every row has the action that was observed."""

    def fit(
        self, data: TrainingData, row_sets: Sequence[IntArray], *, seed: int, runtime: Runtime
    ) -> ObservedActions:
        """Remember the actions of all rows."""
        del row_sets, seed
        actions = data.action_spec.vectors(data.action)
        return ObservedActions(actions, data.action_spec.kind == "discrete", runtime.device)


@dataclass(frozen=True, eq=False)
class ObservedActions:
    """Distributions that have the observed action as their only value; for the training rows alone.

    Attributes
    ----------
    actions : ndarray, shape (n, d)
        Standardised columns, or one-hot rows of a discrete action.
    discrete : bool
    device : torch.device
    """

    actions: FloatArray
    discrete: bool
    device: torch.device

    def distributions(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[ActionDistribution]:
        """Return the distribution of each row set; rows are rows of the training data."""
        del exogenous
        return [self._distribution(rows) for rows in row_sets]

    def describe(self) -> dict[str, object]:
        """Return nothing: nothing was chosen."""
        return {}

    def _distribution(self, rows: IntArray) -> ActionDistribution:
        actions = torch.as_tensor(self.actions[rows], dtype=torch.float32, device=self.device)
        if self.discrete:
            return CategoricalDistribution(actions)
        no_residual = torch.zeros((1, 1, actions.shape[1]), dtype=torch.float32, device=self.device)
        pool = torch.zeros(len(rows), dtype=torch.long, device=self.device)
        return ResidualDistribution(actions, no_residual, pool)


class Regression(DeepIV):
    """Ordinary regression of the outcome on (context, action), blind to the instrument.

    With :class:`ObservedAction` in the role of the action DeepIV is just that. The parameters are those of
    :class:`~dmliv.DeepIV`.
    """


class Oracle(Regression):
    """The same regression, to be fitted to rows without confounding; see :func:`rows_for`."""


def rows_for(estimator: Any, problem: Any, data: IVData, seed: int) -> IVData:
    """Return the rows an estimator learns from: unconfounded ones for the oracle, else the given ones.

    The data were drawn from the problem with the seed.

    Raises
    ------
    TypeError
        If there is an oracle but the problem cannot draw rows for it.
    """
    if not isinstance(estimator, Oracle):
        return data
    if not isinstance(problem, Unconfounded):
        raise TypeError(
            f"Expected a problem that draws unconfounded rows for the oracle, got {type(problem).__name__}; "
            "leave the oracle out."
        )
    return problem.sample_unconfounded(len(np.asarray(data.Y)), seed=seed)
