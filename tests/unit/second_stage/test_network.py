"""The structural network: one function, however it is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dmliv.data import Table, TrainingData, prepare
from dmliv.errors import InputError, TrainingDivergedError
from dmliv.first_stage.crossfit import FirstStage
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.network import NeuralStructural, NeuralStructuralModel
from dmliv.second_stage.projection import DrawRule
from dmliv.second_stage.structural_encoder import STRUCTURAL_ENCODINGS, StructuralEncoder

MakeFirstStage = Callable[[TrainingData], FirstStage]
centred = pytest.mark.parametrize("centre_action", [False, True])
encodings = pytest.mark.parametrize("encoding", STRUCTURAL_ENCODINGS)


@pytest.fixture
def fit(data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime, tiny: NetworkSettings) -> Any:
    """Return a fitter of small structural networks on ``data``."""

    def run(
        *, seed: int = 0, settings: dict[str, Any] | None = None, **options: Any
    ) -> NeuralStructuralModel:
        learner = NeuralStructural(replace(tiny, **(settings or {})), **options)
        return learner.fit(data, make_first_stage(data), seed=seed, runtime=runtime)

    return run


def rows(data: TrainingData, n: int) -> tuple[Table, np.ndarray]:
    return data.context.take(np.arange(n)), data.action_spec.vectors(data.action)[:n]


class TestPredictions:
    @encodings
    @centred
    def test_grid_equals_rows(self, data: TrainingData, fit: Any, encoding: str, centre_action: bool) -> None:
        model = fit(settings={"encodings": (encoding,)}, n_members=3, centre_action=centre_action)
        context, _ = rows(data, 9)
        _, candidates = rows(data, 5)
        grid = model.predict_grid(context, candidates)
        assert grid.shape == (9, 5)
        assert grid.dtype == np.float64
        every = model.predict(context.take(np.repeat(np.arange(9), 5)), np.tile(candidates, (9, 1)))
        np.testing.assert_allclose(grid, every.reshape(9, 5), rtol=1e-5, atol=1e-6)
        assert np.ptp(grid, axis=1).min() > 0.0

    @pytest.mark.parametrize("data", ["one column", "two columns"], indirect=True)
    @encodings
    @centred
    def test_gradient_equals_finite_differences(
        self, data: TrainingData, fit: Any, encoding: str, centre_action: bool
    ) -> None:
        """In single precision and away from the kinks of the network, where both exist."""
        model = fit(settings={"encodings": (encoding,)}, n_members=2, centre_action=centre_action)
        context, action = rows(data, 60)
        gradient = model.gradient(context, action)
        assert gradient.shape == action.shape
        for column in range(action.shape[1]):
            step = np.zeros(action.shape[1])
            step[column] = 1e-2
            here = model.predict(context, action)
            right = (model.predict(context, action + step) - here) / 1e-2
            left = (here - model.predict(context, action - step)) / 1e-2
            smooth = np.abs(right - left) < 1e-3
            assert smooth.mean() > 0.5
            np.testing.assert_allclose(gradient[smooth, column], (left + right)[smooth] / 2, atol=2e-3)

    def test_many_rows_are_predicted_like_few(self, data: TrainingData, fit: Any) -> None:
        """More rows than one evaluation pass takes."""
        model = fit(n_members=2)
        context, action = rows(data, 100)
        many = np.tile(np.arange(100), 700)
        whole = model.predict(context.take(many), action[many])
        np.testing.assert_allclose(whole, np.tile(model.predict(context, action), 700), rtol=1e-5, atol=1e-6)
        slope = model.gradient(context.take(many), action[many])
        np.testing.assert_allclose(
            slope, np.tile(model.gradient(context, action), (700, 1)), rtol=1e-5, atol=1e-6
        )
        grid = model.predict_grid(context.take(many[:7000]), action[:10])
        np.testing.assert_allclose(
            grid, np.tile(model.predict_grid(context, action[:10]), (70, 1)), rtol=1e-5, atol=1e-6
        )

    def test_predictions_are_the_mean_of_the_members(self, data: TrainingData, fit: Any) -> None:
        model = fit(n_members=3)
        context, action = rows(data, 20)
        single = [
            replace(model, net=model.net.subset([member])).predict(context, action) for member in range(3)
        ]
        np.testing.assert_allclose(
            model.predict(context, action), np.mean(single, axis=0), rtol=1e-4, atol=1e-5
        )
        assert not np.allclose(single[0], single[1], atol=1e-3)

    def test_no_rows(self, data: TrainingData, fit: Any) -> None:
        model = fit()
        context, action = rows(data, 0)
        assert model.predict(context, action).shape == (0,)
        assert model.predict_grid(context, rows(data, 3)[1]).shape == (0, 3)
        assert model.gradient(context, action).shape == (0, data.action_spec.width)


class TestTraining:
    def test_seeds(self, data: TrainingData, fit: Any) -> None:
        context, action = rows(data, 20)
        one, same, other = (fit(seed=seed).predict(context, action) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one, same)
        assert not np.array_equal(one, other)

    @pytest.mark.parametrize("name", ["single", "mean", "unbiased", "quadrature"])
    def test_every_rule_trains(self, data: TrainingData, fit: Any, name: Any) -> None:
        model = fit(draw_rule=DrawRule(name, n_points=3))
        assert np.isfinite(model.predict(*rows(data, 20))).all()
        assert model.record.train_loss.shape == (4, 1)

    def test_early_stopping(self, data: TrainingData, fit: Any) -> None:
        model = fit(settings={"epochs": 60, "patience": 2}, n_members=2)
        assert model.record.heldout_loss is not None
        np.testing.assert_array_equal(
            model.record.final_heldout, np.nanmin(model.record.heldout_loss[:-1], axis=0)
        )

    def test_a_variance_weight_flattens_h(self, data: TrainingData, fit: Any) -> None:
        """The larger the weight, the less h varies with the action."""
        context, _ = rows(data, 30)
        _, candidates = rows(data, 12)
        spreads = [
            fit(settings={"epochs": 40}, variance_weight=weight, draw_rule=DrawRule("quadrature", n_points=3))
            .predict_grid(context, candidates)
            .std(axis=1)
            .mean()
            for weight in (0.0, 100.0)
        ]
        assert spreads[1] < 0.3 * spreads[0]

    def test_weights_of_zero(
        self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime, tiny: NetworkSettings
    ) -> None:
        """Targets of rows that do not count do not matter."""
        weight = np.ones(len(data))
        weight[::3] = 0.0
        heavy = replace(data, weight=weight / weight.mean())
        first_stage = make_first_stage(data)
        spoiled = replace(first_stage, target=np.where(weight == 0.0, 1e4, first_stage.target))
        models = [
            NeuralStructural(tiny).fit(heavy, stage, seed=0, runtime=runtime)
            for stage in (first_stage, spoiled)
        ]
        context, action = rows(data, 20)
        np.testing.assert_array_equal(*(model.predict(context, action) for model in models))

    def test_divergence_names_the_model(self, fit: Any) -> None:
        with pytest.raises(TrainingDivergedError, match="'structural model'"):
            fit(settings={"learning_rate": 1e10})


class TestChoice:
    def test_nothing_to_choose(self, fit: Any, tiny: NetworkSettings) -> None:
        assert not NeuralStructural(tiny).needs_validation
        assert NeuralStructural(replace(tiny, encodings=("standardised", "piecewise"))).needs_validation
        assert fit().choice_losses == {}

    def test_all_encodings_are_tried(self, data: TrainingData, fit: Any) -> None:
        model = fit(settings={"encodings": STRUCTURAL_ENCODINGS}, variance_weight=0.5)
        assert set(model.choice_losses) == set(STRUCTURAL_ENCODINGS)
        assert all(np.isfinite(loss) and loss > 0.0 for loss in model.choice_losses.values())
        assert model.variance_weight == 0.5
        described = model.describe()
        assert described["encoding"] == model.encoding
        assert described["variance_weight"] == model.variance_weight
        assert np.isfinite(model.predict(*rows(data, 20))).all()

    def test_the_encoding_with_the_lowest_loss_is_taken(self, fit: Any) -> None:
        model = fit(settings={"encodings": STRUCTURAL_ENCODINGS})
        assert model.encoding == min(model.choice_losses, key=model.choice_losses.__getitem__)

    def test_every_split_is_fitted_to_its_own_target_and_judged_by_outcomes(
        self, runtime: Runtime, make_first_stage: MakeFirstStage, tiny: NetworkSettings, data: TrainingData
    ) -> None:
        """A split's target at the rows that judge it is looked at by nobody."""
        first_stage = make_first_stage(data)
        wild = []
        for split in first_stage.splits:
            target = split.target.copy()
            target[split.validation_rows] = 1e3
            wild.append(replace(split, target=target))
        learner = NeuralStructural(replace(tiny, encodings=("standardised", "piecewise")))
        plain, spoiled = (
            learner.fit(data, stage, seed=0, runtime=runtime).choice_losses
            for stage in (first_stage, replace(first_stage, splits=tuple(wild)))
        )
        assert plain == spoiled

    def test_choice_with_early_stopping(self, data: TrainingData, fit: Any) -> None:
        model = fit(settings={"encodings": ("standardised", "piecewise"), "patience": 2, "epochs": 10})
        assert np.isfinite(model.predict(*rows(data, 20))).all()

    def test_unknown_encodings(self, fit: Any) -> None:
        with pytest.raises(InputError, match=r"second-stage encodings among .*got 'wavelets'"):
            fit(settings={"encodings": ("wavelets",)})

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_members": 0}, "a positive whole number for n_members, got 0"),
            ({"variance_weight": -0.1}, "of at least 0 for variance_weight, got -0.1"),
            ({"variance_weight": float("nan")}, "of at least 0 for variance_weight, got nan"),
            ({"variance_weight": (0.0, 1.0)}, r"of at least 0 for variance_weight, got \(0.0, 1.0\)"),
        ],
    )
    def test_options_that_cannot_work(
        self, tiny: NetworkSettings, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            NeuralStructural(tiny, **options)


class TestStructuralEncoder:
    @encodings
    @centred
    def test_widths(self, data: TrainingData, encoding: str, centre_action: bool) -> None:
        encoder = StructuralEncoder.learn(data, 6, centred=centre_action)
        width = data.action_spec.width
        # One numeric context with six bins and one category of three levels.
        expected = 6 + 3 if encoding.startswith("piecewise") else 1 + 3
        features = encoder.context_features(data.context, encoding)
        assert features.shape == (len(data), expected + (width if centre_action else 0))
        if centre_action:
            np.testing.assert_array_equal(features[:, expected:], encoder.centre(data.context))
        wide = encoding == "piecewise_action" and data.action_spec.kind == "continuous"
        assert encoder.action_features_width(encoding) == (width + 6 * width if wide else width)
        encode = encoder.action_encoder(encoding, torch.device("cpu"))
        assert encode(torch.zeros(4, 5, width)).shape == (4, 5, encoder.action_features_width(encoding))

    def test_the_centre_is_the_mean_action_in_the_context(self, data: TrainingData) -> None:
        encoder = StructuralEncoder.learn(data, 6, centred=True)
        centre = encoder.centre(data.context)
        vectors = data.action_spec.vectors(data.action)
        assert centre.shape == vectors.shape
        # The centre has an intercept: it is right on average.
        np.testing.assert_allclose(centre.mean(axis=0), vectors.mean(axis=0), atol=1e-5)
        assert (np.var(vectors - centre, axis=0) <= np.var(vectors, axis=0) + 1e-9).all()

    def test_a_centre_of_predictions_carries_nothing_of_the_confounder(self) -> None:
        rng = np.random.default_rng(0)
        n = 400
        X, hidden, moved = rng.standard_normal((n, 8)), rng.standard_normal(n), rng.standard_normal(n)
        data = prepare(hidden, moved + hidden, Z=moved, X=X)
        predicted = (moved[:, None] - data.action_spec.mean) / data.action_spec.scale
        left = []
        for known in (None, predicted):
            encoder = StructuralEncoder.learn(data, 24, centred=True, predicted=known)
            left.append(np.corrcoef((predicted - encoder.centre(data.context))[:, 0], hidden)[0, 1])
        # A regression of actions on 193 features follows each row's own action, and so its confounder.
        assert left[0] < -0.2
        assert abs(left[1] - np.corrcoef(moved, hidden)[0, 1]) < 0.05

    def test_without_centring_nothing_is_subtracted(self, data: TrainingData) -> None:
        encoder = StructuralEncoder.learn(data, 6, centred=False)
        np.testing.assert_array_equal(encoder.centre(data.context), 0.0)
