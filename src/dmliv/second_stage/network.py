"""h as a small ensemble of networks, with encoding and variance weight chosen on rows the nuisances never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dmliv.data import Table, TrainingData
from dmliv.errors import InputError
from dmliv.first_stage.base import Runtime
from dmliv.first_stage.crossfit import FirstStage, JudgedSplit
from dmliv.first_stage.laws import ActionLaw, assemble
from dmliv.nets.settings import NetworkSettings
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingRecord, train
from dmliv.second_stage.base import FloatArray
from dmliv.second_stage.features import StructuralEncoder
from dmliv.second_stage.projection import DrawRule

IntArray = npt.NDArray[np.int64]

# Trials that only choose settings learn from no more rows than this.
_MOST_CHOICE_ROWS = 2000
# Network rows (members x rows x nodes) in one evaluation pass; keeps memory flat.
_EVALUATION_ROWS = 1 << 17
_JUDGING_POINTS = 3


@dataclass(frozen=True)
class NeuralStructural:
    """Structural learner: an ensemble of networks on (context, action).

    Parameters
    ----------
    settings : NetworkSettings
        Shape, encodings and training.
    draw_rule : DrawRule
        How the projection over the action law is estimated while training.
    variance_weight : float or tuple of float
        Weight of the variance of h under the action law, added to the loss of the draw rule. Several values
        are candidates, and one is chosen on held-out rows. It has no effect on the rule ``"single"``.
    n_members : int
        Networks in the ensemble; they differ in initial weights, row order and draws.
    """

    settings: NetworkSettings
    draw_rule: DrawRule = DrawRule()
    variance_weight: float | tuple[float, ...] = 0.0
    n_members: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.n_members < 1:
            raise InputError(f"Expected at least one network, got n_members={self.n_members}.")
        if not self._variance_weights or min(self._variance_weights) < 0.0:
            raise InputError(f"Expected variance weights of at least 0, got {self.variance_weight}.")

    @property
    def _variance_weights(self) -> tuple[float, ...]:
        return self.variance_weight if isinstance(self.variance_weight, tuple) else (self.variance_weight,)

    @property
    def needs_judging(self) -> bool:
        """Whether there is something to choose."""
        return len(self.settings.encodings) * len(self._variance_weights) > 1

    def fit(
        self, data: TrainingData, first_stage: FirstStage, *, seed: int, runtime: Runtime
    ) -> NeuralStructuralModel:
        """Choose encoding and variance weight, then train the ensemble on all rows."""
        generator = np.random.Generator(np.random.SFC64(seed))
        encoder = StructuralEncoder.learn(data, self.settings.n_bins)
        choice = _Choice(self.settings.encodings[0], self._variance_weights[0])
        choice_losses: dict[str, float] = {}
        if self.needs_judging:
            choice, choice_losses = self._choose(data, first_stage, encoder, generator, runtime)
        rows = np.arange(len(data))
        fit_rows, heldout = rows, None
        if self.settings.patience is not None:
            shuffled = generator.permutation(rows)
            size = max(1, round(self.settings.validation_fraction * len(rows)))
            fit_rows, heldout = shuffled[size:], [shuffled[:size]] * self.n_members
        whole = JudgedSplit(fit_rows, rows, first_stage.target, first_stage.law)
        net, record = self._train(
            data,
            encoder,
            [_Member(choice, whole, fit_rows)] * self.n_members,
            heldout,
            "structural model",
            generator=generator,
            runtime=runtime,
            judge_by_outcome=False,
        )
        return NeuralStructuralModel(net, encoder, choice.encoding, choice.variance_weight, choice_losses, record)

    def _choose(
        self,
        data: TrainingData,
        first_stage: FirstStage,
        encoder: StructuralEncoder,
        generator: np.random.Generator,
        runtime: Runtime,
    ) -> tuple[_Choice, dict[str, float]]:
        choices = [_Choice(*pair) for pair in product(self.settings.encodings, self._variance_weights)]
        members = []
        for split in first_stage.splits:
            fit_rows = generator.permutation(split.fit_rows)[:_MOST_CHOICE_ROWS]
            members.extend(_Member(choice, split, fit_rows) for choice in choices)
        _, record = self._train(
            data,
            encoder,
            members,
            [member.split.judging_rows for member in members],
            "structural model: choice of settings",
            generator=generator,
            runtime=runtime,
            judge_by_outcome=True,
        )
        losses = record.final_heldout.reshape(len(first_stage.splits), len(choices)).mean(axis=0)
        named = {str(choice): float(loss) for choice, loss in zip(choices, losses, strict=True)}
        return choices[int(np.argmin(losses))], named

    def _train(
        self,
        data: TrainingData,
        encoder: StructuralEncoder,
        members: Sequence[_Member],
        heldout_sets: Sequence[IntArray] | None,
        label: str,
        *,
        generator: np.random.Generator,
        runtime: Runtime,
        judge_by_outcome: bool,
    ) -> tuple[StackedMLP, TrainingRecord]:
        n_rows = max(len(member.fit_rows) for member in members)
        inputs = _StructuralInputs(data, encoder, [member.choice.encoding for member in members], runtime.device)
        net = StackedMLP(
            len(members),
            (inputs.width, *self.settings.hidden, 1),
            dropout=self.settings.dropout_rates(n_rows),
            generator=generator,
            device=runtime.device,
        )
        draws = torch.Generator(device=runtime.device)
        draws.manual_seed(int(generator.integers(2**31)))
        objective = _ProjectedLoss(net, inputs, members, data, self.draw_rule, draws, judge_by_outcome)
        weight = None
        if not np.all(data.weight == 1.0):
            weight = torch.from_numpy(data.weight.astype(np.float32)).to(runtime.device)
        record = train(
            net,
            objective,
            [member.fit_rows for member in members],
            self.settings.plan(n_rows),
            generator=generator,
            progress=runtime.progress,
            label=label,
            weight=weight,
            heldout_sets=heldout_sets,
        )
        return net, record


@dataclass(frozen=True)
class _Choice:
    encoding: str
    variance_weight: float

    def __str__(self) -> str:
        return f"{self.encoding}, variance weight {self.variance_weight:g}"


@dataclass(frozen=True)
class _Member:
    """One network of a stack: its settings, the nuisances it is fitted to, and its rows."""

    choice: _Choice
    split: JudgedSplit
    fit_rows: IntArray


class _StructuralInputs:
    """Inputs of members that may use different encodings."""

    def __init__(
        self, data: TrainingData, encoder: StructuralEncoder, encodings: Sequence[str], device: torch.device
    ) -> None:
        used = list(dict.fromkeys(encodings))
        blocks = [encoder.context_features(data.context, name) for name in used]
        context_width = max(block.shape[1] for block in blocks)
        padded = [np.pad(block, ((0, 0), (0, context_width - block.shape[1]))) for block in blocks]
        self._context = torch.from_numpy(np.concatenate(padded)).to(device)
        widest = max(used, key=encoder.action_features_width)
        action_width = encoder.action_features_width(widest)
        self._encode_action = encoder.action_encoder(widest, device)
        shape = (len(encodings), 1)
        offsets = [used.index(name) * len(data) for name in encodings]
        self._offset = torch.tensor(offsets, device=device).view(shape)
        # Members with a narrower action encoding see zeros in the features that are not theirs.
        own = [encoder.action_features_width(name) for name in encodings]
        mask = np.arange(action_width)[None, :] < np.array(own)[:, None]
        self._mask = None
        if not mask.all():
            self._mask = torch.from_numpy(mask).to(device, torch.float32)[:, None, None, :]
        self.width = context_width + action_width

    def at(self, rows: Tensor, actions: Tensor) -> Tensor:
        """Return inputs (M, B * Q, width) for rows (M, B) and actions (M, B, Q, d)."""
        context = self._context[rows + self._offset]
        features = self._encode_action(actions)
        if self._mask is not None:
            features = features * self._mask
        wide = context.unsqueeze(2).expand(-1, -1, actions.shape[2], -1)
        return torch.cat([wide, features], dim=-1).flatten(1, 2)


class _ProjectedLoss:
    """Objective of the second stage: the draw rule's loss while training, the projected error when judged."""

    def __init__(
        self,
        net: StackedMLP,
        inputs: _StructuralInputs,
        members: Sequence[_Member],
        data: TrainingData,
        draw_rule: DrawRule,
        draws: torch.Generator,
        judge_by_outcome: bool,
    ) -> None:
        device = net.device
        splits: list[JudgedSplit] = []
        position = []
        for member in members:
            known = [index for index, split in enumerate(splits) if split is member.split]
            if not known:
                splits.append(member.split)
            position.append(known[0] if known else len(splits) - 1)
        n_rows = len(data)
        self._net, self._inputs, self._rule, self._draws = net, inputs, draw_rule, draws
        self._offset = torch.tensor(position, device=device).view(-1, 1) * n_rows
        parts = [torch.arange(n_rows, device=device) + index * n_rows for index in range(len(splits))]
        self._law: ActionLaw = (
            splits[0].law
            if len(splits) == 1
            else assemble(n_rows * len(splits), parts, [split.law for split in splits])
        )
        targets = np.concatenate([split.target for split in splits]).astype(np.float32)
        self._target = torch.from_numpy(targets).to(device)
        outcome = torch.from_numpy(data.outcome.astype(np.float32)).to(device)
        self._judging_target = outcome.repeat(len(splits)) if judge_by_outcome else self._target
        weights = [member.choice.variance_weight for member in members]
        self._variance_weight = torch.tensor(weights, device=device).view(-1, 1)

    def row_loss(self, rows: Tensor, *, training: bool) -> Tensor:
        law_rows = rows + self._offset
        if not training:
            return (self._judging_target[law_rows] - self._projection(rows, law_rows)).square()
        nodes = self._rule.draw(self._law, law_rows, self._draws)
        values = self._net(self._inputs.at(rows, nodes.actions)).view(nodes.weights.shape)
        return self._rule.loss(values, nodes, self._target[law_rows], self._law, self._variance_weight)

    def _projection(self, rows: Tensor, law_rows: Tensor) -> Tensor:
        one = self._law.nodes(law_rows[:, :1], _JUDGING_POINTS)
        step = max(1, _EVALUATION_ROWS // (rows.shape[0] * one.weights.shape[-1]))
        parts = []
        for part, law_part in zip(rows.split(step, dim=1), law_rows.split(step, dim=1), strict=True):
            nodes = self._law.nodes(law_part, _JUDGING_POINTS)
            values = self._net(self._inputs.at(part, nodes.actions)).view(nodes.weights.shape)
            parts.append((nodes.weights * values).sum(-1))
        return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class NeuralStructuralModel:
    """A fitted ensemble; predictions are the mean over its networks.

    Attributes
    ----------
    net : StackedMLP
    encoder : StructuralEncoder
    encoding : str
        The encoding in use.
    variance_weight : float
        The weight in use.
    choice_losses : dict
        Held-out loss of every candidate setting; empty when there was nothing to choose.
    record : TrainingRecord
    """

    net: StackedMLP
    encoder: StructuralEncoder
    encoding: str
    variance_weight: float
    choice_losses: dict[str, float]
    record: TrainingRecord

    @torch.no_grad()
    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""
        features = self._context(context)
        actions = self._actions(action)
        step = max(1, _EVALUATION_ROWS // self.net.n_members)
        parts = [
            self.net(torch.cat(pair, dim=-1).unsqueeze(0)).squeeze(-1).mean(0)
            for pair in zip(features.split(step), actions.split(step), strict=True)
        ]
        return torch.cat(parts).cpu().double().numpy()

    @torch.no_grad()
    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action, encoding both once."""
        features, candidates = self._context(context), self._actions(actions)
        n_actions = len(candidates)
        step = max(1, _EVALUATION_ROWS // (self.net.n_members * n_actions))
        result = np.empty((len(context), n_actions))
        for start in range(0, len(context), step):
            part = features[start : start + step]
            rows = torch.cat(
                [
                    part.unsqueeze(1).expand(-1, n_actions, -1),
                    candidates.unsqueeze(0).expand(len(part), -1, -1),
                ],
                dim=-1,
            ).flatten(0, 1)
            values = self.net(rows.unsqueeze(0)).squeeze(-1).mean(0)
            result[start : start + step] = values.view(len(part), n_actions).cpu().double().numpy()
        return result

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative of h in the action, shape (n, d)."""
        features = self._context(context)
        encode = self.encoder.action_encoder(self.encoding, self.net.device)
        step = max(1, _EVALUATION_ROWS // self.net.n_members)
        parts = []
        for start in range(0, len(features), step):
            part = torch.as_tensor(
                action[start : start + step], dtype=torch.float32, device=self.net.device
            ).requires_grad_()
            rows = torch.cat([features[start : start + step], encode(part)], dim=-1)
            total = self.net(rows.unsqueeze(0)).mean(0).sum()
            parts.append(torch.autograd.grad(total, part)[0])
        return torch.cat(parts).cpu().double().numpy()

    def describe(self) -> dict[str, object]:
        """Return the choices made and the loss curve."""
        return {
            "encoding": self.encoding,
            "variance_weight": self.variance_weight,
            "choice_losses": self.choice_losses,
            "train_loss": self.record.train_loss.mean(axis=1).tolist(),
        }

    def _context(self, context: Table) -> Tensor:
        return torch.from_numpy(self.encoder.context_features(context, self.encoding)).to(self.net.device)

    def _actions(self, action: FloatArray) -> Tensor:
        tensor = torch.as_tensor(action, dtype=torch.float32, device=self.net.device)
        return self.encoder.action_encoder(self.encoding, self.net.device)(tensor)
