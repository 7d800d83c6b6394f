"""Bootstrap replicates of h: the networks of many resampled data sets as one stack, kernels one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dmliv.data import TrainingData
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.resampling import Resample
from dmliv.kernels.features import LandmarkFeatures
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.kernel import KernelBandwidths, KernelModel, KernelStructural
from dmliv.second_stage.network import NeuralStructural, NeuralStructuralModel
from dmliv.second_stage.structural import StructuralLearner, StructuralModel


def can_fit_again(learner: StructuralLearner, model: StructuralModel) -> bool:
    """Return whether the choices of a fitted model can be used again on resampled rows."""
    if isinstance(learner, KernelStructural) and isinstance(model, KernelModel):
        return isinstance(model.features, LandmarkFeatures)
    return isinstance(learner, NeuralStructural) and isinstance(model, NeuralStructuralModel)


def fit_again(
    learner: StructuralLearner,
    model: StructuralModel,
    data: TrainingData,
    first_stages: Sequence[FirstStage],
    resamples: Sequence[Resample],
    *,
    seeds: Sequence[int],
    runtime: Runtime,
) -> list[StructuralModel]:
    """Fit h to every resampled data set, with the choices that were made on all rows.

    Parameters
    ----------
    learner : StructuralLearner
    model : StructuralModel
        What it learned from all rows: encoding, bandwidths and penalty.
    data : TrainingData
    first_stages : sequence of FirstStage
        What the first stage left of each data set.
    resamples : sequence of Resample
    seeds : sequence of int
        As a fit would get them.
    runtime : Runtime

    Returns
    -------
    list of StructuralModel
    """
    if isinstance(learner, KernelStructural) and isinstance(model, KernelModel):
        return [
            _solve_again(learner, model, data, first_stage, resample, seed, runtime)
            for first_stage, resample, seed in zip(first_stages, resamples, seeds, strict=True)
        ]
    if isinstance(learner, NeuralStructural) and isinstance(model, NeuralStructuralModel):
        counts = [resample.counts for resample in resamples]
        generators = [np.random.Generator(np.random.SFC64(seed)) for seed in seeds]
        return [
            *learner.train_again(data, first_stages, counts, model, generators=generators, runtime=runtime)
        ]
    raise TypeError(
        f"Expected a model that can be fitted again, got {type(learner).__name__} with "
        f"{type(model).__name__}."
    )


def networks_per_replicate(learner: StructuralLearner) -> int:
    """Return the size of the ensemble that a learner trains."""
    return learner.n_members if isinstance(learner, NeuralStructural) else 1


def _solve_again(
    learner: KernelStructural,
    model: KernelModel,
    data: TrainingData,
    first_stage: FirstStage,
    resample: Resample,
    seed: int,
    runtime: Runtime,
) -> KernelModel:
    if not isinstance(model.features, LandmarkFeatures):
        raise TypeError(f"Expected landmarks, got {type(model.features).__name__}.")
    return learner.solve(
        # Each row weighs as much as all its copies.
        replace(data, weight=data.weight * resample.counts),
        first_stage,
        KernelBandwidths(model.encoder, model.features.scales),
        seed=seed,
        runtime=runtime,
        penalties=np.array([model.chosen["penalty"]]),
    )
