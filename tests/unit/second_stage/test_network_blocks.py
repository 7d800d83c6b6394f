"""h from blocks of rows: what a batch sees, and what networks learn of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from dmliv.data import TrainingData, prepare
from dmliv.first_stage.blocks import BlockSource
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.distributions import MixtureDistribution
from dmliv.nets.columns import Columns
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.network import NeuralStructural, on_sample
from dmliv.second_stage.structural_encoder import STRUCTURAL_ENCODINGS, StructuralColumns, StructuralEncoder

CPU = torch.device("cpu")


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("encoding", STRUCTURAL_ENCODINGS)
def test_columns_agree_with_tables(encoding: str, centred: bool, data: TrainingData) -> None:
    encoder = StructuralEncoder.learn(data, 5, centred=centred)
    columns = StructuralColumns(encoder, encoding, CPU)
    features, centre = columns.encode(Columns.of(data.context, encoder.context, CPU))
    np.testing.assert_allclose(
        features.numpy(), encoder.context_features(data.context, encoding), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(centre.numpy(), encoder.centre(data.context), rtol=1e-4, atol=1e-5)
    assert columns.width == features.shape[1]


Sampled = tuple[TrainingData, FirstStage, BlockSource]


@pytest.fixture
def sampled(data: TrainingData, make_first_stage: Callable[[TrainingData], FirstStage]) -> Sampled:
    return on_sample(data, make_first_stage(data), CPU)


def test_networks_can_be_fitted_to_a_source(
    data: TrainingData, sampled: Sampled, tiny: NetworkSettings, runtime: Runtime
) -> None:
    sample, left, source = sampled
    learner = NeuralStructural(replace(tiny, encodings=("standardised", "piecewise")), n_members=2)
    fits = [learner.fit_source(sample, left, source, seed=seed, runtime=runtime) for seed in (3, 3, 4)]
    actions = data.action_spec.vectors(data.action)
    values = [fit.predict(data.context, actions) for fit in fits]
    assert np.isfinite(values[0]).all()
    np.testing.assert_array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])
    assert fits[0].net.n_members == 2
    assert set(fits[0].choice_losses) == {"standardised", "piecewise"}


class TestTruth:
    """An exact first stage of h(c, a) = c + 2 a."""

    N = 1500

    @pytest.fixture
    def exact(self) -> tuple[TrainingData, FirstStage]:
        rng = np.random.default_rng(0)
        context, instrument, hidden = (rng.standard_normal(self.N) for _ in range(3))
        action = instrument + hidden
        data = prepare(context + 2.0 * action + hidden, action, Z=instrument, X=context)
        scale, mean = data.action_spec.scale[0], data.action_spec.mean[0]
        distribution = MixtureDistribution(
            torch.ones(self.N, 1),
            torch.from_numpy((instrument - mean) / scale).float().view(-1, 1, 1),
            torch.full((self.N, 1, 1, 1), float(1.0 / scale)),
        )
        target = data.outcome_spec.to_model(context + 2.0 * instrument)
        return data, FirstStage(
            target, distribution, np.zeros(self.N, dtype=np.int64), (), None, None, (0,), 1
        )  # type: ignore[arg-type]

    def test_slope_is_found(self, exact: tuple[TrainingData, FirstStage], runtime: Runtime) -> None:
        data, first_stage = exact
        able = NetworkSettings(hidden=(24,), epochs=20, batch_size=50, dropout=0.0, learning_rate=1e-2)
        sampled = on_sample(data, first_stage, CPU)
        model = NeuralStructural(able, n_members=2).fit_source(*sampled, seed=0, runtime=runtime)
        slopes = model.gradient(data.context, data.action.astype(np.float64))
        in_user_units = slopes * data.outcome_spec.scale / data.action_spec.scale
        assert abs(np.median(in_user_units) - 2.0) < 0.15
