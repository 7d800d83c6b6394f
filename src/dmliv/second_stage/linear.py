"""h linear in context and action, in closed form: with linear nuisances this is two-stage least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dmliv.data import FloatArray, Table, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.first_stage.crossfit import FirstStage
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.structural_encoder import StructuralEncoder

_UNUSED_BINS = 2


@savable
@dataclass(frozen=True)
class LinearStructural:
    """Structural learner: least squares of the target on context and *mean* action.

    A linear h passes through the expectation, so the mean of the action distribution is all that is needed.

    Parameters
    ----------
    ridge : float
        Penalty on all coefficients but the intercept, relative to the number of rows.
    """

    ridge: float = 0.0

    #: Who asks for a line wants h to be one: a pilot would bend it.
    takes_pilot: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the penalty."""
        if self.ridge < 0.0:
            raise InputError(f"Expected a ridge penalty of at least 0, got {self.ridge}.")

    @property
    def needs_validation(self) -> bool:
        """Whether there is something to choose."""
        return False

    def fit(
        self, data: TrainingData, first_stage: FirstStage, *, seed: int, runtime: Runtime
    ) -> LinearStructuralModel:
        """Solve the weighted normal equations."""
        del seed, runtime
        encoder = StructuralEncoder.learn(data, _UNUSED_BINS, centred=False)
        action = first_stage.distribution.mean().cpu().double().numpy()
        design = _design(encoder, data.context, action)
        root = np.sqrt(data.weight)[:, None]
        penalty = np.sqrt(self.ridge * len(data)) * np.eye(design.shape[1])[1:]
        stacked = np.vstack([design * root, penalty])
        target = np.concatenate([first_stage.target * root[:, 0], np.zeros(len(penalty))])
        coefficients = np.linalg.lstsq(stacked, target, rcond=None)[0]
        return LinearStructuralModel(encoder, coefficients)


@savable
@dataclass(frozen=True)
class LinearStructuralModel:
    """A fitted linear h.

    Attributes
    ----------
    encoder : StructuralEncoder
    coefficients : ndarray, shape (1 + context width + action width,)
        Intercept, context, action; in model units.
    """

    encoder: StructuralEncoder
    coefficients: FloatArray

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""
        return np.asarray(_design(self.encoder, context, action) @ self.coefficients)

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action."""
        width = actions.shape[1]
        base = self.predict(context, np.zeros((len(context), width)))
        return np.asarray(base[:, None] + (actions @ self.coefficients[-width:])[None, :])

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the action coefficients for every row."""
        del context
        return np.tile(self.coefficients[-action.shape[1] :], (len(action), 1))

    def describe(self) -> dict[str, object]:
        """Return the coefficients."""
        return {"coefficients": self.coefficients.tolist()}


def _design(encoder: StructuralEncoder, context: Table, action: FloatArray) -> FloatArray:
    return np.hstack([np.ones((len(context), 1)), encoder.context.standardised(context), action])
