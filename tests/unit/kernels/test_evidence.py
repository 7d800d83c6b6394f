"""The bound on the marginal likelihood, its derivatives, and what a search for its summit finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from dmliv.kernels.additive import AdditiveKernel, Inputs, Term
from dmliv.kernels.evidence import Control, Rows, Searched, _Bound, search
from dmliv.kernels.process import start_kernel
from dmliv.progress import SilentProgress

LOG_NOISE, SLOPES = -0.4, np.array([0.7, -1.2, 0.3])


@pytest.fixture
def table(rows: Inputs, rng: np.random.Generator) -> Rows:
    """Rows with three control columns; the errors of the last are unknown."""
    n = len(rows)
    errors = [0.3 * rng.standard_normal((n, 2)), 0.2 * rng.standard_normal((n, 4)), np.empty((n, 0))]
    control = Control(rng.standard_normal((n, 3)), errors, 0.1 * rng.standard_normal((n, 2)))
    target = np.sin(rows.context[:, 0]) + rows.line[:, 0] + rng.standard_normal(n)
    return Rows(rows, target, rng.uniform(0.3, 2.0, n), control)


def bound_in_double(kernel: AdditiveKernel, table: Rows, n_landmarks: int) -> _Bound:
    """Return a bound without the rounding of single precision."""
    return _Bound(kernel, table, n_landmarks, single=False)


def exact(kernel: AdditiveKernel, table: Rows) -> float:
    """Return the log density of the target, without the constants that the bound leaves out."""
    covariance = kernel.matrix(table.inputs, table.inputs) + np.diag(np.exp(2.0 * LOG_NOISE) / table.weight)
    for slope, errors in zip(SLOPES, table.control.errors, strict=True):
        covariance += slope**2 * errors @ errors.T
    covariance += table.control.free @ table.control.free.T
    density = multivariate_normal.logpdf(table.target, table.control.columns @ SLOPES, covariance)
    return float(density + 0.5 * len(table) * np.log(2.0 * np.pi) - 0.5 * np.log(table.weight).sum())


class TestBound:
    def test_derivatives(self, kernel: AdditiveKernel, table: Rows) -> None:
        bound = bound_in_double(kernel, table, 12)
        point = np.concatenate([kernel.parameters, [LOG_NOISE], SLOPES])
        _, found = bound.at(point)
        expected = np.empty(len(point))
        for number in range(len(point)):
            step = 1e-5 * np.eye(len(point))[number]
            expected[number] = (bound.at(point + step)[0] - bound.at(point - step)[0]) / 2e-5
        # The jitter moves with the amplitudes, which the derivatives leave out.
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)

    def test_is_exact_if_all_rows_are_landmarks(self, kernel: AdditiveKernel, table: Rows) -> None:
        bound = bound_in_double(kernel, table, len(table))
        value, _ = bound.at(np.concatenate([kernel.parameters, [LOG_NOISE], SLOPES]))
        # What is missing is due to the jitter.
        assert value == pytest.approx(exact(kernel, table), abs=5e-3)

    def test_fewer_landmarks_lower_it(self, kernel: AdditiveKernel, table: Rows) -> None:
        point = np.concatenate([kernel.parameters, [LOG_NOISE], SLOPES])
        values = [bound_in_double(kernel, table, m).at(point)[0] for m in (5, 15, 30)]
        assert values[0] < values[1] < values[2] < exact(kernel, table)

    def test_single_precision_hardly_shows(self, kernel: AdditiveKernel, table: Rows) -> None:
        point = np.concatenate([kernel.parameters, [LOG_NOISE], SLOPES])
        (value, slope), (expected, in_double) = (
            make(kernel, table, 12).at(point) for make in (_Bound, bound_in_double)
        )
        assert value == pytest.approx(expected, abs=0.01)
        np.testing.assert_allclose(slope, in_double, atol=0.02 * np.abs(in_double).max())


def found_by_search(
    inputs: Inputs,
    target: np.ndarray,
    terms: tuple[Term, ...],
    control: Control | None = None,
    weight: np.ndarray | None = None,
) -> Searched:
    n = len(inputs)
    kernel = start_kernel(((0, 1),), terms, inputs, np.random.default_rng(0))
    control = Control.none(n) if control is None else control
    return search(
        kernel,
        Rows(inputs, target, np.ones(n) if weight is None else weight, control),
        np.zeros(control.columns.shape[1]),
        n_rows=n,
        n_landmarks=40,
        progress=SilentProgress(),
        label="search",
    )


class TestSearch:
    TERMS = (Term(), Term(line=(0,)), Term(curve=(0,)), Term(context=(0,)))

    @pytest.mark.parametrize("bent", [False, True])
    def test_terms_that_do_not_matter_go(self, bent: bool, rng: np.random.Generator) -> None:
        column = rng.standard_normal((250, 2))
        inputs = Inputs(column[:, :1], column[:, 1:], column[:, 1:])
        truth = np.sin(2.0 * column[:, 1]) if bent else column[:, 1]
        found = found_by_search(inputs, truth + 0.3 * rng.standard_normal(250), self.TERMS)
        assert found.noise == pytest.approx(0.09, rel=0.3)
        amplitudes = {
            term: found.kernel.parameters[where.start]
            for term, where in zip(found.kernel.terms, found.kernel.slices, strict=True)
        }
        needed = self.TERMS[2] if bent else self.TERMS[1]
        assert amplitudes[needed] > np.log(0.4)
        assert self.TERMS[3] not in amplitudes
        assert (self.TERMS[2] in amplitudes) == bent

    def test_terms_that_are_not_optional_stay(self, rng: np.random.Generator) -> None:
        column = rng.standard_normal((250, 2))
        inputs = Inputs(column[:, :1], column[:, 1:], column[:, 1:])
        fixed = tuple(replace(term, optional=False) for term in self.TERMS)
        found = found_by_search(inputs, column[:, 1] + 0.3 * rng.standard_normal(250), fixed)
        assert found.kernel.terms == fixed

    def test_terms_that_can_stand_for_each_other_do_not_all_go(self, rng: np.random.Generator) -> None:
        """Any one of three equal terms costs nothing to leave out; all three cost the signal."""
        column = rng.standard_normal((250, 2))
        inputs = Inputs(column[:, :1], column[:, 1:], column[:, 1:])
        thrice = (Term(), *(Term(line=(0,), expected=each) for each in (0.3, 0.31, 0.32)))
        found = found_by_search(inputs, column[:, 1] + 0.3 * rng.standard_normal(250), thrice)
        assert any(term.line for term in found.kernel.terms)
        assert found.noise == pytest.approx(0.09, rel=0.3)

    def test_slopes_of_control_columns(self, rng: np.random.Generator) -> None:
        column, controls = rng.standard_normal((250, 2)), rng.standard_normal((250, 2))
        inputs = Inputs(column[:, :1], column[:, 1:], column[:, 1:])
        target = column[:, 1] + controls @ [1.5, -0.5] + 0.3 * rng.standard_normal(250)
        control = Control(controls, [np.empty((250, 0))] * 2, np.empty((250, 0)))
        found = found_by_search(inputs, target, self.TERMS, control)
        np.testing.assert_allclose(found.slopes, [1.5, -0.5], atol=0.1)

    def test_errors_of_a_control_column_are_not_taken_for_noise(self, rng: np.random.Generator) -> None:
        n, instruments = 300, rng.standard_normal((300, 40))
        hidden = rng.standard_normal(n)
        action = instruments @ (0.15 * rng.standard_normal(40)) + hidden
        outcome = action - 1.5 * hidden + 0.3 * rng.standard_normal(n)
        # The posterior of the action's mean, under the coefficients' own distribution.
        posterior = np.linalg.inv(instruments.T @ instruments + np.eye(40) / 0.15**2)
        residual = action - instruments @ (posterior @ (instruments.T @ action))
        inputs = Inputs(np.zeros((n, 1)), action[:, None], np.empty((n, 0)))
        known, unknown = (
            found_by_search(
                inputs,
                outcome,
                (Term(), Term(line=(0,))),
                Control(residual[:, None], [features], np.empty((n, 0))),
            )
            for features in (instruments @ np.linalg.cholesky(posterior), np.empty((n, 0)))
        )
        assert known.slopes[0] == pytest.approx(-1.5, abs=0.2)
        assert known.noise == pytest.approx(0.09, rel=0.25)
        assert unknown.noise > 0.2

    def test_rows_of_little_weight_hardly_count(self, rng: np.random.Generator) -> None:
        column = rng.standard_normal((250, 2))
        inputs = Inputs(column[:, :1], column[:, 1:], column[:, 1:])
        target = column[:, 1] + 0.3 * rng.standard_normal(250)
        damaged = np.where(np.arange(250) % 5 == 0, target + 5.0 * rng.standard_normal(250), target)
        weight = np.where(np.arange(250) % 5 == 0, 1e-4, 1.0)
        noises = [
            found_by_search(inputs, damaged, self.TERMS, weight=each).noise for each in (np.ones(250), weight)
        ]
        assert noises[0] > 1.0
        assert noises[1] < 0.12
