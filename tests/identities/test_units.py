"""Units: a change of the scale or the zero of a column changes answers by the same factor, nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dmliv import CEDMLIV, DMLIV, DeepIV
from dmliv.learners import Learners

ESTIMATORS = {
    "DMLIV": lambda learners: DMLIV(learners, n_folds=3, pilot=None, random_state=1),
    "CEDMLIV": lambda learners: CEDMLIV(learners, pilot=None, random_state=1),
    "DeepIV": lambda learners: DeepIV(learners, pilot=None, random_state=1),
}
estimators = pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
CONTEXTS = ["time", "age"]


def columns(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    return (
        frame["sales"].to_numpy(),
        frame["price"].to_numpy(),
        frame[["fuel"]].to_numpy(),
        frame[CONTEXTS].to_numpy(dtype=float),
    )


class TestPowersOfTwo:
    """Multiplying by a power of two rounds nothing, so networks see the very same numbers."""

    @estimators
    @pytest.mark.parametrize("factor", [8.0, 2.0**-10])
    def test_outcome(self, frame: pd.DataFrame, tiny_learners: Learners, make: Any, factor: float) -> None:
        Y, T, Z, X = columns(frame)
        plain = make(tiny_learners).fit(Y, T, Z=Z, X=X)
        scaled = make(tiny_learners).fit(factor * Y, T, Z=Z, X=X)
        np.testing.assert_array_equal(scaled.predict(T, X), factor * plain.predict(T, X))
        np.testing.assert_array_equal(
            scaled.effect(X, T0=1.0, T1=2.0), factor * plain.effect(X, T0=1.0, T1=2.0)
        )
        np.testing.assert_array_equal(scaled.marginal_effect(T, X), factor * plain.marginal_effect(T, X))
        assert scaled.score(factor * Y, Z=Z, X=X) == plain.score(Y, Z=Z, X=X)

    @estimators
    @pytest.mark.parametrize("factor", [8.0, 2.0**-10])
    def test_action(self, frame: pd.DataFrame, tiny_learners: Learners, make: Any, factor: float) -> None:
        Y, T, Z, X = columns(frame)
        plain = make(tiny_learners).fit(Y, T, Z=Z, X=X)
        scaled = make(tiny_learners).fit(Y, factor * T, Z=Z, X=X)
        np.testing.assert_array_equal(scaled.predict(factor * T, X), plain.predict(T, X))
        np.testing.assert_array_equal(
            scaled.marginal_effect(factor * T, X), plain.marginal_effect(T, X) / factor
        )
        candidates = np.array([1.0, 2.0, 4.0])
        np.testing.assert_array_equal(
            scaled.policy(factor * candidates).predict(X), factor * plain.policy(candidates).predict(X)
        )

    @estimators
    def test_instrument_and_context(self, frame: pd.DataFrame, tiny_learners: Learners, make: Any) -> None:
        Y, T, Z, X = columns(frame)
        plain = make(tiny_learners).fit(Y, T, Z=Z, X=X)
        scaled = make(tiny_learners).fit(Y, T, Z=4.0 * Z, X=X * [0.5, 16.0])
        np.testing.assert_array_equal(scaled.predict(T, X * [0.5, 16.0]), plain.predict(T, X))

    def test_weights(self, frame: pd.DataFrame, tiny_learners: Learners) -> None:
        Y, T, Z, X = columns(frame)
        weight = frame["weight"].to_numpy()
        one, four = (
            CEDMLIV(tiny_learners, random_state=1)
            .fit(Y, T, Z=Z, X=X, sample_weight=factor * weight)
            .predict(T, X)
            for factor in (1.0, 4.0)
        )
        np.testing.assert_array_equal(one, four)

    def test_equal_weights_are_no_weights(self, frame: pd.DataFrame, tiny_learners: Learners) -> None:
        Y, T, Z, X = columns(frame)
        none, equal = (
            CEDMLIV(tiny_learners, random_state=1).fit(Y, T, Z=Z, X=X, sample_weight=weight).predict(T, X)
            for weight in (None, np.full(len(Y), 0.25))
        )
        np.testing.assert_array_equal(none, equal)


class TestAffineChanges:
    """Other changes round, and training carries roundings on; they stay far below the spread of answers."""

    @estimators
    def test_outcome(self, frame: pd.DataFrame, tiny_learners: Learners, make: Any) -> None:
        Y, T, Z, X = columns(frame)
        plain = make(tiny_learners).fit(Y, T, Z=Z, X=X).predict(T, X)
        moved = make(tiny_learners).fit(1.8 * Y + 32.0, T, Z=Z, X=X).predict(T, X)
        np.testing.assert_allclose(moved, 1.8 * plain + 32.0, atol=1e-3 * Y.std())

    @estimators
    def test_action(self, frame: pd.DataFrame, tiny_learners: Learners, make: Any) -> None:
        Y, T, Z, X = columns(frame)
        plain = make(tiny_learners).fit(Y, T, Z=Z, X=X)
        moved = make(tiny_learners).fit(Y, 1.8 * T + 32.0, Z=Z, X=X)
        np.testing.assert_allclose(moved.predict(1.8 * T + 32.0, X), plain.predict(T, X), atol=1e-3 * Y.std())
        # At kinks of a network roundings turn a slope around, so slopes are compared in the middle.
        gap = np.abs(moved.marginal_effect(1.8 * T + 32.0, X) - plain.marginal_effect(T, X) / 1.8)
        assert np.median(gap) < 1e-3 * Y.std() / T.std()

    def test_pilot(self, frame: pd.DataFrame, tiny_learners: Learners) -> None:
        """A search for parameters stops short of the summit, so roundings carry further than in a network."""
        Y, T, Z, X = columns(frame)
        plain = DMLIV(tiny_learners, n_folds=3, random_state=1).fit(Y, T, Z=Z, X=X).predict(T, X)
        other = DMLIV(tiny_learners, n_folds=3, random_state=1).fit(1.8 * Y + 32.0, 9.0 * T - 5.0, Z=Z, X=X)
        gap = (other.predict(9.0 * T - 5.0, X) - 32.0) / 1.8 - plain
        assert np.std(gap) < 0.02 * Y.std()

    def test_linear_learners(self, frame: pd.DataFrame, linear_learners: Learners) -> None:
        Y, T, Z, X = columns(frame)
        plain = CEDMLIV(linear_learners, random_state=0).fit(Y, T, Z=Z, X=X)
        moved = CEDMLIV(linear_learners, random_state=0).fit(
            1e3 * Y - 7.0, 1e-3 * T + 5.0, Z=Z * 12.0 + 1.0, X=X - 100.0
        )
        np.testing.assert_allclose(
            moved.predict(1e-3 * T + 5.0, X - 100.0), 1e3 * plain.predict(T, X) - 7.0, rtol=1e-4
        )
        assert moved.ate(X - 100.0, T0=5.0, T1=5.001) == pytest.approx(
            1e3 * plain.ate(X, T0=0.0, T1=1.0), rel=1e-4
        )
