"""Settings that can be tuned, and learners with other settings."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.linear_model import LinearRegression

from dmliv.errors import InputError
from dmliv.first_stage.regressors import RegressorOutcome
from dmliv.learners import Learners, boosting, forest, kernel, neural
from dmliv.second_stage.boosting import ProjectedBoosting
from dmliv.tuning import Range, SearchSpace
from dmliv.tuning.parameters import settings_of, with_settings
from dmliv.tuning.space import role_space


@pytest.mark.parametrize("n_rows", [200, 1000, 20_000])
def test_a_factor_multiplies_a_rule_at_every_number_of_rows(n_rows: int) -> None:
    learner: Any = neural().outcome
    changed = with_settings(
        learner, {"learning_rate": 2.5, "weight_decay": 10.0, "width": 0.5, "dropout": 0.3}
    )
    before, after = learner.settings.plan(n_rows), changed.settings.plan(n_rows)
    assert after.learning_rate == pytest.approx(2.5 * before.learning_rate)
    assert after.weight_decay == pytest.approx(10.0 * before.weight_decay)
    assert changed.settings.hidden == (32, 16)
    assert changed.settings.dropout_rates(n_rows)[0] == 0.3
    assert after.epochs == before.epochs


def test_settings_of_h_change_and_leave_the_original_alone() -> None:
    learner: Any = neural().structural
    before = repr(learner)
    assert with_settings(learner, {"width": 2.0}).settings.hidden == (192, 96)
    assert repr(learner) == before


def test_trees_change_in_both_of_their_estimators() -> None:
    learner: Any = boosting().action
    changed = with_settings(learner, {"learning_rate": 0.5, "max_leaf_nodes": 16.0, "min_samples_leaf": 5.0})
    for estimator in (changed.regressor, changed.classifier):
        settings = estimator.get_params()
        assert settings["learning_rate"] == pytest.approx(0.05)
        # A leaf of 5.0 would mean something else to scikit-learn than one of 5.
        assert (settings["max_leaf_nodes"], settings["min_samples_leaf"]) == (16, 5)
        assert isinstance(settings["min_samples_leaf"], int)
    assert learner.regressor.get_params()["learning_rate"] == 0.1


def test_a_learner_without_settings_has_none() -> None:
    assert settings_of(RegressorOutcome(LinearRegression())) == ()
    assert settings_of(kernel().structural) == ()
    # A forest does not limit its leaves' number: that setting is left alone.
    assert settings_of(forest().outcome) == ("min_samples_leaf",)
    assert settings_of(ProjectedBoosting()) == ("learning_rate", "min_samples_leaf")
    assert with_settings(ProjectedBoosting(), {"learning_rate": 2.0}).learning_rate == pytest.approx(0.2)


def test_the_same_learner_competes_once() -> None:
    # The kernel has the default networks as nuisances.
    assert list(role_space(SearchSpace(), neural(), "action").families) == ["neural", "boosting", "forest"]
    assert list(role_space(SearchSpace(), neural(), "structural").families)[-1] == "kernel"
    own = Learners(LinearRegression(), LinearRegression(), LinearRegression())  # type: ignore[arg-type]
    assert list(role_space(SearchSpace(("forest",)), own, "outcome").families) == ["current", "forest"]
    assert role_space(SearchSpace(("neural", "boosting")), boosting(), "outcome").own == "boosting"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"families": "neural"}, "Expected a tuple of families or a mapping, got 'neural'"),
        ({"families": ("tree",)}, "Expected families among 'neural', .* got 'tree'"),
        ({"families": {"mine": LinearRegression()}}, "Expected Learners for every family, .* 'mine'"),
        ({"dropout": 0.1}, "Expected a Range, a tuple of values or None for dropout, got 0.1"),
        ({"width": ()}, "for width, got ()"),
        ({"width": (-1.0,)}, "Expected numbers of at least 0 for width"),
    ],
)
def test_bad_spaces_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SearchSpace(**arguments)


@pytest.mark.parametrize(
    "bounds", [(1.0, 1.0, False), (-1.0, 1.0, False), (0.0, 1.0, True), (0.0, float("inf"), False)]
)
def test_bad_ranges_are_refused(bounds: Any) -> None:
    with pytest.raises(InputError, match="Expected 0 <= low < high"):
        Range(*bounds)
