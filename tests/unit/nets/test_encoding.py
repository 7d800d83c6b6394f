"""Encodings: what the features say about the numbers they came from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dmliv.data import Table
from dmliv.nets.encoding import PiecewiseLinear, PiecewiseLinearTensor, TableEncoder, products

CPU = torch.device("cpu")
VALUES = np.random.default_rng(0).gamma(2.0, size=500)
ENCODING = PiecewiseLinear.learn(VALUES, 8)


class TestPiecewiseLinear:
    def test_knots_are_quantiles(self) -> None:
        np.testing.assert_allclose(ENCODING.knots, np.quantile(VALUES, np.linspace(0, 1, 9)))
        assert ENCODING.width == 8

    def test_reconstructs_the_value_inside_and_beyond_the_knots(self) -> None:
        values = np.linspace(VALUES.min() - 5.0, VALUES.max() + 5.0, 301)
        rebuilt = ENCODING.knots[0] + ENCODING.encode(values) @ np.diff(ENCODING.knots)
        np.testing.assert_allclose(rebuilt, values, atol=1e-12)

    @given(
        arrays(np.float64, 40, elements=st.floats(-1e3, 1e3, width=32)),
        st.integers(1, 20),
        st.floats(-2e3, 2e3, width=32),
    )
    def test_reconstructs_whatever_the_training_values(
        self, training: np.ndarray, n_bins: int, value: float
    ) -> None:
        encoding = PiecewiseLinear.learn(training, n_bins)
        assert (np.diff(encoding.knots) > 0).all()
        features = encoding.encode(np.array([value]))
        assert np.isfinite(features).all()
        rebuilt = float(encoding.knots[0] + features[0] @ np.diff(encoding.knots))
        assert rebuilt == pytest.approx(value, abs=1e-6, rel=1e-9)

    def test_is_continuous(self) -> None:
        for knot in ENCODING.knots:
            low, high = ENCODING.encode(np.array([knot - 1e-9, knot + 1e-9]))
            np.testing.assert_allclose(low, high, atol=1e-6)

    def test_is_linear_inside_bins(self) -> None:
        for start, stop in zip(ENCODING.knots[:-1], ENCODING.knots[1:], strict=True):
            first, middle, last = ENCODING.encode(np.array([start, (start + stop) / 2, stop]))
            np.testing.assert_allclose(middle, (first + last) / 2, atol=1e-12)

    def test_one_feature_moves_per_bin(self) -> None:
        for index, (start, stop) in enumerate(zip(ENCODING.knots[:-1], ENCODING.knots[1:], strict=True)):
            first, last = ENCODING.encode(np.array([start, stop]))
            expected = np.zeros(ENCODING.width)
            expected[index] = 1.0
            np.testing.assert_allclose(last - first, expected, atol=1e-12)

    def test_extends_linearly_beyond_the_ends(self) -> None:
        low, high = ENCODING.knots[[0, -1]]
        first_width, last_width = np.diff(ENCODING.knots)[[0, -1]]
        below = ENCODING.encode(np.array([low - 3 * first_width]))[0]
        above = ENCODING.encode(np.array([high + 3 * last_width]))[0]
        np.testing.assert_allclose(below, [-3.0, *[0.0] * 7], atol=1e-9)
        np.testing.assert_allclose(above, [*[1.0] * 7, 4.0], atol=1e-9)

    def test_few_values_get_a_knot_each(self) -> None:
        values = np.repeat([3.0, 1.0, 7.0], 50)
        encoding = PiecewiseLinear.learn(values, 16)
        np.testing.assert_array_equal(encoding.knots, [1.0, 3.0, 7.0])
        np.testing.assert_array_equal(encoding.encode(np.array([1.0, 3.0, 7.0])), [[0, 0], [1, 0], [1, 1]])

    def test_repeated_quantiles_are_merged(self) -> None:
        values = np.concatenate([np.zeros(900), np.linspace(0.0, 1.0, 100)])
        encoding = PiecewiseLinear.learn(values, 16)
        assert (np.diff(encoding.knots) > 0).all()
        assert encoding.width < 16

    def test_a_constant_column_still_encodes(self) -> None:
        encoding = PiecewiseLinear.learn(np.full(20, 4.0), 16)
        np.testing.assert_array_equal(encoding.encode(np.array([4.0, 6.0])), [[0.0], [2.0]])

    def test_one_bin_is_linear_everywhere(self) -> None:
        encoding = PiecewiseLinear.learn(VALUES, 1)
        values = np.array([-10.0, 0.5, 100.0])
        span = VALUES.max() - VALUES.min()
        np.testing.assert_allclose(encoding.encode(values)[:, 0], (values - VALUES.min()) / span)

    def test_tensors_are_encoded_alike(self) -> None:
        other = PiecewiseLinear.learn(VALUES**2, 5)
        values = np.random.default_rng(1).normal(2.0, 4.0, (6, 7, 2))
        encoded = PiecewiseLinearTensor([ENCODING, other], CPU).encode(torch.from_numpy(values).float())
        assert encoded.shape == (6, 7, 13)
        expected = np.hstack([ENCODING.encode(values[..., 0].ravel()), other.encode(values[..., 1].ravel())])
        np.testing.assert_allclose(encoded.reshape(-1, 13).numpy(), expected, rtol=1e-4, atol=1e-4)


def table(n: int = 200) -> Table:
    rng = np.random.default_rng(2)
    numeric = np.column_stack([rng.normal(5.0, 2.0, n), rng.integers(0, 3, n)]).astype(np.float64)
    return Table(numeric, np.column_stack([rng.integers(0, 4, n), rng.integers(0, 2, n)]))


class TestTableEncoder:
    rows = table()
    encoder = TableEncoder.learn(rows, (4, 2), 8)

    def test_raw(self) -> None:
        np.testing.assert_array_equal(self.encoder.raw(self.rows)[:, :2], self.rows.numeric)

    def test_standardised(self) -> None:
        features = self.encoder.standardised(self.rows)
        assert features.shape == (200, 2 + 4 + 2)
        np.testing.assert_allclose(features[:, :2].mean(axis=0), 0.0, atol=1e-12)
        np.testing.assert_allclose(features[:, :2].std(axis=0), 1.0)

    @pytest.mark.parametrize("encoding", ["raw", "standardised", "piecewise_linear", "levels"])
    def test_categories_are_one_hot(self, encoding: str) -> None:
        features = getattr(self.encoder, encoding)(self.rows)
        first, second = features[:, -6:-2], features[:, -2:]
        np.testing.assert_array_equal(first.argmax(axis=1), self.rows.codes[:, 0])
        np.testing.assert_array_equal(second.argmax(axis=1), self.rows.codes[:, 1])
        assert set(np.unique(features[:, -6:])) == {0.0, 1.0}
        np.testing.assert_array_equal(first.sum(axis=1), 1.0)
        np.testing.assert_array_equal(second.sum(axis=1), 1.0)

    def test_piecewise_linear(self) -> None:
        features = self.encoder.piecewise_linear(self.rows)
        # Eight quantile bins of the first column, one bin between each two of the three values of the second.
        assert features.shape == (200, 8 + 2 + 6)
        np.testing.assert_allclose(
            features[:, :8], PiecewiseLinear.learn(self.rows.numeric[:, 0], 8).encode(self.rows.numeric[:, 0])
        )

    def test_levels_of_few_valued_columns_and_scales_of_the_others(self) -> None:
        encoder = TableEncoder.learn(self.rows, (4, 2), 16)
        features = encoder.levels(self.rows)
        assert features.shape == (200, 1 + 2 + 6)
        np.testing.assert_allclose(features[:, 0], encoder.standardised(self.rows)[:, 0])
        np.testing.assert_array_equal(features[:, 1:3].sum(axis=1), self.rows.numeric[:, 1])

    def test_new_rows_are_encoded_with_the_numbers_of_the_training_rows(self) -> None:
        part = self.rows.take(np.arange(5))
        for encoding in ("raw", "standardised", "piecewise_linear", "levels"):
            encode = getattr(self.encoder, encoding)
            np.testing.assert_array_equal(encode(part), encode(self.rows)[:5])

    def test_a_table_without_columns(self) -> None:
        empty = Table(np.empty((7, 0)), np.empty((7, 0), dtype=np.int64))
        encoder = TableEncoder.learn(empty, (), 8)
        for encoding in ("raw", "standardised", "piecewise_linear", "levels"):
            assert getattr(encoder, encoding)(empty).shape == (7, 0)

    @pytest.mark.parametrize("value", [0.0, 4.0, 0.1, 0.7, 1e6 + 0.1])
    def test_a_constant_column_has_scale_one(self, value: float) -> None:
        """Rounding leaves a constant column with a tiny standard deviation, which must not become a scale."""
        rows = Table(np.full((1000, 1), value), np.empty((1000, 0), dtype=np.int64))
        encoder = TableEncoder.learn(rows, (), 8)
        elsewhere = Table(np.array([[value + 1.0]]), np.empty((1, 0), dtype=np.int64))
        np.testing.assert_allclose(encoder.standardised(rows), 0.0, atol=1e-6)
        np.testing.assert_allclose(encoder.standardised(elsewhere), 1.0, atol=1e-6)


class TestProducts:
    def test_all_pairs(self) -> None:
        left, right = np.arange(6.0).reshape(2, 3), np.arange(4.0).reshape(2, 2) + 1.0
        expected = [np.outer(a, b).ravel() for a, b in zip(left, right, strict=True)]
        np.testing.assert_array_equal(products(left, right), expected)

    def test_no_columns_give_no_products(self) -> None:
        assert products(np.ones((5, 3)), np.empty((5, 0))).shape == (5, 0)
