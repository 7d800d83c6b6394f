"""Gaussian process regression through landmarks, against one that is solved by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dmliv.errors import InputError
from dmliv.kernels.additive import AdditiveKernel, Inputs, Term
from dmliv.kernels.evidence import Control, Searched
from dmliv.kernels.process import ProcessSettings, Regression, regress, start_kernel
from dmliv.progress import SilentProgress

NOISE, SLOPES = 0.3, np.array([0.8, -0.5])
SMALL = ProcessSettings(25, 60, 15)


@pytest.fixture
def searched(kernel: AdditiveKernel) -> Searched:
    return Searched(kernel, NOISE, SLOPES, 0.0)


@pytest.fixture
def control(rows: Inputs, rng: np.random.Generator) -> Control:
    n = len(rows)
    return Control(
        rng.standard_normal((n, 2)), [0.5 * rng.standard_normal((n, 3)), 0.2 * rng.standard_normal((n, 1))]
    )


@pytest.fixture
def target(rows: Inputs, rng: np.random.Generator) -> np.ndarray:
    return rows.line[:, 0] + np.sin(rows.context[:, 0]) + rng.standard_normal(len(rows))


@pytest.fixture
def weight(rows: Inputs, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(0.3, 2.0, len(rows))


@pytest.fixture
def fold(rows: Inputs) -> np.ndarray:
    return np.arange(len(rows)) % 3


def exact(
    searched: Searched,
    rows: Inputs,
    target: np.ndarray,
    weight: np.ndarray,
    control: Control,
    new: Inputs,
    part: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of f, or of a part of it, at new rows."""
    covariance = searched.kernel.matrix(rows, rows) + np.diag(searched.noise / weight)
    for slope, errors in zip(searched.slopes, control.errors, strict=True):
        covariance += slope**2 * errors @ errors.T
    cross = searched.kernel.matrix(new, rows, part)
    solved = np.linalg.solve(covariance, cross.T)
    mean = solved.T @ (target - control.columns @ searched.slopes)
    return mean, searched.kernel.matrix(new, new, part) - cross @ solved


class TestAllRowsAsLandmarks:
    @pytest.fixture
    def regression(
        self,
        searched: Searched,
        rows: Inputs,
        target: np.ndarray,
        weight: np.ndarray,
        control: Control,
        fold: np.ndarray,
    ) -> Regression:
        return Regression.fit(searched, rows, target, weight, control, fold, np.arange(len(rows)))

    @pytest.mark.parametrize("part", [None, "structural", "control"])
    def test_predictions(
        self,
        part: str | None,
        regression: Regression,
        searched: Searched,
        rows: Inputs,
        target: np.ndarray,
        weight: np.ndarray,
        control: Control,
        others: Inputs,
    ) -> None:
        expected, _ = exact(searched, rows, target, weight, control, others, part)
        np.testing.assert_allclose(regression.predict(others, part), expected, atol=1e-3)

    @pytest.mark.parametrize("part", [None, "structural"])
    def test_out_of_fold_is_the_fit_to_the_rows_outside(
        self,
        part: str | None,
        regression: Regression,
        searched: Searched,
        rows: Inputs,
        target: np.ndarray,
        weight: np.ndarray,
        control: Control,
        fold: np.ndarray,
    ) -> None:
        found = regression.out_of_fold(rows, fold, part)
        for number in range(3):
            inside, outside = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
            expected, _ = exact(
                searched,
                rows.take(outside),
                target[outside],
                weight[outside],
                control.take(outside),
                rows.take(inside),
                part,
            )
            np.testing.assert_allclose(found[inside], expected, atol=1e-3)
        assert np.abs(found - regression.predict(rows, part)).max() > 0.05

    def test_error_features_are_the_posterior_covariance(
        self,
        regression: Regression,
        searched: Searched,
        rows: Inputs,
        target: np.ndarray,
        weight: np.ndarray,
        control: Control,
    ) -> None:
        _, covariance = exact(searched, rows, target, weight, control, rows)
        features = regression.error_features(rows, 100)
        assert features.shape == (len(rows), len(rows))
        np.testing.assert_allclose(features @ features.T, covariance, atol=1e-3)
        few = regression.error_features(rows, 10)
        assert few.shape == (len(rows), 10)
        # The directions of the largest variance are kept.
        values = np.linalg.eigvalsh(covariance)[::-1]
        assert np.sum(few**2) == pytest.approx(values[:10].sum(), rel=1e-3)


class TestFolds:
    def test_one_fold_is_all_rows(
        self, searched: Searched, rows: Inputs, target: np.ndarray, weight: np.ndarray, control: Control
    ) -> None:
        one = np.zeros(len(rows), dtype=np.int64)
        regression = Regression.fit(searched, rows, target, weight, control, one, np.arange(10))
        np.testing.assert_allclose(regression.out_of_fold(rows, one), regression.predict(rows))

    def test_outcomes_of_a_fold_do_not_reach_it(
        self,
        searched: Searched,
        rows: Inputs,
        target: np.ndarray,
        weight: np.ndarray,
        control: Control,
        fold: np.ndarray,
    ) -> None:
        found = [
            Regression.fit(searched, rows, y, weight, control, fold, np.arange(10)).out_of_fold(rows, fold)
            for y in (target, np.where(fold == 1, target + 10.0, target))
        ]
        np.testing.assert_allclose(found[0][fold == 1], found[1][fold == 1], atol=1e-9)
        assert np.abs(found[0] - found[1])[fold != 1].min() > 1e-3


class TestWeights:
    def test_are_repeated_rows(
        self,
        searched: Searched,
        rows: Inputs,
        target: np.ndarray,
        control: Control,
        fold: np.ndarray,
        others: Inputs,
    ) -> None:
        times = np.arange(len(rows)) % 4
        again = np.repeat(np.arange(len(rows)), times)
        # Errors of repeated rows are the same ones, too.
        landmarks = np.flatnonzero(times)[:12]
        weighted = Regression.fit(searched, rows, target, times.astype(float), control, fold, landmarks)
        repeated = Regression.fit(
            searched,
            rows.take(again),
            target[again],
            np.ones(len(again)),
            control.take(again),
            fold[again],
            np.array([np.flatnonzero(again == row)[0] for row in landmarks]),
        )
        np.testing.assert_allclose(weighted.predict(others), repeated.predict(others), atol=1e-8)
        np.testing.assert_allclose(weighted.posterior, repeated.posterior, atol=1e-8)
        own = fold[: len(others)]
        np.testing.assert_allclose(
            weighted.out_of_fold(others, own), repeated.out_of_fold(others, own), atol=1e-8
        )

    def test_rows_without_any_teach_nothing(
        self, rows: Inputs, target: np.ndarray, fold: np.ndarray, others: Inputs
    ) -> None:
        weight = np.where(np.arange(len(rows)) % 4 == 0, 0.0, 1.0)
        damaged = np.where(weight > 0.0, target, 1e3)
        found = [run(rows, y, weight, fold) for y in (target, damaged)]
        np.testing.assert_array_equal(found[0].predict(others), found[1].predict(others))


def run(
    rows: Inputs, target: np.ndarray, weight: np.ndarray, fold: np.ndarray, seed: int = 0, **options: Any
) -> Regression:
    generator = np.random.default_rng(seed)
    kernel = start_kernel(((0, 1), (1, 3)), (Term(), Term(line=(0,)), Term(context=(0, 1))), rows, generator)
    return regress(
        kernel,
        rows,
        target,
        weight,
        fold,
        SMALL,
        generator=generator,
        progress=SilentProgress(),
        label="regression",
        **options,
    )


class TestRegress:
    def test_sizes_and_seeds(
        self, rows: Inputs, target: np.ndarray, weight: np.ndarray, fold: np.ndarray, others: Inputs
    ) -> None:
        first, same, other = (run(rows, target, weight, fold, seed) for seed in (0, 0, 1))
        # Few rows take two thirds of the landmarks that they may have.
        assert len(first.landmarks) == round(25 * 2 / 3)
        np.testing.assert_array_equal(first.predict(others), same.predict(others))
        assert np.abs(first.predict(others) - other.predict(others)).max() > 1e-9

    def test_known_parameters_are_kept(
        self, rows: Inputs, target: np.ndarray, weight: np.ndarray, fold: np.ndarray
    ) -> None:
        first = run(rows, target, weight, fold)
        again = run(rows, target + 1.0, weight, fold, searched=first.searched)
        assert again.searched is first.searched
        assert np.abs(again.weights - first.weights).max() > 1e-6

    def test_line(self, rng: np.random.Generator) -> None:
        n = 200
        rows = Inputs(*(rng.standard_normal((n, width)) for width in (3, 1, 0)))
        truth = 2.0 * rows.line[:, 0] - 1.0
        fold = np.arange(n) % 5
        found = run(rows, truth + 0.5 * rng.standard_normal(n), np.ones(n), fold)
        assert np.mean((found.out_of_fold(rows, fold) - truth) ** 2) < 0.02

    def test_no_rows_to_predict(
        self, rows: Inputs, target: np.ndarray, weight: np.ndarray, fold: np.ndarray
    ) -> None:
        none = rows.take(np.empty(0, dtype=np.int64))
        assert run(rows, target, weight, fold).predict(none).shape == (0,)


class TestStart:
    def test_length_scales_are_median_distances(self, rng: np.random.Generator) -> None:
        rows = Inputs(*(rng.standard_normal((200, width)) for width in (3, 1, 2)))
        rows = replace(rows, curve=rows.curve * [1.0, 10.0])
        terms = (Term(context=(0, 1)), Term(line=(0,)), Term(curve=(1,)))
        kernel = start_kernel(((0, 1), (1, 3)), terms, rows, np.random.default_rng(0))
        _, one, two, _, _, curve = kernel.parameters
        # Medians of |x - x'| and of its length in two dimensions, for standard normal columns.
        np.testing.assert_allclose(np.exp([one, two, curve]), [0.954, 1.665, 9.54], rtol=0.1)

    def test_constant_columns(self) -> None:
        rows = Inputs(np.ones((20, 1)), np.ones((20, 1)), np.ones((20, 1)))
        kernel = start_kernel(((0, 1),), (Term(context=(0,), curve=(0,)),), rows, np.random.default_rng(0))
        np.testing.assert_array_equal(kernel.parameters, np.zeros(3))


@pytest.mark.parametrize("name", ["n_landmarks", "n_search_rows", "n_search_landmarks"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "many"])
def test_settings_are_checked(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"positive whole number for {name}, got {value!r}"):
        ProcessSettings(**{name: value})
