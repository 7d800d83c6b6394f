"""h by kernel ridge regression on the projected kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dmliv.data import TrainingData, prepare
from dmliv.errors import InputError
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.distributions import CategoricalDistribution, MixtureDistribution
from dmliv.kernels.features import gaussian_kernel
from dmliv.kernels.ridge import PENALTIES
from dmliv.learners import kernel
from dmliv.nets.images import ImageColumns
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.kernel import KernelStructural

MakeFirstStage = Callable[[TrainingData], FirstStage]

SMALL = KernelStructural(n_landmarks=60)


def only(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("data", [kind], indirect=True)


def weighted(data: TrainingData, zeros: float = 0.0) -> TrainingData:
    rng = np.random.default_rng(3)
    weight = rng.uniform(0.5, 2.0, len(data)) * (rng.uniform(size=len(data)) >= zeros)
    return replace(data, weight=weight / weight.mean())


def own_actions(data: TrainingData) -> np.ndarray:
    return data.action_spec.vectors(data.action)


@only("discrete")
def test_finite_distribution_gives_the_explicit_ridge_solution(
    data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
) -> None:
    data = weighted(data)
    stage = make_first_stage(data)
    stage = replace(stage, target=data.outcome + 0.1 * np.cos(np.arange(len(data))))
    # With all rows as landmarks, h is in the space of the kernels of all rows.
    model: Any = KernelStructural(n_landmarks=len(data)).fit(data, stage, seed=0, runtime=runtime)
    landmarks, scales, context = (
        model.features.landmarks,
        model.features.scales,
        model.encoder.standardised(data.context),
    )
    assert isinstance(stage.distribution, CategoricalDistribution)
    projected = np.zeros((len(data), len(landmarks)))
    for level, probability in enumerate(stage.distribution.probabilities.double().numpy().T):
        rows = np.hstack([np.tile(np.eye(3)[level], (len(data), 1)), context])
        projected += probability[:, None] * gaussian_kernel(rows, landmarks, scales)
    penalty = data.weight.sum() * model.chosen["penalty"]
    left = projected.T * data.weight
    kernel_matrix = gaussian_kernel(landmarks, landmarks, scales)
    alpha = np.linalg.lstsq(left @ projected + penalty * kernel_matrix, left @ stage.target, rcond=1e-13)[0]
    rows = np.hstack([own_actions(data), context])
    expected = gaussian_kernel(rows, landmarks, scales) @ alpha
    np.testing.assert_allclose(model.predict(data.context, own_actions(data)), expected, atol=1e-4)


def test_order_of_rows_does_not_matter(
    data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
) -> None:
    stage = make_first_stage(data)
    order = np.random.default_rng(5).permutation(len(data))
    shuffled = replace(
        data,
        outcome=data.outcome[order],
        action=data.action[order],
        context=data.context.take(order),
        instrument=data.instrument.take(order),
    )
    index = torch.from_numpy(order)
    distribution: Any = stage.distribution
    if isinstance(distribution, CategoricalDistribution):
        distribution = CategoricalDistribution(distribution.probabilities[index])
    else:
        distribution = MixtureDistribution(
            distribution.weights[index], distribution.means[index], distribution.factors[index]
        )
    learner = KernelStructural(n_landmarks=len(data))
    models = [
        learner.fit(data, stage, seed=0, runtime=runtime),
        learner.fit(
            shuffled,
            replace(stage, target=shuffled.outcome, distribution=distribution),
            seed=0,
            runtime=runtime,
        ),
    ]
    assert models[0].describe()["penalty"] == models[1].describe()["penalty"]
    predictions = [model.predict(data.context, own_actions(data)) for model in models]
    np.testing.assert_allclose(predictions[0], predictions[1], atol=1e-5)


@only("one column")
def test_rows_of_no_weight_teach_nothing(
    data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
) -> None:
    data = weighted(data, zeros=0.3)
    stage = make_first_stage(data)
    damaged = np.where(data.weight > 0.0, data.outcome, 1e3)
    models = [
        SMALL.fit(replace(data, outcome=y), replace(stage, target=y), seed=0, runtime=runtime)
        for y in (data.outcome, damaged)
    ]
    predictions = [model.predict(data.context, own_actions(data)) for model in models]
    np.testing.assert_allclose(predictions[0], predictions[1], atol=1e-9)


def test_truth_nonlinear_in_the_action(runtime: Runtime, make_first_stage: MakeFirstStage) -> None:
    rng = np.random.default_rng(0)
    n = 1500
    x, z, hidden = rng.standard_normal((n, 1)), rng.uniform(-3.0, 3.0, n), rng.standard_normal(n)
    action = z + 0.5 * hidden
    outcome = np.sin(1.5 * action) * (1.0 + 0.3 * x[:, 0]) + hidden
    data = prepare(outcome, action, Z=z, X=x)
    centre, scale = action.mean(), action.std()
    means = torch.from_numpy((z - centre) / scale).float().reshape(n, 1, 1)
    distribution = MixtureDistribution(torch.ones(n, 1), means, torch.full((n, 1, 1, 1), 0.5 / scale))
    stage = replace(make_first_stage(data), distribution=distribution)
    model = KernelStructural().fit(data, stage, seed=0, runtime=runtime)
    inside = np.abs(action) < 2.5
    predicted = data.outcome_spec.to_user(model.predict(data.context, own_actions(data)))
    truth = np.sin(1.5 * action) * (1.0 + 0.3 * x[:, 0])
    error = np.mean((predicted - truth)[inside] ** 2)
    assert error < 0.05
    assert error < 0.3 * np.mean((outcome - truth)[inside] ** 2)


def test_distribution_means_are_the_exact_gaussian_integral() -> None:
    rng = np.random.default_rng(0)
    means, landmarks = rng.standard_normal((5, 1, 1)), rng.standard_normal((4, 1))
    distribution = MixtureDistribution(
        torch.ones(5, 1), torch.from_numpy(means).float(), torch.full((5, 1, 1, 1), 0.4)
    )
    found = distribution.kernel_means(np.array([3, 1]), landmarks, np.array([1.5]), n_points=7)
    wide = np.sqrt(1.5**2 + 0.4**2)
    expected = 1.5 / wide * gaussian_kernel(means[[3, 1], 0], landmarks, np.array([wide]))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_gradient_grid_and_chosen_settings(
    data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
) -> None:
    model = SMALL.fit(data, make_first_stage(data), seed=0, runtime=runtime)
    actions, width = own_actions(data), data.action_spec.width
    for column in range(width):
        step = 1e-4 * np.eye(width)[column]
        ahead, behind = (model.predict(data.context, actions + sign * step) for sign in (1.0, -1.0))
        gradient = model.gradient(data.context, actions)[:, column]
        np.testing.assert_allclose(gradient, (ahead - behind) / 2e-4, atol=1e-5)
    grid = model.predict_grid(data.context, actions[:3])
    for position in range(3):
        repeated = np.tile(actions[position], (len(data), 1))
        np.testing.assert_allclose(grid[:, position], model.predict(data.context, repeated), atol=1e-7)
    assert model.describe()["penalty"] in PENALTIES


@only("one column")
def test_seeds(data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime) -> None:
    stage = make_first_stage(data)
    fits = [SMALL.fit(data, stage, seed=seed, runtime=runtime) for seed in (0, 0, 1)]
    predictions = [fit.predict(data.context, own_actions(data)) for fit in fits]
    np.testing.assert_array_equal(predictions[0], predictions[1])
    assert np.abs(predictions[0] - predictions[2]).max() > 1e-8


class TestErrors:
    @pytest.mark.parametrize("parameters", [{"n_landmarks": 0}, {"n_points": 0}, {"n_landmarks": 1.5}])
    def test_parameters(self, parameters: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="Expected a positive whole number"):
            KernelStructural(**parameters)

    def test_convolutions(self, runtime: Runtime, make_first_stage: MakeFirstStage) -> None:
        rng = np.random.default_rng(0)
        z, pixels = rng.standard_normal(60), rng.uniform(size=(60, 400))
        data = prepare(z + rng.standard_normal(60), z + rng.standard_normal(60), Z=z, X=pixels)
        stage = make_first_stage(data)
        gradients = ImageColumns(20, 20, first=0)
        with pytest.raises(InputError, match="features='gradients'"):
            replace(SMALL, image=replace(gradients, features="convolution")).fit(
                data, stage, seed=0, runtime=runtime
            )
        model = replace(SMALL, image=gradients).fit(data, stage, seed=0, runtime=runtime)
        assert np.isfinite(model.predict(data.context, own_actions(data))).all()


def test_preset() -> None:
    learners = kernel(n_landmarks=7)
    assert learners.structural == KernelStructural(7)
    assert not learners.structural.needs_validation
