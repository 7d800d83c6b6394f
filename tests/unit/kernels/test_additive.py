"""Covariances of sums of products: what each term is, and its derivatives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dmliv.kernels.additive import CHUNK_SIZE, AdditiveKernel, Inputs, Pair, Term, variance


def by_hand(kernel: AdditiveKernel, left: Inputs, right: Inputs) -> float:
    """Return the covariance of two single rows as the definition has it."""
    total = 0.0
    for term, where in zip(kernel.terms, kernel.slices, strict=True):
        amplitude, *logs = kernel.parameters[where]
        scales = np.exp(logs)
        value = np.exp(2.0 * amplitude)
        if term.linear:
            value *= left.context[0] @ right.context[0]
        if term.line:
            value *= sum(left.line[0, column] * right.line[0, column] for column in term.line)
        if term.context:
            squares = 0.0
            for block, scale in zip(term.context, scales, strict=False):
                columns = slice(*kernel.blocks[block])
                squares += np.sum((left.context[0, columns] - right.context[0, columns]) ** 2) / scale**2
            value *= (1.0 + np.sqrt(3.0 * squares)) * np.exp(-np.sqrt(3.0 * squares))
        if term.curve:
            columns = list(term.curve)
            ours, theirs = (each.curve[0, columns] / scales[len(term.context) :] for each in (left, right))
            at_zero = np.exp(-0.5 * (ours @ ours + theirs @ theirs))
            tangent = 1.0 + ours @ theirs if term.flat else 1.0
            value *= np.exp(-0.5 * np.sum((ours - theirs) ** 2)) - at_zero * tangent
        total += value
    return total


def with_curve(rows: Inputs, column: int, value: float) -> Inputs:
    curve = np.zeros_like(rows.curve)
    curve[:, column] = value
    return replace(rows, curve=curve)


class TestMatrix:
    def test_is_what_the_definition_says(
        self, one_term: AdditiveKernel, rows: Inputs, others: Inputs
    ) -> None:
        found = one_term.matrix(rows, others)
        for i, j in ((0, 0), (5, 3), (39, 6)):
            expected = by_hand(one_term, rows.take(np.array([i])), others.take(np.array([j])))
            assert found[i, j] == pytest.approx(expected, rel=1e-9, abs=1e-12)

    def test_is_symmetric_and_positive_semi_definite(self, one_term: AdditiveKernel, rows: Inputs) -> None:
        found = one_term.matrix(rows, rows)
        np.testing.assert_allclose(found, found.T, atol=1e-12)
        values = np.linalg.eigvalsh(found)
        assert values[0] > -1e-9 * values[-1]

    def test_diagonal(self, one_term: AdditiveKernel, rows: Inputs) -> None:
        # Distances of two and more columns are differences of large numbers, and Matern takes their root.
        np.testing.assert_allclose(
            one_term.diagonal(rows), np.diag(one_term.matrix(rows, rows)), rtol=1e-6, atol=1e-9
        )

    def test_parts_add_up(self, kernel: AdditiveKernel, rows: Inputs, others: Inputs) -> None:
        parts = [kernel.matrix(rows, others, part) for part in ("structural", "control")]
        np.testing.assert_allclose(sum(parts), kernel.matrix(rows, others))
        assert all(np.abs(part).max() > 0.1 for part in parts)
        assert not kernel.matrix(rows, others, "absent").any()

    def test_many_rows(self, kernel: AdditiveKernel, others: Inputs, rng: np.random.Generator) -> None:
        n = CHUNK_SIZE // len(others) + 5
        many = Inputs(*(rng.standard_normal((n, width)) for width in (3, 3, 2)))
        found = kernel.matrix(many, others)
        last = np.arange(n - 10, n)
        np.testing.assert_allclose(found[last], kernel.matrix(many.take(last), others))
        np.testing.assert_allclose(found, kernel.matrix(others, many).T)

    def test_single_precision_is_close(self, kernel: AdditiveKernel, rows: Inputs, others: Inputs) -> None:
        single, double = (Pair.of(kernel, rows, others, single=each) for each in (True, False))
        for term, where in zip(kernel.terms, kernel.slices, strict=True):
            found, expected = (pair.term(term, kernel.parameters[where]).values for pair in (single, double))
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


class TestCurves:
    @pytest.mark.parametrize("flat", [False, True])
    def test_vanish_at_zero(self, flat: bool, rows: Inputs, others: Inputs) -> None:
        kernel = AdditiveKernel(
            ((0, 1), (1, 3)), (Term(curve=(0, 1), flat=flat),), np.array([0.3, 0.1, -0.5])
        )
        nowhere = with_curve(others, 0, 0.0)
        np.testing.assert_allclose(kernel.matrix(nowhere, rows), 0.0, atol=1e-15)
        np.testing.assert_allclose(kernel.diagonal(nowhere), 0.0, atol=1e-15)
        assert np.abs(kernel.matrix(others, rows)).max() > 0.1

    @pytest.mark.parametrize("column", [0, 1])
    def test_flat_ones_have_no_slope_there(self, column: int, rows: Inputs, others: Inputs) -> None:
        slopes = {}
        for flat in (False, True):
            term = Term(curve=(0, 1), flat=flat)
            kernel = AdditiveKernel(((0, 1), (1, 3)), (term,), np.array([0.3, 0.1, -0.5]))
            ahead, behind = (kernel.matrix(with_curve(others, column, step), rows) for step in (1e-4, -1e-4))
            slopes[flat] = np.abs(ahead - behind).max() / 2e-4
        assert slopes[True] < 1e-6
        assert slopes[False] > 0.1

    def test_factors_at_other_actions(self, kernel: AdditiveKernel, rows: Inputs, others: Inputs) -> None:
        """Context and curve apart, for grids of actions; and their derivatives."""
        pair = Pair.of(kernel, rows, others)
        for term, where in zip(kernel.terms, kernel.slices, strict=True):
            if not term.curve or term.flat:
                continue
            each = pair.term(term, kernel.parameters[where], context_only=True)
            together = each.values * each.anchored_at(rows.curve)
            np.testing.assert_allclose(together, pair.term(term, kernel.parameters[where]).values, atol=1e-12)
            gradient = each.anchored_gradient(rows.curve)
            for position, column in enumerate(term.curve):
                step = 1e-5 * np.eye(2)[column]
                ahead, behind = (each.anchored_at(rows.curve + sign * step) for sign in (1.0, -1.0))
                np.testing.assert_allclose(gradient[:, :, position], (ahead - behind) / 2e-5, atol=1e-8)


class TestDerivatives:
    """In the parameters, against finite differences."""

    def test_covariances(
        self, one_term: AdditiveKernel, rows: Inputs, others: Inputs, rng: np.random.Generator
    ) -> None:
        (term,), pair = one_term.terms, Pair.of(one_term, rows, others)
        slopes = rng.standard_normal((len(rows), len(others)))
        found = pair.term(term, one_term.parameters).pull_back(slopes)
        for number in range(term.n_parameters):
            step = 1e-5 * np.eye(term.n_parameters)[number]
            ahead, behind = (
                np.vdot(slopes, pair.term(term, one_term.parameters + sign * step).values)
                for sign in (1.0, -1.0)
            )
            assert found[number] == pytest.approx((ahead - behind) / 2e-5, rel=1e-6, abs=1e-7)

    def test_sums(
        self, kernel: AdditiveKernel, rows: Inputs, others: Inputs, rng: np.random.Generator
    ) -> None:
        """Those of all terms at once are those of each term."""
        pair, slopes = Pair.of(kernel, rows, others), rng.standard_normal((len(rows), len(others)))
        found = pair.covariance(kernel.parameters)
        terms = [pair.term(term, kernel.parameters[where]) for term, where in kernel.located]
        np.testing.assert_allclose(found.values, sum(each.values for each in terms), atol=1e-12)
        expected = np.concatenate([each.pull_back(slopes) for each in terms])
        np.testing.assert_allclose(found.pull_back(slopes), expected, rtol=1e-9)

    def test_variances(self, one_term: AdditiveKernel, rows: Inputs) -> None:
        (term,) = one_term.terms
        _, found = variance(term, one_term.parameters, rows)
        for number in range(term.n_parameters):
            step = 1e-5 * np.eye(term.n_parameters)[number]
            ahead, behind = (
                variance(term, one_term.parameters + sign * step, rows)[0] for sign in (1.0, -1.0)
            )
            np.testing.assert_allclose(found[number], (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-8)


def test_no_context() -> None:
    rows = Inputs(np.empty((4, 0)), np.arange(8.0).reshape(4, 2), np.arange(4.0)[:, None])
    kernel = AdditiveKernel((), (Term(), Term(line=(1,)), Term(curve=(0,))), np.zeros(4))
    found = kernel.matrix(rows, rows)
    curve = rows.curve[:, 0]
    expected = 1.0 + np.outer(rows.line[:, 1], rows.line[:, 1])
    expected += np.exp(-0.5 * (curve[:, None] - curve) ** 2) - np.outer(
        np.exp(-0.5 * curve**2), np.exp(-0.5 * curve**2)
    )
    np.testing.assert_allclose(found, expected)
