"""Estimators are scikit-learn estimators: parameters in, parameters out, clones start afresh."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils.validation import check_is_fitted

from dmliv.errors import NotFittedError
from dmliv.learners import Learners


def test_parameters_round_trip(make: Any, tiny_learners: Learners, linear_learners: Learners) -> None:
    estimator = make(tiny_learners)
    assert isinstance(estimator, BaseEstimator)
    parameters = estimator.get_params()
    assert parameters["learners"] is tiny_learners
    assert type(estimator)(**parameters).get_params() == parameters
    changed = {"learners": linear_learners, "random_state": 5, "action_kind": "discrete", "n_jobs": 2}
    assert estimator.set_params(**changed) is estimator
    assert {name: estimator.get_params()[name] for name in changed} == changed
    with pytest.raises(ValueError, match="Invalid parameter"):
        estimator.set_params(nonsense=1)


def test_constructors_only_store(make: Any) -> None:
    """Parameters are checked when fitting, so that a search may set anything at any time."""
    estimator = make("not learners", n_jobs="many", random_state="seed")
    assert estimator.get_params()["learners"] == "not learners"


def test_a_clone_has_equal_parameters_and_is_not_fitted(
    make: Any, tiny_learners: Learners, plain: Any
) -> None:
    estimator = make(tiny_learners).fit(**plain.roles)
    check_is_fitted(estimator)
    twin = clone(estimator)
    assert type(twin) is type(estimator)
    assert twin.get_params() == estimator.get_params()
    with pytest.raises(NotFittedError):
        twin.predict(plain.T, plain.X)
    with pytest.raises(SklearnNotFittedError):
        check_is_fitted(twin)
    # The original stays fitted, and the clone learns the same.
    expected = estimator.predict(plain.T, plain.X)
    np.testing.assert_array_equal(twin.fit(**plain.roles).predict(plain.T, plain.X), expected)


def test_a_clone_of_linear_learners(make: Any, linear_learners: Learners, plain: Any) -> None:
    estimator = make(linear_learners).fit(**plain.roles)
    twin = clone(estimator).fit(**plain.roles)
    np.testing.assert_array_equal(twin.predict(plain.T, plain.X), estimator.predict(plain.T, plain.X))


def test_fitting_does_not_change_parameters(make: Any, tiny_learners: Learners, plain: Any) -> None:
    estimator = make(tiny_learners)
    before = estimator.get_params()
    estimator.fit(**plain.roles)
    assert estimator.get_params() == before


def test_names_its_class_and_changed_parameters(make: Any, linear_learners: Learners) -> None:
    shown = repr(make(linear_learners))
    assert shown.startswith(type(make(None)).__name__ + "(")
    assert "random_state=0" in shown


def test_action_kind_overrules_the_guess(make: Any, tiny_learners: Learners, plain: Any) -> None:
    """Two-valued numbers are levels unless the user says otherwise."""
    T = (plain.T > 0).astype(float)
    discrete = make(tiny_learners).fit(plain.Y, T, Z=plain.Z, X=plain.X)
    assert discrete.counterfactual_.action.kind == "discrete"
    continuous = make(tiny_learners, action_kind="continuous").fit(plain.Y, T, Z=plain.Z, X=plain.X)
    assert continuous.marginal_effect(0.5, plain.X[:3]).shape == (3, 1)
    rounded = np.clip(np.round(plain.T), -2, 2)
    levels = make(tiny_learners, action_kind="discrete").fit(plain.Y, rounded, Z=plain.Z, X=plain.X)
    assert set(levels.policy().predict(plain.X)) <= {-2.0, -1.0, 0.0, 1.0, 2.0}
