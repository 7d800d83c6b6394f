"""Nuisances as stacked networks: one stack for the K outcome models, one for the K action models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

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
from dmliv.nets.heads import ClassHead, Head, MeanHead, MixtureHead
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.runtime import Runtime

Model = TypeVar("Model", bound="NeuralOutcomeModel | NeuralActionModel")


class _NeuralNuisance(ABC, Generic[Model]):
    """What outcome and action networks share: they differ in target, head and the model they become."""

    role: ClassVar[Literal["outcome", "action"]]
    settings: NetworkSettings

    @abstractmethod
    def head(self, spec: ActionSpec) -> Head:
        """Return what the network's outputs mean."""

    @abstractmethod
    def _model(self, stack: FittedStack, head: Any) -> Model: ...

    def fit(self, data: TrainingData, row_sets: Sequence[IntArray], *, seed: int, runtime: Runtime) -> Model:
        """Fit one network per row set."""
        head, target = self.head(data.action_spec), getattr(data, self.role).astype(np.float32)
        stack = fit_stack(
            data, target, head, self.settings, row_sets, f"{self.role} model", seed=seed, runtime=runtime
        )
        return self._model(stack, head)

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
    ) -> Model:
        """Fit one network per row of ``uses`` to blocks of rows; see :func:`fit_shared_stack`."""
        head, shared = self.head(sample.action_spec), SharedRows(source, uses, self.role)
        label = f"{self.role} model"
        stack = fit_shared_stack(
            sample, sample_parts, shared, head, self.settings, label, seed=seed, runtime=runtime
        )
        return self._model(stack, head)

    def fit_again(
        self, data: TrainingData, first_stage: FirstStage, resamples: Sequence[Resample], *, runtime: Runtime
    ) -> Model:
        """Fit the networks of all folds of resampled rows as one stack, with the choices of a fit."""
        model = getattr(first_stage, f"{self.role}_model")
        if not isinstance(model, NeuralOutcomeModel | NeuralActionModel):
            raise TypeError(f"Expected networks as {self.role} model, got {type(model).__name__}.")
        head = self.head(data.action_spec)
        stack = fit_stack_again(
            data,
            getattr(data, self.role),
            head,
            self.settings,
            model.stack,
            first_stage,
            resamples,
            [getattr(resample, f"{self.role}_seed") for resample in resamples],
            f"{self.role} model: replicates",
            runtime,
        )
        return self._model(stack, head)

    def most_replicates(self, first_stage: FirstStage) -> int:
        """Return how many replicates are worth fitting at once; convolutions fill the machine as they are."""
        return 1 if self.settings.convolves else most_stacked(len(first_stage.fold_members))


@savable
@dataclass(frozen=True)
class NeuralOutcome(_NeuralNuisance["NeuralOutcomeModel"]):
    """Outcome learner: a network with squared loss.

    Parameters
    ----------
    settings : NetworkSettings
        Shape, encodings and training.
    """

    role: ClassVar[Literal["outcome", "action"]] = "outcome"

    settings: NetworkSettings

    def head(self, spec: ActionSpec) -> MeanHead:
        """Return a head for a mean."""
        del spec
        return MeanHead()

    def _model(self, stack: FittedStack, head: MeanHead) -> NeuralOutcomeModel:
        del head
        return NeuralOutcomeModel(stack)


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
class NeuralAction(_NeuralNuisance["NeuralActionModel"]):
    """Action learner: a mixture density network, or a softmax classifier for a discrete action.

    Parameters
    ----------
    settings : NetworkSettings
        Shape, encodings and training.
    n_components : int
        Gaussians in the mixture.
    """

    role: ClassVar[Literal["outcome", "action"]] = "action"

    settings: NetworkSettings
    n_components: int = 10

    def head(self, spec: ActionSpec) -> MixtureHead | ClassHead:
        """Return what the network's outputs mean for this kind of action."""
        return (
            ClassHead(spec.width) if spec.kind == "discrete" else MixtureHead(self.n_components, spec.width)
        )

    def _model(self, stack: FittedStack, head: MixtureHead | ClassHead) -> NeuralActionModel:
        return NeuralActionModel(stack, head)


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
