"""Nuisances as stacked networks: one stack for the K outcome models, one for the K action models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dmliv.data import ActionSpec, TrainingData
from dmliv.data.savable import savable
from dmliv.first_stage.blocks import BlockSource
from dmliv.first_stage.distributions import ActionDistribution, CategoricalDistribution, MixtureDistribution
from dmliv.first_stage.nuisances import Exogenous, FloatArray, IntArray
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
