"""The triangular factor of rows that come in blocks is that of all rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dmliv.estimators.linear_rows import InstrumentSpace, LinearRows, LinearSystem


def all_rows(n: int = 300) -> LinearRows:
    rng = np.random.default_rng(100)
    x, z, hidden = rng.standard_normal((3, n))
    exogenous = np.column_stack([np.ones(n), 1e4 + x, np.full(n, 0.1), 3.0 * x])
    instruments = np.column_stack([z, z**2, z + x])
    price = (z + hidden)[:, None]
    return LinearRows(1e6 + price[:, 0] + hidden, exogenous, price, instruments, rng.uniform(0.5, 2.0, n))


def in_blocks(rows: LinearRows, size: int) -> Iterator[LinearRows]:
    for start in range(0, len(rows.outcome), size):
        part = slice(start, start + size)
        yield LinearRows(
            rows.outcome[part],
            rows.exogenous[part],
            rows.endogenous[part],
            rows.instruments[part],
            rows.weight[part],
        )


@pytest.mark.parametrize("size", [1, 7, 300])
def test_products_of_columns_are_kept(size: int) -> None:
    rows = all_rows()
    system = LinearSystem.learn(lambda: in_blocks(rows, size))
    columns = np.vstack(list(system.blocks()))
    assert columns.shape == (300, 9)
    np.testing.assert_allclose(system.factored.T @ system.factored, columns.T @ columns, atol=1e-8)
    weight = rows.weight / rows.weight.mean()
    np.testing.assert_allclose(columns[:, 0], np.sqrt(weight))
    spread = np.sqrt(np.average((columns / np.sqrt(weight)[:, None]) ** 2, axis=0, weights=weight))
    # All features have one spread, but for a column that is one number: it adds nothing to the constant.
    np.testing.assert_allclose(spread[:-1], [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0], atol=1e-9)


def test_bases_are_orthonormal_and_count_what_is_new() -> None:
    rows = all_rows()
    system = LinearSystem.learn(lambda: in_blocks(rows, 64))
    space = InstrumentSpace.learn(system)
    # x and its multiple are one; of the instruments z + x is known from z and x.
    assert space.included.shape[1] == 2
    assert space.n_added == 2
    np.testing.assert_allclose(space.added.T @ space.added, np.eye(2), atol=1e-10)
    np.testing.assert_allclose(space.included.T @ space.added, 0.0, atol=1e-10)
    by_row = system.instruments(np.vstack(list(system.blocks()))) @ (space.inverse @ space.added)
    np.testing.assert_allclose(by_row.T @ by_row, np.eye(2), atol=1e-9)
