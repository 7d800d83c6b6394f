"""True rewards of policies, against the closed forms of ticket demand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dmliv.errors import InputError
from dmliv.policy import Interval, policy_value, reward_range, suboptimality
from dmliv.problems import TicketDemand
from dmliv.problems.treatments import PriceAndAdvertising, TreatmentChoice

PROBLEM = TicketDemand()
CONTEXTS = PROBLEM.contexts(2000, seed=3)


class Constant:
    def __init__(self, action: float) -> None:
        self.action = action

    def predict(self, X: Any) -> np.ndarray:
        return np.full(len(X), self.action)


class FollowsTheInstrument:
    def predict(self, X: Any, Z: Any) -> np.ndarray:
        return np.asarray(Z)[:, 0]


def test_range_agrees_with_the_closed_form() -> None:
    for low, high in ((-5.0, 5.0), (-3.0, 3.0)):
        found = reward_range(PROBLEM, CONTEXTS, Interval(low, high, n_points=50))
        assert found.optimum == pytest.approx(PROBLEM.optimal_value(CONTEXTS, low, high))
        assert found.random == pytest.approx(PROBLEM.random_value(CONTEXTS, low, high))
        assert found.worst == pytest.approx(PROBLEM.worst_value(CONTEXTS, low, high))
        assert found.best_constant == pytest.approx(policy_value(Constant(low), PROBLEM, CONTEXTS))


def test_suboptimality_of_the_best_constant_is_zero_inside_the_training_distribution() -> None:
    actions = Interval(-5.0, 5.0, n_points=20)
    assert suboptimality(Constant(-5.0), PROBLEM, CONTEXTS, actions) == pytest.approx(0.0, abs=1e-12)
    assert suboptimality(Constant(5.0), PROBLEM, CONTEXTS, actions) > 1.0
    shifted = PROBLEM.contexts(2000, seed=3, shift=1.0)
    assert suboptimality(Constant(-5.0), PROBLEM, shifted, actions) > 0.01


def test_policies_may_look_at_the_instrument() -> None:
    data = PROBLEM.sample(500, seed=4)
    expected = PROBLEM.counterfactual(data.X, data.Z[:, 0]).mean()
    value = policy_value(FollowsTheInstrument(), PROBLEM, data.X, instrument=data.Z)  # type: ignore[arg-type]
    assert value == pytest.approx(expected)


def test_optimal_actions_of_the_decision_problems() -> None:
    """No candidate beats the stated optimum."""
    treatment, pricing = TreatmentChoice(), PriceAndAdvertising()
    X = treatment.contexts(500)
    best = treatment.counterfactual(X, treatment.optimal_action(X))
    assert reward_range(treatment, X, treatment.treatments).optimum == pytest.approx(best.mean())
    X = pricing.contexts(200)
    best = pricing.counterfactual(X, pricing.optimal_action(X))
    rng = np.random.default_rng(0)
    for _ in range(200):
        other = pricing.counterfactual(X, pricing.optimal_action(X) + rng.normal(size=(200, 2)))
        assert np.all(other <= best)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="at least one context"):
        policy_value(Constant(0.0), PROBLEM, CONTEXTS[:0])
    for nothing in ([], 3.0):
        with pytest.raises(InputError, match="at least one candidate"):
            reward_range(PROBLEM, CONTEXTS, nothing)
