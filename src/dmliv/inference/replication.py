"""A fitted two-stage estimator, fitted again to other rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.first_stage.base import ActionLearner, OutcomeLearner, PilotLearner, Runtime
from dmliv.first_stage.crossfit import FirstStage, cross_fit
from dmliv.first_stage.networks import NeuralActionModel
from dmliv.first_stage.replicates import Resample, can_stack, cross_fit_again
from dmliv.nets.device import single_thread
from dmliv.nets.settings import LARGE_ROWS
from dmliv.second_stage.base import StructuralLearner, StructuralModel
from dmliv.second_stage.pilot import ControlFunction, Pilot
from dmliv.second_stage.pilot_model import PilotedModel
from dmliv.second_stage.remainder import fit_structural
from dmliv.second_stage.replicates import can_fit_again, fit_again, networks_per_replicate

# Networks that are trained at once: more are no faster, and need more memory.
_STACK_SIZE = 100


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
        """Whether replicates can be trained as one stack: networks, on rows that have one each of their own.

        Beyond :data:`~dmliv.nets.settings.LARGE_ROWS` members of a stack share their rows.
        """
        if self.pilot is not None:
            return self._pilot_alone is not None
        return (
            len(self.data) <= LARGE_ROWS
            and can_stack(self.outcome, self.action)
            and can_fit_again(self.structural, self.model)
        )

    @property
    def _pilot_alone(self) -> Pilot | None:
        """The pilot, if it is all there is to h and can be fitted again in closed form."""
        alone = isinstance(self.model, PilotedModel) and self.model.remainder is None
        pilot = self.first_stage.pilot
        return pilot if alone and isinstance(pilot, Pilot) else None

    @property
    def stack_size(self) -> int:
        """Replicates that are trained at once."""
        if self.pilot is not None:
            return 1
        model = self.first_stage.action_model
        if isinstance(model, NeuralActionModel) and model.stack.sides[0].net.front is not None:
            # Convolutions fill the machine as they are.
            return 1
        return max(1, _STACK_SIZE // max(self.n_folds, networks_per_replicate(self.structural)))

    def resample(self, seed: int) -> Resample:
        """Draw rows, or clusters, with replacement."""
        return Resample.draw(self.data.weight, self.cluster, self.n_folds, seed)

    def fit_resamples(self, resamples: Sequence[Resample], runtime: Runtime) -> list[StructuralModel]:
        """Return h of resampled rows: all trained at once, with every choice of the fit.

        A pilot that stands alone is solved again, with its parameters; so is the mean of the action that it
        rests on. The networks for the action distribution stay as they are.
        """
        alone = self._pilot_alone
        if alone is not None and isinstance(self.pilot, ControlFunction):
            with single_thread():
                return [self._pilot_again(self.pilot, alone, resample, runtime) for resample in resamples]
        with single_thread():
            first_stages = cross_fit_again(
                self.data, self.outcome, self.action, self.first_stage, resamples, runtime=runtime
            )
            return fit_again(
                self.structural,
                self.model,
                self.data,
                first_stages,
                resamples,
                seeds=[resample.structural_seed for resample in resamples],
                runtime=runtime,
            )

    def _pilot_again(
        self, learner: ControlFunction, pilot: Pilot, resample: Resample, runtime: Runtime
    ) -> StructuralModel:
        weight = self.data.weight * resample.counts
        rows = replace(self.data, weight=weight / weight.mean())
        law, seed = self.first_stage.law, resample.structural_seed
        return learner.fit(rows, law, resample.fold, seed=seed, runtime=runtime, like=pilot).model

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
                judged=self.structural.needs_judging,
                cluster=self.cluster,
                pilot_learner=self.pilot,
            )
            return fit_structural(self.structural, data, first_stage, seed=second_seed, runtime=runtime)
