"""The encouragement design is that of its source: who complies, what confounds, what the effects are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from dmliv.errors import InputError
from dmliv.problems import Encouragement

N_ROWS = 40_000
every_shape = pytest.mark.parametrize("shape", ["constant", "linear", "curved"])


@every_shape
def test_the_mean_effect_is_the_mean_of_the_effects(shape: str) -> None:
    problem = Encouragement(shape)  # type: ignore[arg-type]
    X = problem.contexts(200_000, seed=100)
    effects = problem.effect(X)
    assert effects.mean() == pytest.approx(problem.mean_effect, abs=0.05)
    np.testing.assert_allclose(problem.counterfactual(X, 1.0) - problem.counterfactual(X, 0.0), effects)


def test_effects_are_those_of_the_formulas() -> None:
    X = np.zeros((2, 10))
    X[1, :2] = 2.0, 1.0
    for shape, effects in (("constant", [10, 10]), ("linear", [0, 10]), ("curved", [0, 10])):
        np.testing.assert_array_equal(Encouragement(shape).effect(X), effects)  # type: ignore[arg-type]


@every_shape
def test_the_truth_is_the_mean_outcome_of_an_intervention(shape: str) -> None:
    problem = Encouragement(shape)  # type: ignore[arg-type]
    for action in (0.0, 1.0):
        X, Y = problem.sample_intervention(N_ROWS, action, seed=100)
        left = Y - problem.counterfactual(X, action)
        products = left[:, None] * np.column_stack([np.ones(N_ROWS), X, X**2])
        scores = products.mean(axis=0) / products.std(axis=0) * np.sqrt(N_ROWS)
        assert np.abs(scores).max() < 4.5
    data = problem.sample(300, seed=100)
    np.testing.assert_allclose(problem.sample_intervention(300, data.T, seed=100)[1], data.Y)


def test_compliance() -> None:
    problem = Encouragement()
    data = problem.sample(N_ROWS, seed=100)
    asked = data.Z[:, 0] == 1.0
    assert asked.mean() == pytest.approx(0.5, abs=0.01)
    assert data.T[~asked].mean() == pytest.approx(0.006, abs=0.002)
    nu = np.linspace(0.0, 10.0, 1001)
    for low in (True, False):
        rows = asked & ((data.X[:, 0] < 0.0) == low)
        expected = 0.8 * expit(0.4 * data.X[rows, :1][:300] + nu).mean()
        assert data.T[rows].mean() == pytest.approx(expected, abs=0.015)


def test_the_hidden_cause_confounds_and_the_instrument_does_not() -> None:
    problem = Encouragement("curved")
    data = problem.sample(N_ROWS, seed=100)
    noise = data.Y - problem.counterfactual(data.X, data.T)
    exogenous = np.column_stack([np.ones(N_ROWS), data.Z, data.X, data.Z * data.X])
    products = noise[:, None] * exogenous
    assert np.abs(products.mean(axis=0) / products.std(axis=0) * np.sqrt(N_ROWS)).max() < 4.5
    asked = data.Z[:, 0] == 1.0
    difference = noise[asked & (data.T == 1.0)].mean() - noise[asked & (data.T == 0.0)].mean()
    assert difference > 1.0
    fair = problem.sample_unconfounded(N_ROWS, seed=100)
    for role in ("X", "Z", "T"):
        np.testing.assert_array_equal(getattr(data, role), getattr(fair, role))
    noise = fair.Y - problem.counterfactual(fair.X, fair.T)
    assert abs(noise[asked & (fair.T == 1.0)].mean() - noise[asked & (fair.T == 0.0)].mean()) < 0.5
    assert noise.std() == pytest.approx(20.0 / np.sqrt(12.0), rel=0.02)


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="effect_shape"):
        Encouragement("steep")  # type: ignore[arg-type]
    problem = Encouragement()
    with pytest.raises(InputError, match=r"\(n, 10\), got shape \(3, 4\)"):
        problem.effect(np.zeros((3, 4)))
    with pytest.raises(InputError, match="one value per row"):
        problem.counterfactual(np.zeros((3, 10)), np.zeros(2))
    for verb in (problem.sample, problem.sample_unconfounded, problem.contexts):
        with pytest.raises(InputError, match="positive integer"):
            verb(0)
    with pytest.raises(InputError, match="shift"):
        problem.contexts(3, shift=float("inf"))
