"""Gaussian process regression through landmarks, against one that is solved by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dmliv.errors import InputError
from dmliv.kernels.additive import AdditiveKernel, Inputs, Term
from dmliv.kernels.evidence import SLOPE_PRIOR, Control, Rows, Searched, _Bound
from dmliv.kernels.process import ProcessSettings, Regression, regress, start_kernel
from dmliv.progress import SilentProgress

NOISE, SLOPES = 0.3, np.array([0.8, -0.5])
SMALL = ProcessSettings(25, 60, 15)


@pytest.fixture
def searched(kernel: AdditiveKernel) -> Searched:
    return Searched(kernel, NOISE, SLOPES, kernel)


@pytest.fixture
def table(rows: Inputs, rng: np.random.Generator) -> Rows:
    n = len(rows)
    control = Control(
        rng.standard_normal((n, 2)),
        [0.5 * rng.standard_normal((n, 3)), 0.2 * rng.standard_normal((n, 1))],
        0.3 * rng.standard_normal((n, 2)),
    )
    target = rows.line[:, 0] + np.sin(rows.context[:, 0]) + rng.standard_normal(n)
    return Rows(rows, target, rng.uniform(0.3, 2.0, n), control)


@pytest.fixture
def fold(rows: Inputs) -> np.ndarray:
    return np.arange(len(rows)) % 3


def exact(
    searched: Searched, table: Rows, new: Inputs, part: str | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of f, or of a part of it, at new rows."""
    covariance = searched.kernel.matrix(table.inputs, table.inputs) + np.diag(searched.noise / table.weight)
    for slope, errors in zip(searched.slopes, table.control.errors, strict=True):
        covariance += slope**2 * errors @ errors.T
    covariance += table.control.free @ table.control.free.T
    cross = searched.kernel.matrix(new, table.inputs, part)
    solved = np.linalg.solve(covariance, cross.T)
    mean = solved.T @ (table.target - table.control.columns @ searched.slopes)
    return mean, searched.kernel.matrix(new, new, part) - cross @ solved


class TestAllRowsAsLandmarks:
    @pytest.fixture
    def regression(self, searched: Searched, table: Rows, fold: np.ndarray) -> Regression:
        return Regression.fit(searched, table, fold, np.arange(len(table)))

    @pytest.mark.parametrize("part", [None, "structural", "control"])
    def test_predictions(
        self, part: str | None, regression: Regression, searched: Searched, table: Rows, others: Inputs
    ) -> None:
        expected, _ = exact(searched, table, others, part)
        np.testing.assert_allclose(regression.predict(others, part), expected, atol=1e-3)

    @pytest.mark.parametrize("part", [None, "structural"])
    def test_out_of_fold_is_the_fit_to_the_rows_outside(
        self, part: str | None, regression: Regression, searched: Searched, table: Rows, fold: np.ndarray
    ) -> None:
        found = regression.out_of_fold(table.inputs, fold, part)
        for number in range(3):
            inside, outside = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
            expected, _ = exact(searched, table.take(outside), table.inputs.take(inside), part)
            np.testing.assert_allclose(found[inside], expected, atol=1e-3)
        assert np.abs(found - regression.predict(table.inputs, part)).max() > 0.05

    @pytest.mark.parametrize("part", [None, "structural"])
    def test_error_features_are_the_posterior_covariance(
        self, part: str | None, regression: Regression, searched: Searched, table: Rows
    ) -> None:
        _, covariance = exact(searched, table, table.inputs)
        if part is not None:
            # What the part makes of the errors of all of f.
            own = searched.kernel.matrix(table.inputs, table.inputs, part)
            share = np.linalg.solve(searched.kernel.matrix(table.inputs, table.inputs), own.T).T
            covariance = share @ covariance @ share.T
        features = regression.error_features(table.inputs, 100, part)
        assert features.shape[1] <= len(table)
        # Small directions are left out.
        np.testing.assert_allclose(features @ features.T, covariance, atol=2e-4 * np.trace(covariance))
        few = regression.error_features(table.inputs, 10, part)
        assert few.shape == (len(table), 10)
        # The directions of the largest variance are kept.
        values = np.linalg.eigvalsh(covariance)[::-1]
        assert np.sum(few**2) == pytest.approx(values[:10].sum(), rel=1e-3)

    def test_evidence_is_the_bound_of_the_search(
        self, regression: Regression, kernel: AdditiveKernel, table: Rows
    ) -> None:
        point = np.concatenate([kernel.parameters, [0.5 * np.log(NOISE)], SLOPES])
        value, _ = _Bound(kernel, table, len(table)).at(point)
        assert regression.evidence == pytest.approx(value, abs=0.05)


class TestSlopesOfAllRows:
    def test_have_the_highest_posterior(self, searched: Searched, table: Rows, fold: np.ndarray) -> None:
        centre, everything = np.array([0.5, 0.0]), np.arange(len(table))
        found = Regression.fit(searched, table, fold, everything, centre).searched.slopes
        assert np.abs(found - SLOPES).max() > 0.02

        def posterior(slopes: np.ndarray) -> float:
            fit = Regression.fit(replace(searched, slopes=slopes), table, fold, everything)
            return fit.evidence - 0.5 * float(np.sum(((slopes - centre) / SLOPE_PRIOR) ** 2))

        for step in 0.1 * np.vstack([np.eye(2), -np.eye(2)]):
            assert posterior(found) > posterior(found + step)

    def test_are_kept_where_no_prior_is_given(
        self, searched: Searched, table: Rows, fold: np.ndarray
    ) -> None:
        assert Regression.fit(searched, table, fold, np.arange(10)).searched is searched


class TestFolds:
    def test_one_fold_is_all_rows(self, searched: Searched, table: Rows) -> None:
        one = np.zeros(len(table), dtype=np.int64)
        regression = Regression.fit(searched, table, one, np.arange(10))
        np.testing.assert_allclose(
            regression.out_of_fold(table.inputs, one), regression.predict(table.inputs)
        )

    def test_outcomes_of_a_fold_do_not_reach_it(
        self, searched: Searched, table: Rows, fold: np.ndarray
    ) -> None:
        moved = replace(table, target=np.where(fold == 1, table.target + 10.0, table.target))
        found = [
            Regression.fit(searched, each, fold, np.arange(10)).out_of_fold(table.inputs, fold)
            for each in (table, moved)
        ]
        np.testing.assert_allclose(found[0][fold == 1], found[1][fold == 1], atol=1e-9)
        assert np.abs(found[0] - found[1])[fold != 1].min() > 1e-3


class TestWeights:
    def test_are_repeated_rows(
        self, searched: Searched, table: Rows, fold: np.ndarray, others: Inputs
    ) -> None:
        times = np.arange(len(table)) % 4
        again = np.repeat(np.arange(len(table)), times)
        # Errors of repeated rows are the same ones, too.
        landmarks = np.flatnonzero(times)[:12]
        weighted = Regression.fit(searched, replace(table, weight=times.astype(float)), fold, landmarks)
        repeated = Regression.fit(
            searched,
            replace(table.take(again), weight=np.ones(len(again))),
            fold[again],
            np.array([np.flatnonzero(again == row)[0] for row in landmarks]),
        )
        np.testing.assert_allclose(weighted.predict(others), repeated.predict(others), atol=1e-8)
        np.testing.assert_allclose(weighted.posterior, repeated.posterior, atol=1e-8)
        own = fold[: len(others)]
        np.testing.assert_allclose(
            weighted.out_of_fold(others, own), repeated.out_of_fold(others, own), atol=1e-8
        )

    def test_rows_without_any_teach_nothing(self, table: Rows, fold: np.ndarray, others: Inputs) -> None:
        weight = np.where(np.arange(len(table)) % 4 == 0, 0.0, 1.0)
        damaged = np.where(weight > 0.0, table.target, 1e3)
        found = [run(table.inputs, y, weight, fold) for y in (table.target, damaged)]
        np.testing.assert_array_equal(found[0].predict(others), found[1].predict(others))


def run(
    inputs: Inputs, target: np.ndarray, weight: np.ndarray, fold: np.ndarray, seed: int = 0, **options: Any
) -> Regression:
    generator = np.random.default_rng(seed)
    terms = (Term(), Term(line=(0,)), Term(context=(0, 1)))
    return regress(
        start_kernel(((0, 1), (1, 3)), terms, inputs, generator),
        Rows(inputs, target, weight, Control.none(len(inputs))),
        fold,
        SMALL,
        generator=generator,
        progress=SilentProgress(),
        label="regression",
        **options,
    )


class TestRegress:
    def test_sizes_and_seeds(self, table: Rows, fold: np.ndarray, others: Inputs) -> None:
        first, same, other = (run(table.inputs, table.target, table.weight, fold, seed) for seed in (0, 0, 1))
        # Few rows take two thirds of the landmarks that they may have.
        assert len(first.landmarks) == round(25 * 2 / 3)
        np.testing.assert_array_equal(first.predict(others), same.predict(others))
        assert np.abs(first.predict(others) - other.predict(others)).max() > 1e-9

    def test_known_parameters_are_kept(self, table: Rows, fold: np.ndarray) -> None:
        first = run(table.inputs, table.target, table.weight, fold)
        again = run(table.inputs, table.target + 1.0, table.weight, fold, searched=first.searched)
        assert again.searched is first.searched
        assert np.abs(again.weights - first.weights).max() > 1e-6

    def test_line(self, rng: np.random.Generator) -> None:
        n = 200
        rows = Inputs(*(rng.standard_normal((n, width)) for width in (3, 1, 0)))
        truth = 2.0 * rows.line[:, 0] - 1.0
        fold = np.arange(n) % 5
        found = run(rows, truth + 0.5 * rng.standard_normal(n), np.ones(n), fold)
        assert np.mean((found.out_of_fold(rows, fold) - truth) ** 2) < 0.02

    def test_no_rows_to_predict(self, table: Rows, fold: np.ndarray) -> None:
        none = table.inputs.take(np.empty(0, dtype=np.int64))
        assert run(table.inputs, table.target, table.weight, fold).predict(none).shape == (0,)


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
