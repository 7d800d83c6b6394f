"""The second stage after a pilot: learn what the pilot leaves of h, where the moments ask for it."""

from __future__ import annotations

from typing import Any, Literal

from sklearn.base import BaseEstimator, is_regressor

from dmliv.data import TrainingData
from dmliv.errors import InputError
from dmliv.first_stage.blocks import BlockSource
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.nuisances import PilotLearner
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.pilot import ControlFunction
from dmliv.second_stage.pilot_model import PilotedModel
from dmliv.second_stage.regressor_pilot import RegressorPilot
from dmliv.second_stage.structural import StreamingLearner, StructuralLearner, StructuralModel

PilotLike = Literal["control-function"] | PilotLearner | BaseEstimator | None
"""What an estimator's ``pilot`` may be; a BaseEstimator is a regressor of scikit-learn."""


def fit_structural(
    learner: StructuralLearner,
    data: TrainingData,
    first_stage: FirstStage,
    *,
    seed: int,
    runtime: Runtime,
    source: BlockSource | None = None,
) -> StructuralModel:
    """Fit h: as the learner does it, or the pilot and what the learner adds to it.

    Parameters
    ----------
    learner : StructuralLearner
    data : TrainingData
        With the outcome as it was observed.
    first_stage : FirstStage
    seed : int
    runtime : Runtime
    source : BlockSource, optional
        All rows, block by block and with what the pilot leaves of the outcome, where ``data`` is a sample.
    """

    def learn(rows: TrainingData) -> StructuralModel:
        if source is None:
            return learner.fit(rows, first_stage, seed=seed, runtime=runtime)
        if not isinstance(learner, StreamingLearner):
            raise TypeError(f"Expected a learner that learns from blocks, got {type(learner).__name__}.")
        return learner.fit_source(rows, first_stage, source, seed=seed, runtime=runtime)

    pilot = first_stage.pilot
    if pilot is None:
        return learn(data)
    details: dict[str, object] = {"evidence_against_pilot": first_stage.pilot_evidence, "remainder_size": 0.0}
    if first_stage.pilot_stands:
        return PilotedModel(pilot.model, None, details)
    left = first_stage.residual_rows(data)
    remainder = learn(left)
    added = remainder.predict(data.context, data.action_spec.vectors(data.action))
    details["remainder_size"] = float(added.std() / max((data.outcome - left.outcome).std(), 1e-12))
    return PilotedModel(pilot.model, remainder, details)


def read_pilot(pilot: object, learners: Any) -> PilotLearner | None:
    """Return the pilot learner for an estimator's ``pilot``, or None for none.

    Parameters
    ----------
    pilot : object
        As the user gave it.
    learners : Learners
        The paper's presets have no pilot, and a structural learner that makes h a line has none either.
        Pixels are passed on to a pilot that can use them.
    """
    named = isinstance(pilot, str) and pilot == "control-function"
    # A class, a classifier or a scaler has a fit as well, but not one of a pilot.
    is_other = isinstance(pilot, type) or (isinstance(pilot, BaseEstimator) and not is_regressor(pilot))
    is_learner = callable(getattr(pilot, "fit", None)) and not is_other
    if pilot is not None and not named and not is_learner:
        raise InputError(
            "Expected pilot='control-function', None, a scikit-learn regressor or a learner such as "
            f"ControlFunction(), got {pilot!r}."
        )
    takes_pilot = learners.with_pilot and getattr(learners.structural, "takes_pilot", True)
    if pilot is None or not takes_pilot:
        return None
    learner: Any = ControlFunction() if named else pilot
    if isinstance(learner, BaseEstimator):
        learner = RegressorPilot(learner)
    if learners.image is not None and hasattr(learner, "with_image"):
        learner = learner.with_image(learners.image)
    found: PilotLearner = learner
    return found
