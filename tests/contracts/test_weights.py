"""Sample weights: zero means absent, two means twice."""

from __future__ import annotations

from typing import Any

import numpy as np

from dmliv import CEDMLIV, DMLIV, DeepIV
from dmliv.learners import Learners


def _without_folds(learners: Learners) -> tuple[DMLIV, CEDMLIV, DeepIV]:
    return (
        DMLIV(learners, n_folds=1, random_state=0),
        CEDMLIV(learners, random_state=0),
        DeepIV(learners, random_state=0),
    )


def test_rows_of_weight_zero_do_not_matter(make: Any, linear_learners: Learners, plain: Any) -> None:
    """Whatever stands in rows without weight, linear learners give the same answers up to rounding."""
    absent = np.arange(100) % 4 == 1
    weight = np.where(absent, 0.0, 1.0)
    honest = make(linear_learners).fit(**plain.roles, sample_weight=weight)
    wild = np.random.default_rng(5).normal(50.0, 20.0, 100)
    spoiled = make(linear_learners).fit(
        np.where(absent, wild, plain.Y),
        np.where(absent, wild[::-1], plain.T),
        Z=np.where(absent, -wild, plain.Z),
        X=np.where(absent[:, None], wild[:, None] / 2.0, plain.X),
        sample_weight=weight,
    )
    expected = honest.predict(plain.T, plain.X)
    np.testing.assert_allclose(spoiled.predict(plain.T, plain.X), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(spoiled.ate(plain.X), honest.ate(plain.X), rtol=1e-4)


def test_rows_of_weight_zero_may_be_dropped(linear_learners: Learners, plain: Any) -> None:
    present = np.arange(100) % 4 != 1
    for estimator in _without_folds(linear_learners):
        weighted = estimator.fit(**plain.roles, sample_weight=present.astype(float)).predict(plain.T, plain.X)
        dropped = estimator.fit(
            plain.Y[present], plain.T[present], Z=plain.Z[present], X=plain.X[present]
        ).predict(plain.T, plain.X)
        np.testing.assert_allclose(weighted, dropped, rtol=1e-4, atol=1e-4)


def test_weights_of_two_are_rows_that_occur_twice(linear_learners: Learners, plain: Any) -> None:
    """Without folds, which know rows and not weights."""
    weight = np.where(np.arange(100) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(100), weight.astype(int))
    for estimator in _without_folds(linear_learners):
        weighted = estimator.fit(**plain.roles, sample_weight=weight).predict(plain.T, plain.X)
        repeated = estimator.fit(plain.Y[twice], plain.T[twice], Z=plain.Z[twice], X=plain.X[twice]).predict(
            plain.T, plain.X
        )
        np.testing.assert_allclose(weighted, repeated, rtol=1e-4, atol=1e-4)


def test_weights_change_the_answer(
    make: Any, linear_learners: Learners, tiny_learners: Learners, plain: Any
) -> None:
    weight = np.where(plain.X[:, 0] > 0, 3.0, 0.1)
    for learners in (linear_learners, tiny_learners):
        equal = make(learners).fit(**plain.roles).predict(plain.T, plain.X)
        weighted = make(learners).fit(**plain.roles, sample_weight=weight).predict(plain.T, plain.X)
        assert np.abs(equal - weighted).max() > 1e-3
