"""Stacked nuisances on shared batches: every member sees the same rows and skips those that are not its own.

A batch is read and encoded once for all members, whether it comes from memory or from a file. A member of K
folds skips one row in K, which costs less than fetching every member its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from torch import Tensor

from dmliv.first_stage.base import Runtime
from dmliv.first_stage.blocks import BlockSource, batches, member_weights
from dmliv.first_stage.choice import ChosenInputs
from dmliv.first_stage.features import ExogenousColumns, ExogenousEncoder
from dmliv.first_stage.losses import mean_losses
from dmliv.nets.heads import Head
from dmliv.nets.settings import NetworkSettings
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingRecord, descend


@dataclass(frozen=True)
class SharedRows:
    """What members of a stack learn from.

    Attributes
    ----------
    source : BlockSource
    uses : Tensor, shape (M, n_parts)
        One where a member learns from the rows of a part, else zero.
    target : {"outcome", "action"}
        What is learned.
    """

    source: BlockSource
    uses: Tensor
    target: Literal["outcome", "action"]

    def of_members(self, members: Sequence[int]) -> SharedRows:
        """Return the same rows for some of the members."""
        return replace(self, uses=self.uses[list(members)])

    def train(
        self,
        encoder: ExogenousEncoder,
        inputs: ChosenInputs,
        head: Head,
        settings: NetworkSettings,
        label: str,
        generator: np.random.Generator,
        runtime: Runtime,
    ) -> tuple[StackedMLP, TrainingRecord]:
        """Train one network per member on all rows."""
        n_rows, n_members = self.source.n_rows, len(self.uses)
        columns = ExogenousColumns(encoder, runtime.device)
        plan = settings.plan(n_rows)
        net = StackedMLP(
            n_members,
            (columns.width(inputs.encoding), *settings.hidden, head.width),
            dropout=settings.dropout_rates(n_rows),
            generator=generator,
            device=runtime.device,
        )
        net.tall = True

        def epoch_losses() -> Iterator[Tensor]:
            for batch in batches(self.source, plan.batch_size, generator):
                features = columns.encode(batch.context, batch.instrument, inputs.encoding)
                target = batch.outcome if self.target == "outcome" else batch.action
                raw = net(features.unsqueeze(0))
                yield mean_losses(head, raw, target, member_weights(batch, self.uses))

        record = descend(
            net,
            epoch_losses,
            math.ceil(n_rows / plan.batch_size),
            plan,
            progress=runtime.progress,
            label=label,
            rate_factors=[inputs.rate_factor] * n_members,
            shows_steps=True,
        )
        return net, record
