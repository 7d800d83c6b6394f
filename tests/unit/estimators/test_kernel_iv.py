"""Kernel IV: formulas against direct solves, limits, features against the exact kernel, the benchmark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import solve
from sklearn.base import clone

from dmliv.errors import InputError
from dmliv.estimators.kernel_iv import KernelIV
from dmliv.kernels.features import FourierFeatures, LandmarkFeatures, gaussian_kernel
from dmliv.nets.images import ImageColumns
from dmliv.problems import TicketDemand

N = 240


@pytest.fixture
def roles() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X, Z, hidden = rng.standard_normal((N, 2)), rng.standard_normal(N), rng.standard_normal(N)
    T = Z + 0.5 * hidden + 10.0
    Y = 3.0 * np.sin(T) + X[:, 0] + hidden + 50.0
    return {"Y": Y, "T": T, "Z": Z, "X": X}


def _ticket_error(n: int, **parameters: Any) -> float:
    problem = TicketDemand()
    data = problem.sample(n, seed=100)
    X, T, truth = problem.test_set()
    estimator = KernelIV(random_state=0, **parameters).fit(data.Y, data.T, Z=data.Z, X=data.X)
    return float(np.mean((estimator.predict(T, X) - truth) ** 2))


class TestFormulas:
    @pytest.mark.parametrize("bandwidth", ["product", "joint"])
    def test_exact_features_solve_the_published_equations(self, roles: Any, bandwidth: Any) -> None:
        lam, xi = 1e-3, 1e-2
        estimator = KernelIV(
            "exact", bandwidth=bandwidth, first_penalties=[lam], second_penalties=[xi], random_state=3
        ).fit(**roles)
        features: Any = estimator.structural_model_.features
        x = np.column_stack([roles["T"], roles["X"]])
        x = (x - x.mean(axis=0)) / x.std(axis=0)
        q = np.column_stack([(roles["Z"] - roles["Z"].mean()) / roles["Z"].std(), x[:, 1:]])
        y = (roles["Y"] - roles["Y"].mean()) / roles["Y"].std()
        nearest = np.abs(features.landmarks[:, None, :] - x).max(axis=2)
        first = nearest.argmin(axis=1)
        assert nearest.min(axis=1).max() < 1e-9
        second = np.setdiff1d(np.arange(N), first)
        if bandwidth == "product":
            # Medians of all ordered pairs, times the root of the number of columns.
            gaps = np.abs(q[:, None, :] - q)
            q_scales = np.sqrt(3.0) * np.median(gaps.reshape(-1, 3), axis=0)
            x_gaps = np.abs(x[:, None, :] - x)
            np.testing.assert_allclose(
                features.scales, np.sqrt(3.0) * np.median(x_gaps.reshape(-1, 3), axis=0), rtol=1e-9
            )
        else:
            units = np.array([roles["Z"].std(), *roles["X"].std(axis=0)])
            squares = np.sum(((q[first][:, None, :] - q[first]) * units) ** 2, axis=2)
            q_scales = np.sqrt(np.median(squares) / 2.0) / units
        K_q1 = gaussian_kernel(q[first], q[first], q_scales)
        K_q12 = gaussian_kernel(q[first], q[second], q_scales)
        K_x1 = gaussian_kernel(x[first], x[first], features.scales)
        gamma = solve(K_q1 + len(first) * lam * np.eye(len(first)), K_q12, assume_a="pos")
        W = K_x1 @ gamma
        alpha = np.linalg.lstsq(W @ W.T + len(second) * xi * K_x1, W @ y[second], rcond=1e-14)[0]
        expected = (
            gaussian_kernel(x, x[first], features.scales) @ alpha * roles["Y"].std() + roles["Y"].mean()
        )
        np.testing.assert_allclose(estimator.predict(roles["T"], roles["X"]), expected, atol=1e-5)

    def test_penalties_are_those_of_a_search_one_by_one(self, roles: Any) -> None:
        grid = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5]
        settings: dict[str, Any] = {"bandwidth": "product", "second_penalties": grid, "random_state": 0}
        together = KernelIV(first_penalties=grid, **settings).fit(**roles)
        for position, penalty in enumerate(grid):
            alone = KernelIV(first_penalties=[penalty], **settings).fit(**roles)
            np.testing.assert_allclose(
                alone.first_stage_errors_[0], together.first_stage_errors_[position], rtol=1e-8
            )
            if penalty == together.first_penalty_:
                np.testing.assert_allclose(alone.second_stage_errors_, together.second_stage_errors_)
        assert together.first_penalty_ == grid[int(np.argmin(together.first_stage_errors_))]
        assert together.second_penalty_ == grid[int(np.argmin(together.second_stage_errors_))]


class TestLimits:
    @pytest.mark.parametrize("bandwidth", ["learned", "product", "joint"])
    @pytest.mark.parametrize("which", ["first_penalties", "second_penalties"])
    def test_huge_penalties_leave_the_mean_outcome(self, roles: Any, which: str, bandwidth: Any) -> None:
        penalties: dict[str, Any] = {which: [1e15]}
        estimator = KernelIV(n_features=60, bandwidth=bandwidth, random_state=0, **penalties).fit(**roles)
        np.testing.assert_allclose(estimator.predict(roles["T"], roles["X"]), roles["Y"].mean(), atol=1e-4)

    def test_far_from_the_data_h_is_the_mean_outcome(self, roles: Any) -> None:
        estimator = KernelIV(n_features=60, random_state=0).fit(**roles)
        np.testing.assert_allclose(estimator.predict(1e5, roles["X"]), roles["Y"].mean(), atol=1e-9)

    def test_random_estimates_approach_the_exact_one(self, roles: Any) -> None:
        fixed: dict[str, Any] = {"first_penalties": [1e-3], "second_penalties": [1e-3], "random_state": 0}
        fixed["bandwidth"] = "product"
        exact = KernelIV("exact", **fixed).fit(**roles).predict(roles["T"], roles["X"])
        gaps = [
            np.std(
                KernelIV("random", n_features=width, **fixed).fit(**roles).predict(roles["T"], roles["X"])
                - exact
            )
            for width in (20, 800)
        ]
        assert gaps[1] < 0.15 * roles["Y"].std()
        assert gaps[1] < gaps[0] / 2.0

    @pytest.mark.parametrize("bandwidth", ["learned", "product", "joint"])
    def test_all_rows_as_landmarks_are_the_exact_kernel(self, roles: Any, bandwidth: Any) -> None:
        fits = [
            KernelIV(features, n_features=N, bandwidth=bandwidth, random_state=0).fit(**roles)
            for features in ("exact", "nystroem")
        ]
        predictions = [fit.predict(roles["T"], roles["X"]) for fit in fits]
        np.testing.assert_allclose(predictions[0], predictions[1], atol=1e-6)


class TestBandwidths:
    def test_only_the_joint_kernel_depends_on_units(self, roles: Any) -> None:
        scaled = roles | {"X": roles["X"] * np.array([100.0, 1.0])}
        gaps = {}
        for bandwidth in ("learned", "product", "joint"):
            fits = [
                KernelIV(n_features=60, bandwidth=bandwidth, random_state=0)
                .fit(**given)
                .predict(roles["T"], given["X"])
                for given in (roles, scaled)
            ]
            gaps[bandwidth] = np.abs(fits[0] - fits[1]).max()
        assert gaps["learned"] < 1e-4
        assert gaps["product"] < 1e-5
        assert gaps["joint"] > 1e-2


class TestFunction:
    @pytest.mark.parametrize(
        ("features", "bandwidth"), [("auto", "learned"), ("exact", "product"), ("random", "product")]
    )
    def test_gradient_and_grid(self, roles: Any, features: Any, bandwidth: Any) -> None:
        T = np.column_stack([roles["T"], roles["X"][:, 1] + roles["Z"]])
        X = roles["X"]
        estimator = KernelIV(features, n_features=50, bandwidth=bandwidth, random_state=0).fit(
            roles["Y"], T, Z=np.column_stack([roles["Z"], roles["Z"] ** 2]), X=X
        )
        for column in range(2):
            step = 1e-4 * np.eye(2)[column]
            slope = (estimator.predict(T + step, X) - estimator.predict(T - step, X)) / 2e-4
            np.testing.assert_allclose(estimator.marginal_effect(T, X)[:, column], slope, atol=1e-4)
        fitted = estimator.counterfactual_
        grid = fitted.value_grid(fitted.read_context(X), fitted.read_action(T[:3]))
        for position in range(3):
            repeated = np.tile(T[position], (N, 1))
            np.testing.assert_allclose(grid[:, position], estimator.predict(repeated, X), atol=1e-6)

    @pytest.mark.parametrize(
        ("features", "bandwidth"), [("auto", "learned"), ("exact", "product"), ("random", "product")]
    )
    def test_categories_discrete_action_weights_and_no_context(
        self, roles: Any, features: Any, bandwidth: Any
    ) -> None:
        action = np.where(roles["T"] > 10.0, "high", "low")
        instrument = pd.DataFrame({"fuel": roles["Z"], "season": np.where(roles["Z"] > 0, "cold", "warm")})
        context = pd.DataFrame({"type": np.array(["a", "b", "c"])[np.arange(N) % 3]})
        weight = np.linspace(0.0, 1.0, N)
        for X in (context, None):
            estimator = KernelIV(features, bandwidth=bandwidth, random_state=0).fit(
                roles["Y"], action, Z=instrument, X=X, sample_weight=weight
            )
            assert np.isfinite(estimator.effect(X, T0="low", T1="high")).all()
        assert estimator.policy().predict(None).shape == (1,)

    def test_equal_weights_are_no_weights(self, roles: Any) -> None:
        fits = [
            KernelIV(n_features=60, random_state=0).fit(**roles, sample_weight=weight)
            for weight in (None, np.full(N, 7.0))
        ]
        predictions = [fit.predict(roles["T"], roles["X"]) for fit in fits]
        np.testing.assert_allclose(predictions[0], predictions[1], atol=1e-6)

    def test_rows_of_no_weight_teach_nothing(self, roles: Any) -> None:
        weight = (np.arange(N) % 4 > 0).astype(float)
        damaged = roles | {"Y": np.where(weight > 0.0, roles["Y"], 1e3)}
        fits = [
            KernelIV(n_features=60, random_state=0).fit(**given, sample_weight=weight)
            for given in (roles, damaged)
        ]
        predictions = [fit.predict(roles["T"], roles["X"]) for fit in fits]
        np.testing.assert_allclose(predictions[0], predictions[1], atol=1e-9)

    def test_images_are_seen_through_their_features(self) -> None:
        rng = np.random.default_rng(0)
        bars = rng.integers(0, 2, N)
        images = rng.uniform(0.0, 0.2, (N, 12, 12))
        images[bars == 0, :, 5:7] += 1.0
        images[bars == 1, 5:7, :] += 1.0
        X = images.reshape(N, -1)
        Z, hidden = rng.standard_normal(N), rng.standard_normal(N)
        T = Z + 0.5 * hidden
        Y = 2.0 * bars * T + hidden
        image = ImageColumns(12, 12, first=0)
        estimator = KernelIV(image=image, random_state=0).fit(Y, T, Z=Z, X=X)
        slopes = estimator.effect(X, T0=-0.5, T1=0.5)
        assert abs(slopes[bars == 1].mean() - 2.0) < 0.6
        assert abs(slopes[bars == 0].mean()) < 0.6

    @pytest.mark.parametrize(("features", "bandwidth"), [("auto", "learned"), ("random", "product")])
    def test_seeds(self, roles: Any, features: Any, bandwidth: Any) -> None:
        fits = [
            KernelIV(features, n_features=100, bandwidth=bandwidth, random_state=seed).fit(**roles)
            for seed in (0, 0, 1)
        ]
        predictions = [fit.predict(roles["T"], roles["X"]) for fit in fits]
        np.testing.assert_array_equal(predictions[0], predictions[1])
        assert np.abs(predictions[0] - predictions[2]).max() > 1e-6

    def test_clone(self) -> None:
        estimator = KernelIV("random", n_features=7, bandwidth="joint", tuning="valid", random_state=3)
        assert clone(estimator).get_params() == estimator.get_params()

    def test_exact_up_to_a_few_thousand_rows(self, roles: Any) -> None:
        few = KernelIV(bandwidth="product", random_state=0).fit(**roles)
        assert isinstance(few.structural_model_.features, LandmarkFeatures)
        many = {role: np.concatenate([values] * 14) for role, values in roles.items()}
        fitted = KernelIV(n_features=20, bandwidth="product", random_state=0).fit(**many)
        assert isinstance(fitted.structural_model_.features, FourierFeatures)
        assert fitted.structural_model_.describe()["n_features"] == 20


class TestTicketDemand:
    def test_learned_bandwidths(self) -> None:
        # The published error with five times the rows is 0.231.
        assert _ticket_error(1000) < 0.231

    @pytest.mark.parametrize("tuning", ["published", "valid"])
    @pytest.mark.parametrize(("bandwidth", "bound"), [("product", 0.5), ("joint", 0.4)])
    def test_median_bandwidths(self, tuning: Any, bandwidth: Any, bound: float) -> None:
        assert _ticket_error(1000, tuning=tuning, bandwidth=bandwidth) < bound

    def test_published_random_features(self) -> None:
        assert _ticket_error(1000, features="random", n_features=100, bandwidth="joint") < 0.5


class TestErrors:
    @pytest.mark.parametrize(
        "parameters",
        [
            {"features": "nystrom"},
            {"features": "random"},
            {"bandwidth_scale": 1.0},
            {"image": ImageColumns(1, 2, first=0, features="convolution")},
            {"image": "pixels"},
            {"bandwidth": "mean"},
            {"tuning": "best"},
            {"n_features": 0},
            {"n_features": 2.5},
            {"bandwidth": "product", "bandwidth_scale": 0.0},
            {"bandwidth": "product", "bandwidth_scale": "wide"},
            {"first_penalties": []},
            {"second_penalties": [0.0]},
            {"second_penalties": "small"},
        ],
    )
    def test_parameters(self, roles: Any, parameters: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="Expected"):
            KernelIV(**parameters).fit(**roles)

    def test_too_few_rows(self, roles: Any) -> None:
        with pytest.raises(InputError, match="at least 20 rows"):
            KernelIV().fit(**{role: values[:10] for role, values in roles.items()})
        with pytest.raises(InputError, match="positive weight"):
            KernelIV().fit(**roles, sample_weight=np.arange(N) < 10)

    def test_failed_fit_changes_nothing(self, roles: Any) -> None:
        estimator = KernelIV(n_features=60, random_state=0).fit(**roles)
        before = estimator.counterfactual_
        with pytest.raises(InputError):
            estimator.fit(roles["Y"], roles["T"], Z=np.ones(N), X=roles["X"])
        assert estimator.counterfactual_ is before
