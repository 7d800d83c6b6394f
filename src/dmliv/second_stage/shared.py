"""h on shared batches: free networks and lines trained on rows that come block by block."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dmliv.data import FloatArray, TrainingData
from dmliv.first_stage.base import Runtime
from dmliv.first_stage.blocks import (
    Block,
    BlockSource,
    MemorySource,
    batches,
    data_at,
    resident,
    sample_rows,
    weighted_means,
)
from dmliv.first_stage.crossfit import FirstStage, first_stage_at
from dmliv.first_stage.laws import ActionLaw
from dmliv.nets.device import on_device
from dmliv.nets.settings import LARGE_ROWS, NetworkSettings
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingRecord, descend
from dmliv.second_stage.base import action_vectors
from dmliv.second_stage.features import StructuralColumns, StructuralEncoder, evaluate
from dmliv.second_stage.projection import DrawRule

BatchLoss = Callable[[StackedMLP, Block, ActionLaw, Tensor], Tensor]


def on_sample(
    data: TrainingData, first_stage: FirstStage, device: torch.device
) -> tuple[TrainingData, FirstStage, BlockSource]:
    """Return rows that stand for all, what the first stage left for them, and all rows as one block."""
    rows = sample_rows(len(data), LARGE_ROWS)
    target = on_device(first_stage.target.astype(np.float32), device)
    block = replace(resident(data, device).block, target=target, law=first_stage.law)
    return data_at(data, rows), first_stage_at(first_stage, rows), MemorySource(block)


@dataclass(frozen=True)
class SharedEnsemble:
    """An ensemble for h whose members see the same batches; they differ in weights, draws and targets.

    Attributes
    ----------
    source : BlockSource
        With target and law.
    settings : NetworkSettings
    n_members, n_outcome_members : int
        Networks fitted to the first stage's target, and to the observed outcome.
    encoder : StructuralEncoder
    encoding : str
    """

    source: BlockSource
    settings: NetworkSettings
    n_members: int
    n_outcome_members: int
    encoder: StructuralEncoder
    encoding: str

    def train_networks(
        self, rule: DrawRule, variance_weight: float, generator: np.random.Generator, runtime: Runtime
    ) -> tuple[StackedMLP, TrainingRecord]:
        """Train free networks of (context, action)."""
        columns = StructuralColumns(self.encoder, self.encoding, runtime.device)
        encode_action = self.encoder.action_encoder(self.encoding, runtime.device)
        draws = torch.Generator(device=runtime.device).manual_seed(int(generator.integers(2**31)))
        weight = torch.tensor(variance_weight, device=runtime.device)

        def loss_of(net: StackedMLP, batch: Block, law: ActionLaw, target: Tensor) -> Tensor:
            features, centre = columns.encode(batch.context)
            rows = torch.arange(len(batch), device=runtime.device).expand(net.n_members, -1)
            nodes = rule.draw(law, rows, draws)
            values = evaluate(
                net, net.embed(features.unsqueeze(0)), encode_action(nodes.actions - centre.unsqueeze(1))
            )
            return rule.loss(values, nodes, target, law, weight)

        widths = (
            columns.width + self.encoder.action_features_width(self.encoding),
            *self.settings.hidden,
            1,
        )
        return self._train(widths, loss_of, "structural model", generator, runtime)

    def train_lines(
        self, line_units: LineUnits, generator: np.random.Generator, runtime: Runtime
    ) -> tuple[StackedMLP, TrainingRecord]:
        """Train networks of the context that give level and slopes."""
        columns = StructuralColumns(self.encoder, self.encoding, runtime.device)
        factor = torch.as_tensor(line_units.action_factor, device=runtime.device)
        slopes = torch.as_tensor(line_units.common_slopes, dtype=torch.float32, device=runtime.device)
        on_target = [slopes[:1]] * self.n_members + [slopes[1:]] * self.n_outcome_members
        member_slopes = torch.cat(on_target)

        def loss_of(net: StackedMLP, batch: Block, law: ActionLaw, target: Tensor) -> Tensor:
            features, centre = columns.encode(batch.context)
            moved = (law.mean() - centre) * factor
            coefficients = net(features.unsqueeze(0))
            projection = coefficients[..., 0] + (coefficients[..., 1:] * moved).sum(-1)
            errors: Tensor = target - member_slopes @ moved.T - projection
            return errors.square()

        widths = (columns.width, *self.settings.hidden, 1 + self.encoder.action_width)
        return self._train(widths, loss_of, "linear effects", generator, runtime)

    def _train(
        self,
        widths: tuple[int, ...],
        loss_of: BatchLoss,
        label: str,
        generator: np.random.Generator,
        runtime: Runtime,
    ) -> tuple[StackedMLP, TrainingRecord]:
        n_rows, n_members = self.source.n_rows, self.n_members + self.n_outcome_members
        net = StackedMLP(
            n_members,
            widths,
            dropout=self.settings.dropout_rates(n_rows),
            generator=generator,
            device=runtime.device,
        )
        net.tall = True
        plan = self.settings.plan(n_rows)

        def epoch_losses() -> Iterator[Tensor]:
            for batch in batches(self.source, plan.batch_size, generator):
                if batch.target is None or batch.law is None:
                    raise ValueError("Expected rows that the first stage has filled.")
                kinds = [batch.target] * self.n_members + [batch.outcome] * self.n_outcome_members
                losses = loss_of(net, batch, batch.law, torch.stack(kinds))
                if batch.weight is None:
                    yield losses.mean(dim=1)
                else:
                    yield weighted_means(losses, batch.weight.expand(n_members, -1))

        steps = math.ceil(n_rows / plan.batch_size)
        record = descend(
            net, epoch_losses, steps, plan, progress=runtime.progress, label=label, shows_steps=True
        )
        return net, record


@dataclass(frozen=True)
class LineUnits:
    """Units in which lines are learned.

    Attributes
    ----------
    action_factor : ndarray, shape (d,)
        What centred actions are multiplied by.
    common_slopes : ndarray, shape (2, d)
        What slopes are added to: for networks on the first stage's target, and on the observed outcome.
    """

    action_factor: npt.NDArray[np.float32]
    common_slopes: FloatArray

    @classmethod
    def learn(
        cls,
        sample: TrainingData,
        first_stage: FirstStage,
        encoder: StructuralEncoder,
        action_scale: float,
        common_slope: Callable[[FloatArray, FloatArray, FloatArray, FloatArray, float], FloatArray],
    ) -> LineUnits:
        """Learn from rows that stand for all; ``common_slope`` regresses a target on moved actions."""
        centre = encoder.centre(sample.context)
        spread = (action_vectors(sample.action_spec, sample.action) - centre).std(axis=0)
        factor = (action_scale / np.where(spread > 0.0, spread, 1.0)).astype(np.float32)
        standardised = encoder.context.standardised(sample.context)
        features = np.hstack([np.ones((len(sample), 1)), standardised])
        moved = np.asarray(
            (first_stage.law.mean().cpu().double().numpy() - centre) * factor, dtype=np.float64
        )
        slopes = [
            common_slope(features, moved, target, sample.weight, action_scale**2)
            for target in (first_stage.target, sample.outcome)
        ]
        return cls(factor, np.stack(slopes))
