"""Bootstrap replicates of h: the networks of many resampled data sets as one stack, kernels one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dmliv.data import TrainingData
from dmliv.first_stage.base import Runtime
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.replicates import Resample
from dmliv.kernels.features import LandmarkFeatures
from dmliv.second_stage.base import StructuralLearner, StructuralModel
from dmliv.second_stage.coefficients import CoefficientStructural
from dmliv.second_stage.correction import KernelCorrection
from dmliv.second_stage.ensemble import NeuralStructuralModel
from dmliv.second_stage.kernel import KernelBandwidths, KernelModel, KernelStructural
from dmliv.second_stage.line_model import CoefficientModel
from dmliv.second_stage.network import NeuralStructural
from dmliv.second_stage.rivals import MeanModel, RivalStructural
from dmliv.second_stage.sieve import KernelSieve


def can_fit_again(learner: StructuralLearner, model: StructuralModel) -> bool:
    """Return whether the choices of a fitted model can be used again on resampled rows."""
    if isinstance(learner, RivalStructural) and isinstance(model, MeanModel):
        rivals, added = _rivals(learner), model.correction
        return (added is None or isinstance(added.features, LandmarkFeatures)) and all(
            name in rivals and can_fit_again(rivals[name], part) for name, part in model.models.items()
        )
    if isinstance(learner, KernelStructural) and isinstance(model, KernelModel):
        return isinstance(model.features, LandmarkFeatures)
    return (isinstance(learner, NeuralStructural) and isinstance(model, NeuralStructuralModel)) or (
        isinstance(learner, CoefficientStructural) and isinstance(model, CoefficientModel)
    )


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
        What it learned from all rows: encodings, weights, bandwidths, penalties and the rivals that stayed.
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
    if isinstance(learner, RivalStructural) and isinstance(model, MeanModel):
        # A fit draws the seeds of its rivals in this order.
        states = np.array([np.random.SeedSequence(seed).generate_state(3) for seed in seeds])
        columns = dict(zip(("networks", "kernel", "lines"), states.T.tolist(), strict=True))
        plug_in = [replace(each, target=data.outcome) for each in first_stages]
        parts = {
            name: fit_again(
                _rivals(learner)[name],
                part,
                data,
                plug_in if name == "kernel" else first_stages,
                resamples,
                seeds=columns[name],
                runtime=runtime,
            )
            for name, part in model.models.items()
        }
        means = [
            MeanModel({name: found[number] for name, found in parts.items()}, model.judged_losses)
            for number in range(len(resamples))
        ]
        return [
            _correct_again(model.correction, mean, data, first_stage, resample)
            for mean, first_stage, resample in zip(means, first_stages, resamples, strict=True)
        ]
    if isinstance(learner, KernelStructural) and isinstance(model, KernelModel):
        return [
            _solve_again(learner, model, data, first_stage, resample, seed, runtime)
            for first_stage, resample, seed in zip(first_stages, resamples, seeds, strict=True)
        ]
    counts = [resample.counts for resample in resamples]
    generators = [np.random.Generator(np.random.SFC64(seed)) for seed in seeds]
    if isinstance(learner, NeuralStructural) and isinstance(model, NeuralStructuralModel):
        return [
            *learner.train_again(data, first_stages, counts, model, generators=generators, runtime=runtime)
        ]
    if isinstance(learner, CoefficientStructural) and isinstance(model, CoefficientModel):
        return [
            *learner.train_again(data, first_stages, counts, model, generators=generators, runtime=runtime)
        ]
    raise TypeError(
        f"Expected a model that can be fitted again, got {type(learner).__name__} with "
        f"{type(model).__name__}."
    )


def networks_per_replicate(learner: StructuralLearner) -> int:
    """Return the size of the largest ensemble that a learner trains."""
    if isinstance(learner, RivalStructural):
        return max(networks_per_replicate(each) for each in _rivals(learner).values())
    if isinstance(learner, (NeuralStructural, CoefficientStructural)):
        return learner.n_members + learner.n_outcome_members
    return 1


def _rivals(learner: RivalStructural) -> dict[str, StructuralLearner]:
    rivals: dict[str, StructuralLearner] = {"networks": learner.networks, "lines": learner.lines}
    return rivals if learner.kernel is None else rivals | {"kernel": learner.kernel}


def _correct_again(
    correction: KernelModel | None,
    mean: MeanModel,
    data: TrainingData,
    first_stage: FirstStage,
    resample: Resample,
) -> MeanModel:
    """Return a replicate with a correction of its own, in the space and of the size that were chosen."""
    if correction is None:
        return mean
    if not isinstance(correction.features, LandmarkFeatures):
        raise TypeError(f"Expected landmarks, got {type(correction.features).__name__}.")
    sieve = KernelSieve(correction.encoder, correction.features, first_stage.law.width)
    weights = KernelCorrection.solve(
        sieve, mean, _copied(data, resample), first_stage, correction.chosen["size"]
    )
    return replace(mean, correction=replace(correction, weights=weights))


def _copied(data: TrainingData, resample: Resample) -> TrainingData:
    """Return the data with each row weighing as much as all its copies."""
    return replace(data, weight=data.weight * resample.counts)


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
        _copied(data, resample),
        first_stage,
        KernelBandwidths(model.encoder, model.features.scales),
        seed=seed,
        runtime=runtime,
        penalties=np.array([model.chosen["penalty"]]),
    )
