"""In these problems the instrument is valid and a control function is wrong.

What they have in common with the suite is tested with the suite.
"""

from __future__ import annotations

import numpy as np
import pytest

from dmliv.problems import (
    SUITE,
    VIOLATIONS,
    VIOLATIONS_REPORTED_ONLY,
    VIOLATIONS_TUNED_ON,
    ChangingCauses,
    FoldedAction,
    SpreadingAction,
    SuiteProblem,
)
from dmliv.problems.suite import violations

every_violation = pytest.mark.parametrize("problem", VIOLATIONS.values(), ids=lambda problem: problem.name)
N_DRAWS = 40_000


def shared_by_rank(problem: SuiteProblem, context: float, instrument: float) -> np.ndarray:
    """What noise and action share, its mean in tenths of the action at one context and instrument."""
    rng = np.random.default_rng(3)
    X = np.full((N_DRAWS, problem.n_contexts), context)
    Z = np.full((N_DRAWS, problem.n_instruments), instrument)
    hidden = problem.draw_hidden(rng, N_DRAWS)
    order = np.argsort(problem.act(X, Z, hidden, rng))
    return problem.confounder(X, hidden)[order].reshape(10, -1).mean(axis=1)


def rank_differences(problem: SuiteProblem) -> np.ndarray:
    return np.abs(shared_by_rank(problem, -0.8, -1.5) - shared_by_rank(problem, 0.8, 1.5))


@every_violation
def test_the_rank_does_not_carry_the_confounding(problem: SuiteProblem) -> None:
    # Means of 4000 values have errors of 0.016 or less.
    assert rank_differences(problem).max() > 0.15


@pytest.mark.parametrize("name", ["saturating-dose", "crowded-road"])
def test_in_the_suite_it_does(name: str) -> None:
    # Contexts and instruments only move the action, and the rank is what is left.
    assert rank_differences(SUITE[name]).max() < 0.05


@every_violation
def test_what_is_shared_has_mean_zero_in_every_context(problem: SuiteProblem) -> None:
    rng = np.random.default_rng(4)
    contexts = problem.draw_context(rng, 60)
    draws = np.array([problem.confounder(contexts, problem.draw_hidden(rng, 60)) for _ in range(4000)])
    error = np.maximum(draws.std(axis=0) / np.sqrt(len(draws)), 1e-3)
    assert np.abs(draws.mean(axis=0) / error).max() < 4.5
    many = problem.draw_context(rng, N_DRAWS)
    assert np.mean(problem.confounder(many, problem.draw_hidden(rng, N_DRAWS)) ** 2) == pytest.approx(
        1.0, abs=0.05
    )


def actions_at(problem: SuiteProblem, instrument: float) -> np.ndarray:
    rng = np.random.default_rng(5)
    X, Z = np.zeros((N_DRAWS, problem.n_contexts)), np.full((N_DRAWS, 1), instrument)
    return problem.act(X, Z, problem.draw_hidden(rng, N_DRAWS), rng)


def test_the_spread_follows_the_instrument() -> None:
    low, high = (actions_at(SpreadingAction(), z).std() for z in (-1.5, 1.5))
    assert low == pytest.approx(np.hypot(0.7 * np.exp(-0.75), 0.3), rel=0.02)
    assert high == pytest.approx(np.hypot(0.7 * np.exp(0.75), 0.3), rel=0.02)


def test_changing_causes_leave_no_trace_in_the_action() -> None:
    for instrument in (-1.5, 0.0, 1.5):
        actions = actions_at(ChangingCauses(), instrument) - 0.4 * instrument
        assert actions.mean() == pytest.approx(0.0, abs=0.02)
        np.testing.assert_allclose(
            np.quantile(actions / 0.8, [0.1, 0.25, 0.75, 0.9]), [-1.2816, -0.6745, 0.6745, 1.2816], atol=0.03
        )


def test_the_folded_action_turns() -> None:
    hidden = np.linspace(-3.0, 3.0, 601)
    zeros = np.zeros((601, 1))
    actions = FoldedAction().act(zeros, zeros, hidden, np.random.default_rng(0))
    assert hidden[actions.argmin()] == pytest.approx(-0.6, abs=0.02)
    assert actions[0] > actions.min() + 1.0


def test_the_halves_are_apart_and_written_down() -> None:
    assert list(VIOLATIONS) == [p.name for p in (*VIOLATIONS_TUNED_ON, *VIOLATIONS_REPORTED_ONLY)]
    assert len(VIOLATIONS_TUNED_ON) == len(VIOLATIONS_REPORTED_ONLY) == 3
    assert not set(VIOLATIONS) & set(SUITE)
    first, second = (violations.__doc__ or "").split("``VIOLATIONS_REPORTED_ONLY``")
    for half, words in ((VIOLATIONS_TUNED_ON, first), (VIOLATIONS_REPORTED_ONLY, second)):
        assert all(f"\n{problem.name} " in words for problem in half)
