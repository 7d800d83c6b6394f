"""Presets: which learner plays which role, and that trees learn something in each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from dmliv import CEDMLIV
from dmliv.first_stage.regressors import RegressorAction, RegressorOutcome
from dmliv.learners import Learners, boosting, forest, paper_boosting, paper_forest
from dmliv.problems import TicketDemand
from dmliv.second_stage.regressor import RegressorStructural


@pytest.mark.parametrize("preset", [paper_boosting, paper_forest])
def test_paper_trees_have_the_papers_sizes(preset: Any) -> None:
    learners = preset()
    for role, leaf in (("outcome", 100), ("action", 100), ("structural", 10)):
        settings = getattr(learners, role).regressor.get_params()
        assert (settings["n_estimators"], settings["min_samples_leaf"]) == (500, leaf)
    assert learners.structural.n_draws == 1


@pytest.mark.parametrize("preset", [boosting, forest])
def test_trees_undo_confounding(preset: Any) -> None:
    problem = TicketDemand()
    data = problem.sample(1000, seed=200)
    X, T, truth = problem.test_set()
    estimator = CEDMLIV(preset(), random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X)
    # A constant has 1.31; a flexible regression without the instrument is further off than that.
    assert np.mean((estimator.predict(T, X) - truth) ** 2) < 0.4


def test_plain_estimators_are_wrapped_in_every_role() -> None:
    learners = Learners(LinearRegression(), LinearRegression(), LinearRegression())  # type: ignore[arg-type]
    assert isinstance(learners.outcome, RegressorOutcome)
    assert isinstance(learners.action, RegressorAction)
    assert isinstance(learners.structural, RegressorStructural)
