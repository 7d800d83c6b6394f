"""Nuisances as stacked networks: one stack for the K outcome models, one for the K action models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dmliv.data import ActionSpec, TrainingData
from dmliv.data.savable import savable
from dmliv.first_stage.blocks import BlockSource
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.distributions import ActionDistribution, CategoricalDistribution, MixtureDistribution
from dmliv.first_stage.nuisances import Exogenous, FloatArray, IntArray
from dmliv.first_stage.resampling import Resample, fit_stack_again, most_stacked
from dmliv.first_stage.shared_batches import SharedRows
from dmliv.first_stage.stacks import FittedStack, fit_shared_stack, fit_stack
from dmliv.nets.heads import ClassHead, MeanHead, MixtureHead
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.runtime import Runtime


@savable
@dataclass(frozen=True)
class NeuralOutcome:
    """Outcome learner: a network with squared loss.

    Parameters
    ----------
    settings : NetworkSettings
        Shape, encodings and training.
    """

    settings: NetworkSettings

    def fit(
        self, data: TrainingData, row_sets: Sequence[IntArray], *, seed: int, runtime: Runtime
    ) -> NeuralOutcomeModel:
        """Fit one network per row set."""
        target = data.outcome.astype(np.float32)
        stack = fit_stack(
            data, target, MeanHead(), self.settings, row_sets, "outcome model", seed=seed, runtime=runtime
        )
        return NeuralOutcomeModel(stack)

    @property
    def streams(self) -> bool:
        """Whether the learner can learn from blocks of rows."""
        return self.settings.adapts

    def fit_source(
        self,
        sample: TrainingData,
        sample_parts: IntArray,
        source: BlockSource,
        uses: Tensor,
        *,
        seed: int,
        runtime: Runtime,
    ) -> NeuralOutcomeModel:
        """Fit one network per row of ``uses`` to blocks of rows; see :func:`fit_shared_stack`."""
        shared = SharedRows(source, uses, "outcome")
        stack = fit_shared_stack(
            sample,
            sample_parts,
            shared,
            MeanHead(),
            self.settings,
            "outcome model",
            seed=seed,
            runtime=runtime,
        )
        return NeuralOutcomeModel(stack)

    def fit_again(
        self, data: TrainingData, first_stage: FirstStage, resamples: Sequence[Resample], *, runtime: Runtime
    ) -> NeuralOutcomeModel:
        """Fit the networks of all folds of resampled rows as one stack, with the choices of a fit."""
        model = first_stage.outcome_model
        if not isinstance(model, NeuralOutcomeModel):
            raise TypeError(f"Expected outcome networks, got {type(model).__name__}.")
        seeds, label = [each.outcome_seed for each in resamples], "outcome model: replicates"
        return NeuralOutcomeModel(
            fit_stack_again(
                data,
                data.outcome,
                MeanHead(),
                self.settings,
                model.stack,
                first_stage,
                resamples,
                seeds,
                label,
                runtime,
            )
        )

    def most_replicates(self, first_stage: FirstStage) -> int:
        """Return how many replicates are worth fitting at once; convolutions fill the machine as they are."""
        return 1 if self.settings.convolves else most_stacked(len(first_stage.fold_members))


@savable
@dataclass(frozen=True)
class NeuralOutcomeModel:
    """Fitted outcome networks."""

    stack: FittedStack

    def predict(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[FloatArray]:
        """Return the predictions of member m for its rows."""
        raw = self.stack.outputs(exogenous, row_sets)
        return [part.squeeze(-1).cpu().double().numpy() for part in raw]

    def describe(self) -> dict[str, object]:
        """Return the chosen encodings and the loss curve."""
        return self.stack.describe()


@savable
@dataclass(frozen=True)
class NeuralAction:
    """Action learner: a mixture density network, or a softmax classifier for a discrete action.

    Parameters
    ----------
    settings : NetworkSettings
        Shape, encodings and training.
    n_components : int
        Gaussians in the mixture.
    """

    settings: NetworkSettings
    n_components: int = 10

    def fit(
        self, data: TrainingData, row_sets: Sequence[IntArray], *, seed: int, runtime: Runtime
    ) -> NeuralActionModel:
        """Fit one network per row set."""
        head, target = self.head(data.action_spec), data.action.astype(np.float32)
        stack = fit_stack(
            data, target, head, self.settings, row_sets, "action model", seed=seed, runtime=runtime
        )
        return NeuralActionModel(stack, head)

    @property
    def streams(self) -> bool:
        """Whether the learner can learn from blocks of rows."""
        return self.settings.adapts

    def fit_source(
        self,
        sample: TrainingData,
        sample_parts: IntArray,
        source: BlockSource,
        uses: Tensor,
        *,
        seed: int,
        runtime: Runtime,
    ) -> NeuralActionModel:
        """Fit one network per row of ``uses`` to blocks of rows; see :func:`fit_shared_stack`."""
        head, shared = self.head(sample.action_spec), SharedRows(source, uses, "action")
        stack = fit_shared_stack(
            sample, sample_parts, shared, head, self.settings, "action model", seed=seed, runtime=runtime
        )
        return NeuralActionModel(stack, head)

    def fit_again(
        self, data: TrainingData, first_stage: FirstStage, resamples: Sequence[Resample], *, runtime: Runtime
    ) -> NeuralActionModel:
        """Fit the networks of all folds of resampled rows as one stack, with the choices of a fit."""
        model = first_stage.action_model
        if not isinstance(model, NeuralActionModel):
            raise TypeError(f"Expected action networks, got {type(model).__name__}.")
        seeds, label = [each.action_seed for each in resamples], "action model: replicates"
        stack = fit_stack_again(
            data,
            data.action,
            model.head,
            self.settings,
            model.stack,
            first_stage,
            resamples,
            seeds,
            label,
            runtime,
        )
        return NeuralActionModel(stack, model.head)

    def most_replicates(self, first_stage: FirstStage) -> int:
        """Return how many replicates are worth fitting at once; convolutions fill the machine as they are."""
        return 1 if self.settings.convolves else most_stacked(len(first_stage.fold_members))

    def head(self, spec: ActionSpec) -> MixtureHead | ClassHead:
        """Return what the network's outputs mean for this kind of action."""
        return (
            ClassHead(spec.width) if spec.kind == "discrete" else MixtureHead(self.n_components, spec.width)
        )


@savable
@dataclass(frozen=True)
class NeuralActionModel:
    """Fitted action networks."""

    stack: FittedStack
    head: MixtureHead | ClassHead

    def distributions(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[ActionDistribution]:
        """Return the action distribution of member m for its rows."""
        raw = self.stack.outputs(exogenous, row_sets)
        if isinstance(self.head, ClassHead):
            return [CategoricalDistribution(self.head.probabilities(part)) for part in raw]
        return [MixtureDistribution.from_parameters(self.head.parameters(part)) for part in raw]

    def describe(self) -> dict[str, object]:
        """Return the chosen encodings and the loss curve."""
        return self.stack.describe()
