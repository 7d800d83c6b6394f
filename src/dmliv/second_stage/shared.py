"""h from rows that come block by block: all networks of an ensemble learn from the same batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dmliv.data import TrainingData
from dmliv.first_stage.base import Runtime
from dmliv.first_stage.blocks import (
    BlockSource,
    MemorySource,
    batches,
    data_at,
    resident,
    sample_rows,
    weighted_means,
)
from dmliv.first_stage.crossfit import FirstStage, first_stage_at
from dmliv.nets.device import on_device
from dmliv.nets.settings import LARGE_ROWS, NetworkSettings
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingRecord, descend
from dmliv.second_stage.features import StructuralColumns, StructuralEncoder, evaluate
from dmliv.second_stage.projection import DrawRule


def on_sample(
    data: TrainingData, first_stage: FirstStage, device: torch.device
) -> tuple[TrainingData, FirstStage, BlockSource]:
    """Return rows that stand for all, what the first stage left for them, and all rows as one block."""
    rows = sample_rows(len(data), LARGE_ROWS)
    target = on_device(first_stage.target.astype(np.float32), device)
    block = replace(resident(data, device).block, target=target, law=first_stage.law)
    return data_at(data, rows), first_stage_at(first_stage, rows), MemorySource(block)


def train_on_blocks(
    source: BlockSource,
    settings: NetworkSettings,
    n_members: int,
    encoder: StructuralEncoder,
    encoding: str,
    rule: DrawRule,
    variance_weight: float,
    *,
    generator: np.random.Generator,
    runtime: Runtime,
) -> tuple[StackedMLP, TrainingRecord]:
    """Train an ensemble for h whose members see the same batches; they differ in initial weights and draws.

    Parameters
    ----------
    source : BlockSource
        With target and law.
    settings : NetworkSettings
    n_members : int
    encoder : StructuralEncoder
    encoding : str
    rule : DrawRule
    variance_weight : float
        Of the variance of h under the action law.
    generator : numpy.random.Generator
    runtime : Runtime

    Returns
    -------
    net : StackedMLP
    record : TrainingRecord
    """
    n_rows, device = source.n_rows, runtime.device
    columns = StructuralColumns(encoder, encoding, device)
    encode_action = encoder.action_encoder(encoding, device)
    draws = torch.Generator(device=device).manual_seed(int(generator.integers(2**31)))
    weight = torch.tensor(float(variance_weight), dtype=torch.float32, device=device)
    net = StackedMLP(
        n_members,
        (columns.width + encoder.action_features_width(encoding), *settings.hidden, 1),
        dropout=settings.dropout_rates(n_rows),
        generator=generator,
        device=device,
    )
    net.tall = True
    plan = settings.plan(n_rows)

    def epoch_losses() -> Iterator[Tensor]:
        for batch in batches(source, plan.batch_size, generator):
            if batch.target is None or batch.law is None:
                raise ValueError("Expected rows that the first stage has filled.")
            features, centre = columns.encode(batch.context)
            rows = torch.arange(len(batch), device=device).expand(n_members, -1)
            nodes = rule.draw(batch.law, rows, draws)
            values = evaluate(
                net, net.embed(features.unsqueeze(0)), encode_action(nodes.actions - centre.unsqueeze(1))
            )
            losses = rule.loss(values, nodes, batch.target.expand(n_members, -1), batch.law, weight)
            if batch.weight is None:
                yield losses.mean(dim=1)
            else:
                yield weighted_means(losses, batch.weight.expand(n_members, -1))

    steps = math.ceil(n_rows / plan.batch_size)
    record = descend(
        net,
        epoch_losses,
        steps,
        plan,
        progress=runtime.progress,
        label="structural model",
        shows_steps=True,
    )
    return net, record
