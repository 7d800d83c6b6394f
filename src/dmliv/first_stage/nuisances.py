"""What the first stage works on and what its learners and models promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dmliv.data import Table, TrainingData
from dmliv.first_stage.distributions import ActionDistribution
from dmliv.parallel.runtime import Runtime

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Exogenous:
    """The exogenous input (c, z) of both nuisances.

    Attributes
    ----------
    context, instrument : Table
        Rows of both roles, same length.
    """

    context: Table
    instrument: Table

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.instrument)


class OutcomeModel(Protocol):
    """M fitted outcome models s(c, z), one per row set."""

    def predict(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[FloatArray]:
        """Return the predictions of member m for its rows ``row_sets[m]``."""
        ...

    def describe(self) -> dict[str, object]:
        """Return what was chosen and how training went, in plain values."""
        ...


class OutcomeLearner(Protocol):
    """Learns s(c, z) = E[outcome | c, z]."""

    def fit(
        self, data: TrainingData, row_sets: Sequence[IntArray], *, seed: int, runtime: Runtime
    ) -> OutcomeModel:
        """Fit one model per row set; model m sees the outcomes of ``row_sets[m]`` and of no other row."""
        ...


class ActionModel(Protocol):
    """M fitted action models F(a | c, z), one per row set."""

    def distributions(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[ActionDistribution]:
        """Return the action distribution of member m for its rows ``row_sets[m]``, re-indexed from zero."""
        ...

    def describe(self) -> dict[str, object]:
        """Return what was chosen and how training went, in plain values."""
        ...


class ActionLearner(Protocol):
    """Learns the distribution of the action given (c, z)."""

    def fit(
        self, data: TrainingData, row_sets: Sequence[IntArray], *, seed: int, runtime: Runtime
    ) -> ActionModel:
        """Fit one model per row set; model m sees the actions of ``row_sets[m]`` and of no other row."""
        ...


class FittedPilot(Protocol):
    """A function of (context, action) that h starts from."""

    def at(self, data: TrainingData) -> FloatArray:
        """Return the pilot at the observed actions of its rows, shape (n,).

        For each row by a fit without its fold, or one on a sample of so many rows that none of them matters.
        """
        ...

    @property
    def model(self) -> Any:
        """The pilot of all rows: a structural model."""
        ...

    def evidence_against(
        self, data: TrainingData, distribution: ActionDistribution, *, seed: int
    ) -> dict[str, float]:
        """Return how strongly the moments contradict the pilot, in logarithms of Bayes factors.

        By the size of the remainder. Empty where a pilot cannot tell: then a remainder is learned in any
        case.
        """
        ...

    def project(self, context: Table, distribution: ActionDistribution) -> FloatArray:
        """Return the mean of the pilot over the action distribution of every row, shape (n,)."""
        ...


class PilotLearner(Protocol):
    """Learns a pilot from the rows and their action distributions."""

    def fit(
        self,
        data: TrainingData,
        distribution: ActionDistribution,
        fold: IntArray,
        *,
        seed: int,
        runtime: Runtime,
    ) -> FittedPilot:
        """Fit the pilot to all rows, and without each fold."""
        ...
