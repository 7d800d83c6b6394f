"""Members that share batches: each learns from its own rows only, and predicts like any other stack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dmliv.data import TrainingData, prepare
from dmliv.first_stage.blocks import (
    MemorySource,
    batches,
    data_at,
    member_weights,
    parts_of,
    resident,
    sample_rows,
    weighted_means,
)
from dmliv.first_stage.crossfit import cross_fit, first_stage_at
from dmliv.first_stage.exogenous import EXOGENOUS_ENCODINGS, ExogenousColumns, ExogenousEncoder
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.first_stage.nuisances import Exogenous
from dmliv.first_stage.shared_batches import SharedRows
from dmliv.first_stage.stacks import FittedStack, fit_shared_stack
from dmliv.nets.columns import Columns
from dmliv.nets.heads import Head, MeanHead, MixtureHead
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.runtime import Runtime

CPU = torch.device("cpu")


def halves(data: TrainingData) -> list[np.ndarray]:
    middle = len(data) // 2
    return [np.arange(middle), np.arange(middle, len(data))]


def shared_stack(
    data: TrainingData, head: Head, settings: NetworkSettings, runtime: Runtime, seed: int = 0
) -> FittedStack:
    parts, uses = parts_of(halves(data), len(data))
    source = resident(data, CPU).with_parts(parts)
    shared = SharedRows(source, uses, "outcome" if isinstance(head, MeanHead) else "action")
    return fit_shared_stack(data, parts, shared, head, settings, "stack", seed=seed, runtime=runtime)


def everywhere(data: TrainingData, stack: FittedStack) -> list[torch.Tensor]:
    return stack.outputs(Exogenous(data.context, data.instrument), [np.arange(len(data))] * 2)


class TestParts:
    def test_every_row_set_is_a_union_of_parts(self) -> None:
        rng = np.random.default_rng(0)
        row_sets = [np.flatnonzero(rng.random(200) < share) for share in (0.2, 0.5, 0.9, 1.0)]
        parts, uses = parts_of(row_sets, 200)
        for member, rows in zip(uses.numpy(), row_sets, strict=True):
            np.testing.assert_array_equal(np.flatnonzero(member[parts]), rows)

    def test_weights_hide_what_a_member_may_not_see(self, data: TrainingData) -> None:
        parts, uses = parts_of(halves(data), len(data))
        block = resident(data, CPU).with_parts(parts).block
        weights = member_weights(block, uses)
        assert weights.sum(dim=1).tolist() == [60.0, 60.0]
        losses = torch.ones(2, 120)
        losses[0, 60:] = 1e6
        assert weighted_means(losses, weights).tolist() == [1.0, 1.0]

    def test_a_pass_visits_every_row_once(self, data: TrainingData) -> None:
        parts = np.arange(len(data))
        source = resident(data, CPU).with_parts(parts)
        seen = list(batches(source, 50, np.random.default_rng(0)))
        assert [len(batch) for batch in seen] == [40, 40, 40]
        assert sorted(torch.cat([batch.part for batch in seen]).tolist()) == parts.tolist()

    def test_columns_are_held_once(self, data: TrainingData) -> None:
        first, second = resident(data, CPU), resident(data, CPU).with_parts(np.zeros(120, dtype=np.int64))
        assert isinstance(first, MemorySource)
        assert first.block.context.numeric.data_ptr() == second.block.context.numeric.data_ptr()
        assert first.block.context.numeric.dtype == torch.float32


class TestStack:
    @pytest.mark.parametrize("head", [MeanHead(), MixtureHead(2, 1)])
    def test_a_member_never_looks_at_rows_of_others(
        self, head: Head, data: TrainingData, tiny: NetworkSettings, runtime: Runtime
    ) -> None:
        fair = everywhere(data, shared_stack(data, head, tiny, runtime))
        changed = data.outcome.copy(), data.action.copy()
        for values in changed:
            values[60:] = 7.0
        damaged = replace(data, outcome=changed[0], action=changed[1])
        other = everywhere(damaged, shared_stack(damaged, head, tiny, runtime))
        # Members share sums of squares nowhere: the first one cannot tell the difference.
        torch.testing.assert_close(other[0], fair[0], rtol=0, atol=0)
        assert not torch.equal(other[1], fair[1])

    def test_the_same_seed_gives_the_same_bits(
        self, data: TrainingData, tiny: NetworkSettings, runtime: Runtime
    ) -> None:
        choosing = replace(tiny, encodings=("standardised", "piecewise_context"), rate_factors=(1.0, 2.0))
        first, second, third = (
            everywhere(data, shared_stack(data, MeanHead(), choosing, runtime, seed)) for seed in (1, 1, 2)
        )
        assert torch.equal(first[0], second[0])
        assert not torch.equal(first[0], third[0])

    def test_learns_what_members_with_their_own_batches_learn(self, runtime: Runtime) -> None:
        rng = np.random.default_rng(0)
        context, instrument = rng.standard_normal((2000, 1)), rng.standard_normal((2000, 1))
        mean = context[:, 0] + np.abs(instrument[:, 0])
        data = prepare(
            mean + 0.3 * rng.standard_normal(2000), rng.standard_normal(2000), Z=instrument, X=context
        )
        able = NetworkSettings(hidden=(32,), epochs=25, batch_size=50, dropout=0.0, learning_rate=1e-2)
        for outputs in everywhere(data, shared_stack(data, MeanHead(), able, runtime)):
            assert np.corrcoef(outputs[:, 0].numpy(), mean)[0, 1] > 0.98

    def test_chunks_change_nothing(self, data: TrainingData, tiny: NetworkSettings, runtime: Runtime) -> None:
        piecewise = replace(tiny, encodings=("piecewise",))
        stack = shared_stack(data, MeanHead(), piecewise, runtime)
        exogenous = Exogenous(data.context, data.instrument)
        row_sets = [np.arange(50, 120), np.arange(7)]
        for whole, chunked in zip(
            stack.outputs(exogenous, row_sets), stack._outputs_by_chunk(exogenous, row_sets), strict=True
        ):
            torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("encoding", EXOGENOUS_ENCODINGS)
def test_exogenous_columns_agree_with_tables(encoding: str, data: TrainingData) -> None:
    exogenous = Exogenous(data.context, data.instrument)
    encoder = ExogenousEncoder.learn(exogenous, data.context_schema, data.instrument_schema, 6)
    columns = ExogenousColumns(encoder, CPU)
    found = columns.encode(
        Columns.of(data.context, encoder.context, CPU),
        Columns.of(data.instrument, encoder.instrument, CPU),
        encoding,
    )
    expected = encoder.encode(exogenous, encoding)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert columns.width(encoding) == expected.shape[1]


class TestSample:
    def test_few_rows_are_all_taken(self) -> None:
        np.testing.assert_array_equal(sample_rows(30, 50), np.arange(30))

    def test_many_rows_are_sampled_in_order_and_always_the_same(self) -> None:
        rows = sample_rows(1000, 100)
        assert len(np.unique(rows)) == 100
        assert (np.diff(rows) > 0).all()
        np.testing.assert_array_equal(rows, sample_rows(1000, 100))

    def test_first_stage_of_some_rows(
        self, data: TrainingData, tiny: NetworkSettings, runtime: Runtime
    ) -> None:
        whole = cross_fit(
            data, NeuralOutcome(tiny), NeuralAction(tiny, 2), 3, seed=0, runtime=runtime, validates=True
        )
        rows = np.array([3, 10, 11, 70])
        part, some = first_stage_at(whole, rows), data_at(data, rows)
        assert len(some) == 4
        np.testing.assert_array_equal(part.target, whole.target[rows])
        torch.testing.assert_close(part.distribution.mean(), whole.distribution.mean()[rows])
        for split, old in zip(part.splits, whole.splits, strict=True):
            np.testing.assert_array_equal(rows[split.fit_rows], np.intersect1d(rows, old.fit_rows))
            np.testing.assert_array_equal(
                rows[split.validation_rows], np.intersect1d(rows, old.validation_rows)
            )
            np.testing.assert_array_equal(split.target, old.target[rows])
