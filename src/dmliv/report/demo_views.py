"""What the figures of the demo show: arrays from fitted models, and titles that follow from the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dmliv.data import FloatArray, IVData
from dmliv.first_stage.base import ActionModel, OutcomeModel
from dmliv.problems.ticket_demand import MAX_TIME, N_TYPES, PRICE_MEAN, PRICE_SD
from dmliv.report.comparison import Comparison
from dmliv.report.figures import DoseResponse, LearningCurve, Recommendation
from dmliv.second_stage.base import StructuralModel
from dmliv.second_stage.pilot_model import PilotedModel

_SHOWN_CONTEXTS: Final = ((1.5, 2), (5.5, 4), (8.0, 6))
_SHOWN_TYPES: Final = (1, 4, 7)
# The figure stays nearer to the observed prices than the candidates of the benchmark do.
_CANDIDATES: Final = np.linspace(-3.0, 3.0, 121)
# Prices "at" a time are those of the nearest rows in time, this share of all.
_NEAR_SHARE: Final = 0.1
# A loss has levelled off when its last fifth brings less than this share of the whole fall.
_LEVEL_SHARE: Final = 0.05


def to_price(action: FloatArray) -> FloatArray:
    """Return prices in euros from standardised actions of the same shape."""
    return PRICE_MEAN + PRICE_SD * action


def to_action(price: FloatArray) -> FloatArray:
    """Return standardised actions from prices in euros of the same shape."""
    return (price - PRICE_MEAN) / PRICE_SD


def dose_responses(comparison: Comparison) -> list[DoseResponse]:
    """Return expected sales against price in three contexts: early, midway and late in the year."""
    price = np.linspace(10.0, 25.0, 121)
    action = to_action(price)
    panels = []
    for time, kind in _SHOWN_CONTEXTS:
        context = _contexts(np.full(len(price), time), kind)
        panels.append(
            DoseResponse(
                context=f"Time {time:g}, customer type {kind}",
                price=price,
                truth=comparison.problem.counterfactual(context, action),
                ordinary=comparison.regression.predict(action, context),
                dmliv=comparison.estimator.predict(action, context),
                observed=_prices_near(comparison.data, time),
            )
        )
    return panels


def dose_response_title(comparison: Comparison, panels: Sequence[DoseResponse]) -> str:
    """Return the finding about the effect of the price."""
    dmliv, ordinary = comparison.dmliv.counterfactual_error, comparison.ordinary.counterfactual_error
    if dmliv >= ordinary:
        return "On these rows DML-IV is no closer to the truth than ordinary regression"
    falls = all(panel.dmliv[-1] < panel.dmliv[0] for panel in panels)
    finding = "sees that dearer tickets sell less" if falls else "is closer to the truth"
    return f"DML-IV {finding}; ordinary regression has {ordinary / dmliv:.1f} times its error"


def learning_curves(comparison: Comparison) -> list[LearningCurve]:
    """Return the training losses of the models of DML-IV that are networks, each the mean over its own.

    A pilot is solved in closed form: where it stands alone, only the action model was trained.
    """
    first_stage = comparison.estimator.first_stage_
    structural: StructuralModel | None = comparison.estimator.structural_model_
    if isinstance(structural, PilotedModel):
        structural = structural.remainder
    models: list[tuple[str, str, OutcomeModel | ActionModel | StructuralModel | None]] = [
        ("Outcome model", "squared error (standardised)", first_stage.outcome_model),
        ("Action model", "negative log-likelihood", first_stage.action_model),
        ("Structural model", "projected squared error", structural),
    ]
    described = [(name, loss, model.describe()) for name, loss, model in models if model is not None]
    return [
        LearningCurve(name, loss, np.asarray(facts["train_loss"], dtype=np.float64))
        for name, loss, facts in described
        if "train_loss" in facts
    ]


def learning_title(curves: Sequence[LearningCurve]) -> str:
    """Return the finding about the training."""
    if len(curves) == 1 and _has_levelled_off(curves[0].values):
        return f"The training loss of the {curves[0].model.lower()} has levelled off"
    falling = [curve.model.lower() for curve in curves if not _has_levelled_off(curve.values)]
    if not falling:
        return "All training losses have levelled off"
    return f"Losses still moving in the last epochs: {', '.join(falling)}"


def recommendations(comparison: Comparison) -> list[Recommendation]:
    """Return recommended prices over the year for three types of customer."""
    time = np.linspace(0.0, MAX_TIME, 101)
    low, high = float(_CANDIDATES[0]), float(_CANDIDATES[-1])
    policy = comparison.estimator.policy(_CANDIDATES)
    near = np.array([np.quantile(_prices_near(comparison.data, moment), [0.01, 0.99]) for moment in time])
    panels = []
    for kind in _SHOWN_TYPES:
        context = _contexts(time, kind)
        panels.append(
            Recommendation(
                customer=f"Customer type {kind}",
                time=time,
                optimum=to_price(comparison.problem.optimal_action(context, low, high)),
                ordinary=to_price(comparison.regression.recommend(context, _CANDIDATES)),
                dmliv=to_price(policy.predict(context)),
                observed_low=near[:, 0],
                observed_high=near[:, 1],
            )
        )
    return panels


def recommendation_title(panels: Sequence[Recommendation]) -> str:
    """Return the finding about the recommended prices: how often each method names the best one."""
    dmliv = float(np.mean([panel.dmliv == panel.optimum for panel in panels]))
    ordinary = float(np.mean([panel.ordinary == panel.optimum for panel in panels]))
    return (
        f"The lowest price is best: DML-IV names it in {_percent(dmliv)} of cases, "
        f"regression in {_percent(ordinary)}"
    )


def _percent(share: float) -> str:
    """Return a share in words that never round "sometimes" to never or to always."""
    if 0.0 < share < 0.01:
        return "less than 1 %"
    if 0.99 < share < 1.0:
        return "more than 99 %"
    return f"{100 * share:.0f} %"


def _contexts(time: FloatArray, kind: int) -> FloatArray:
    """Return contexts (n, 8) for times (n,) and one type of customer."""
    return np.column_stack([time, np.tile(np.arange(1, N_TYPES + 1) == kind, (len(time), 1))])


def _prices_near(data: IVData, time: float) -> FloatArray:
    """Return the prices in euros of the rows nearest to a time, shape (k,)."""
    count = max(1, round(_NEAR_SHARE * len(data)))
    nearest = np.argsort(np.abs(np.asarray(data.X)[:, 0] - time))[:count]
    return to_price(np.asarray(data.T, dtype=np.float64)[nearest])


def _has_levelled_off(losses: FloatArray) -> bool:
    fall = float(losses[0] - losses.min())
    last_fifth = losses[-max(2, len(losses) // 5) :]
    return abs(float(last_fifth[0] - last_fifth[-1])) <= _LEVEL_SHARE * fall
