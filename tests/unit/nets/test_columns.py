"""Columns encoded a batch at a time say what the encodings of whole tables say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dmliv.data import Table
from dmliv.nets.columns import ColumnEncoder, Columns
from dmliv.nets.encoding import TableEncoder
from dmliv.nets.settings import LARGE_ROWS, ByRows, NetworkSettings

CPU = torch.device("cpu")


def table(n: int, seed: int) -> Table:
    rng = np.random.default_rng(seed)
    numeric = np.column_stack(
        [rng.gamma(2.0, size=n), rng.integers(0, 5, n), np.full(n, 3.0), 1e6 + rng.standard_normal(n)]
    )
    codes = np.column_stack([np.arange(n) % 3, rng.integers(0, 2, n)])
    return Table(numeric, codes)


@pytest.mark.parametrize("encoding", ["raw", "standardised", "piecewise_linear", "levels"])
def test_encodings_agree_with_those_of_tables(encoding: str) -> None:
    encoder = TableEncoder.learn(table(300, 0), (3, 2), 8)
    new = table(40, 1)
    columns = ColumnEncoder(encoder, CPU)
    found = getattr(columns, encoding)(Columns.of(new, encoder, CPU))
    expected = getattr(encoder, encoding)(new)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=2e-5)
    assert getattr(columns, encoding)(columns.no_rows()).shape == (0, expected.shape[1])


def test_rows_are_taken_in_order() -> None:
    encoder = TableEncoder.learn(table(30, 0), (3, 2), 4)
    whole = Columns.of(table(30, 0), encoder, CPU)
    part = whole.take(torch.tensor([4, 2]))
    assert len(part) == 2
    assert torch.equal(part.numeric, whole.numeric[[4, 2]])
    assert torch.equal(part.codes, whole.codes[[4, 2]])


class TestBudgets:
    RULE = NetworkSettings(
        batch_size=ByRows(factor=-200_000, offset=300, low=100, high=250),
        epochs=ByRows(factor=900, power=0.5, low=4, high=60),
    )

    @pytest.mark.parametrize(
        ("n_rows", "epochs", "batch"), [(1000, 28, 100), (10_000, 9, 250), (LARGE_ROWS, 4, 250)]
    )
    def test_up_to_the_limit_the_rule_is_all_there_is(self, n_rows: int, epochs: int, batch: int) -> None:
        plan = self.RULE.plan(n_rows)
        assert (plan.epochs, plan.batch_size) == (epochs, batch)

    def test_beyond_it_batches_grow_and_steps_grow_more_slowly_than_rows(self) -> None:
        plans = {n: self.RULE.plan(n) for n in (LARGE_ROWS, 200_000, 1_000_000)}
        batch = [plan.batch_size for plan in plans.values()]
        steps = [plan.epochs * n / plan.batch_size for n, plan in plans.items()]
        assert batch == sorted(batch)
        assert batch[-1] > 2 * batch[0]
        assert steps[-1] < 20 * steps[0]

    def test_a_fixed_batch_size_is_kept(self) -> None:
        plan = NetworkSettings(batch_size=50, epochs=7).plan(1_000_000)
        assert (plan.epochs, plan.batch_size) == (7, 50)
