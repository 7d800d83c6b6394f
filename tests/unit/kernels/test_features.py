"""Kernels, features that stand for them, and regressions that choose their own settings."""

from __future__ import annotations

import numpy as np
import pytest

from dmliv.kernels.features import (
    FourierFeatures,
    LandmarkFeatures,
    Moments,
    gaussian_kernel,
    median_scales,
    regress_features,
    ridge_path,
)
from dmliv.kernels.ridge import PENALTIES, column_groups, regression_scales, ridge_losses, search_scales
from dmliv.progress import SilentProgress

SCALES = np.array([1.0, 2.0, 0.5])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


class TestFeatures:
    def test_random_features_approach_the_kernel(self, rng: np.random.Generator) -> None:
        rows = rng.standard_normal((30, 3))
        kernel = gaussian_kernel(rows, rows, SCALES)
        errors = []
        for width in (100, 10_000):
            encoded = FourierFeatures.draw(SCALES, width, rng).encode(rows)
            errors.append(np.sqrt(np.mean((encoded @ encoded.T - kernel) ** 2)))
        assert errors[1] < 0.02
        assert errors[1] < errors[0] / 3.0

    def test_landmark_features_are_the_kernel(self, rng: np.random.Generator) -> None:
        rows, others = rng.standard_normal((30, 3)), rng.standard_normal((9, 3))
        features = LandmarkFeatures.learn(rows, SCALES)
        inner = features.encode(others) @ features.encode(rows).T
        np.testing.assert_allclose(inner, gaussian_kernel(others, rows, SCALES), atol=1e-8)

    def test_landmarks_at_all_rows_are_kernel_ridge_regression(self, rng: np.random.Generator) -> None:
        rows, others, y = rng.standard_normal((40, 3)), rng.standard_normal((9, 3)), rng.standard_normal(40)
        features = LandmarkFeatures.learn(rows, SCALES)
        encoded = features.encode(rows)
        weights = ridge_path(encoded.T @ encoded, encoded.T @ y, np.array([0.1]))[:, 0]
        dual = np.linalg.solve(gaussian_kernel(rows, rows, SCALES) + 0.1 * np.eye(40), y)
        expected = gaussian_kernel(others, rows, SCALES) @ dual
        np.testing.assert_allclose(features.encode(others) @ weights, expected, atol=1e-8)

    def test_projection_is_the_mean_of_features(self, rng: np.random.Generator) -> None:
        features = LandmarkFeatures.learn(rng.standard_normal((25, 3)), SCALES)
        actions, context = rng.standard_normal((6, 4, 1)), rng.standard_normal((6, 2))
        weights = rng.dirichlet(np.ones(4), 6)
        kernels = gaussian_kernel(actions.reshape(24, 1), features.landmarks[:, :1], SCALES[:1])
        means = (weights[:, :, None] * kernels.reshape(6, 4, -1)).sum(axis=1)
        rows = np.hstack([actions.reshape(24, 1), np.repeat(context, 4, axis=0)])
        expected = (weights[:, :, None] * features.encode(rows).reshape(6, 4, -1)).sum(axis=1)
        np.testing.assert_allclose(features.project(means, context), expected, atol=1e-10)


class TestRidge:
    def test_penalty_path_is_the_direct_solve(self, rng: np.random.Generator) -> None:
        rows, moment = rng.standard_normal((40, 12)), rng.standard_normal(12)
        penalties = np.logspace(2, -6, 9)
        path = ridge_path(rows.T @ rows, moment, penalties)
        for position, penalty in enumerate(penalties):
            direct = np.linalg.solve(rows.T @ rows + penalty * np.eye(12), moment)
            np.testing.assert_allclose(path[:, position], direct, rtol=1e-8)

    def test_first_stage_error_is_that_of_the_predicted_features(self, rng: np.random.Generator) -> None:
        scales = np.ones(2)
        maps = (FourierFeatures.draw(scales, 15, rng), FourierFeatures.draw(scales, 10, rng))
        samples = [tuple(rng.standard_normal((30, 2)) for _ in range(2)) for _ in range(2)]
        ones = np.ones(30)
        moments = [Moments.of(*maps, (x, z, x[:, 0], ones), lambda: None) for x, z in samples]
        (x1, z1), (x2, z2) = ((maps[0].encode(x), maps[1].encode(z)) for x, z in samples)
        B = np.linalg.solve(z1.T @ z1 + 30 * 0.01 * np.eye(10), z1.T @ x1)
        errors, projection = regress_features(moments[0], moments[1], np.array([0.01]))
        np.testing.assert_allclose(projection, B, atol=1e-10)
        np.testing.assert_allclose(errors[0], (np.sum((x2 - z2 @ B) ** 2) - np.sum(x2**2)) / 30)

    def test_losses_are_those_of_leaving_each_row_out(self, rng: np.random.Generator) -> None:
        n = 30
        rows, y, target = rng.standard_normal((n, 5)), rng.standard_normal(n), rng.standard_normal(n)
        weight = rng.uniform(0.5, 2.0, n)
        path = ridge_losses(lambda part: rows[part], np.arange(n), target, y, weight)
        for position in (0, 8, 16):
            ridge = weight.sum() * PENALTIES[position] * np.eye(5)
            losses = []
            for row in range(n):
                kept = np.arange(n) != row
                left = rows[kept] * weight[kept, None]
                coefficients = np.linalg.solve(left.T @ rows[kept] + ridge, left.T @ y[kept])
                losses.append((y[row] - rows[row] @ coefficients) ** 2)
            np.testing.assert_allclose(path.mean_losses[position], np.average(losses, weights=weight))
            whole = rows * weight[:, None]
            expected = np.linalg.solve(whole.T @ rows + ridge, whole.T @ target)
            np.testing.assert_allclose(path.weights[:, position], expected, atol=1e-10)

    def test_chunks_and_rows_of_no_weight_do_not_matter(self, rng: np.random.Generator) -> None:
        n = 9000
        rows, y = rng.standard_normal((n, 4)), rng.standard_normal(n)
        weight = (rng.uniform(size=n) < 0.4).astype(float)
        used = np.flatnonzero(weight)
        paths = [ridge_losses(lambda part: rows[part], part, y, y, weight) for part in (np.arange(n), used)]
        np.testing.assert_allclose(paths[0].mean_losses, paths[1].mean_losses)
        np.testing.assert_allclose(paths[0].weights, paths[1].weights)
        assert paths[0].cautious() == paths[1].cautious()

    def test_cautious_penalty_is_large_for_noise_and_small_for_a_clear_signal(
        self, rng: np.random.Generator
    ) -> None:
        rows, noise = rng.standard_normal((500, 5)), rng.standard_normal(500)
        ones, everything = np.ones(500), np.arange(500)

        def path(y: np.ndarray) -> float:
            found = ridge_losses(lambda part: rows[part], everything, y, y, ones)
            assert found.cautious() <= found.best
            return float(PENALTIES[found.cautious()])

        assert path(noise) >= 0.1
        assert path(rows.sum(axis=1) + 0.01 * noise) < 1e-3


class TestBandwidths:
    def test_rare_levels_get_the_distance_between_levels(self, rng: np.random.Generator) -> None:
        rows = np.eye(7)[np.arange(70) % 7]
        np.testing.assert_allclose(median_scales(rows, [1] * 7, np.ones(7), "product", rng), 1.0)
        np.testing.assert_allclose(median_scales(rows, [7], np.ones(7), "product", rng), np.sqrt(2.0))

    @pytest.mark.parametrize("n_rows", [1, 2, 3, 4, 7, 50])
    @pytest.mark.parametrize("levels", [2, 3, 1000])
    def test_the_median_is_that_of_all_ordered_pairs(self, n_rows: int, levels: int) -> None:
        rng = np.random.default_rng(n_rows)
        rows = rng.integers(0, levels, size=(n_rows, 2)).astype(float)
        apart = np.sqrt(((rows[:, None] - rows) ** 2).sum(-1))
        expected = float(np.median(apart))
        if expected == 0.0:
            expected = float(np.median(apart[apart > 0.0])) if np.any(apart > 0.0) else 1.0
        np.testing.assert_allclose(median_scales(rows, [2], np.ones(2), "product", rng), expected)

    def test_search_finds_the_lowest_point_of_a_bowl(self) -> None:
        best = np.array([0.2, 7.0])
        groups = [np.array([0]), np.array([1])]

        def loss(scales: np.ndarray) -> float:
            return float(1.0 + np.sum(np.log(scales / best) ** 2))

        found = search_scales(loss, np.ones(2), np.ones(2), groups)
        assert np.all(np.abs(np.log(found / best)) < np.log(1.4))

    def test_relevant_columns_get_narrow_and_useless_ones_wide_kernels(
        self, rng: np.random.Generator
    ) -> None:
        rows = rng.standard_normal((600, 2))
        y = np.sin(4.0 * rows[:, 0]) + 0.1 * rng.standard_normal(600)
        scales = regression_scales(rows, [1, 1], y[:, None], np.ones(600), rng, SilentProgress())
        assert scales[0] < 1.0
        assert scales[1] > 3.0

    def test_groups(self, rng: np.random.Generator) -> None:
        numbers, flags = rng.standard_normal((50, 2)), (rng.uniform(size=(50, 2)) < 0.5).astype(float)
        levels = np.eye(3)[rng.integers(0, 3, 50)]
        columns = np.hstack([numbers, flags, levels])
        groups = [group.tolist() for group in column_groups(columns, [1, 1, 1, 1, 3])]
        assert groups == [[0], [1], [2, 3], [4, 5, 6]]
        many = [group.tolist() for group in column_groups(rng.standard_normal((50, 12)), [1] * 12)]
        assert many == [list(range(12))]
