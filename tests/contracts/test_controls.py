"""Controls W: learned from like contexts, averaged over in every answer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dmliv import DMLIV, InputError, TwoStageLeastSquares, load

N = 6


def split(case: Any) -> dict[str, Any]:
    """Return the roles of a case with the second context column as control."""
    return {**case.roles, "X": case.X[:, :1], "W": case.X[:, 1:]}


class TestEveryEstimator:
    def test_answers_need_the_context_alone(self, method: Any, plain: Any) -> None:
        estimator = method.make().fit(**split(plain))
        X = plain.X[:N, :1]
        predicted = estimator.predict(plain.T[:N], X)
        assert predicted.shape == (N,)
        assert estimator.effect(X, T0=-0.5, T1=1.0).shape == (N,)
        assert estimator.marginal_effect(plain.T[:N], X).shape == (N, 1)
        policy = estimator.policy(plain.candidates)
        chosen = policy.predict(X)
        assert policy.value(X) == pytest.approx(estimator.predict(chosen, X).mean(), rel=1e-6)
        with pytest.raises(InputError, match="1 columns"):
            estimator.predict(plain.T[:N], plain.X[:N])

    def test_answers_are_means_over_the_controls(self, method: Any, plain: Any) -> None:
        """With fewer rows than are drawn the mean is over all of them, as from a model of both columns."""
        whole, parted = method.make().fit(**plain.roles), method.make().fit(**split(plain))
        point, action = plain.X[3, 0], 0.4
        X = np.column_stack([np.full(len(plain.X), point), plain.X[:, 1]])
        expected = whole.predict(action, X).mean()
        np.testing.assert_allclose(parted.predict(action, [[point]]), expected, rtol=1e-5, atol=1e-6)

    def test_saving_keeps_them(self, method: Any, plain: Any, tmp_path: Path) -> None:
        estimator = method.make().fit(**split(plain))
        estimator.save(tmp_path / "model.dmliv")
        loaded = load(tmp_path / "model.dmliv")
        X = plain.X[:N, :1]
        np.testing.assert_array_equal(loaded.predict(0.2, X), estimator.predict(0.2, X))
        np.testing.assert_array_equal(copy.deepcopy(loaded).predict(0.2, X), loaded.predict(0.2, X))
        if method.scores:
            rows = {**split(plain), "T": None}
            assert loaded.score(**rows) == estimator.score(**rows)

    def test_columns_of_the_context_count_once(self, method: Any, plain: Any) -> None:
        """DoWhy and EconML users pass contexts as controls, too."""
        alone = method.make().fit(**plain.roles)
        twice = method.make().fit(**plain.roles, W=plain.X[:, ::-1])
        np.testing.assert_array_equal(twice.predict(0.2, plain.X[:N]), alone.predict(0.2, plain.X[:N]))

    def test_controls_without_context(self, method: Any, plain: Any) -> None:
        estimator = method.make().fit(plain.Y, plain.T, Z=plain.Z, W=plain.X)
        assert estimator.predict(plain.T[:N]).shape == (N,)
        assert estimator.effect(T0=-0.5, T1=1.0).shape == (1,)
        assert len(estimator.policy(plain.candidates).predict()) == 1


class TestFrames:
    @pytest.fixture
    def frame(self, plain: Any) -> pd.DataFrame:
        kinds = np.where(plain.X[:, 1] > 0, "up", "down")
        return pd.DataFrame({"x": plain.X[:, 0], "w": plain.X[:, 1], "kind": kinds})

    def test_categories_and_names(self, plain: Any, frame: pd.DataFrame) -> None:
        estimator = TwoStageLeastSquares()
        estimator.fit(plain.Y, plain.T, Z=plain.Z, X=frame[["x"]], W=frame[["w", "kind", "x"]])
        assert estimator.feature_names_ == ["intercept", "x", "w", "kind[up]", "action"]
        effect = estimator.effect(frame[["x"]], T0=0.0, T1=1.0)
        np.testing.assert_allclose(effect, estimator.coef_[-1])
        mean = estimator.coef_[0] + estimator.coef_[2] * frame["w"].mean()
        mean += estimator.coef_[3] * (frame["kind"] == "up").mean()
        np.testing.assert_allclose(estimator.predict(0.0, pd.DataFrame({"x": [0.0]})), mean)

    def test_weights_are_weights_of_the_mean(self, plain: Any, frame: pd.DataFrame) -> None:
        weight = np.arange(len(plain.Y), dtype=float)
        estimator = TwoStageLeastSquares()
        estimator.fit(plain.Y, plain.T, Z=plain.Z, X=frame[["x"]], W=frame[["w"]], sample_weight=weight)
        mean = estimator.coef_[0] + estimator.coef_[2] * np.average(frame["w"], weights=weight)
        np.testing.assert_allclose(estimator.predict(0.0, pd.DataFrame({"x": [0.0]})), mean)

    def test_one_name_for_two_columns(self, plain: Any, frame: pd.DataFrame) -> None:
        other = frame[["w"]].rename(columns={"w": "x"})
        with pytest.raises(InputError, match="'x' in X and with other values in W"):
            TwoStageLeastSquares().fit(plain.Y, plain.T, Z=plain.Z, X=frame[["x"]], W=other)

    def test_an_instrument_is_no_control(self, plain: Any) -> None:
        with pytest.raises(InputError, match="in W; drop it from Z"):
            TwoStageLeastSquares().fit(plain.Y, plain.T, Z=plain.Z, X=plain.X, W=plain.Z)

    def test_rows_must_match(self, plain: Any) -> None:
        with pytest.raises(InputError, match="control"):
            TwoStageLeastSquares().fit(plain.Y, plain.T, Z=plain.Z, X=plain.X, W=np.ones((3, 1)))


def test_at_most_200_rows_are_averaged(tiny_learners: Any) -> None:
    rng = np.random.default_rng(100)
    Z, W = rng.standard_normal((2, 300))
    T = Z + rng.standard_normal(300)
    first, again, other = (
        DMLIV(tiny_learners, n_folds=2, random_state=seed).fit(T + W, T, Z=Z, W=W) for seed in (0, 0, 1)
    )
    assert len(first.counterfactual_.model.controls) == 200
    drawn = [each.counterfactual_.model.controls.numeric for each in (first, again, other)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_support_and_score_ask_for_controls(tiny_learners: Any, plain: Any) -> None:
    estimator = DMLIV(tiny_learners, n_folds=2, random_state=0).fit(**split(plain))
    decisions = estimator.policy(plain.candidates, min_support=0.01).decide(plain.X[:N, :1])
    assert np.all((decisions.support >= 0.0) & (decisions.support <= 1.0))
    with pytest.raises(InputError, match="pass them as W"):
        estimator.score(plain.Y, Z=plain.Z, X=plain.X[:, :1])
