"""Ignoring the instrument recommends the wrong action; DML-IV on the same rows the right one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor

from dmliv import DMLIV
from dmliv.policy import Box, policy_value, reward_range
from dmliv.problems import PriceAndAdvertising, TreatmentChoice


def chosen_by_regression(inputs: Any, outcome: Any, contexts: Any, candidates: Any) -> np.ndarray:
    """Return the number of the candidate with the highest predicted outcome in each context."""
    model = HistGradientBoostingRegressor(random_state=0).fit(inputs, outcome)
    repeated = [np.hstack([contexts, np.tile(action, (len(contexts), 1))]) for action in candidates]
    return np.argmax([model.predict(rows) for rows in repeated], axis=0)


def test_three_treatments() -> None:
    problem = TreatmentChoice()
    data, contexts = problem.sample(3000, seed=0), problem.contexts(2000)
    codes = np.eye(3)[[problem.treatments.index(label) for label in data.T]]
    naive = np.array(problem.treatments)[
        chosen_by_regression(np.hstack([data.X, codes]), data.Y, contexts, np.eye(3))
    ]
    policy = DMLIV(random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X).policy()
    best = problem.optimal_action(contexts)
    bounds = reward_range(problem, contexts, problem.treatments)
    naive_loss = bounds.optimum - problem.counterfactual(contexts, naive).mean()
    assert np.mean(naive == best) < 0.5
    assert np.mean(policy.predict(contexts) == best) > 0.8
    assert bounds.optimum - policy_value(policy, problem, contexts) < 0.15 * naive_loss


def test_price_and_advertising() -> None:
    problem = PriceAndAdvertising()
    data, contexts = problem.sample(5000, seed=0), problem.contexts(1000)
    axis = np.linspace(-3.0, 3.0, 25)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    naive = grid[chosen_by_regression(np.hstack([data.X, data.T]), data.Y, contexts, grid)]
    policy = DMLIV(random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X).policy(Box(*problem.action_range))
    best = problem.optimal_action(contexts)
    optimum = problem.counterfactual(contexts, best).mean()
    naive_loss = optimum - problem.counterfactual(contexts, naive).mean()
    # Foreseen demand makes the regression recommend too much of both.
    assert (naive - best).mean(axis=0).min() > 0.3
    assert np.abs((policy.predict(contexts) - best).mean(axis=0)).max() < 0.3
    assert optimum - policy_value(policy, problem, contexts) < 0.3 * naive_loss
    assert optimum == pytest.approx(
        reward_range(problem, contexts, Box(*problem.action_range)).optimum, abs=0.01
    )
