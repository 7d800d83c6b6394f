"""The second stage's objective: what each network of a stack sees, and its projected loss."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.first_stage.crossfit import ValidationSplit
from dmliv.first_stage.distributions import ActionDistribution, Nodes, assemble
from dmliv.nets.columns import Columns
from dmliv.nets.randomness import Draws
from dmliv.nets.settings import LARGE_ROWS
from dmliv.nets.stacked import StackedMLP
from dmliv.second_stage.projection import DrawRule
from dmliv.second_stage.structural_encoder import StructuralColumns, StructuralEncoder, evaluate

# Network rows (members x rows x nodes) in one evaluation pass; keeps memory flat.
_EVALUATION_ROWS = 1 << 17
# Where many rows are evaluated at once they are those of a large table, and memory is scarce.
_MANY_ROWS = 10_000
_EVALUATION_ROWS_OF_MANY = 1 << 15
_EVALUATION_POINTS = 3


@dataclass(frozen=True)
class Member:
    """One network of a stack: its encoding, the nuisances it is fitted to, and its rows."""

    encoding: str
    split: ValidationSplit
    fit_rows: IntArray


class StructuralInputs:
    """Inputs of members that may use different encodings."""

    def __init__(
        self, data: TrainingData, encoder: StructuralEncoder, encodings: Sequence[str], device: torch.device
    ) -> None:
        used = list(dict.fromkeys(encodings))
        self._context: EncodedContexts | ContextColumns
        if len(data) > LARGE_ROWS and encoder.context.image is None:
            self._context = ContextColumns(data.context, encoder, used, device)
        else:
            self._context = EncodedContexts(data.context, encoder, used, device)
        pixels = encoder.context.pixels(data.context)
        self._pixels = None if pixels is None else torch.from_numpy(pixels).to(device)
        self._centre = torch.from_numpy(encoder.centre(data.context)).to(device)
        widest = max(used, key=encoder.action_features_width)
        action_width = encoder.action_features_width(widest)
        self._encode_action = encoder.action_encoder(widest, device)
        self._view = torch.tensor([used.index(name) for name in encodings], device=device).view(-1, 1)
        # Members with a narrower action encoding see zeros in the features that are not theirs.
        own = [encoder.action_features_width(name) for name in encodings]
        mask = np.arange(action_width)[None, :] < np.array(own)[:, None]
        self._mask = None
        if not mask.all():
            self._mask = torch.from_numpy(mask).to(device, torch.float32)[:, None, None, :]
        self.width = self._context.width + action_width

    def subset(self, members: list[int]) -> StructuralInputs:
        """Return the inputs of some members; the data are shared."""
        part = copy(self)
        part._view = self._view[members]
        part._mask = None if self._mask is None else self._mask[members]
        return part

    def values(self, net: StackedMLP, rows: Tensor, actions: Tensor) -> Tensor:
        """Return h (M, B, Q) for rows (M, B) and actions (M, B, Q, d); each context is embedded once."""
        features = self._encode_action(actions - self._centre[rows].unsqueeze(2))
        if self._mask is not None:
            features = features * self._mask
        context = self._context.at(rows, self._view)
        if self._pixels is not None:
            context = torch.cat([context, self._pixels[rows]], dim=-1)
        return evaluate(net, net.embed(context), features)


class ProjectedLoss:
    """Objective of the second stage: the draw rule's loss in training, the projected error in validation."""

    def __init__(
        self,
        net: StackedMLP,
        inputs: StructuralInputs,
        members: Sequence[Member],
        data: TrainingData,
        draw_rule: DrawRule,
        variance_weight: float,
        draws: Draws,
        seed_groups: Sequence[int] | None,
    ) -> None:
        device = net.device
        splits: list[ValidationSplit] = []
        position = []
        for member in members:
            known = [index for index, split in enumerate(splits) if split is member.split]
            if not known:
                splits.append(member.split)
            position.append(known[0] if known else len(splits) - 1)
        n_rows = len(data)
        self.net, self._inputs, self._rule, self._draws = net, inputs, draw_rule, draws
        self._offset = torch.tensor(position, device=device).view(-1, 1) * n_rows
        parts = [torch.arange(n_rows, device=device) + index * n_rows for index in range(len(splits))]
        self._distribution: ActionDistribution = (
            splits[0].distribution
            if len(splits) == 1
            else assemble(n_rows * len(splits), parts, [split.distribution for split in splits])
        )
        targets = np.concatenate([split.target for split in splits]).astype(np.float32)
        self._target = torch.from_numpy(targets).to(device)
        self._variance_weight = torch.tensor(float(variance_weight), dtype=torch.float32, device=device)
        # Members of a seed group look at the same rows, so they can share the draws of the first of them.
        self._draw_members: Tensor | None = None
        self._draws_of: Tensor | None = None
        if seed_groups is not None:
            distinct = list(dict.fromkeys(seed_groups))
            self._draw_members = torch.tensor(
                [list(seed_groups).index(group) for group in distinct], device=device
            )
            self._draws_of = torch.tensor([distinct.index(group) for group in seed_groups], device=device)

    def row_loss(self, rows: Tensor, *, training: bool) -> Tensor:
        """Return one loss per member and row, shape (M, B)."""
        distribution_rows = rows + self._offset
        if not training:
            return (self._target[distribution_rows] - self._projection(rows)).square()
        nodes = self._training_nodes(distribution_rows)
        values = self._inputs.values(self.net, rows, nodes.actions)
        return self._rule.loss(
            values, nodes, self._target[distribution_rows], self._distribution, self._variance_weight
        )

    @torch.no_grad()
    def projections(self, rows: IntArray, members: Sequence[int]) -> FloatArray:
        """Return the projections of some members on the same rows, shape (members, rows)."""
        index = torch.from_numpy(rows).to(self.net.device).expand(len(members), -1)
        return self._projection(index, list(members)).cpu().double().numpy()

    def _training_nodes(self, distribution_rows: Tensor) -> Nodes:
        if self._draw_members is None or self._draws_of is None:
            return self._rule.draw(self._distribution, distribution_rows, self._draws)
        nodes = self._rule.draw(self._distribution, distribution_rows[self._draw_members], self._draws)
        return Nodes(nodes.actions[self._draws_of], nodes.weights[self._draws_of])

    def _projection(self, rows: Tensor, members: list[int] | None = None) -> Tensor:
        """Return projections of all or some members, for rows (members, B)."""
        net, inputs, offset = self.net, self._inputs, self._offset
        if members is not None:
            net, inputs, offset = net.subset(members), inputs.subset(members), offset[members]
        distribution_rows = rows + offset
        n_nodes = self._distribution.n_nodes(_EVALUATION_POINTS)
        most = _EVALUATION_ROWS if rows.shape[1] <= _MANY_ROWS else _EVALUATION_ROWS_OF_MANY
        step = max(1, most // (rows.shape[0] * n_nodes))
        parts = []
        for part, distribution_part in zip(
            torch.split(rows, step, dim=1), torch.split(distribution_rows, step, dim=1), strict=True
        ):
            nodes = self._distribution.evaluation_nodes(distribution_part, _EVALUATION_POINTS)
            values = inputs.values(net, part, nodes.actions)
            parts.append((nodes.weights * values).sum(-1))
        return torch.cat(parts, dim=1)


class EncodedContexts:
    """Rows in several encodings, one below the other; narrow ones are filled with zero columns."""

    def __init__(
        self, context: Table, encoder: StructuralEncoder, encodings: Sequence[str], device: torch.device
    ) -> None:
        self._n_rows = len(context)
        blocks = [encoder.context_features(context, name) for name in encodings]
        self.width = max(block.shape[1] for block in blocks)
        filled = np.zeros((len(blocks) * self._n_rows, self.width), dtype=np.float32)
        for view, block in enumerate(blocks):
            filled[view * self._n_rows : (view + 1) * self._n_rows, : block.shape[1]] = block
        self._features = torch.from_numpy(filled).to(device)

    def at(self, rows: Tensor, view: Tensor) -> Tensor:
        """Return inputs (M, B, width) at rows (M, B), in the encodings ``view`` (M, 1)."""
        return self._features[rows + view * self._n_rows]


class ContextColumns:
    """The same for large tables: columns are held, and encoded whenever rows are asked for."""

    def __init__(
        self, context: Table, encoder: StructuralEncoder, encodings: Sequence[str], device: torch.device
    ) -> None:
        self._columns = Columns.of(context, encoder.context, device)
        self._encoders = [StructuralColumns(encoder, name, device) for name in encodings]
        self.width = max(each.width for each in self._encoders)

    def at(self, rows: Tensor, view: Tensor) -> Tensor:
        """Return inputs (M, B, width) at rows (M, B), in the encodings ``view`` (M, 1)."""
        inputs = torch.zeros((*rows.shape, self.width), dtype=torch.float32, device=rows.device)
        for position, encoder in enumerate(self._encoders):
            members = torch.nonzero(view[:, 0] == position).flatten()
            if not members.numel():
                continue
            features, _ = encoder.encode(self._columns.take(rows[members].flatten()))
            shape = (len(members), rows.shape[1], features.shape[1])
            inputs[members, :, : features.shape[1]] = features.view(shape)
        return inputs
