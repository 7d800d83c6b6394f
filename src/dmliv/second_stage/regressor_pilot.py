"""A pilot by any regressor that follows scikit-learn, fitted in turns with its control function."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import check_whole
from dmliv.first_stage.distributions import ActionDistribution
from dmliv.first_stage.regressors import fit_clone, predict_rows
from dmliv.kernels.process import ProcessSettings
from dmliv.nets.images import ImageColumns
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.action_mean import ActionMean, PilotRows
from dmliv.second_stage.regressor import (
    RegressorStructuralModel,
    check_regressor,
    learn_encoder,
    pair_inputs,
    row_indices,
)

# Degree of the control function in each control variable.
_DEGREE = 3
# Quadrature points per action column of the mean over an action distribution.
_POINTS = 5


@savable
@dataclass(frozen=True, eq=False)
class FittedRegressorPilot:
    """A fitted pilot.

    Attributes
    ----------
    values : ndarray, shape (n,)
        The pilot at the observed actions, for each row by a regressor that did not see its fold.
    model : RegressorStructuralModel
        The pilot of all rows.
    """

    values: FloatArray
    model: RegressorStructuralModel

    def at(self, data: TrainingData) -> FloatArray:
        """Return the pilot at the observed actions of its rows, shape (n,)."""
        if len(data) == len(self.values):
            return self.values
        return self.model.predict(data.context, data.action_spec.vectors(data.action))

    def project(self, context: Table, distribution: ActionDistribution) -> FloatArray:
        """Return the mean of the pilot over the action distribution of every row, shape (n,)."""
        rows = np.arange(len(context))
        nodes = distribution.nodes(row_indices(distribution, rows), _POINTS)
        values = predict_rows(self.model.regressor, pair_inputs(self.model.encoder, context, nodes))
        weights = nodes.weights.cpu().double().numpy()
        return np.asarray(np.sum(weights * values.reshape(weights.shape), axis=1))

    def evidence_against(
        self, data: TrainingData, distribution: ActionDistribution, *, seed: int
    ) -> dict[str, float]:
        """Return no answer: what the pilot leaves is learned in any case."""
        del data, distribution, seed
        return {}


@savable
@dataclass(frozen=True)
class RegressorPilot:
    """Pilot learner: h(context, action) by a regressor, plus a cubic control function.

    The control variable is what the mean of the action given context and instrument leaves of it; that mean
    is the regression of :class:`~dmliv.second_stage.pilot.ControlFunction`. Regressor and control function
    are fitted in turns: the regressor to the outcome less the control function, then the control function, by
    least squares and beside lines in context and action, to what the regressor leaves of rows that it did not
    see. Whether a remainder is needed the moments cannot tell here, so that one is always learned.

    Parameters
    ----------
    regressor : scikit-learn regressor
        Cloned, never fitted itself; its inputs are standardised context columns, then the action.
    n_rounds : int
        How often the two take turns.
    settings : ProcessSettings
        Of the mean of the action.
    image : ImageColumns, optional
        Context columns that are pixels, as fixed features of the mean of the action.
    """

    regressor: Any
    n_rounds: int = 2
    settings: ProcessSettings = field(default_factory=ProcessSettings)
    image: ImageColumns | None = None

    def __post_init__(self) -> None:
        """Check the regressor and the number of rounds."""
        check_regressor(self.regressor, "the pilot")
        check_whole(n_rounds=self.n_rounds)

    def with_image(self, image: ImageColumns) -> RegressorPilot:
        """Return the learner for contexts that hold pixels; the mean of the action sees fixed features."""
        return replace(self, image=replace(image, features="gradients"))

    def fit(
        self,
        data: TrainingData,
        distribution: ActionDistribution,
        fold: IntArray,
        *,
        seed: int,
        runtime: Runtime,
    ) -> FittedRegressorPilot:
        """Fit the pilot to all rows, and without each fold."""
        action = data.action_spec.vectors(data.action)
        rows = PilotRows(data, action, distribution, fold, np.random.default_rng([seed, 7]), runtime)
        first = ActionMean.fit(rows, self.image, self.settings, None)
        control = np.hstack([first.control.columns**power for power in range(1, _DEGREE + 1)])
        encoder = learn_encoder(data)
        inputs = np.hstack([encoder.context.standardised(data.context), action])
        values = np.zeros(len(data))
        n_steps = self.n_rounds * (int(fold.max()) + 1) + 1
        with runtime.progress.stage("pilot: control function", n_steps) as advance:
            for _ in range(self.n_rounds):
                confounding = _control_function(control, inputs, data.outcome - values, data.weight)
                target = data.outcome - confounding
                for number in range(int(fold.max()) + 1):
                    # One fold is no fold: then the rows' own fit is all there is.
                    inside = fold == number
                    learned = inside if inside.all() else ~inside
                    model = fit_clone(
                        self.regressor, inputs[learned], target[learned], data.weight[learned], seed
                    )
                    values[inside] = predict_rows(model, inputs[inside])
                    advance()
            of_all = fit_clone(self.regressor, inputs, target, data.weight, seed)
            advance()
        details: dict[str, object] = {
            "control_variable": "residual",
            "regressor": repr(of_all),
            "instrument_evidence": first.instrument_evidence,
        }
        return FittedRegressorPilot(values, RegressorStructuralModel(encoder, of_all, details))


def _control_function(
    control: FloatArray, inputs: FloatArray, target: FloatArray, weight: FloatArray
) -> FloatArray:
    """Return the part of a least-squares fit that is in the control variables, of weighted mean zero."""
    centred = control - np.average(control, axis=0, weights=weight)
    design = np.hstack([centred, inputs, np.ones((len(inputs), 1))])
    root = np.sqrt(weight)
    coefficients = np.linalg.lstsq(design * root[:, None], target * root, rcond=None)[0]
    return np.asarray(centred @ coefficients[: control.shape[1]])
