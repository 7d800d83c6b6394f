"""Neural nuisances: what they learn, and the encodings they read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dmliv.data import TrainingData, prepare
from dmliv.errors import InputError, TrainingDivergedError
from dmliv.first_stage.distributions import CategoricalDistribution, MixtureDistribution
from dmliv.first_stage.exogenous import EXOGENOUS_ENCODINGS, ExogenousEncoder
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.first_stage.nuisances import Exogenous
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.runtime import Runtime


def everything(data: TrainingData) -> list[np.ndarray]:
    return [np.arange(len(data))]


def exogenous(data: TrainingData) -> Exogenous:
    return Exogenous(data.context, data.instrument)


@pytest.fixture
def able() -> NetworkSettings:
    """Settings that learn simple functions."""
    return NetworkSettings(hidden=(32,), epochs=40, batch_size=50, dropout=0.0, learning_rate=1e-2)


class TestWhatIsLearned:
    def test_outcome_networks_learn_the_mean(self, runtime: Runtime, able: NetworkSettings) -> None:
        rng = np.random.default_rng(0)
        context, instrument = rng.standard_normal((1000, 1)), rng.standard_normal((1000, 1))
        mean = context[:, 0] + np.abs(instrument[:, 0])
        data = prepare(
            mean + 0.3 * rng.standard_normal(1000), rng.standard_normal(1000), Z=instrument, X=context
        )
        model = NeuralOutcome(able).fit(data, everything(data), seed=0, runtime=runtime)
        predicted = model.predict(exogenous(data), everything(data))[0] * data.outcome_spec.scale
        assert np.corrcoef(predicted, mean)[0, 1] > 0.98
        record = model.describe()
        assert record["encodings"] == ["standardised"]
        losses = record["train_loss"]
        assert isinstance(losses, list)
        assert losses[-1] < losses[0]

    def test_action_networks_learn_mean_and_spread(self, runtime: Runtime, able: NetworkSettings) -> None:
        rng = np.random.default_rng(0)
        instrument = rng.standard_normal((2000, 1))
        spread = np.where(instrument[:, 0] > 0, 0.3, 1.2)
        action = 2.0 * instrument[:, 0] + spread * rng.standard_normal(2000)
        data = prepare(rng.standard_normal(2000), action, Z=instrument)
        model = NeuralAction(able, n_components=2).fit(data, everything(data), seed=0, runtime=runtime)
        distribution = model.distributions(exogenous(data), everything(data))[0]
        assert isinstance(distribution, MixtureDistribution)
        scale = data.action_spec.scale[0]
        mean = distribution.mean()[:, 0].numpy() * scale + data.action_spec.mean[0]
        assert np.sqrt(np.mean((mean - 2.0 * instrument[:, 0]) ** 2)) < 0.25
        nodes = distribution.nodes(torch.arange(2000), 5)
        centred = nodes.actions[..., 0] - distribution.mean()
        sd = (nodes.weights * centred.square()).sum(-1).sqrt().numpy() * scale
        away = np.abs(instrument[:, 0]) > 0.3
        np.testing.assert_allclose(np.median(sd[away & (spread < 1)]), 0.3, rtol=0.25)
        np.testing.assert_allclose(np.median(sd[away & (spread > 1)]), 1.2, rtol=0.25)

    def test_classifiers_learn_probabilities(self, runtime: Runtime, able: NetworkSettings) -> None:
        rng = np.random.default_rng(0)
        instrument = rng.integers(0, 2, 2000)
        action = np.where(rng.random(2000) < np.where(instrument == 1, 0.9, 0.2), "yes", "no")
        data = prepare(rng.standard_normal(2000), action, Z=instrument)
        model = NeuralAction(able).fit(data, everything(data), seed=0, runtime=runtime)
        distribution = model.distributions(exogenous(data), everything(data))[0]
        assert isinstance(distribution, CategoricalDistribution)
        yes = distribution.probabilities[:, data.action_spec.levels.index("yes")].numpy()
        for level in (0, 1):
            share = (action[instrument == level] == "yes").mean()
            np.testing.assert_allclose(yes[instrument == level], share, atol=0.05)

    def test_weights_change_what_is_learned(self, runtime: Runtime, able: NetworkSettings) -> None:
        rng = np.random.default_rng(0)
        group = rng.integers(0, 2, 600)
        instrument = rng.standard_normal(600)
        weight = np.where(group == 1, 1.0, 0.0)
        data = prepare(
            np.where(group == 1, 1.0, -1.0) + 0.01 * rng.standard_normal(600),
            rng.standard_normal(600),
            Z=instrument,
        )
        data = replace(data, weight=weight / weight.mean())
        model = NeuralOutcome(able).fit(data, everything(data), seed=0, runtime=runtime)
        predicted = data.outcome_spec.to_user(model.predict(exogenous(data), everything(data))[0])
        np.testing.assert_allclose(predicted.mean(), 1.0, atol=0.1)

    def test_divergence_names_the_model(
        self, data: TrainingData, runtime: Runtime, tiny: NetworkSettings
    ) -> None:
        wild = replace(tiny, learning_rate=1e10)
        with pytest.raises(TrainingDivergedError, match="'outcome model'"):
            NeuralOutcome(wild).fit(data, everything(data), seed=0, runtime=runtime)
        with pytest.raises(TrainingDivergedError, match="'action model'"):
            NeuralAction(wild).fit(data, everything(data), seed=0, runtime=runtime)


class TestMixedEncodings:
    def test_members_with_different_encodings_predict_new_rows(
        self, data: TrainingData, runtime: Runtime, tiny: NetworkSettings
    ) -> None:
        """Rows are predicted alike whether they come in one table or in parts."""
        settings = replace(tiny, encodings=("standardised", "piecewise", "products"))
        row_sets = [np.arange(0, 60), np.arange(30, 90), np.arange(60, 120)]
        model = NeuralOutcome(settings).fit(data, row_sets, seed=0, runtime=runtime)
        whole = model.predict(exogenous(data), [np.arange(120)] * 3)
        rows = np.arange(40, 60)
        part = Exogenous(data.context.take(rows), data.instrument.take(rows))
        for one, other in zip(model.predict(part, [np.arange(20)] * 3), whole, strict=True):
            np.testing.assert_allclose(one, other[rows], rtol=1e-4, atol=1e-5)


class TestExogenousEncoder:
    def encoder(self, data: TrainingData) -> ExogenousEncoder:
        return ExogenousEncoder.learn(exogenous(data), data.context_schema, data.instrument_schema, 8)

    @pytest.mark.parametrize(
        ("encoding", "width"),
        # Two numeric contexts and two numeric instruments with 8 bins each.
        [("raw", 4), ("standardised", 4), ("piecewise", 32), ("piecewise_context", 18), ("products", 8)],
    )
    def test_widths(self, data: TrainingData, encoding: str, width: int) -> None:
        features = self.encoder(data).encode(exogenous(data), encoding)
        assert features.shape == (len(data), width)
        assert features.dtype.kind == "f"

    def test_all_encodings_are_known(self, data: TrainingData) -> None:
        for encoding in EXOGENOUS_ENCODINGS:
            assert np.isfinite(self.encoder(data).encode(exogenous(data), encoding)).all()
        with pytest.raises(InputError, match="got 'wavelets'"):
            self.encoder(data).encode(exogenous(data), "wavelets")

    def test_raw_columns_are_left_as_they_are(self, data: TrainingData) -> None:
        features = self.encoder(data).encode(exogenous(data), "raw")
        expected = np.hstack([data.context.numeric, data.instrument.numeric])
        np.testing.assert_allclose(features, expected, rtol=1e-6)

    def test_products_pair_instruments_with_contexts(self, data: TrainingData) -> None:
        features = self.encoder(data).encode(exogenous(data), "products")
        context, instrument, pairs = features[:, :2], features[:, 2:4], features[:, 4:]
        expected = np.stack([instrument[:, i] * context[:, j] for i in range(2) for j in range(2)], axis=1)
        np.testing.assert_allclose(pairs, expected, rtol=1e-5, atol=1e-6)

    def test_no_context(self) -> None:
        rng = np.random.default_rng(0)
        data = prepare(rng.standard_normal(50), rng.standard_normal(50), Z=rng.standard_normal((50, 2)))
        for encoding, width in (("standardised", 2), ("products", 2), ("piecewise", 16)):
            assert self.encoder(data).encode(exogenous(data), encoding).shape == (50, width)

    def test_categorical_instruments_and_contexts(self) -> None:
        rng = np.random.default_rng(0)
        data = prepare(
            rng.standard_normal(60),
            rng.standard_normal(60),
            Z=np.array(["a", "b", "c"])[rng.integers(0, 3, 60)],
            X=np.array(["u", "v"])[rng.integers(0, 2, 60)],
        )
        features = self.encoder(data).encode(exogenous(data), "products")
        # Two context levels, three instrument levels and their six combinations, one of which holds per row.
        assert features.shape == (60, 2 + 3 + 6)
        np.testing.assert_array_equal(features[:, 5:].sum(axis=1), 1.0)
