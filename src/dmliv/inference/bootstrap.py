"""The bootstrap: the estimator again, on rows drawn anew or with random weights of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from joblib import delayed

from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import check_whole
from dmliv.first_stage.crossfit import FirstStage, cross_fit
from dmliv.first_stage.nuisances import ActionLearner, OutcomeLearner, PilotLearner
from dmliv.first_stage.resampling import Resample, ResamplingNuisance, ResamplingPilot, cross_fit_again
from dmliv.inference.functionals import Band, Functional
from dmliv.nets.device import single_thread
from dmliv.nets.settings import LARGE_ROWS
from dmliv.parallel.runtime import Runtime
from dmliv.parallel.workers import in_order, jobs
from dmliv.progress import SilentProgress
from dmliv.second_stage.remainder import fit_structural
from dmliv.second_stage.structural import ResamplingLearner, StructuralLearner, StructuralModel


@savable
@dataclass(frozen=True)
class Bootstrap:
    """Percentile intervals from replicates; they know no bias, only spread.

    A replicate of network or kernel learners on network nuisances is fitted to rows, or clusters, drawn with
    replacement, and many of them are trained as one stack. Each has its own folds, initial weights and row
    order; copies of a row stay in one fold. Encodings, learning rates, bandwidths and penalties are those of
    the fit: replicates vary the training, not the choices. With other learners, or beyond 50,000 rows, a
    replicate is the whole fit again, choices included, with exponential weights of rows.

    Parameters
    ----------
    n_replicates : int
        Fits.
    """

    n_replicates: int = 50

    def __post_init__(self) -> None:
        """Check the number."""
        check_whole(least=2, n_replicates=self.n_replicates)

    def learn(self, fitted: TwoStageFit, *, seed: int, runtime: Runtime) -> ReplicateUncertainty:
        """Fit the replicates, networks in stacks; joblib decides where.

        Parameters
        ----------
        fitted : TwoStageFit
        seed : int
        runtime : Runtime
        """
        quiet = replace(runtime, progress=SilentProgress(), n_jobs=1)
        seeds = [int(each) for each in np.random.SeedSequence([seed, 6]).generate_state(self.n_replicates)]
        if fitted.stacks:
            size = fitted.stack_size
            # A stack takes long enough to be worth bars of its own, where they can be seen.
            shown = replace(quiet, progress=runtime.progress) if jobs(runtime) == 1 else quiet
            tasks: list[Any] = [
                delayed(_fit_stack)(fitted, seeds[start : start + size], shown)
                for start in range(0, len(seeds), size)
            ]
        else:
            factors = self.weights(len(fitted.data), fitted.cluster, seed)
            tasks = [
                delayed(_fit_one)(fitted, factor, replicate_seed, quiet)
                for factor, replicate_seed in zip(factors, seeds, strict=True)
            ]
        found: list[StructuralModel] = []
        with runtime.progress.stage("bootstrap", len(seeds)) as advance:
            for models in in_order(tasks, jobs(runtime)):
                found.extend(models)
                for _ in models:
                    advance()
        return ReplicateUncertainty(tuple(found))

    def weights(self, n_rows: int, cluster: IntArray | None, seed: int) -> list[FloatArray]:
        """Return factors on the weights of rows, one array (n,) per replicate; a cluster shares its own."""
        generator = np.random.default_rng([seed, 5])
        codes = np.arange(n_rows) if cluster is None else np.unique(cluster, return_inverse=True)[1]
        return [
            generator.exponential(size=int(codes.max()) + 1)[codes] for _ in range(int(self.n_replicates))
        ]


def _fit_stack(fitted: TwoStageFit, seeds: Sequence[int], runtime: Runtime) -> list[StructuralModel]:
    return fitted.fit_resamples([fitted.resample(seed) for seed in seeds], runtime)


def _fit_one(fitted: TwoStageFit, factor: FloatArray, seed: int, runtime: Runtime) -> list[StructuralModel]:
    return [fitted.fit_weighted(factor, seed, runtime)]


@savable
@dataclass(frozen=True, eq=False)
class ReplicateUncertainty:
    """The spread of h over replicates.

    Attributes
    ----------
    models : tuple of StructuralModel
    """

    models: tuple[StructuralModel, ...]

    name: ClassVar[str] = "bootstrap"

    @property
    def width(self) -> int:
        """Number of replicates."""
        return len(self.models)

    @property
    def words(self) -> str:
        """What the intervals are."""
        return (
            f"Bands and intervals contain 95 % of {self.width} bootstrap fits with random row weights. They "
            "show the sampling variation of the model, not its bias."
        )

    def evaluate(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h of every replicate, shape (n, replicates)."""
        return np.column_stack([model.predict(context, action) for model in self.models])

    def unseen(self, functional: Functional, applied: FloatArray) -> FloatArray:
        """Return zeros: nothing is hidden."""
        del functional
        return np.zeros(len(applied))

    def band(self, plug_in: FloatArray, applied: FloatArray, unseen: FloatArray, alpha: float) -> Band:
        """Return percentile intervals around the estimate of all rows."""
        del unseen
        lower, upper = np.quantile(applied, [alpha / 2.0, 1.0 - alpha / 2.0], axis=1)
        return Band(plug_in, lower, upper, applied.std(axis=1, ddof=1))


@dataclass(frozen=True, eq=False)
class TwoStageFit:
    """What was fitted, and to what.

    Attributes
    ----------
    data : TrainingData
    outcome : OutcomeLearner or None
        None when the target is the observed outcome.
    action : ActionLearner
    structural : StructuralLearner
    first_stage : FirstStage
    model : StructuralModel
    cluster : ndarray of int, shape (n,), or None
    pilot : PilotLearner or None
    """

    data: TrainingData
    outcome: OutcomeLearner | None
    action: ActionLearner
    structural: StructuralLearner
    first_stage: FirstStage
    model: StructuralModel
    cluster: IntArray | None
    pilot: PilotLearner | None = None

    @property
    def n_folds(self) -> int:
        """Number of folds."""
        return len(self.first_stage.fold_members)

    @property
    def stacks(self) -> bool:
        """Whether replicates can be fitted together, with the choices of the fit.

        Beyond :data:`~dmliv.nets.settings.LARGE_ROWS` members of a stack share their rows.
        """
        if self.pilot is not None:
            # A remainder would have to be chosen and learned again.
            return self.first_stage.pilot_stands and isinstance(self.pilot, ResamplingPilot)
        return (
            len(self.data) <= LARGE_ROWS
            and all(isinstance(each, ResamplingNuisance) for each in self._nuisances)
            and isinstance(self.structural, ResamplingLearner)
            and self.structural.can_fit_again(self.model)
        )

    @property
    def _nuisances(self) -> list[Any]:
        return [each for each in (self.outcome, self.action) if each is not None]

    @property
    def stack_size(self) -> int:
        """Replicates that are fitted at once."""
        if self.pilot is not None or not isinstance(self.structural, ResamplingLearner):
            return 1
        most: list[int] = [each.most_replicates(self.first_stage) for each in self._nuisances]
        return min(self.structural.most_replicates(self.model), *most)

    def resample(self, seed: int) -> Resample:
        """Draw rows, or clusters, with replacement."""
        return Resample.draw(self.data.weight, self.cluster, self.n_folds, seed)

    def fit_resamples(self, resamples: Sequence[Resample], runtime: Runtime) -> list[StructuralModel]:
        """Return h of resampled rows: all fitted at once, with every choice of the fit.

        A pilot that stands alone is solved again, with its parameters; so is the mean of the action that it
        rests on. The networks for the action distribution stay as they are.
        """
        data, first_stage = self.data, self.first_stage
        pilot: Any = self.pilot
        outcome: Any = self.outcome
        action: Any = self.action
        structural: Any = self.structural
        with single_thread():
            if pilot is not None:
                return [self._pilot_again(pilot, resample, runtime) for resample in resamples]
            again = cross_fit_again(data, outcome, action, first_stage, resamples, runtime=runtime)
            return list(structural.fit_again(data, self.model, again, resamples, runtime=runtime))

    def _pilot_again(self, learner: ResamplingPilot, resample: Resample, runtime: Runtime) -> StructuralModel:
        weight = self.data.weight * resample.counts
        rows = replace(self.data, weight=weight / weight.mean())
        like, seed = self.first_stage.pilot, resample.structural_seed
        distribution = self.first_stage.distribution
        pilot = learner.fit_again(rows, distribution, resample.fold, like, seed=seed, runtime=runtime)
        model: StructuralModel = pilot.model
        return model

    def fit_weighted(self, factor: FloatArray, seed: int, runtime: Runtime) -> StructuralModel:
        """Return h of re-weighted rows, chosen and fitted anew but in the same units.

        Parameters
        ----------
        factor : ndarray, shape (n,)
            What weights are multiplied by.
        seed : int
        runtime : Runtime
        """
        first_seed, second_seed = (int(each) for each in np.random.SeedSequence(seed).generate_state(2))
        weight = self.data.weight * factor
        data = replace(self.data, weight=weight / weight.mean())
        with single_thread():
            first_stage = cross_fit(
                data,
                self.outcome,
                self.action,
                self.n_folds,
                seed=first_seed,
                runtime=runtime,
                validates=self.structural.needs_validation,
                cluster=self.cluster,
                pilot_learner=self.pilot,
            )
            return fit_structural(self.structural, data, first_stage, seed=second_seed, runtime=runtime)
