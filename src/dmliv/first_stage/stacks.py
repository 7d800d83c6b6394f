"""Fitted first-stage networks: stacks with the inputs that were chosen for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dmliv.data import TrainingData
from dmliv.data.savable import savable
from dmliv.first_stage.blocks import data_at, parts_of, resident, sample_encoder, sample_rows
from dmliv.first_stage.encoding_choice import MOST_CHOICE_ROWS, ChosenInputs, Trial, choose_inputs, has_choice
from dmliv.first_stage.exogenous import ExogenousColumns, ExogenousEncoder
from dmliv.first_stage.nuisances import Exogenous, FloatArray, IntArray
from dmliv.first_stage.shared_batches import SharedRows
from dmliv.first_stage.views import EncodedViews, Supervised, row_weights
from dmliv.nets.columns import Columns
from dmliv.nets.heads import Head, MeanHead
from dmliv.nets.randomness import Randomness
from dmliv.nets.settings import LARGE_ROWS, NetworkSettings
from dmliv.nets.stacked import StackedMLP, member_outputs
from dmliv.nets.training import TrainingRecord, train
from dmliv.parallel.runtime import Runtime
from dmliv.parallel.workers import spread, travelling

# Rows encoded at once when many are predicted.
_CHUNK_ROWS = 1 << 13


@savable(formerly=("FittedSide",))
@dataclass(frozen=True)
class FittedGroup:
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


@savable(renamed={"sides": "groups"})
@dataclass(frozen=True)
class FittedStack:
    """M trained networks on the exogenous input.

    Attributes
    ----------
    encoder : ExogenousEncoder
    groups : tuple of FittedGroup
        Together they hold every member once.
    """

    encoder: ExogenousEncoder
    groups: tuple[FittedGroup, ...]

    @torch.no_grad()
    def outputs(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[Tensor]:
        """Return the raw outputs of member m for its rows, shape (rows, width)."""
        results: dict[int, Tensor] = {}
        if len(exogenous) > LARGE_ROWS and self.encoder.context.image is None:
            return self._outputs_by_chunk(exogenous, row_sets)
        for group in self.groups:
            views = EncodedViews.of(self.encoder, exogenous, [group.inputs.encoding], group.net.device)
            parts = member_outputs(group.net, views.at, [row_sets[member] for member in group.members])
            results.update(zip(group.members, parts, strict=True))
        return [results[member] for member in range(len(row_sets))]

    def _outputs_by_chunk(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[Tensor]:
        """Return the same, member by member, with few rows encoded at a time."""
        results: dict[int, Tensor] = {}
        for group in self.groups:
            device = group.net.device
            columns = ExogenousColumns(self.encoder, device)
            for position, member in enumerate(group.members):
                net, rows = group.net.subset([position]), row_sets[member]
                outputs = torch.empty((len(rows), net.widths[-1]), dtype=torch.float32, device=device)
                for start in range(0, len(rows), _CHUNK_ROWS):
                    part = rows[start : start + _CHUNK_ROWS]
                    context = Columns.of(exogenous.context.take(part), self.encoder.context, device)
                    instrument = Columns.of(exogenous.instrument.take(part), self.encoder.instrument, device)
                    inputs = columns.encode(context, instrument, group.inputs.encoding)
                    outputs[start : start + _CHUNK_ROWS] = net(inputs.unsqueeze(0))[0]
                results[member] = outputs
        return [results[member] for member in range(len(row_sets))]

    def describe(self) -> dict[str, object]:
        """Return the choices and the loss curve in plain values."""
        by_member = {member: group for group in self.groups for member in group.members}
        order = [by_member[member] for member in sorted(by_member)]
        # With early stopping groups may differ in length; the curve ends with the shorter one.
        epochs = min(len(group.record.train_loss) for group in self.groups)
        losses = np.hstack([group.record.train_loss[:epochs] for group in self.groups])
        return {
            "encodings": [group.inputs.encoding for group in order],
            "rate_factors": [group.inputs.rate_factor for group in order],
            "train_loss": losses.mean(axis=1).tolist(),
        }


# Rows a choice of inputs looks at when there are many: by then they tell even close candidates apart.
LARGE_CHOICE_ROWS = 20_000


@dataclass(frozen=True)
class StackFitter:
    """Trains stacks of one nuisance: everything that does not change from stack to stack."""

    data: TrainingData
    target: npt.NDArray[np.float32]
    head: Head
    settings: NetworkSettings
    encoder: ExogenousEncoder
    label: str
    runtime: Runtime
    shared: SharedRows | None = None

    def fit_group(
        self, members: Sequence[int], row_sets: Sequence[IntArray], generator: np.random.Generator
    ) -> FittedGroup:
        """Choose inputs from the rows all members share, then train the members as one stack."""
        shared = row_sets[0]
        for rows in row_sets[1:]:
            shared = np.intersect1d(shared, rows, assume_unique=True)

        def held_out_losses(trials: Sequence[Trial], what: str) -> FloatArray:
            _, record = self._train(
                [trial.inputs for trial in trials],
                [trial.fit_rows for trial in trials],
                [trial.heldout_rows for trial in trials],
                f"{self.label}: choice of {what}",
                generator,
                seed_groups=[trial.split for trial in trials],
            )
            return record.final_heldout

        most = MOST_CHOICE_ROWS if self.shared is None else LARGE_CHOICE_ROWS
        inputs = choose_inputs(shared, self.settings, generator, held_out_losses, most)
        if self.shared is not None:
            net, record = self.shared.of_members(members).train(
                self.encoder, inputs, self.head, self.settings, self.label, generator, self.runtime
            )
            return FittedGroup(tuple(members), net, inputs, record)
        fit_sets, heldout_sets = self._held_out(row_sets, generator)
        net, record = self._train([inputs] * len(members), fit_sets, heldout_sets, self.label, generator)
        return FittedGroup(tuple(members), net, inputs, record)

    def fit_group_again(
        self,
        group: FittedGroup,
        members: Sequence[int],
        replicates: Sequence[Sequence[IntArray]],
        counts: Sequence[IntArray],
        n_rows: int,
        generators: Sequence[np.random.Generator],
    ) -> FittedGroup:
        """Train replicates of members as one stack, with the inputs of a group; nothing is chosen again.

        Parameters
        ----------
        group : FittedGroup
        members : sequence of int
            Positions of the new members, replicate after replicate.
        replicates : sequence of G sequences of ndarray of int
            The rows that each member of each replicate may see, without repetition.
        counts : sequence of G ndarray of int, shape (n,)
            How often a replicate sees a row.
        n_rows : int
            What budgets depend on: the rows of the largest member of the group.
        generators : sequence of G numpy.random.Generator
        """
        fit_sets: list[IntArray] = []
        heldout_sets: list[IntArray] = []
        for row_sets, count, generator in zip(replicates, counts, generators, strict=True):
            seen = [rows[count[rows] > 0] for rows in row_sets]
            fitted, held_out = self._held_out(seen, generator)
            fit_sets += [np.repeat(rows, count[rows]) for rows in fitted]
            heldout_sets += [np.repeat(rows, count[rows]) for rows in held_out or ()]
        if heldout_sets:
            n_rows -= held_out_rows(n_rows, self.settings)
        net, record = self._train(
            [group.inputs] * len(fit_sets),
            fit_sets,
            heldout_sets or None,
            self.label,
            generators,
            n_rows=n_rows,
        )
        return FittedGroup(tuple(members), net, group.inputs, record)

    def _held_out(
        self, row_sets: Sequence[IntArray], generator: np.random.Generator
    ) -> tuple[list[IntArray], list[IntArray] | None]:
        """Return what members learn from and what they are stopped by, if they are."""
        if self.settings.patience is None:
            return list(row_sets), None
        parts = [_split(rows, self.settings, generator) for rows in row_sets]
        return [part[0] for part in parts], [part[1] for part in parts]

    def _train(
        self,
        inputs: Sequence[ChosenInputs],
        fit_sets: Sequence[IntArray],
        heldout_sets: Sequence[IntArray] | None,
        label: str,
        generator: Randomness,
        seed_groups: Sequence[int] | None = None,
        n_rows: int | None = None,
    ) -> tuple[StackedMLP, TrainingRecord]:
        device = self.runtime.device
        data, target = self.data, self.target
        if seed_groups is not None and heldout_sets is not None and self.encoder.context.image is None:
            # Trials look at few rows, and encodings are wide: other rows are not encoded.
            used = np.unique(np.concatenate([*fit_sets, *heldout_sets]))
            data, target = data_at(data, used), target[used]
            fit_sets = [np.searchsorted(used, rows) for rows in fit_sets]
            heldout_sets = [np.searchsorted(used, rows) for rows in heldout_sets]
        exogenous = Exogenous(data.context, data.instrument)
        views = EncodedViews.of(self.encoder, exogenous, [member.encoding for member in inputs], device)
        n_rows = max(len(rows) for rows in fit_sets) if n_rows is None else n_rows
        front = self.settings.front(n_rows)
        n_inputs = views.inputs.shape[1] + (0 if front is None else front.n_features)
        net = StackedMLP(
            len(inputs),
            (n_inputs, *self.settings.hidden, self.head.width),
            dropout=self.settings.dropout_rates(n_rows),
            generator=generator,
            device=device,
            front=front,
        )
        if seed_groups is not None:
            net.start_alike(seed_groups)
        record = train(
            net,
            Supervised(net, self.head, views, torch.from_numpy(target).to(device)),
            views.shift(fit_sets),
            self.settings.plan(n_rows, trial=seed_groups is not None),
            generator=generator,
            progress=self.runtime.progress,
            label=label,
            weight=row_weights(data.weight, len(views.inputs) // views.n_rows, device),
            heldout_sets=None if heldout_sets is None else views.shift(heldout_sets),
            rate_factors=[member.rate_factor for member in inputs],
            epoch_rows=n_rows,
        )
        return net, record


def fit_stack(
    data: TrainingData,
    target: npt.NDArray[np.float32],
    head: Head,
    settings: NetworkSettings,
    row_sets: Sequence[IntArray],
    label: str,
    *,
    seed: int,
    runtime: Runtime,
) -> FittedStack:
    """Train one network per row set."""
    if len(data) > LARGE_ROWS and settings.adapts:
        parts, uses = parts_of(row_sets, len(data))
        sample = sample_rows(len(data), LARGE_ROWS)
        source = resident(data, runtime.device).with_parts(parts)
        shared = SharedRows(
            source, uses.to(runtime.device), "outcome" if isinstance(head, MeanHead) else "action"
        )
        return fit_shared_stack(
            data_at(data, sample), parts[sample], shared, head, settings, label, seed=seed, runtime=runtime
        )
    exogenous = Exogenous(data.context, data.instrument)
    encoder = ExogenousEncoder.learn(
        exogenous, data.context_schema, data.instrument_schema, settings.n_bins, settings.image
    )
    fitter = StackFitter(data, target, head, settings, encoder, label, runtime)
    return _fit_groups(fitter, row_sets, seed)


def fit_shared_stack(
    sample: TrainingData,
    sample_parts: IntArray,
    shared: SharedRows,
    head: Head,
    settings: NetworkSettings,
    label: str,
    *,
    seed: int,
    runtime: Runtime,
) -> FittedStack:
    """Train networks that share their batches: inputs are chosen on a sample of the rows.

    Parameters
    ----------
    sample : TrainingData
        Rows that stand for all.
    sample_parts : ndarray of int, shape (len(sample),)
        The part of the data each of them belongs to.
    shared : SharedRows
        All rows, and which parts each member learns from.
    head, settings, label, seed, runtime
        As for networks that have all rows at hand.
    """
    encoder = sample_encoder(sample, settings.n_bins)
    target = (sample.outcome if shared.target == "outcome" else sample.action).astype(np.float32)
    fitter = StackFitter(sample, target, head, settings, encoder, label, runtime, shared)
    used = shared.uses.cpu().numpy() > 0
    return _fit_groups(fitter, [np.flatnonzero(member[sample_parts]) for member in used], seed)


def _fit_groups(fitter: StackFitter, row_sets: Sequence[IntArray], seed: int) -> FittedStack:
    # A member's inputs may not depend on rows that member must not see. Two groups of the members each choose
    # from the rows all their members share (with K folds: the other half of the folds), and train apart, so
    # that the choice of one group leaves no trace in the other. Without a choice one stack is faster.
    n_groups = min(2, len(row_sets)) if has_choice(fitter.settings) else 1
    moving = replace(fitter, runtime=travelling(fitter.runtime))
    groups = spread(
        [
            partial(_fit_group, moving, group.tolist(), [row_sets[member] for member in group], seed, number)
            for number, group in enumerate(np.array_split(np.arange(len(row_sets)), n_groups))
        ]
    )
    return FittedStack(fitter.encoder, tuple(groups))


def _fit_group(
    fitter: StackFitter, members: list[int], row_sets: list[IntArray], seed: int, number: int
) -> FittedGroup:
    return fitter.fit_group(members, row_sets, group_generator(seed, number))


def group_generator(seed: int, number: int) -> np.random.Generator:
    """Return the random numbers of one group."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, number])))


def held_out_rows(n_rows: int, settings: NetworkSettings) -> int:
    """Return how many of some rows early stopping holds out."""
    return max(1, round(settings.validation_fraction * n_rows))


def _split(
    rows: IntArray, settings: NetworkSettings, generator: np.random.Generator
) -> tuple[IntArray, IntArray]:
    shuffled = generator.permutation(rows)
    held_out = held_out_rows(len(rows), settings)
    return shuffled[held_out:], shuffled[:held_out]
