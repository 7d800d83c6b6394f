"""Columns in place of a wide block: facts about what they keep of it, and about rows that are left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from dmliv.data import FloatArray, IntArray
from dmliv.kernels.block_index import BlockIndex, Surroundings, without_rows


@dataclass(frozen=True)
class _Rows:
    """A block of ten columns that acts through one function of them, times a column beside it."""

    block: FloatArray
    around: Surroundings
    target: FloatArray
    function: FloatArray
    fold: IntArray

    @property
    def n_rows(self) -> int:
        return len(self.target)

    def without_surroundings(self) -> _Rows:
        none = self.block[:, :0]
        return replace(self, around=Surroundings(none, none, none))

    def learn(
        self, *, target: FloatArray | None = None, weight: FloatArray | None = None
    ) -> tuple[BlockIndex, FloatArray] | None:
        return BlockIndex.learn(
            self.block,
            self.around,
            self.target if target is None else target,
            np.ones(self.n_rows) if weight is None else weight,
            self.fold,
            np.random.default_rng(3),
        )


def _draw(n: int = 400, seed: int = 0) -> _Rows:
    rng = np.random.default_rng(seed)
    block, near, moving, other = (rng.standard_normal((n, width)) for width in (10, 1, 1, 2))
    function = np.tanh(block[:, 0] + 0.5 * block[:, 1])
    target = (2.0 + near[:, 0]) * function + moving[:, 0] + other[:, 1] + 0.3 * rng.standard_normal(n)
    return _Rows(block, Surroundings(near, moving, other), target, function, rng.permutation(n) % 5)


def _explained(index: FloatArray, function: FloatArray) -> float:
    return float(np.corrcoef(index[:, 0], function)[0, 1] ** 2)


def test_rows_are_left_out_as_if_they_had_never_been_there() -> None:
    rng = np.random.default_rng(0)
    roots, target = rng.standard_normal((30, 40)), rng.standard_normal(30)
    matrix, out = roots @ roots.T + np.eye(30), np.array([2, 3, 17])
    rest = np.setdiff1d(np.arange(30), out)
    precision = np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    found = without_rows(precision, precision @ target, out)
    np.testing.assert_allclose(found[rest], np.linalg.solve(matrix[np.ix_(rest, rest)], target[rest]))
    np.testing.assert_allclose(found[out], 0.0, atol=1e-10)
    np.testing.assert_array_equal(without_rows(matrix, target, out[:0]), target)


class TestBlockIndex:
    def test_it_finds_what_the_block_does(self) -> None:
        rows, fresh = _draw(), _draw(1000, seed=1)
        learned = rows.learn()
        assert learned is not None
        index, values = learned
        assert values.shape == (400, 3)
        assert _explained(values, rows.function) > 0.8
        assert _explained(index.at(fresh.block), fresh.function) > 0.8
        # Columns have mean zero and variance one, also for blocks that were not learned from.
        np.testing.assert_allclose(values.mean(axis=0), 0.0, atol=1e-9)
        np.testing.assert_allclose(values.std(axis=0), 1.0, atol=1e-9)
        assert index.at(fresh.block)[:, 0].std() == pytest.approx(1.0, abs=0.15)

    def test_a_row_is_described_without_its_fold(self) -> None:
        rows, rng = _draw().without_surroundings(), np.random.default_rng(1)
        noise = rng.standard_normal(rows.n_rows)
        learned = rows.learn(target=rows.function + noise)
        assert learned is not None
        index, values = learned
        # Rows that were learned from are known by their own noise; those of a fold left out are not.
        assert np.corrcoef(index.at(rows.block)[:, 0], noise)[0, 1] ** 2 > 0.1
        assert np.corrcoef(values[:, 0], noise)[0, 1] ** 2 < 0.02
        assert _explained(values, rows.function) > 0.5

    def test_a_block_without_effect_leaves_no_columns(self) -> None:
        rows = _draw()
        shuffled = np.random.default_rng(2).permutation(rows.n_rows)
        same = np.ones_like(rows.block)
        for block in (rows.block[shuffled], same):
            assert replace(rows, block=block).learn() is None

    def test_no_columns_beside_the_block(self) -> None:
        rows = _draw().without_surroundings()
        learned = rows.learn()
        assert learned is not None
        # The block's function is then all there is to know.
        assert learned[1].shape[1] == 1
        assert _explained(learned[1], rows.function) > 0.7

    def test_rows_without_weight_say_nothing(self) -> None:
        rows = _draw()
        weight = np.where(np.arange(rows.n_rows) < 100, 0.0, 1.0)
        first = rows.learn(weight=weight)
        second = rows.learn(weight=weight, target=np.where(weight > 0.0, rows.target, 1e6))
        assert first is not None
        assert second is not None
        np.testing.assert_array_equal(first[1], second[1])
        assert len(first[0].landmarks) == 300

    def test_the_same_seed_gives_the_same_columns(self) -> None:
        first, second = _draw().learn(), _draw().learn()
        assert first is not None
        assert second is not None
        np.testing.assert_array_equal(first[1], second[1])
