"""h as an ensemble of networks; the encoding is chosen on rows the nuisances never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from dmliv.data import IntArray, TrainingData
from dmliv.errors import InputError
from dmliv.first_stage.base import Runtime
from dmliv.first_stage.blocks import BlockSource
from dmliv.first_stage.crossfit import FirstStage, JudgedSplit
from dmliv.first_stage.laws import ActionLaw
from dmliv.first_stage.stack_fitting import LARGE_CHOICE_ROWS
from dmliv.nets.randomness import Randomness, torch_generators
from dmliv.nets.settings import LARGE_ROWS, NetworkSettings
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingRecord, train
from dmliv.second_stage.ensemble import NeuralStructuralModel
from dmliv.second_stage.features import StructuralEncoder
from dmliv.second_stage.objective import Member, ProjectedLoss, StructuralInputs
from dmliv.second_stage.projection import DrawRule
from dmliv.second_stage.shared import on_sample, train_on_blocks

# Trials that only choose an encoding learn from, and are validated on, no more rows (per half) than this.
_MOST_CHOICE_ROWS = 2000


@dataclass(frozen=True)
class NeuralStructural:
    """Structural learner: an ensemble of networks on (context, action).

    Parameters
    ----------
    settings : NetworkSettings
        Shape, encodings and training. Of several encodings the one with the lowest held-out loss is taken.
    draw_rule : DrawRule
        How the projection over the action law is estimated while training.
    variance_weight : float
        Weight of the variance of h under the action law, added to the loss of the draw rule. It has no effect
        on the rule ``"single"``.
    n_members : int
        Networks in the ensemble; they differ in initial weights, row order and draws.
    centre_action : bool
        Whether networks see the action as its mean in the context and the rest; see
        :class:`~dmliv.second_stage.features.StructuralEncoder`.
    """

    settings: NetworkSettings
    draw_rule: DrawRule = field(default_factory=DrawRule)
    variance_weight: float = 0.0
    n_members: int = 1
    centre_action: bool = True

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.n_members < 1:
            raise InputError(f"Expected at least one network, got n_members={self.n_members}; pass 4, say.")
        if self.settings.rate_factors != (1.0,):
            raise InputError(
                "Expected no learning-rate factors for the structural model, got "
                f"{self.settings.rate_factors}; set learning_rate instead."
            )
        weight = self.variance_weight
        if not isinstance(weight, (int, float, np.number)) or not 0.0 <= weight < np.inf:
            raise InputError(f"Expected a variance weight of at least 0, got {weight!r}; pass 0.2, say.")

    @property
    def needs_judging(self) -> bool:
        """Whether there is something to choose."""
        return len(self.settings.encodings) > 1

    def fit(
        self, data: TrainingData, first_stage: FirstStage, *, seed: int, runtime: Runtime
    ) -> NeuralStructuralModel:
        """Choose the encoding, then train the ensemble on all rows."""
        if len(data) > LARGE_ROWS and self.settings.adapts:
            sample, left, source = on_sample(data, first_stage, runtime.device)
            return self.fit_source(sample, left, source, seed=seed, runtime=runtime)
        generator = np.random.Generator(np.random.SFC64(seed))
        encoder = self._learn_encoder(data, first_stage.law)
        losses = self._held_out_losses(data, first_stage, encoder, generator, runtime, _MOST_CHOICE_ROWS)
        encoding = self._best(losses)
        fit_rows, heldout = np.arange(len(data)), None
        if self.settings.patience is not None:
            fit_rows, stopping = self._held_out(fit_rows, generator)
            heldout = [stopping] * self.n_members
        objective, record = self._train(
            data,
            encoder,
            self._ensemble(encoding, first_stage, fit_rows),
            heldout,
            "structural model",
            generator=generator,
            runtime=runtime,
        )
        return NeuralStructuralModel(objective.net, encoder, encoding, self.variance_weight, losses, record)

    def fit_source(
        self,
        sample: TrainingData,
        first_stage: FirstStage,
        source: BlockSource,
        *,
        seed: int,
        runtime: Runtime,
    ) -> NeuralStructuralModel:
        """Choose the encoding on a sample, then train the ensemble on all rows.

        Parameters
        ----------
        sample : TrainingData
            Rows that stand for all.
        first_stage : FirstStage
            What the first stage left for these.
        source : BlockSource
            All rows, with target and law.
        seed : int
        runtime : Runtime
        """
        generator = np.random.Generator(np.random.SFC64(seed))
        encoder = self._learn_encoder(sample, first_stage.law)
        losses = self._held_out_losses(sample, first_stage, encoder, generator, runtime, LARGE_CHOICE_ROWS)
        encoding = self._best(losses)
        net, record = train_on_blocks(
            source,
            self.settings,
            self.n_members,
            encoder,
            encoding,
            self.draw_rule,
            self.variance_weight,
            generator=generator,
            runtime=runtime,
        )
        return NeuralStructuralModel(net, encoder, encoding, self.variance_weight, losses, record)

    def train_again(
        self,
        data: TrainingData,
        first_stages: Sequence[FirstStage],
        counts: Sequence[IntArray],
        fitted: NeuralStructuralModel,
        *,
        generators: Sequence[np.random.Generator],
        runtime: Runtime,
    ) -> list[NeuralStructuralModel]:
        """Train the ensembles of many resampled data sets as one stack; nothing is chosen again.

        Parameters
        ----------
        data : TrainingData
        first_stages : sequence of R FirstStage
            What the first stage left of each.
        counts : sequence of R ndarray of int, shape (n,)
            How often each holds a row.
        fitted : NeuralStructuralModel
            Of all rows: its encoding is used.
        generators : sequence of R numpy.random.Generator
        runtime : Runtime
        """
        n_fit, size = len(data), self.n_members
        members: list[Member] = []
        heldout: list[IntArray] = []
        for first_stage, count, generator in zip(first_stages, counts, generators, strict=True):
            rows = np.flatnonzero(count)
            if self.settings.patience is not None:
                rows, stopping = self._held_out(rows, generator)
                heldout += [np.repeat(stopping, count[stopping])] * size
            members += self._ensemble(fitted.encoding, first_stage, np.repeat(rows, count[rows]))
        if heldout:
            n_fit -= self._n_held_out(n_fit)
        objective, record = self._train(
            data,
            fitted.encoder,
            members,
            heldout or None,
            "structural model: replicates",
            generator=generators,
            runtime=runtime,
            n_rows=n_fit,
        )
        groups = [slice(k, k + size) for k in range(0, len(members), size)]
        return [
            replace(
                fitted,
                net=objective.net.subset(range(group.start, group.stop)),
                record=record.of_members(group),
            )
            for group in groups
        ]

    def _learn_encoder(self, data: TrainingData, law: ActionLaw) -> StructuralEncoder:
        """Learn how columns become inputs, and the mean action in a context from those the law predicts."""
        return StructuralEncoder.learn(
            data,
            self.settings.n_bins,
            centred=self.centre_action,
            predicted=law.mean().cpu().double().numpy(),
            image=self.settings.image,
        )

    def _ensemble(self, encoding: str, first_stage: FirstStage, fit_rows: IntArray) -> list[Member]:
        all_rows = np.arange(len(first_stage.target))
        whole = JudgedSplit(fit_rows, all_rows, first_stage.target, first_stage.law)
        return [Member(encoding, whole, fit_rows)] * self.n_members

    def _n_held_out(self, n_rows: int) -> int:
        return max(1, round(self.settings.validation_fraction * n_rows))

    def _held_out(self, rows: IntArray, generator: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return the rows that networks learn from, and those that stop them."""
        shuffled, size = generator.permutation(rows), self._n_held_out(len(rows))
        return shuffled[size:], shuffled[:size]

    def _best(self, losses: dict[str, float]) -> str:
        """Return the encoding with the lowest held-out loss; the only one where nothing was tried."""
        return min(losses, key=losses.__getitem__, default=self.settings.encodings[0])

    def _held_out_losses(
        self,
        data: TrainingData,
        first_stage: FirstStage,
        encoder: StructuralEncoder,
        generator: np.random.Generator,
        runtime: Runtime,
        most_rows: int,
    ) -> dict[str, float]:
        """Return the mean held-out loss of every encoding; nothing if there is only one.

        One network per encoding and half is trained and validated on rows that its nuisances never saw.
        """
        if not self.needs_judging:
            return {}
        encodings = self.settings.encodings
        members: list[Member] = []
        twins: list[int] = []
        validation_rows: list[IntArray] = []
        for half, split in enumerate(first_stage.splits):
            fit_rows = generator.permutation(split.fit_rows)[:most_rows]
            validation_rows.append(generator.permutation(split.judging_rows)[:most_rows])
            members.extend(Member(encoding, split, fit_rows) for encoding in encodings)
            twins.extend([half] * len(encodings))
        objective, _ = self._train(
            data,
            encoder,
            members,
            None,
            "structural model: choice of settings",
            generator=generator,
            runtime=runtime,
            twins=twins,
        )
        by_half = []
        for half, rows in enumerate(validation_rows):
            of_half = range(half * len(encodings), (half + 1) * len(encodings))
            errors = data.outcome[rows] - objective.projections(rows, of_half)
            by_half.append(data.weight[rows] * errors**2)
        losses = np.concatenate(by_half, axis=1).mean(axis=1)
        return dict(zip(encodings, losses.tolist(), strict=True))

    def _train(
        self,
        data: TrainingData,
        encoder: StructuralEncoder,
        members: Sequence[Member],
        heldout_sets: Sequence[IntArray] | None,
        label: str,
        *,
        generator: Randomness,
        runtime: Runtime,
        twins: Sequence[int] | None = None,
        n_rows: int | None = None,
    ) -> tuple[ProjectedLoss, TrainingRecord]:
        n_rows = max(len(member.fit_rows) for member in members) if n_rows is None else n_rows
        inputs = StructuralInputs(data, encoder, [member.encoding for member in members], runtime.device)
        front = self.settings.front(n_rows)
        n_inputs = inputs.width + (0 if front is None else front.n_features)
        net = StackedMLP(
            len(members),
            (n_inputs, *self.settings.hidden, 1),
            dropout=self.settings.dropout_rates(n_rows),
            generator=generator,
            device=runtime.device,
            front=front,
        )
        draws = torch_generators(generator, runtime.device)
        if twins is not None:
            net.start_alike(twins)
        objective = ProjectedLoss(
            net, inputs, members, data, self.draw_rule, self.variance_weight, draws, twins
        )
        weight = None
        if not np.all(data.weight == 1.0):
            weight = torch.from_numpy(data.weight.astype(np.float32)).to(runtime.device)
        plan = self.settings.plan(n_rows)
        record = train(
            net,
            objective,
            [member.fit_rows for member in members],
            plan if heldout_sets is not None else replace(plan, patience=None),
            generator=generator,
            progress=runtime.progress,
            label=label,
            weight=weight,
            heldout_sets=heldout_sets,
            twins=twins,
            epoch_rows=n_rows,
        )
        return objective, record
