"""h linear in the action: exact where that is the truth, and what it promises as a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dmliv import DMLIV
from dmliv.errors import InputError
from dmliv.learners import Learners, neural
from dmliv.nets.settings import ByRows, NetworkSettings
from dmliv.problems import TicketDemand, TreatmentChoice
from dmliv.second_stage.coefficients import CoefficientStructural
from dmliv.second_stage.line_model import CoefficientModel


def lines(**changes: Any) -> Learners:
    preset = neural(effort="fast")
    learner: Any = preset.structural
    return replace(preset, structural=replace(learner.lines, **changes))


@pytest.fixture(scope="module")
def fitted() -> DMLIV:
    data = TicketDemand().sample(1000, seed=300)
    return DMLIV(lines(), pilot=None, random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X)


def test_it_beats_what_confounding_allows(fitted: DMLIV) -> None:
    X, T, truth = TicketDemand().test_set()
    assert np.mean((fitted.predict(T, X) - truth) ** 2) < 0.15


def test_effects_are_straight_lines(fitted: DMLIV) -> None:
    X = TicketDemand().contexts(50, seed=1)
    slope = fitted.marginal_effect(np.zeros(50), X)
    np.testing.assert_allclose(slope, fitted.marginal_effect(np.full(50, 2.0), X))
    rise = fitted.predict(np.full(50, 3.0), X) - fitted.predict(np.full(50, -1.0), X)
    np.testing.assert_allclose(rise, 4.0 * slope[:, 0], rtol=1e-6)


def test_a_grid_agrees_with_single_predictions(fitted: DMLIV) -> None:
    model = fitted.structural_model_
    assert isinstance(model, CoefficientModel)
    context = fitted.counterfactual_.read_context(TicketDemand().contexts(20, seed=1))
    actions = np.linspace(-2.0, 2.0, 5)[:, None]
    grid = model.predict_grid(context, actions)
    for column, action in enumerate(actions):
        single = model.predict(context, np.tile(action, (20, 1)))
        np.testing.assert_allclose(grid[:, column], single, atol=1e-9)


def test_the_common_slope_is_that_of_two_stage_least_squares() -> None:
    rng = np.random.default_rng(0)
    n = 4000
    X, Z, hidden = rng.standard_normal((n, 1)), rng.standard_normal(n), rng.standard_normal(n)
    T = Z + 0.5 * X[:, 0] + hidden
    Y = 2.0 * T + X[:, 0] + 3.0 * hidden
    estimator = DMLIV(lines(), n_folds=2, pilot=None, random_state=0).fit(Y, T, Z=Z, X=X)
    model, fitted = estimator.structural_model_, estimator.counterfactual_
    assert isinstance(model, CoefficientModel)
    slope = model.common_slope * model.action_factor * fitted.outcome.scale / fitted.action.scale
    # Half of the action's variance in a context is the instrument's, so the penalty takes 6 percent.
    assert slope[0] == pytest.approx(2.0 / 1.06, abs=0.15)
    ordinary = np.cov(Y, T)[0, 1] / T.var()
    assert abs(ordinary - 2.0) > 1.0


def test_a_discrete_action_has_a_slope_per_level() -> None:
    problem = TreatmentChoice()
    data = problem.sample(1500, seed=300)
    estimator = DMLIV(lines(), n_folds=2, pilot=None, random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X)
    X = problem.contexts(500, seed=2)
    chosen = estimator.policy(list(problem.treatments)).predict(X)
    assert np.mean(chosen == problem.optimal_action(X)) > 0.7


def test_the_same_seed_gives_the_same_numbers(fitted: DMLIV) -> None:
    data = TicketDemand().sample(1000, seed=300)
    again = DMLIV(lines(), pilot=None, random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X)
    X, T, _ = TicketDemand().test_set()
    np.testing.assert_array_equal(again.predict(T, X), fitted.predict(T, X))


def test_one_encoding_needs_no_halves() -> None:
    settings = replace(lines().structural.settings, encodings=("standardised",))  # type: ignore[attr-defined]
    learner = CoefficientStructural(settings)
    assert not learner.needs_judging
    data = TicketDemand().sample(200, seed=300)
    preset = replace(neural(effort="fast"), structural=learner)
    model = (
        DMLIV(preset, n_folds=2, pilot=None, random_state=0)
        .fit(data.Y, data.T, Z=data.Z, X=data.X)
        .structural_model_
    )
    assert model.describe()["choice_losses"] == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_members": 0}, "at least one network"),
        ({"n_outcome_members": -1}, "no negative number"),
        ({"action_scale": 0.0}, "a positive action_scale"),
        ({"settings": NetworkSettings(rate_factors=(1.0, 2.0))}, "one learning rate"),
        ({"settings": NetworkSettings(patience=3)}, "no early stopping"),
    ],
)
def test_settings_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        lines(**changes)


def test_decay_may_depend_on_the_rows() -> None:
    settings = NetworkSettings(weight_decay=ByRows(factor=63.0, power=0.5))
    assert settings.plan(3969).weight_decay == pytest.approx(1.0)
    assert settings.plan(100, trial=True).epochs == settings.plan(100).epochs
    half = replace(settings, trial_share=0.5)
    assert half.plan(100, trial=True).epochs == half.plan(100).epochs // 2
    with pytest.raises(InputError, match="share of epochs"):
        NetworkSettings(trial_share=0.0)
