"""Estimators are scikit-learn estimators: parameters in, parameters out, clones start afresh."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils.validation import check_is_fitted

from dmliv.errors import InputError, NotFittedError
from dmliv.learners import Learners


def test_parameters_round_trip(method: Any) -> None:
    estimator = method.make()
    assert isinstance(estimator, BaseEstimator)
    parameters = estimator.get_params()
    assert type(estimator)(**parameters).get_params() == parameters
    assert ("random_state" in parameters) == method.seeded
    # Constructors only store: parameters are checked when fitting, so that a search may set anything.
    changed = dict.fromkeys(parameters, "something else")
    assert type(estimator)(**changed).get_params() == changed
    assert estimator.set_params(**changed) is estimator
    assert estimator.get_params() == changed
    with pytest.raises(ValueError, match="Invalid parameter"):
        estimator.set_params(nonsense=1)


def test_no_parameter_can_be_anything(method: Any, plain: Any) -> None:
    """A parameter of the wrong type is an error that names it, and not a riddle from deep inside."""
    # The last three are read by other libraries, which know what they accept.
    for name in sorted(set(method.make().get_params()) - {"verbose", "n_jobs", "random_state"}):
        with pytest.raises(InputError, match="Expected"):
            method.make().set_params(**{name: "nonsense"}).fit(**plain.roles)


def test_learners_are_a_parameter(make: Any, tiny_learners: Learners, linear_learners: Learners) -> None:
    estimator = make(tiny_learners)
    assert estimator.get_params()["learners"] is tiny_learners
    assert estimator.set_params(learners=linear_learners).learners is linear_learners


def test_a_clone_has_equal_parameters_and_is_not_fitted(method: Any, plain: Any) -> None:
    estimator = method.fitted(plain)
    check_is_fitted(estimator)
    twin = clone(estimator)
    assert type(twin) is type(estimator)
    # Estimators of scikit-learn inside learners are equal only to themselves, but they show what they are.
    assert repr(twin.get_params()) == repr(estimator.get_params())
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


def test_fitting_does_not_change_parameters(method: Any, plain: Any) -> None:
    estimator = method.make()
    before = estimator.get_params()
    estimator.fit(**plain.roles)
    assert estimator.get_params() == before


def test_names_its_class_and_changed_parameters(method: Any) -> None:
    estimator = method.make(action_kind="discrete")
    shown = repr(estimator)
    assert shown.startswith(type(estimator).__name__ + "(")
    assert "action_kind='discrete'" in shown


def test_action_kind_overrules_the_guess(method: Any, plain: Any) -> None:
    """Two-valued numbers are levels unless the user says otherwise."""
    T = (plain.T > 0).astype(float)
    # Five levels are four contrasts, and a linear method needs an instrument for each.
    powers = plain.Z[:, None] ** np.arange(1, 5)
    discrete = method.make().fit(plain.Y, T, Z=plain.Z, X=plain.X)
    assert discrete.counterfactual_.action.kind == "discrete"
    continuous = method.make(action_kind="continuous").fit(plain.Y, T, Z=plain.Z, X=plain.X)
    assert continuous.marginal_effect(0.5, plain.X[:3]).shape == (3, 1)
    rounded = np.clip(np.round(plain.T), -2, 2)
    levels = method.make(action_kind="discrete").fit(plain.Y, rounded, Z=powers, X=plain.X)
    assert set(levels.policy().predict(plain.X)) <= {-2.0, -1.0, 0.0, 1.0, 2.0}
