"""Intervals from the posterior of the pilot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmliv import CEDMLIV, DMLIV, TwoStageLeastSquares, load
from dmliv.data import prepare
from dmliv.errors import InputError
from dmliv.inference import Posterior
from dmliv.learners import kernel
from dmliv.problems import TicketDemand
from dmliv.second_stage.pilot import Pilot


def _line(n: int, seed: int, strength: float = 1.0) -> dict[str, Any]:
    """Draw rows whose outcome is 2 T + X plus confounded noise."""
    generator = np.random.default_rng(seed)
    X, Z, hidden, own = generator.standard_normal((4, n))
    T = strength * Z + 0.5 * X + hidden
    return {"Y": 2.0 * T + X + 0.8 * hidden + 0.6 * own, "T": T, "Z": Z, "X": X[:, None]}


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    return _line(600, 100)


@pytest.fixture(scope="module")
def fitted(rows: dict[str, Any]) -> DMLIV:
    return _estimator().fit(**rows, inference="posterior")


def _estimator() -> DMLIV:
    return DMLIV(kernel(), n_folds=2, random_state=0)


class TestIdentities:
    def test_the_estimate_is_the_middle(self, rows: dict[str, Any], fitted: DMLIV) -> None:
        assert fitted.inference_ == "posterior"
        X = rows["X"]
        lower, upper = fitted.ate_interval(X, T0=-0.5, T1=1.0)
        assert (lower + upper) / 2 == pytest.approx(fitted.ate(X, T0=-0.5, T1=1.0), abs=1e-9)
        ends = fitted.effect_interval(X, T0=-0.5, T1=1.0)
        np.testing.assert_allclose(np.mean(ends, axis=0), fitted.effect(X, T0=-0.5, T1=1.0), atol=1e-9)
        ends = fitted.predict_interval(rows["T"], X)
        np.testing.assert_allclose(np.mean(ends, axis=0), fitted.predict(rows["T"], X), atol=1e-9)
        policy = fitted.policy(np.linspace(-1.0, 1.0, 5))
        value = policy.value_interval(X)
        chosen = fitted.predict(policy.predict(X), X).mean()
        assert np.mean(value) == pytest.approx(chosen, abs=1e-9)

    def test_intervals_leave_the_model_as_it_is(self, rows: dict[str, Any], fitted: DMLIV) -> None:
        plain = _estimator().fit(**rows)
        assert plain.inference_ is None
        np.testing.assert_array_equal(
            plain.predict(rows["T"], rows["X"]), fitted.predict(rows["T"], rows["X"])
        )

    def test_the_features_say_what_h_is(self, rows: dict[str, Any], fitted: DMLIV) -> None:
        """The features, with the coefficients of the fit, are h up to its constant."""
        data = prepare(**rows)
        pilot: Any = fitted.first_stage_.pilot
        uncertainty = Posterior().learn(data, fitted.first_stage_)
        action = data.action_spec.vectors(data.action)
        found = uncertainty.evaluate(data.context, action) - uncertainty.level
        m = len(pilot.regression.landmarks)
        coefficients = np.linalg.solve(pilot.regression.whiten.T, pilot.regression.weights)
        h = pilot.model.predict(data.context, action) - pilot.model.level
        np.testing.assert_allclose(found[:, :m] @ coefficients, h, atol=1e-6)
        assert not found[:, m:].any()

    def test_no_effect_has_no_width_and_more_rows_narrow(self, rows: dict[str, Any], fitted: DMLIV) -> None:
        lower, upper = fitted.effect_interval(rows["X"], T0=0.3, T1=0.3)
        np.testing.assert_allclose(upper - lower, 0.0, atol=1e-9)
        more = _estimator().fit(**_line(2400, 101), inference="posterior")
        wide, narrow = (np.diff(est.ate_interval(rows["X"]))[0] for est in (fitted, more))
        assert narrow < 0.7 * wide

    def test_every_row_a_cluster_is_no_cluster(self, rows: dict[str, Any], fitted: DMLIV) -> None:
        data, first_stage = prepare(**rows), fitted.first_stage_
        alone = Posterior().learn(data, first_stage)
        single = Posterior().learn(data, first_stage, cluster=np.arange(len(data))[::-1])
        np.testing.assert_allclose(single.covariance, alone.covariance, atol=1e-12)
        shared = Posterior().learn(data, first_stage, cluster=np.arange(len(data)) // 20)
        assert not np.allclose(shared.covariance, alone.covariance, rtol=0.05, atol=1e-6)


def test_lines_have_the_width_of_two_stage_least_squares() -> None:
    """Where 2SLS is right, its intervals are as narrow as can be, and so are these."""
    ours, theirs = [], []
    for seed in range(200, 204):
        rows = _line(500, seed)
        ours.append(_estimator().fit(**rows, inference="posterior").ate_interval(rows["X"]))
        theirs.append(TwoStageLeastSquares().fit(**rows).ate_interval(rows["X"]))
    widths = np.diff(ours, axis=1)[:, 0] / np.diff(theirs, axis=1)[:, 0]
    assert 0.9 < np.median(widths) < 1.2
    assert widths.max() < 1.4
    apart = np.mean(ours, axis=1) - np.mean(theirs, axis=1)
    assert np.abs(apart).max() < 0.5 * np.diff(theirs, axis=1).min()


def test_far_from_the_data_intervals_widen() -> None:
    data = TicketDemand().sample(500, seed=100)
    est = DMLIV(kernel(), n_folds=2, random_state=0)
    est.fit(data.Y, data.T, Z=data.Z, X=data.X, inference="posterior")
    inside, outside = (np.diff(est.predict_interval(T, data.X[:50]), axis=0).mean() for T in (0.0, 6.0))
    assert outside > 2.0 * inside


def test_it_is_saved(rows: dict[str, Any], fitted: DMLIV, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model.dmliv")
    again = load(tmp_path / "model.dmliv")
    assert again.inference_ == "posterior"
    np.testing.assert_array_equal(
        again.effect_interval(rows["X"], T0=-1.0, T1=1.0), fitted.effect_interval(rows["X"], T0=-1.0, T1=1.0)
    )


def test_discrete_actions_weights_clusters_and_controls() -> None:
    generator = np.random.default_rng(100)
    X, hidden, own = generator.standard_normal((3, 800))
    Z = generator.integers(0, 2, 800)
    T = np.where(Z + 0.8 * hidden > 0.5, "yes", "no")
    Y = 1.5 * (T == "yes") + 0.5 * X + 0.7 * hidden + 0.5 * own
    est = DMLIV(n_folds=2, random_state=0)
    est.fit(
        Y,
        T,
        Z=Z,
        W=X[:, None],
        sample_weight=generator.uniform(0.5, 1.5, 800),
        cluster=np.arange(800) // 4,
        inference="posterior",
    )
    assert est.inference_ == "posterior"
    lower, upper = est.ate_interval(T0="no", T1="yes")
    assert lower < 1.5 < upper
    assert upper - lower < 1.5


class TestWhereItDoesNotHold:
    def test_a_useless_instrument_has_debiased_intervals(self) -> None:
        rows = _line(300, 100, strength=0.0)
        est = DMLIV(kernel(), n_folds=2, random_state=0).fit(**rows, inference="posterior")
        assert est.inference_ == "debiased"
        lower, upper = est.ate_interval(rows["X"])
        assert lower < upper

    def test_a_remainder_is_no_part_of_the_posterior(self, rows: dict[str, Any], fitted: DMLIV) -> None:
        posterior, model = Posterior(), fitted.structural_model_
        assert posterior.suits(fitted.first_stage_, model)
        assert not posterior.suits(fitted.first_stage_, replace(model, remainder=model))  # type: ignore[type-var]
        assert isinstance(fitted.first_stage_.pilot, Pilot)

    def test_fits_without_it_are_refused_at_once(self, rows: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="pilot='control-function' for inference='posterior', got None"):
            DMLIV(kernel(), pilot=None).fit(**rows, inference="posterior")
        with pytest.raises(InputError, match="n_folds of at least 2 for inference='posterior'"):
            CEDMLIV(kernel()).fit(**rows, inference="posterior")
        with pytest.raises(InputError, match="inference among 'debiased', 'bootstrap', 'posterior'"):
            DMLIV(kernel()).fit(**rows, inference="bayes")  # type: ignore[arg-type]
        none = DMLIV(kernel(), n_folds=2, pilot=None, random_state=0).fit(**rows)
        with pytest.raises(TypeError, match="control-function pilot, got NoneType"):
            Posterior().learn(prepare(**rows), none.first_stage_)
