"""h as an ensemble of networks; encoding and variance weight are chosen on rows the nuisances never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
import torch

from dmliv.data import FloatArray, IntArray, TrainingData
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
from dmliv.second_stage.judging import TrialProjections, judged_losses
from dmliv.second_stage.objective import Choice, Member, ProjectedLoss, StructuralInputs
from dmliv.second_stage.projection import DrawRule
from dmliv.second_stage.shared import SharedEnsemble, on_sample

# Trials that only choose settings learn from and are judged on no more rows (per half) than this.
MOST_CHOICE_ROWS = 2000


@dataclass(frozen=True, eq=False)
class Trials:
    """What trials on the halves of the data chose, and how the chosen one did on rows it never saw.

    Attributes
    ----------
    choice : Choice
    losses : dict of str to float
        Mean judged loss of every candidate; empty when there was nothing to choose.
    fit_rows, judging_rows : tuple of ndarray of int
        Rows of each half that networks learned from, and those they were judged on.
    projections : sequence of TrialProjections
        Of the chosen candidate, one per half.
    """

    choice: Choice
    losses: dict[str, float] = field(default_factory=dict)
    fit_rows: tuple[IntArray, ...] = ()
    judging_rows: tuple[IntArray, ...] = ()
    projections: tuple[TrialProjections, ...] = ()


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
    n_outcome_members : int
        Further networks in the ensemble, fitted to the observed outcome in place of the first stage's target.
        Given context and instrument both have the same mean. An estimate of it has less noise but its error
        passes into h; the outcome has noise but no such error. The mean over both kinds has less of either.
    centre_action : bool
        Whether networks see the action as its mean in the context and the rest; see
        :class:`~dmliv.second_stage.features.StructuralEncoder`.
    """

    settings: NetworkSettings
    draw_rule: DrawRule = field(default_factory=DrawRule)
    variance_weight: float | tuple[float, ...] = 0.0
    n_members: int = 1
    n_outcome_members: int = 0
    centre_action: bool = True

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.n_members < 1 or self.n_outcome_members < 0:
            raise InputError(
                f"Expected at least one network and no negative number, got n_members={self.n_members} and "
                f"n_outcome_members={self.n_outcome_members}."
            )
        if self.settings.rate_factors != (1.0,):
            raise InputError(
                "Expected no learning-rate factors for the structural model, got "
                f"{self.settings.rate_factors}; set learning_rate instead."
            )
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
        source, most_rows = None, MOST_CHOICE_ROWS
        if len(data) > LARGE_ROWS and self.settings.adapts:
            data, first_stage, source = on_sample(data, first_stage, runtime.device)
            most_rows = LARGE_CHOICE_ROWS
        encoder = self.learn_encoder(data, first_stage.law)
        trials = Trials(Choice(self.settings.encodings[0], self._variance_weights[0]))
        if self.needs_judging:
            trials = self.choose(
                data, first_stage, encoder, generator=generator, runtime=runtime, most_rows=most_rows
            )
        return self.train_ensemble(
            data, first_stage, encoder, trials, generator=generator, runtime=runtime, source=source
        )

    def learn_encoder(self, data: TrainingData, law: ActionLaw) -> StructuralEncoder:
        """Learn how columns become inputs, and the mean action in a context from those the law predicts."""
        return StructuralEncoder.learn(
            data,
            self.settings.n_bins,
            centred=self.centre_action,
            predicted=law.mean().cpu().double().numpy(),
            image=self.settings.image,
        )

    def train_ensemble(
        self,
        data: TrainingData,
        first_stage: FirstStage,
        encoder: StructuralEncoder,
        trials: Trials,
        *,
        generator: np.random.Generator,
        runtime: Runtime,
        source: BlockSource | None = None,
    ) -> NeuralStructuralModel:
        """Train the ensemble with the chosen settings on all rows: those of ``source``, if it is given."""
        choice = trials.choice
        if source is not None:
            ensemble = SharedEnsemble(
                source, self.settings, self.n_members, self.n_outcome_members, encoder, choice.encoding
            )
            net, record = ensemble.train_networks(self.draw_rule, choice.variance_weight, generator, runtime)
            return NeuralStructuralModel(
                net, encoder, choice.encoding, choice.variance_weight, trials.losses, record
            )
        fit_rows, heldout = np.arange(len(data)), None
        if self.settings.patience is not None:
            fit_rows, stopping = self._held_out(fit_rows, generator)
            heldout = [stopping] * self.n_networks
        members = self._ensemble(choice, data, first_stage, fit_rows)
        objective, record = self._train(
            data,
            encoder,
            members,
            heldout,
            "structural model",
            generator=generator,
            runtime=runtime,
        )
        return NeuralStructuralModel(
            objective.net, encoder, choice.encoding, choice.variance_weight, trials.losses, record
        )

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
            Of all rows: its encoding and variance weight are used.
        generators : sequence of R numpy.random.Generator
        """
        choice, n_fit = Choice(fitted.encoding, fitted.variance_weight), len(data)
        members: list[Member] = []
        heldout: list[IntArray] = []
        for first_stage, count, generator in zip(first_stages, counts, generators, strict=True):
            rows = np.flatnonzero(count)
            if self.settings.patience is not None:
                rows, stopping = self._held_out(rows, generator)
                heldout += [np.repeat(stopping, count[stopping])] * self.n_networks
            members += self._ensemble(choice, data, first_stage, np.repeat(rows, count[rows]))
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
        groups = [slice(k, k + self.n_networks) for k in range(0, len(members), self.n_networks)]
        return [
            replace(
                fitted,
                net=objective.net.subset(range(group.start, group.stop)),
                record=record.of_members(group),
            )
            for group in groups
        ]

    @property
    def n_networks(self) -> int:
        """Networks of both kinds."""
        return self.n_members + self.n_outcome_members

    def _ensemble(
        self, choice: Choice, data: TrainingData, first_stage: FirstStage, fit_rows: IntArray
    ) -> list[Member]:
        whole = JudgedSplit(fit_rows, np.arange(len(data)), first_stage.target, first_stage.law)
        members = [Member(choice, whole, fit_rows)] * self.n_members
        return (
            members + [Member(choice, replace(whole, target=data.outcome), fit_rows)] * self.n_outcome_members
        )

    def _n_held_out(self, n_rows: int) -> int:
        return max(1, round(self.settings.validation_fraction * n_rows))

    def _held_out(self, rows: IntArray, generator: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return the rows that networks learn from, and those that stop them."""
        shuffled, size = generator.permutation(rows), self._n_held_out(len(rows))
        return shuffled[size:], shuffled[:size]

    def choose(
        self,
        data: TrainingData,
        first_stage: FirstStage,
        encoder: StructuralEncoder,
        *,
        generator: np.random.Generator,
        runtime: Runtime,
        most_rows: int = MOST_CHOICE_ROWS,
    ) -> Trials:
        """Train one network per candidate and half, and judge it on rows its nuisances never saw."""
        choices = [Choice(*pair) for pair in product(self.settings.encodings, self._variance_weights)]
        members: list[Member] = []
        twins: list[int] = []
        fit_rows: list[IntArray] = []
        judging_rows: list[IntArray] = []
        for number, split in enumerate(first_stage.splits):
            fit_rows.append(generator.permutation(split.fit_rows)[:most_rows])
            judging_rows.append(generator.permutation(split.judging_rows)[:most_rows])
            members.extend(Member(choice, split, fit_rows[-1]) for choice in choices)
            twins.extend([number] * len(choices))
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
        projections = []
        for number, (fit, judging) in enumerate(zip(fit_rows, judging_rows, strict=True)):
            members_of_half = range(number * len(choices), (number + 1) * len(choices))
            pairs = zip(
                *(objective.projections(rows, members_of_half) for rows in (fit, judging)), strict=True
            )
            projections.append([TrialProjections(*pair) for pair in pairs])
        by_choice = list(zip(*projections, strict=True))
        row_losses = np.stack([judged_losses(data, judging_rows, halves) for halves in by_choice])
        named = {
            str(choice): float(loss) for choice, loss in zip(choices, row_losses.mean(axis=1), strict=True)
        }
        choice = _cautious_choice(choices, row_losses)
        chosen = by_choice[choices.index(choice)]
        return Trials(choice, named, tuple(fit_rows), tuple(judging_rows), chosen)

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
        inputs = StructuralInputs(
            data, encoder, [member.choice.encoding for member in members], runtime.device
        )
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
        objective = ProjectedLoss(net, inputs, members, data, self.draw_rule, draws, twins)
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


def _cautious_choice(choices: Sequence[Choice], row_losses: FloatArray) -> Choice:
    """Return the encoding with the lowest loss, with the largest variance weight that is not clearly worse.

    Where the instrument is weak, wild and flat h project to the same thing, and held-out rows cannot tell
    them apart; flat is then the safer answer. Where it is strong, a weight that flattens h shows in the loss.

    Parameters
    ----------
    choices : sequence of C choices
    row_losses : ndarray, shape (C, n)
        Judged losses, row by row.
    """
    means = row_losses.mean(axis=1)
    best = int(np.argmin(means))
    excess = row_losses - row_losses[best]
    standard_error = excess.std(axis=1) / np.sqrt(row_losses.shape[1])
    acceptable = [
        index
        for index, choice in enumerate(choices)
        if choice.encoding == choices[best].encoding and excess[index].mean() <= standard_error[index]
    ]
    return max((choices[index] for index in acceptable), key=lambda choice: choice.variance_weight)
