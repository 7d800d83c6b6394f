"""Intervals of effects, outcomes and policies."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from dmliv import CEDMLIV, DMLIV, load
from dmliv.data import prepare
from dmliv.errors import InputError
from dmliv.inference import Bootstrap, Debiased
from dmliv.learners import Learners, kernel, neural
from dmliv.parallel.runtime import Runtime
from dmliv.problems.suite import SUITE
from dmliv.progress import Advance, SilentProgress

PROBLEM = SUITE["saturating-dose"]
N = 400


def linear_learners() -> Learners:
    return Learners(LinearRegression(), LinearRegression(), LinearRegression())


@pytest.fixture(scope="module")
def rows() -> Any:
    return PROBLEM.sample(N, seed=200)


@pytest.fixture(scope="module")
def fitted(rows: Any) -> DMLIV:
    est = DMLIV(neural(effort="fast"), n_folds=4, pilot=None, random_state=0)
    return est.fit(rows.Y, rows.T, Z=rows.Z, X=rows.X, inference="debiased")


class TestIdentities:
    def test_asking_for_intervals_leaves_the_model_as_it_is(self, rows: Any, fitted: DMLIV) -> None:
        plain = DMLIV(neural(effort="fast"), n_folds=4, pilot=None, random_state=0)
        plain.fit(rows.Y, rows.T, Z=rows.Z, X=rows.X)
        np.testing.assert_array_equal(plain.predict(rows.T, rows.X), fitted.predict(rows.T, rows.X))

    def test_the_mean_of_corrected_effects_is_the_corrected_mean_effect(
        self, rows: Any, fitted: DMLIV
    ) -> None:
        lower, upper = fitted.effect_interval(rows.X, T0=0.0, T1=1.0)
        mean_lower, mean_upper = fitted.ate_interval(rows.X, T0=0.0, T1=1.0)
        assert np.mean((lower + upper) / 2) == pytest.approx((mean_lower + mean_upper) / 2, abs=1e-9)
        # Errors of single rows partly cancel in a mean.
        assert mean_upper - mean_lower < np.mean(upper - lower)

    def test_an_effect_turned_round_has_the_interval_turned_round(self, rows: Any, fitted: DMLIV) -> None:
        lower, upper = fitted.ate_interval(rows.X, T0=0.0, T1=1.0)
        back = fitted.ate_interval(rows.X, T0=1.0, T1=0.0)
        np.testing.assert_allclose(back, (-upper, -lower), atol=1e-9)

    def test_a_shift_is_an_effect_between_actions(self, rows: Any, fitted: DMLIV) -> None:
        shifted = fitted.shift_effect_interval(rows.T, rows.X, delta=0.5)
        np.testing.assert_allclose(
            shifted, fitted.ate_interval(rows.X, T0=rows.T, T1=rows.T + 0.5), rtol=1e-6, atol=1e-9
        )
        assert fitted.shift_effect(rows.T, rows.X, delta=0.5) == pytest.approx(
            fitted.ate(rows.X, T0=rows.T, T1=rows.T + 0.5), abs=1e-6
        )

    def test_the_derivative_is_the_limit_of_shifts(self, rows: Any, fitted: DMLIV) -> None:
        lower, upper = fitted.average_marginal_effect_interval(rows.T, rows.X)
        small = 0.05 * float(np.std(rows.T))
        ahead = fitted.ate_interval(rows.X, T0=rows.T - small, T1=rows.T + small)
        np.testing.assert_allclose(
            (lower[0], upper[0]), np.asarray(ahead) / (2 * small), rtol=1e-4, atol=1e-6
        )
        row_lower, row_upper = fitted.marginal_effect_interval(rows.T[:5], rows.X[:5])
        assert row_lower.shape == row_upper.shape == (5, 1)
        assert np.all(row_lower < row_upper)

    def test_intervals_narrow_with_alpha_around_one_middle(self, rows: Any, fitted: DMLIV) -> None:
        wide = fitted.ate_interval(rows.X, T0=0.0, T1=1.0, alpha=0.01)
        narrow = fitted.ate_interval(rows.X, T0=0.0, T1=1.0, alpha=0.2)
        assert np.mean(wide) == pytest.approx(np.mean(narrow), abs=1e-9)
        # Quantiles of the normal distribution: 2.576 and 1.282.
        assert np.diff(wide)[0] / np.diff(narrow)[0] == pytest.approx(2.5758 / 1.2816, rel=1e-3)

    def test_a_policy_that_does_what_is_done_gains_nothing(self, rows: Any, fitted: DMLIV) -> None:
        policy = fitted.policy(np.linspace(-2.0, 2.0, 9))
        np.testing.assert_allclose(policy.value_interval(rows.X, versus=policy), (0.0, 0.0), atol=1e-9)

    def test_values_and_bands_agree(self, rows: Any, fitted: DMLIV) -> None:
        policy = fitted.policy(np.linspace(-2.0, 2.0, 9))
        chosen = policy.predict(rows.X)
        lower, upper = fitted.predict_interval(chosen, rows.X)
        assert np.mean(lower + upper) / 2 == pytest.approx(np.mean(policy.value_interval(rows.X)), abs=1e-9)
        costly = fitted.policy(np.linspace(-2.0, 2.0, 9), cost=lambda action: np.full(len(action), 0.3))
        np.testing.assert_allclose(
            costly.value_interval(rows.X), np.asarray(policy.value_interval(rows.X)) - 0.3, atol=1e-9
        )

    def test_a_smoothed_effect_is_a_mean_over_actions_nearby(self, rows: Any, fitted: DMLIV) -> None:
        smoothing = 0.4
        smoothed = fitted.ate_interval(rows.X, T0=0.0, T1=1.0, smoothing=smoothing)
        near = smoothing * np.std(rows.T) * np.random.default_rng(0).standard_normal(4000)
        some = rows.X[np.arange(4000) % N]
        middle = np.mean(fitted.ate_interval(some, T0=near, T1=1.0 + near))
        # The mean over draws has an error of its own.
        assert np.mean(smoothed) == pytest.approx(middle, abs=0.03)
        sharp = fitted.ate_interval(rows.X, T0=0.0, T1=1.0)
        assert fitted.ate_interval(rows.X, T0=0.0, T1=1.0, smoothing=0.0) == sharp
        assert np.diff(smoothed)[0] < np.diff(sharp)[0]
        lower, upper = fitted.effect_interval(rows.X, T0=0.0, T1=1.0, smoothing=smoothing)
        assert np.mean(lower + upper) / 2 == pytest.approx(np.mean(smoothed), abs=1e-9)
        ends = fitted.predict_interval(1.0, rows.X, smoothing=smoothing)
        start = fitted.predict_interval(0.0, rows.X, smoothing=smoothing)
        assert np.mean(ends) - np.mean(start) == pytest.approx(np.mean(smoothed), abs=1e-9)

    def test_smoothed_policies(self, rows: Any, fitted: DMLIV) -> None:
        policy = fitted.policy(np.linspace(-2.0, 2.0, 9))
        np.testing.assert_allclose(
            policy.value_interval(rows.X, versus=policy, smoothing=0.3), (0.0, 0.0), atol=1e-9
        )
        chosen = policy.predict(rows.X)
        band = fitted.predict_interval(chosen, rows.X, smoothing=0.3)
        value = np.mean(policy.value_interval(rows.X, smoothing=0.3))
        assert np.mean(band) == pytest.approx(value, abs=1e-9)
        # Actions of today are spread out as they are.
        today = np.mean(fitted.predict_interval(rows.T, rows.X))
        gain = np.mean(policy.value_interval(rows.X, versus=rows.T, smoothing=0.3))
        assert gain == pytest.approx(value - today, abs=1e-9)

    @pytest.mark.parametrize("smoothing", [-0.1, np.nan, np.inf, "wide"])
    def test_a_smoothing_that_cannot_work(self, rows: Any, fitted: DMLIV, smoothing: Any) -> None:
        with pytest.raises(InputError, match="smoothing of at least 0"):
            fitted.ate_interval(rows.X, smoothing=smoothing)
        with pytest.raises(InputError, match="smoothing of at least 0"):
            fitted.policy([0.0, 1.0]).value_interval(rows.X, smoothing=smoothing)

    def test_bands_widen_where_no_action_was_seen(self, rows: Any, fitted: DMLIV) -> None:
        inside, outside = np.median(rows.T), np.max(rows.T) + 5 * np.std(rows.T)
        widths = [
            np.mean(np.subtract(*fitted.predict_interval(action, rows.X[:50])[::-1]))
            for action in (inside, outside)
        ]
        # Far out h may be wrong by the whole prior, smooth and rough, in standard deviations of the outcome.
        prior = np.hypot(Debiased().smooth_bias, Debiased().rough_bias)
        assert widths[1] > 1.5 * widths[0]
        assert widths[1] == pytest.approx(2 * 1.96 * prior * np.std(rows.Y), rel=0.1)

    def test_units_of_the_outcome_pass_through(self, rows: Any, fitted: DMLIV) -> None:
        scaled = DMLIV(neural(effort="fast"), n_folds=4, pilot=None, random_state=0)
        scaled.fit(10.0 * rows.Y + 3.0, rows.T, Z=rows.Z, X=rows.X, inference="debiased")
        np.testing.assert_allclose(
            scaled.predict_interval(rows.T[:20], rows.X[:20]),
            10.0 * np.asarray(fitted.predict_interval(rows.T[:20], rows.X[:20])) + 3.0,
            rtol=1e-3,
            atol=1e-2,
        )

    def test_saved_intervals_are_the_same_numbers(self, rows: Any, fitted: DMLIV, tmp_path: Any) -> None:
        fitted.save(tmp_path / "m.dmliv")
        again = load(tmp_path / "m.dmliv")
        assert again.ate_interval(rows.X) == fitted.ate_interval(rows.X)


class TestStandardErrors:
    def test_more_caution_is_wider(self, rows: Any) -> None:
        widths = []
        for miss in (0.1, 1.0, 10.0):
            est = DMLIV(linear_learners(), n_folds=3, random_state=0)
            est.fit(rows.Y, rows.T, Z=rows.Z, X=rows.X, inference=Debiased(n_landmarks=60, smooth_bias=miss))
            widths.append(np.diff(est.ate_interval(rows.X))[0])
        assert widths[0] < widths[1] < widths[2]

    def test_rough_errors_count_at_single_contexts_and_cancel_in_averages(self, rows: Any) -> None:
        single, average = [], []
        for rough in (0.0, 0.5):
            est = DMLIV(linear_learners(), n_folds=3, random_state=0)
            settings = Debiased(n_landmarks=60, rough_bias=rough)
            est.fit(rows.Y, rows.T, Z=rows.Z, X=rows.X, inference=settings)
            single.append(np.subtract(*est.predict_interval(0.0, rows.X)) / -3.919928)
            average.append(np.subtract(*est.ate_interval(rows.X)) / -3.919928)
        added = np.sqrt(single[1] ** 2 - single[0] ** 2) / np.std(rows.Y)
        np.testing.assert_allclose(added, 0.5, rtol=1e-6)
        assert average[0] < average[1]
        # One draw per row, at most two of them for a difference: nothing next to one row's.
        assert average[1] ** 2 - average[0] ** 2 <= 2.0 * (0.5 * np.std(rows.Y)) ** 2 / N * (1 + 1e-9)

    def test_copies_of_rows_say_nothing_new_when_they_are_a_cluster(self, rows: Any) -> None:
        twice = np.tile(np.arange(N), 2)

        def width(cluster: Any) -> float:
            est = DMLIV(linear_learners(), n_folds=3, random_state=0)
            settings = Debiased(n_landmarks=60)
            columns = (rows.Y[twice], rows.T[twice])
            est.fit(*columns, Z=rows.Z[twice], X=rows.X[twice], inference=settings, cluster=cluster)
            return float(np.diff(est.ate_interval(rows.X))[0])

        assert width(twice) > 1.2 * width(None)

    def test_rows_of_weight_zero_do_not_count(self, rows: Any) -> None:
        weight = (np.arange(N) < N // 2).astype(float)
        est = DMLIV(linear_learners(), n_folds=3, random_state=0)
        damaged = np.where(weight > 0, rows.Y, 1e3)
        bounds = [
            est.fit(
                outcome, rows.T, Z=rows.Z, X=rows.X, sample_weight=weight, inference=Debiased(n_landmarks=60)
            ).ate_interval(rows.X)
            for outcome in (rows.Y, damaged)
        ]
        np.testing.assert_allclose(bounds[0], bounds[1], rtol=1e-6)


class TestOtherKinds:
    def test_discrete_actions_and_controls(self) -> None:
        problem = SUITE["encouraged-training"]
        data = problem.sample(500, seed=200)
        est = DMLIV(neural(effort="fast"), n_folds=3, random_state=0)
        est.fit(
            data.Y,
            data.T,
            Z=data.Z,
            X=data.X[:, :2],
            W=data.X[:, 2:],
            inference=Debiased(n_landmarks=60),
        )
        lower, upper = est.ate_interval(data.X[:50, :2], T0=0.0, T1=1.0)
        assert lower < upper
        gain = est.policy().value_interval(data.X[:50, :2], versus=data.T[:50])
        assert gain[0] < gain[1]
        with pytest.raises(InputError, match="discrete"):
            est.shift_effect_interval(data.T[:50], data.X[:50, :2], delta=1.0)

    def test_bootstrap_spreads_around_the_estimate(self, rows: Any) -> None:
        est = DMLIV(linear_learners(), n_folds=3, random_state=0)
        est.fit(rows.Y, rows.T, Z=rows.Z, X=rows.X, inference=Bootstrap(12))
        lower, upper = est.ate_interval(rows.X)
        assert lower < est.ate(rows.X) < upper
        again = DMLIV(linear_learners(), n_folds=3, random_state=0, n_jobs=2)
        again.fit(rows.Y, rows.T, Z=rows.Z, X=rows.X, inference=Bootstrap(12))
        assert again.ate_interval(rows.X) == (lower, upper)


class TestBadInput:
    def test_no_intervals_were_asked_for(self, rows: Any) -> None:
        est = DMLIV(linear_learners(), n_folds=3, random_state=0).fit(rows.Y, rows.T, Z=rows.Z, X=rows.X)
        with pytest.raises(InputError, match="inference='debiased'"):
            est.ate_interval(rows.X)
        with pytest.raises(InputError, match="inference='debiased'"):
            est.policy(np.linspace(-1, 1, 3)).value_interval(rows.X)

    @pytest.mark.parametrize("alpha", [0.0, 1.0, -1, "a", None])
    def test_alpha(self, rows: Any, fitted: DMLIV, alpha: Any) -> None:
        with pytest.raises(InputError, match="alpha"):
            fitted.ate_interval(rows.X, alpha=alpha)

    @pytest.mark.parametrize("inference", ["jackknife", 3, True])
    def test_unknown_kind(self, rows: Any, inference: Any) -> None:
        with pytest.raises(InputError, match="inference among"):
            DMLIV(linear_learners()).fit(rows.Y, rows.T, Z=rows.Z, X=rows.X, inference=inference)

    def test_one_fold_is_not_enough(self, rows: Any) -> None:
        with pytest.raises(InputError, match="n_folds"):
            CEDMLIV(linear_learners()).fit(rows.Y, rows.T, Z=rows.Z, X=rows.X, inference="debiased")

    @pytest.mark.parametrize(
        ("cluster", "words"),
        [
            (np.zeros(N), "at least 20 clusters"),
            (np.arange(N - 1), "one cluster label per row"),
            (np.r_[np.nan, np.arange(N - 1.0)], "1 missing"),
            (np.array([None, *range(N - 1)], dtype=object), "1 missing"),
        ],
    )
    def test_clusters(self, rows: Any, cluster: Any, words: str) -> None:
        with pytest.raises(InputError, match=words):
            DMLIV(linear_learners()).fit(rows.Y, rows.T, Z=rows.Z, X=rows.X, cluster=cluster)

    @pytest.mark.parametrize(
        "settings",
        [
            {"n_landmarks": 0},
            {"smooth_bias": 0.0},
            {"rough_bias": -0.1},
            {"rough_bias": float("inf")},
            {"action_bandwidth": -1.0},
            {"smooth_bias": float("nan")},
        ],
    )
    def test_settings(self, settings: Any) -> None:
        with pytest.raises(InputError, match=r"Expected a (positive|finite)"):
            Debiased(**settings)
        with pytest.raises(InputError, match="replicates"):
            Bootstrap(1)

    def test_no_rows_have_no_mean(self, rows: Any, fitted: DMLIV) -> None:
        with pytest.raises(InputError, match="at least one row"):
            fitted.ate_interval(rows.X[:0])
        with pytest.raises(InputError, match="delta"):
            fitted.shift_effect_interval(rows.T, rows.X, delta=[1.0, 2.0, 3.0])


def test_bandwidths_of_a_kernel_for_h_are_searched_once(rows: Any) -> None:
    class Stages(SilentProgress):
        def __init__(self) -> None:
            self.names: list[str] = []

        def stage(self, name: str, total: int) -> AbstractContextManager[Advance]:
            self.names.append(name)
            return super().stage(name, total)

    def searches(est: DMLIV) -> int:
        est.fit(rows.Y, rows.T, Z=rows.Z, X=rows.X)
        stages = Stages()
        data = prepare(rows.Y, rows.T, Z=rows.Z, X=rows.X)
        Debiased().learn(
            data,
            est.first_stage_,
            est.structural_model_,
            seed=0,
            runtime=Runtime(torch.device("cpu"), stages, 1),
        )
        assert "debiasing" in stages.names
        return stages.names.count("bandwidths of the structural model")

    assert searches(DMLIV(kernel(), n_folds=2, pilot=None, random_state=0)) == 0
    assert searches(DMLIV(linear_learners(), n_folds=2, pilot=None, random_state=0)) == 1
