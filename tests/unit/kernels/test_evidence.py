"""The bound on the marginal likelihood, its derivatives, and what a search for its summit finds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from dmliv.kernels.additive import AdditiveKernel, Inputs, Pair, Term
from dmliv.kernels.evidence import Control, Searched, _Bound, search
from dmliv.kernels.process import start_kernel
from dmliv.progress import SilentProgress

LOG_NOISE, SLOPES = -0.4, np.array([0.7, -1.2, 0.3])


@pytest.fixture
def control(rows: Inputs, rng: np.random.Generator) -> Control:
    """Three columns; the errors of the last are unknown."""
    n = len(rows)
    errors = [0.3 * rng.standard_normal((n, 2)), 0.2 * rng.standard_normal((n, 4)), np.empty((n, 0))]
    return Control(rng.standard_normal((n, 3)), errors)


@pytest.fixture
def target(rows: Inputs, rng: np.random.Generator) -> np.ndarray:
    return np.sin(rows.context[:, 0]) + rows.line[:, 0] + rng.standard_normal(len(rows))


@pytest.fixture
def weight(rows: Inputs, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(0.3, 2.0, len(rows))


def bound_in_double(
    kernel: AdditiveKernel,
    rows: Inputs,
    target: np.ndarray,
    weight: np.ndarray,
    control: Control,
    landmarks: np.ndarray,
) -> _Bound:
    """Return a bound without the rounding of single precision."""
    bound = _Bound(kernel, rows, target, weight, control, landmarks)
    bound._to_rows = Pair.of(kernel.blocks, rows.take(landmarks), rows)
    return bound


def exact(
    kernel: AdditiveKernel, rows: Inputs, target: np.ndarray, weight: np.ndarray, control: Control
) -> float:
    """Return the log density of the target, without the constants that the bound leaves out."""
    covariance = kernel.matrix(rows, rows) + np.diag(np.exp(2.0 * LOG_NOISE) / weight)
    for slope, errors in zip(SLOPES, control.errors, strict=True):
        covariance += slope**2 * errors @ errors.T
    density = multivariate_normal.logpdf(target, control.columns @ SLOPES, covariance)
    return float(density + 0.5 * len(target) * np.log(2.0 * np.pi) - 0.5 * np.log(weight).sum())


class TestBound:
    def test_derivatives(
        self, kernel: AdditiveKernel, rows: Inputs, target: np.ndarray, weight: np.ndarray, control: Control
    ) -> None:
        bound = bound_in_double(kernel, rows, target, weight, control, np.arange(12))
        point = np.concatenate([kernel.parameters, [LOG_NOISE], SLOPES])
        _, found = bound.at(point)
        expected = np.empty(len(point))
        for number in range(len(point)):
            step = 1e-5 * np.eye(len(point))[number]
            expected[number] = (bound.at(point + step)[0] - bound.at(point - step)[0]) / 2e-5
        # The jitter moves with the amplitudes, which the derivatives leave out.
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)

    def test_is_exact_if_all_rows_are_landmarks(
        self, kernel: AdditiveKernel, rows: Inputs, target: np.ndarray, weight: np.ndarray, control: Control
    ) -> None:
        bound = bound_in_double(kernel, rows, target, weight, control, np.arange(len(rows)))
        value, _ = bound.at(np.concatenate([kernel.parameters, [LOG_NOISE], SLOPES]))
        # What is missing is due to the jitter.
        assert value == pytest.approx(exact(kernel, rows, target, weight, control), abs=5e-3)

    def test_fewer_landmarks_lower_it(
        self, kernel: AdditiveKernel, rows: Inputs, target: np.ndarray, weight: np.ndarray, control: Control
    ) -> None:
        point = np.concatenate([kernel.parameters, [LOG_NOISE], SLOPES])
        values = [
            bound_in_double(kernel, rows, target, weight, control, np.arange(m)).at(point)[0]
            for m in (5, 15, 30)
        ]
        assert values[0] < values[1] < values[2] < exact(kernel, rows, target, weight, control)

    def test_single_precision_hardly_shows(
        self, kernel: AdditiveKernel, rows: Inputs, target: np.ndarray, weight: np.ndarray, control: Control
    ) -> None:
        point = np.concatenate([kernel.parameters, [LOG_NOISE], SLOPES])
        arguments = (kernel, rows, target, weight, control, np.arange(12))
        (value, slope), (expected, in_double) = (
            make(*arguments).at(point) for make in (_Bound, bound_in_double)
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
        inputs,
        target,
        np.ones(n) if weight is None else weight,
        control,
        np.zeros(control.columns.shape[1]),
        landmarks=np.arange(40),
        progress=SilentProgress(),
        label="search",
    )


class TestSearch:
    TERMS = (Term(), Term(line=(0,)), Term(curve=(0,)), Term(context=(0,)))

    @pytest.mark.parametrize("bent", [False, True])
    def test_terms_that_do_not_matter_get_a_small_amplitude(
        self, bent: bool, rng: np.random.Generator
    ) -> None:
        column = rng.standard_normal((250, 2))
        inputs = Inputs(column[:, :1], column[:, 1:], column[:, 1:])
        truth = np.sin(2.0 * column[:, 1]) if bent else column[:, 1]
        found = found_by_search(inputs, truth + 0.3 * rng.standard_normal(250), self.TERMS)
        _, line, curve, context = (found.kernel.parameters[where.start] for where in found.kernel.slices)
        assert found.noise == pytest.approx(0.09, rel=0.3)
        assert (curve > np.log(0.4)) == bent
        assert context < np.log(0.2)
        if not bent:
            assert line > np.log(0.4)

    def test_slopes_of_control_columns(self, rng: np.random.Generator) -> None:
        column, controls = rng.standard_normal((250, 2)), rng.standard_normal((250, 2))
        inputs = Inputs(column[:, :1], column[:, 1:], column[:, 1:])
        target = column[:, 1] + controls @ [1.5, -0.5] + 0.3 * rng.standard_normal(250)
        control = Control(controls, [np.empty((250, 0))] * 2)
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
                inputs, outcome, (Term(), Term(line=(0,))), Control(residual[:, None], [features])
            )
            for features in (instruments @ np.linalg.cholesky(posterior), np.empty((n, 0)))
        )
        assert known.slopes[0] == pytest.approx(-1.5, abs=0.2)
        assert known.noise == pytest.approx(0.09, rel=0.25)
        assert unknown.noise > 0.2
        assert known.evidence > unknown.evidence + 10.0

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
