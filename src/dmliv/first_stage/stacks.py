"""Fitted first-stage networks: stacks with the inputs that were chosen for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dmliv.first_stage.base import Exogenous, IntArray
from dmliv.first_stage.choice import ChosenInputs
from dmliv.first_stage.features import ExogenousColumns, ExogenousEncoder
from dmliv.first_stage.views import EncodedViews
from dmliv.nets.columns import Columns
from dmliv.nets.settings import LARGE_ROWS
from dmliv.nets.stacked import StackedMLP, member_outputs
from dmliv.nets.training import TrainingRecord

# Rows encoded at once when many are predicted.
_CHUNK_ROWS = 1 << 13


@dataclass(frozen=True)
class FittedSide:
    """Networks that were trained as one stack, with the inputs chosen for them.

    Attributes
    ----------
    members : tuple of int
        Their positions among all members.
    net : StackedMLP
    inputs : ChosenInputs
    record : TrainingRecord
    """

    members: tuple[int, ...]
    net: StackedMLP
    inputs: ChosenInputs
    record: TrainingRecord


@dataclass(frozen=True)
class FittedStack:
    """M trained networks on the exogenous input.

    Attributes
    ----------
    encoder : ExogenousEncoder
    sides : tuple of FittedSide
        Together they hold every member once.
    """

    encoder: ExogenousEncoder
    sides: tuple[FittedSide, ...]

    @torch.no_grad()
    def outputs(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[Tensor]:
        """Return the raw outputs of member m for its rows, shape (rows, width)."""
        results: dict[int, Tensor] = {}
        if len(exogenous) > LARGE_ROWS and self.encoder.context.image is None:
            return self._outputs_by_chunk(exogenous, row_sets)
        for side in self.sides:
            views = EncodedViews.of(self.encoder, exogenous, [side.inputs.encoding], side.net.device)
            parts = member_outputs(side.net, views.at, [row_sets[member] for member in side.members])
            results.update(zip(side.members, parts, strict=True))
        return [results[member] for member in range(len(row_sets))]

    def _outputs_by_chunk(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[Tensor]:
        """Return the same, member by member, with few rows encoded at a time."""
        results: dict[int, Tensor] = {}
        for side in self.sides:
            device = side.net.device
            columns = ExogenousColumns(self.encoder, device)
            for position, member in enumerate(side.members):
                net, rows = side.net.subset([position]), row_sets[member]
                outputs = torch.empty((len(rows), net.widths[-1]), dtype=torch.float32, device=device)
                for start in range(0, len(rows), _CHUNK_ROWS):
                    part = rows[start : start + _CHUNK_ROWS]
                    context = Columns.of(exogenous.context.take(part), self.encoder.context, device)
                    instrument = Columns.of(exogenous.instrument.take(part), self.encoder.instrument, device)
                    inputs = columns.encode(context, instrument, side.inputs.encoding)
                    outputs[start : start + _CHUNK_ROWS] = net(inputs.unsqueeze(0))[0]
                results[member] = outputs
        return [results[member] for member in range(len(row_sets))]

    def describe(self) -> dict[str, object]:
        """Return the choices and the loss curve in plain values."""
        by_member = {member: side for side in self.sides for member in side.members}
        order = [by_member[member] for member in sorted(by_member)]
        # With early stopping sides may differ in length; the curve ends with the shorter one.
        epochs = min(len(side.record.train_loss) for side in self.sides)
        losses = np.hstack([side.record.train_loss[:epochs] for side in self.sides])
        return {
            "encodings": [side.inputs.encoding for side in order],
            "rate_factors": [side.inputs.rate_factor for side in order],
            "train_loss": losses.mean(axis=1).tolist(),
        }
