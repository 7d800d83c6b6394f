"""The linear structural model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dmliv.data import TrainingData
from dmliv.errors import InputError
from dmliv.first_stage.crossfit import FirstStage
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.linear import LinearStructural, LinearStructuralModel

MakeFirstStage = Callable[[TrainingData], FirstStage]


@pytest.fixture
def model(data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime) -> LinearStructuralModel:
    return LinearStructural().fit(data, make_first_stage(data), seed=0, runtime=runtime)


def context_design(data: TrainingData) -> np.ndarray:
    return np.hstack([np.ones((len(data), 1)), data.context.numeric, np.eye(3)[data.context.codes[:, 0]]])


class TestLinearStructural:
    def test_is_least_squares_on_context_and_mean_action(
        self, data: TrainingData, make_first_stage: MakeFirstStage, model: LinearStructuralModel
    ) -> None:
        first_stage = make_first_stage(data)
        mean = first_stage.distribution.mean().double().numpy()
        design = np.hstack([context_design(data), mean])
        fitted = design @ np.linalg.lstsq(design, first_stage.target, rcond=None)[0]
        np.testing.assert_allclose(model.predict(data.context, mean), fitted, atol=1e-8)

    def test_weights(self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime) -> None:
        weight = np.random.default_rng(2).uniform(0.0, 2.0, len(data))
        heavy = replace(data, weight=weight)
        first_stage = make_first_stage(data)
        mean = first_stage.distribution.mean().double().numpy()
        model = LinearStructural().fit(heavy, first_stage, seed=0, runtime=runtime)
        design, root = np.hstack([context_design(data), mean]), np.sqrt(weight)
        solution = np.linalg.lstsq(design * root[:, None], first_stage.target * root, rcond=None)[0]
        np.testing.assert_allclose(model.predict(data.context, mean), design @ solution, atol=1e-8)

    def test_grid_equals_rows(self, data: TrainingData, model: LinearStructuralModel) -> None:
        actions = data.action_spec.vectors(data.action)[:7]
        context = data.context.take(np.arange(11))
        grid = model.predict_grid(context, actions)
        assert grid.shape == (11, 7)
        for column, action in enumerate(actions):
            np.testing.assert_allclose(grid[:, column], model.predict(context, np.tile(action, (11, 1))))

    def test_gradient_is_the_slope(self, data: TrainingData, model: LinearStructuralModel) -> None:
        context = data.context.take(np.arange(5))
        action = data.action_spec.vectors(data.action)[:5]
        gradient = model.gradient(context, action)
        assert gradient.shape == action.shape
        for column in range(action.shape[1]):
            moved = action.copy()
            moved[:, column] += 1.0
            difference = model.predict(context, moved) - model.predict(context, action)
            np.testing.assert_allclose(gradient[:, column], difference, atol=1e-9)

    def test_a_large_ridge_leaves_the_intercept(
        self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
    ) -> None:
        model = LinearStructural(ridge=1e9).fit(data, make_first_stage(data), seed=0, runtime=runtime)
        np.testing.assert_allclose(model.coefficients[1:], 0.0, atol=1e-6)
        np.testing.assert_allclose(model.coefficients[0], data.outcome.mean(), atol=1e-6)

    def test_ridge_shrinks(
        self, data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
    ) -> None:
        norms = [
            np.linalg.norm(
                LinearStructural(ridge)
                .fit(data, make_first_stage(data), seed=0, runtime=runtime)
                .coefficients[1:]
            )
            for ridge in (0.01, 0.1, 1.0)
        ]
        assert norms[0] > norms[1] > norms[2]

    def test_a_ridge_below_zero(self) -> None:
        with pytest.raises(InputError, match=r"ridge penalty of at least 0, got -1\.0"):
            LinearStructural(ridge=-1.0)

    def test_describes_its_coefficients(self, model: LinearStructuralModel) -> None:
        assert not LinearStructural().needs_validation
        assert model.describe() == {"coefficients": model.coefficients.tolist()}
