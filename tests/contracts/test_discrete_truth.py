"""Trees with an action of three levels, where the distributions and the answers are known in closed form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dmliv import CEDMLIV, DMLIV
from dmliv.first_stage.distributions import CategoricalDistribution
from dmliv.learners import boosting, forest
from dmliv.second_stage.linear import LinearStructural

LEVELS = np.array(["none", "some", "much"])
VALUES = np.array([0.0, 1.0, 3.0])
N_ROWS = 4000

presets = pytest.mark.parametrize("preset", [boosting, forest])


def probabilities(instrument: np.ndarray) -> np.ndarray:
    """P(level | instrument), shape (n, 3): a normal hidden cause pushes a score over two thresholds."""
    below = norm.cdf(np.array([-0.7, 0.7]) - instrument[:, None])
    return np.diff(below, axis=1, prepend=0.0, append=1.0)


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    Z, X, hidden = rng.uniform(-2.0, 2.0, N_ROWS), rng.integers(0, 2, N_ROWS), rng.standard_normal(N_ROWS)
    level = np.digitize(Z + hidden, [-0.7, 0.7])
    Y = VALUES[level] + X - 1.5 * hidden + 0.3 * rng.standard_normal(N_ROWS)
    return {"Y": Y, "T": LEVELS[level], "Z": Z, "X": X[:, None].astype(float)}


@pytest.fixture(scope="module", params=[boosting, forest])
def fitted(request: pytest.FixtureRequest, data: dict[str, Any]) -> Any:
    return CEDMLIV(request.param(), pilot=None, random_state=0).fit(**data)


def effects(estimator: Any, X: np.ndarray) -> np.ndarray:
    return np.array([estimator.ate(X, T0="none", T1=level) for level in ("some", "much")])


def test_the_distribution_is_the_true_one(data: dict[str, Any], fitted: Any) -> None:
    distribution = fitted.first_stage_.distribution
    assert isinstance(distribution, CategoricalDistribution)
    # Levels are in alphabetic order: much, none, some.
    estimated = distribution.probabilities.double().numpy()[:, [1, 2, 0]]
    assert np.abs(estimated - probabilities(data["Z"])).mean() < 0.08
    np.testing.assert_allclose(estimated.sum(axis=1), 1.0, atol=1e-6)


@presets
def test_a_saturated_second_stage_finds_the_truth(data: dict[str, Any], preset: Any) -> None:
    """Tree nuisances with one coefficient per level: the confounding of 1.5 per unit is gone."""
    learners = replace(preset(), structural=LinearStructural())
    found = effects(CEDMLIV(learners, pilot=None, random_state=0).fit(**data), data["X"])
    np.testing.assert_allclose(found, [1.0, 3.0], atol=0.35)
    means = [data["Y"][data["T"] == level].mean() for level in LEVELS]
    assert abs(means[2] - means[0] - 3.0) > 1.0


def test_tree_second_stages_flatten_as_the_single_draw_loss_does(data: dict[str, Any], fitted: Any) -> None:
    """Its minimiser is the mean outcome given the instrument, averaged with the chances of the level."""
    grid = np.linspace(-2.0, 2.0, 2001)
    chances = probabilities(grid)
    minimiser = chances.T @ (chances @ VALUES) / chances.sum(axis=0)
    np.testing.assert_allclose(effects(fitted, data["X"]), (minimiser - minimiser[0])[1:], atol=0.15)


@presets
def test_a_level_that_folds_lack(preset: Any, data: dict[str, Any]) -> None:
    """A level of one row is unknown to the fold that holds it; probabilities stay probabilities."""
    few = {role: values[:200].copy() for role, values in data.items()}
    few["T"][17] = "rare"
    estimator = DMLIV(preset(), n_folds=2, pilot=None, random_state=0).fit(**few)
    distribution = estimator.first_stage_.distribution
    assert isinstance(distribution, CategoricalDistribution)
    rows = distribution.probabilities.double().numpy()
    np.testing.assert_allclose(rows.sum(axis=1), 1.0, atol=1e-6)
    assert (rows >= 0.0).all()
    assert np.isfinite(estimator.predict("rare", few["X"])).all()
    assert np.isfinite(list(estimator.nuisance_losses_.values())).all()
