"""Titles of the demo's figures follow from the numbers, and fit above the panels."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dmliv.benchmark.demo import (
    dose_response_title,
    learning_curves,
    learning_title,
    recommendation_title,
)
from dmliv.benchmark.demo_figures import DoseResponse, LearningCurve, Recommendation, draw_learning_curves
from dmliv.problems.ticket_demand import to_action, to_price
from dmliv.second_stage.pilot_model import PilotedModel

LEVEL = np.array([5.0, 2.0, 1.1, 1.01, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
FALLING = np.linspace(5.0, 1.0, 10)


def comparison(dmliv: float, ordinary: float) -> Any:
    return SimpleNamespace(
        dmliv=SimpleNamespace(counterfactual_error=dmliv),
        ordinary=SimpleNamespace(counterfactual_error=ordinary),
    )


def response(slope: float) -> DoseResponse:
    price = np.linspace(10.0, 25.0, 4)
    return DoseResponse("context", price, -price, price, slope * price, price)


def recommendation(dmliv: list[float], ordinary: list[float]) -> Recommendation:
    flat = np.full(len(dmliv), 7.0)
    time, observed = np.arange(len(dmliv), dtype=float), np.stack([flat, flat])
    return Recommendation("type", time, flat, np.array(ordinary), np.array(dmliv), observed)


def test_price_and_action_are_inverse() -> None:
    assert to_price(np.array([0.0, 1.0])).tolist() == pytest.approx([17.779, 21.479])
    np.testing.assert_allclose(to_action(to_price(np.linspace(-5, 5, 11))), np.linspace(-5, 5, 11))


@pytest.mark.parametrize(
    ("errors", "slopes", "phrase"),
    [
        (
            (0.1, 0.75),
            (-1.0, -2.0),
            "prices reduce sales; ordinary regression has 7.5 times its error",
        ),
        ((0.1, 0.75), (-1.0, 2.0), "is closer to the truth"),
        ((0.8, 0.75), (-1.0, -2.0), "no closer to the truth"),
    ],
)
def test_dose_response_title(errors: tuple[float, float], slopes: tuple[float, ...], phrase: str) -> None:
    assert phrase in dose_response_title(comparison(*errors), [response(slope) for slope in slopes])


def test_learning_title_names_losses_that_still_fall() -> None:
    level, falling = LearningCurve("Outcome model", "", LEVEL), LearningCurve("Action model", "", FALLING)
    assert learning_title([level, level]) == "All training losses have levelled off"
    assert learning_title([level, falling]).endswith(": action model")


def test_learning_title_of_one_model() -> None:
    title = learning_title([LearningCurve("Action model", "", LEVEL)])
    assert title == "The training loss of the action model has levelled off"


def test_learning_curves_of_a_piloted_fit() -> None:
    """A pilot is solved in closed form; where it stands there is no outcome model either."""
    network: Any = SimpleNamespace(describe=lambda: {"train_loss": LEVEL.tolist()})
    pilot: Any = SimpleNamespace(describe=dict)

    def names(outcome: Any, remainder: Any) -> list[str]:
        first = SimpleNamespace(outcome_model=outcome, action_model=network)
        fitted = SimpleNamespace(first_stage_=first, structural_model_=PilotedModel(pilot, remainder, {}))
        shown: Any = SimpleNamespace(estimator=fitted)
        return [curve.model for curve in learning_curves(shown)]

    assert names(None, None) == ["Action model"]
    assert names(network, network) == ["Outcome model", "Action model", "Structural model"]


def test_recommendation_title_counts_exact_agreement() -> None:
    panels = [recommendation([7, 7, 7, 7], [9, 9, 9, 9]), recommendation([7, 7, 7, 8], [7, 7, 9, 9])]
    assert "DML-IV names it in 88 % of cases, regression in 25 %" in recommendation_title(panels)


def test_recommendation_title_rounds_neither_to_never_nor_to_always() -> None:
    rarely, mostly = [7, *[25] * 299], [*[7] * 299, 25]
    title = recommendation_title([recommendation(mostly, rarely)])
    assert "DML-IV names it in more than 99 % of cases, regression in less than 1 %" in title


@pytest.mark.parametrize(
    "title",
    [
        dose_response_title(comparison(0.01, 9.99), [response(-1.0)]),
        dose_response_title(comparison(2.0, 1.0), [response(-1.0)]),
        learning_title(
            [LearningCurve(f"{name} model", "", FALLING) for name in ("Outcome", "Action", "Structural")]
        ),
        recommendation_title([recommendation([7] * 4, [7] * 4)]),
    ],
)
def test_longest_titles_fit(title: str) -> None:
    figure = draw_learning_curves([LearningCurve("model", "loss", LEVEL)], title)
    figure.canvas.draw()
    (text,) = [text for text in figure.texts if text.get_text() == title]
    assert text.get_window_extent().x1 < figure.bbox.x1
