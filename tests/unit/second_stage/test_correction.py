"""A correction gives back what a fitted h misses, as far as the projection shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.errors import InputError
from dmliv.first_stage.base import Exogenous, Runtime
from dmliv.first_stage.crossfit import FirstStage
from dmliv.second_stage.correction import KernelCorrection
from dmliv.second_stage.judging import TrialProjections
from dmliv.second_stage.kernel import KernelModel, KernelStructural
from dmliv.second_stage.law_means import LawMeans
from dmliv.second_stage.score import project
from dmliv.second_stage.sieve import KernelSieve

MakeFirstStage = Callable[[TrainingData], FirstStage]


@dataclass(frozen=True)
class Parabola:
    """A function of the first action column."""

    bend: float

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        del context
        return np.asarray(action[:, 0] + self.bend * action[:, 0] ** 2)


def at_rows(data: TrainingData, stage: FirstStage, model: Any) -> FloatArray:
    return project(model, stage.law, Exogenous(data.context, data.instrument))


def bent(data: TrainingData, stage: FirstStage, noise: float = 0.3) -> TrainingData:
    """Replace the outcome by the projection of a parabola, plus noise."""
    rng = np.random.default_rng(5)
    return replace(data, outcome=at_rows(data, stage, Parabola(0.5)) + noise * rng.standard_normal(len(data)))


def corrected(
    correction: KernelCorrection, model: Any, data: TrainingData, stage: FirstStage, runtime: Runtime
) -> KernelModel | None:
    bandwidths = KernelStructural(60).search(data, stage, seed=0, runtime=runtime)
    values = at_rows(data, stage, model)
    fit: list[IntArray] = [split.fit_rows for split in stage.splits]
    judging: list[IntArray] = [split.judging_rows for split in stage.splits]
    trials = [TrialProjections(values[a], values[b]) for a, b in zip(fit, judging, strict=True)]
    return correction.learn(
        model, trials, data, stage, bandwidths, fit_rows=fit, judging_rows=judging, seed=0
    )


@pytest.mark.parametrize("data", ["one column", "two columns"], indirect=True)
def test_a_missing_bend_is_given_back(
    data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
) -> None:
    stage = make_first_stage(data)
    data = bent(data, stage)
    found = corrected(KernelCorrection((1.0,)), Parabola(0.0), data, stage, runtime)
    assert found is not None
    left = at_rows(data, stage, Parabola(0.5)) - at_rows(data, stage, Parabola(0.0))
    assert np.var(left - at_rows(data, stage, found)) < 0.3 * np.var(left)


@pytest.mark.parametrize("data", ["one column"], indirect=True)
def test_where_nothing_is_missing_nothing_is_added(
    data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
) -> None:
    stage = make_first_stage(data)
    data = bent(data, stage, noise=1.0)
    assert corrected(KernelCorrection((2.0,)), Parabola(0.5), data, stage, runtime) is None


@pytest.mark.parametrize("data", ["one column", "discrete"], indirect=True)
def test_it_is_the_explicit_ridge_regression(
    data: TrainingData, make_first_stage: MakeFirstStage, runtime: Runtime
) -> None:
    stage, rng = make_first_stage(data), np.random.default_rng(6)
    weight = rng.uniform(0.0, 2.0, len(data)) * (rng.uniform(size=len(data)) < 0.8)
    data = replace(bent(data, stage), weight=weight / weight.mean())
    size, none = 0.7, Parabola(-3.0)
    found = corrected(KernelCorrection((size,), n_landmarks=40), none, data, stage, runtime)
    assert found is not None
    sieve = KernelSieve(found.encoder, found.features, data.action_spec.width)
    projected = sieve.project(data.context, LawMeans(stage.law, 3), np.arange(len(data)))
    left = data.outcome - at_rows(data, stage, none)
    noise = np.average(left**2, weights=data.weight)
    gram = projected.T @ (data.weight[:, None] * projected) + noise / size**2 * np.eye(projected.shape[1])
    expected = np.linalg.solve(gram, projected.T @ (data.weight * left))
    np.testing.assert_allclose(found.weights, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "wrong", [{"sizes": ()}, {"sizes": (0.2, -1.0)}, {"n_landmarks": 0}, {"action_bandwidth": 0.0}]
)
def test_numbers_that_cannot_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="Expected positive"):
        KernelCorrection(**wrong)
