"""h linear in the action, with coefficients that are networks of the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.errors import InputError
from dmliv.first_stage.base import Runtime
from dmliv.first_stage.blocks import BlockSource
from dmliv.first_stage.crossfit import FirstStage, JudgedSplit
from dmliv.first_stage.laws import ActionLaw
from dmliv.nets.randomness import Randomness
from dmliv.nets.settings import LARGE_ROWS, NetworkSettings
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingRecord, train
from dmliv.second_stage.base import action_vectors
from dmliv.second_stage.features import StructuralEncoder
from dmliv.second_stage.judging import TrialProjections, judged_losses
from dmliv.second_stage.line_model import CoefficientModel, rows_at_once
from dmliv.second_stage.objective import StructuralInputs
from dmliv.second_stage.shared import LineUnits, SharedEnsemble, on_sample

# Penalty of the common slope, as a share of the action's variance in a context.
_SLOPE_PENALTY = 0.03


@dataclass(frozen=True)
class CoefficientStructural:
    """Structural learner: h(c, a) = level(c) + slope(c) . (a - mean of the action in c).

    Level and slopes are the outputs of one network of the context; the network's slopes are added to a common
    one, which two-stage least squares finds. Such an h passes through the expectation,
    so the mean of the action law is all that training needs: no draws, no quadrature, and nothing for the
    network to learn about curves in the action that the projection would hardly show. Where effects are
    straight lines, or as good as straight in the range that the instrument moves, this is far more exact than
    a free function of (context, action); where they bend it is wrong, so that it is best left to compete (see
    :class:`~dmliv.second_stage.rivals.RivalStructural`). A discrete action has one slope per level.

    Parameters
    ----------
    settings : NetworkSettings
        Shape, encodings and training.
    n_members, n_outcome_members : int
        Networks fitted to the first stage's target, and to the observed outcome.
    action_scale : float
        What one standard deviation of the centred action counts as. Weight decay then shrinks slopes more
        than levels when this is below 1: slopes are what a weak instrument leaves open.
    """

    settings: NetworkSettings
    n_members: int = 1
    n_outcome_members: int = 0
    action_scale: float = 0.5

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.n_members < 1 or self.n_outcome_members < 0:
            raise InputError(
                f"Expected at least one network and no negative number, got n_members={self.n_members} and "
                f"n_outcome_members={self.n_outcome_members}."
            )
        if self.settings.rate_factors != (1.0,) or self.settings.patience is not None:
            raise InputError(
                "Expected one learning rate and no early stopping for the structural model, got rate_factors="
                f"{self.settings.rate_factors} and patience={self.settings.patience}; set learning_rate and "
                "epochs instead."
            )
        if not self.action_scale > 0.0:
            raise InputError(f"Expected a positive action_scale, got {self.action_scale}; pass 0.5, say.")

    @property
    def needs_judging(self) -> bool:
        """Whether there is something to choose."""
        return len(self.settings.encodings) > 1

    def fit(
        self, data: TrainingData, first_stage: FirstStage, *, seed: int, runtime: Runtime
    ) -> CoefficientModel:
        """Choose the encoding, then train the ensemble on all rows."""
        generator = np.random.Generator(np.random.SFC64(seed))
        source = None
        if len(data) > LARGE_ROWS and self.settings.adapts:
            data, first_stage, source = on_sample(data, first_stage, runtime.device)
        encoder = self.learn_encoder(data, first_stage.law)
        encoding, losses = self.settings.encodings[0], dict[str, float]()
        if self.needs_judging:
            judging_rows = [split.judging_rows for split in first_stage.splits]
            trials = self.judge(
                data,
                first_stage,
                encoder,
                [split.fit_rows for split in first_stage.splits],
                judging_rows,
                generator=generator,
                runtime=runtime,
            )
            losses = {
                name: float(judged_losses(data, judging_rows, halves).mean())
                for name, halves in trials.items()
            }
            encoding = min(losses, key=losses.__getitem__)
        return self.train_ensemble(
            data, first_stage, encoder, encoding, losses, generator=generator, runtime=runtime, source=source
        )

    def learn_encoder(self, data: TrainingData, law: ActionLaw) -> StructuralEncoder:
        """Learn how columns become inputs, and the mean action in a context from those the law predicts."""
        return StructuralEncoder.learn(
            data,
            self.settings.n_bins,
            centred=True,
            predicted=law.mean().cpu().double().numpy(),
            image=self.settings.image,
        )

    def judge(
        self,
        data: TrainingData,
        first_stage: FirstStage,
        encoder: StructuralEncoder,
        fit_rows: Sequence[IntArray],
        judging_rows: Sequence[IntArray],
        *,
        generator: np.random.Generator,
        runtime: Runtime,
    ) -> dict[str, tuple[TrialProjections, ...]]:
        """Train one network per encoding and half; return its projections, by encoding."""
        encodings = self.settings.encodings
        members = [
            _Member(encoding, split, rows)
            for split, rows in zip(first_stage.splits, fit_rows, strict=True)
            for encoding in encodings
        ]
        twins = [index // len(encodings) for index in range(len(members))]
        loss, _ = self._train(
            data,
            encoder,
            members,
            "linear effects: choice",
            generator=generator,
            runtime=runtime,
            twins=twins,
        )
        found: dict[str, tuple[TrialProjections, ...]] = {}
        for position, encoding in enumerate(encodings):
            found[encoding] = tuple(
                TrialProjections(*(loss.projection(half * len(encodings) + position, part) for part in parts))
                for half, parts in enumerate(zip(fit_rows, judging_rows, strict=True))
            )
        return found

    def train_ensemble(
        self,
        data: TrainingData,
        first_stage: FirstStage,
        encoder: StructuralEncoder,
        encoding: str,
        choice_losses: dict[str, float],
        *,
        generator: np.random.Generator,
        runtime: Runtime,
        source: BlockSource | None = None,
    ) -> CoefficientModel:
        """Train the ensemble with the chosen encoding on all rows: those of ``source``, if it is given."""
        if source is not None:
            units = LineUnits.learn(data, first_stage, encoder, self.action_scale, common_slope)
            ensemble = SharedEnsemble(
                source, self.settings, self.n_members, self.n_outcome_members, encoder, encoding
            )
            net, record = ensemble.train_lines(units, generator, runtime)
            share = self.n_outcome_members / net.n_members
            common = (1.0 - share) * units.common_slopes[0] + share * units.common_slopes[1]
            return CoefficientModel(
                net, encoder, encoding, units.action_factor, common, choice_losses, record
            )
        members = self._ensemble(encoding, data, first_stage, np.arange(len(data)))
        loss, record = self._train(
            data, encoder, members, "linear effects", generator=generator, runtime=runtime
        )
        common = loss.common_slope.mean(axis=0)
        return CoefficientModel(
            loss.net, encoder, encoding, loss.action_factor, common, choice_losses, record
        )

    def train_again(
        self,
        data: TrainingData,
        first_stages: Sequence[FirstStage],
        counts: Sequence[IntArray],
        fitted: CoefficientModel,
        *,
        generators: Sequence[np.random.Generator],
        runtime: Runtime,
    ) -> list[CoefficientModel]:
        """Train the ensembles of many resampled data sets as one stack, with the encoding of all rows.

        The arguments are those of
        :meth:`NeuralStructural.train_again <dmliv.second_stage.network.NeuralStructural.train_again>`.
        """
        members = [
            member
            for first_stage, count in zip(first_stages, counts, strict=True)
            for member in self._ensemble(
                fitted.encoding, data, first_stage, np.repeat(np.arange(len(data)), count)
            )
        ]
        loss, record = self._train(
            data,
            fitted.encoder,
            members,
            "linear effects: replicates",
            generator=generators,
            runtime=runtime,
            n_rows=len(data),
        )
        size = self.n_members + self.n_outcome_members
        groups = [slice(start, start + size) for start in range(0, len(members), size)]
        return [
            replace(
                fitted,
                net=loss.net.subset(range(group.start, group.stop)),
                common_slope=loss.common_slope[group].mean(axis=0),
                record=record.of_members(group),
            )
            for group in groups
        ]

    def _ensemble(
        self, encoding: str, data: TrainingData, first_stage: FirstStage, rows: IntArray
    ) -> list[_Member]:
        whole = JudgedSplit(rows, rows, first_stage.target, first_stage.law)
        members = [_Member(encoding, whole, rows)] * self.n_members
        return (
            members + [_Member(encoding, replace(whole, target=data.outcome), rows)] * self.n_outcome_members
        )

    def _train(
        self,
        data: TrainingData,
        encoder: StructuralEncoder,
        members: Sequence[_Member],
        label: str,
        *,
        generator: Randomness,
        runtime: Runtime,
        twins: Sequence[int] | None = None,
        n_rows: int | None = None,
    ) -> tuple[_CoefficientLoss, TrainingRecord]:
        n_rows = max(len(member.fit_rows) for member in members) if n_rows is None else n_rows
        inputs = StructuralInputs(data, encoder, [member.encoding for member in members], runtime.device)
        front = self.settings.front(n_rows)
        n_inputs = inputs.context_width + (0 if front is None else front.n_features)
        net = StackedMLP(
            len(members),
            (n_inputs, *self.settings.hidden, 1 + encoder.action_width),
            dropout=self.settings.dropout_rates(n_rows),
            generator=generator,
            device=runtime.device,
            front=front,
        )
        if twins is not None:
            net.start_alike(twins)
        loss = _CoefficientLoss(net, inputs, members, data, encoder, self.action_scale)
        weight = None
        if not np.all(data.weight == 1.0):
            weight = torch.from_numpy(data.weight.astype(np.float32)).to(runtime.device)
        record = train(
            net,
            loss,
            [member.fit_rows for member in members],
            self.settings.plan(n_rows),
            generator=generator,
            progress=runtime.progress,
            label=label,
            weight=weight,
            twins=twins,
            epoch_rows=n_rows,
        )
        return loss, record


@dataclass(frozen=True)
class _Member:
    """One network of a stack: its encoding, the nuisances it is fitted to, and its rows."""

    encoding: str
    split: JudgedSplit
    fit_rows: IntArray


class _CoefficientLoss:
    """Objective: squared difference of the target and the projection, level + slope . mean centred action."""

    def __init__(
        self,
        net: StackedMLP,
        inputs: StructuralInputs,
        members: Sequence[_Member],
        data: TrainingData,
        encoder: StructuralEncoder,
        action_scale: float,
    ) -> None:
        self.net, self._inputs = net, inputs
        centre = encoder.centre(data.context)
        spread = (action_vectors(data.action_spec, data.action) - centre).std(axis=0)
        self.action_factor = (action_scale / np.where(spread > 0.0, spread, 1.0)).astype(np.float32)
        features = _with_intercept(encoder.context.standardised(data.context))
        means, targets, slopes = [], [], []
        for member in members:
            mean = member.split.law.mean().cpu().double().numpy()
            actions = np.asarray((mean - centre) * self.action_factor, dtype=np.float64)
            rows, target = member.fit_rows, member.split.target
            slope = common_slope(
                features[rows], actions[rows], target[rows], data.weight[rows], action_scale**2
            )
            means.append(actions.astype(np.float32))
            targets.append((target - actions @ slope).astype(np.float32))
            slopes.append(slope)
        self.common_slope = np.stack(slopes)
        self._mean = torch.from_numpy(np.stack(means)).to(net.device)
        self._target = torch.from_numpy(np.stack(targets)).to(net.device)

    def row_loss(self, rows: Tensor, *, training: bool) -> Tensor:
        """Return one loss per member and row, shape (M, B)."""
        del training
        member = torch.arange(len(rows), device=rows.device).unsqueeze(1)
        coefficients = self.net(self._inputs.contexts(rows))
        projection = _combine(coefficients, self._mean[member, rows])
        return (self._target[member, rows] - projection).square()

    @torch.no_grad()
    def projection(self, member: int, rows: IntArray) -> FloatArray:
        """Return the projection of one member, shape (rows,)."""
        net, inputs = self.net.subset([member]), self._inputs.subset([member])
        parts = [
            _combine(net(inputs.contexts(part.unsqueeze(0)))[0], self._mean[member, part])
            for part in torch.split(torch.from_numpy(rows).to(net.device), rows_at_once(net))
        ]
        common = self._mean[member, rows].cpu().double().numpy() @ self.common_slope[member]
        return np.asarray(torch.cat(parts).cpu().double().numpy() + common)


def _combine(coefficients: Tensor, actions: Tensor) -> Tensor:
    """Return level + slope . action for coefficients (..., 1 + d) and actions (..., d)."""
    return coefficients[..., 0] + (coefficients[..., 1:] * actions).sum(-1)


def common_slope(
    features: FloatArray, actions: FloatArray, target: FloatArray, weight: FloatArray, variance: float
) -> FloatArray:
    """Return one slope for all contexts, shape (d,): two-stage least squares with a small penalty.

    Parameters
    ----------
    features : ndarray, shape (n, p)
        Of contexts; what they explain is taken out first.
    actions : ndarray, shape (n, d)
        Means of the centred action.
    target, weight : ndarray, shape (n,)
    variance : float
        Of the centred action itself. The penalty is a share of it: where the instrument moves the action less
        than that, the slope is left at zero.
    """
    root = np.sqrt(weight)[:, None]
    both = np.column_stack([actions, target]) * root
    both = both - (features * root) @ np.linalg.lstsq(features * root, both, rcond=None)[0]
    moved, rest = both[:, :-1], both[:, -1]
    penalty = _SLOPE_PENALTY * variance * weight.sum() * np.eye(moved.shape[1])
    return np.linalg.solve(moved.T @ moved + penalty, moved.T @ rest)


def _with_intercept(columns: FloatArray) -> FloatArray:
    return np.hstack([np.ones((len(columns), 1)), columns])
