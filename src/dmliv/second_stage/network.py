"""h as an ensemble of networks; the encoding is chosen by held-out loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import InputError, check_number, check_whole
from dmliv.first_stage.blocks import (
    BlockSource,
    MemorySource,
    batches,
    data_at,
    resident,
    sample_rows,
    weighted_means,
)
from dmliv.first_stage.crossfit import FirstStage, ValidationSplit, first_stage_at
from dmliv.first_stage.distributions import ActionDistribution
from dmliv.first_stage.resampling import Resample, most_stacked
from dmliv.first_stage.stacks import LARGE_CHOICE_ROWS
from dmliv.nets.device import on_device
from dmliv.nets.randomness import Randomness, torch_generators
from dmliv.nets.settings import LARGE_ROWS, NetworkSettings
from dmliv.nets.stacked import StackedMLP
from dmliv.nets.training import TrainingRecord, descend, train
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.objective import Member, ProjectedLoss, StructuralInputs
from dmliv.second_stage.projection import DrawRule
from dmliv.second_stage.structural import StructuralModel
from dmliv.second_stage.structural_encoder import StructuralColumns, StructuralEncoder, evaluate

# Trials that only choose an encoding learn from, and are validated on, no more rows per split than this.
_MOST_CHOICE_ROWS = 2000


@savable(dropped={"n_outcome_members": 0})
@dataclass(frozen=True)
class NeuralStructural:
    """Structural learner: an ensemble of networks on (context, action).

    Parameters
    ----------
    settings : NetworkSettings
        Shape, encodings and training. Of several encodings the one with the lowest held-out loss is taken.
    draw_rule : DrawRule
        How the projection over the action distribution is estimated while training.
    variance_weight : float
        Weight of the variance of h under the action distribution, added to the loss of the draw rule. It has
        no effect on the rule ``"single"``.
    n_members : int
        Networks in the ensemble; they differ in initial weights, row order and draws.
    centre_action : bool
        Whether networks see the action as its mean in the context and the rest; see
        :class:`~dmliv.second_stage.structural_encoder.StructuralEncoder`.
    """

    settings: NetworkSettings
    draw_rule: DrawRule = field(default_factory=DrawRule)
    variance_weight: float = 0.0
    n_members: int = 1
    centre_action: bool = True

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_whole(n_members=self.n_members)
        if self.settings.rate_factors != (1.0,):
            raise InputError(
                "Expected no learning-rate factors for the structural model, got "
                f"{self.settings.rate_factors}; set learning_rate instead."
            )
        check_number(least=0.0, variance_weight=self.variance_weight)

    @property
    def needs_validation(self) -> bool:
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
        encoder = self._learn_encoder(data, first_stage.distribution)
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

    @property
    def streams(self) -> bool:
        """Whether the learner can learn from blocks of rows."""
        return self.settings.adapts

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
            All rows, with target and distribution.
        seed : int
        runtime : Runtime
        """
        generator = np.random.Generator(np.random.SFC64(seed))
        encoder = self._learn_encoder(sample, first_stage.distribution)
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

    def can_fit_again(self, model: StructuralModel) -> bool:
        """Return whether a model is an ensemble of networks."""
        return isinstance(model, NeuralStructuralModel)

    def most_replicates(self, model: StructuralModel) -> int:
        """Return how many replicates are worth fitting at once."""
        del model
        return most_stacked(self.n_members)

    def fit_again(
        self,
        data: TrainingData,
        model: StructuralModel,
        first_stages: Sequence[FirstStage],
        resamples: Sequence[Resample],
        *,
        runtime: Runtime,
    ) -> list[NeuralStructuralModel]:
        """Train the ensembles of resampled rows as one stack, with the encoding of a model."""
        if not isinstance(model, NeuralStructuralModel):
            raise TypeError(f"Expected an ensemble of networks, got {type(model).__name__}.")
        generators = [np.random.Generator(np.random.SFC64(each.structural_seed)) for each in resamples]
        n_fit, size = len(data), self.n_members
        members: list[Member] = []
        heldout: list[IntArray] = []
        for first_stage, resample, generator in zip(first_stages, resamples, generators, strict=True):
            count = resample.counts
            rows = np.flatnonzero(count)
            if self.settings.patience is not None:
                rows, stopping = self._held_out(rows, generator)
                heldout += [np.repeat(stopping, count[stopping])] * size
            members += self._ensemble(model.encoding, first_stage, np.repeat(rows, count[rows]))
        if heldout:
            n_fit -= self._n_held_out(n_fit)
        objective, record = self._train(
            data,
            model.encoder,
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
                model,
                net=objective.net.subset(range(group.start, group.stop)),
                record=record.of_members(group),
            )
            for group in groups
        ]

    def _learn_encoder(self, data: TrainingData, distribution: ActionDistribution) -> StructuralEncoder:
        """Learn how columns become inputs, and the mean action in a context from the predicted ones."""
        return StructuralEncoder.learn(
            data,
            self.settings.n_bins,
            centred=self.centre_action,
            predicted=distribution.mean().cpu().double().numpy(),
            image=self.settings.image,
        )

    def _ensemble(self, encoding: str, first_stage: FirstStage, fit_rows: IntArray) -> list[Member]:
        all_rows = np.arange(len(first_stage.target))
        whole = ValidationSplit(fit_rows, all_rows, first_stage.target, first_stage.distribution)
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

        One network per encoding and validation split is trained, and validated on rows that neither it nor
        its nuisances were fitted on.
        """
        if not self.needs_validation:
            return {}
        encodings = self.settings.encodings
        members: list[Member] = []
        seed_groups: list[int] = []
        validation_rows: list[IntArray] = []
        for number, split in enumerate(first_stage.splits):
            fit_rows = generator.permutation(split.fit_rows)[:most_rows]
            validation_rows.append(generator.permutation(split.validation_rows)[:most_rows])
            members.extend(Member(encoding, split, fit_rows) for encoding in encodings)
            seed_groups.extend([number] * len(encodings))
        objective, _ = self._train(
            data,
            encoder,
            members,
            None,
            "structural model: choice of settings",
            generator=generator,
            runtime=runtime,
            seed_groups=seed_groups,
        )
        by_split = []
        for number, rows in enumerate(validation_rows):
            of_split = range(number * len(encodings), (number + 1) * len(encodings))
            errors = data.outcome[rows] - objective.projections(rows, of_split)
            by_split.append(data.weight[rows] * errors**2)
        losses = np.concatenate(by_split, axis=1).mean(axis=1)
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
        seed_groups: Sequence[int] | None = None,
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
        if seed_groups is not None:
            net.start_alike(seed_groups)
        objective = ProjectedLoss(
            net, inputs, members, data, self.draw_rule, self.variance_weight, draws, seed_groups
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
            seed_groups=seed_groups,
            epoch_rows=n_rows,
        )
        return objective, record


# Network rows (members x rows x actions) in one evaluation pass: few enough that layers stay in the cache.
_EVALUATION_ROWS = 1 << 14


@savable
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
        actions = self._tensor(action).unsqueeze(1)
        parts = [
            self._values(embedded, centre, actions[rows]).squeeze(1)
            for rows, embedded, centre in self._contexts(context, n_actions=1)
        ]
        return torch.cat(parts).cpu().double().numpy() if parts else np.empty(0)

    @torch.no_grad()
    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action; each context is encoded and embedded once."""
        candidates = self._tensor(actions).unsqueeze(0)
        result = np.empty((len(context), len(actions)))
        for rows, embedded, centre in self._contexts(context, n_actions=len(actions)):
            features = self._action_features(centre, candidates.expand(len(centre), -1, -1))
            values = self.net.body_grid(embedded, features).squeeze(-1).mean(0)
            result[rows] = values.cpu().double().numpy()
        return result

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative of h in the action, shape (n, d)."""
        parts = []
        for rows, embedded, centre in self._contexts(context, n_actions=1):
            actions = self._tensor(action[rows]).unsqueeze(1).requires_grad_()
            total = self._values(embedded, centre, actions).sum()
            parts.append(torch.autograd.grad(total, actions)[0].squeeze(1))
        return torch.cat(parts).cpu().double().numpy() if parts else np.empty(action.shape)

    def describe(self) -> dict[str, object]:
        """Return the choices made and the loss curve."""
        return {
            "encoding": self.encoding,
            "variance_weight": self.variance_weight,
            "choice_losses": self.choice_losses,
            "train_loss": self.record.train_loss.mean(axis=1).tolist(),
        }

    def _contexts(self, context: Table, n_actions: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield rows, embedded contexts (M, B, e) and action centres (B, d), chunk by chunk."""
        n_cells = self.net.n_members * n_actions
        if self.net.front is not None:
            # Convolutions hold some hundred times more numbers per row than the perceptron behind them.
            n_cells = max(n_cells, 128 * self.net.n_members)
        step = max(1, _EVALUATION_ROWS // n_cells)
        for start in range(0, len(context), step):
            rows = slice(start, min(start + step, len(context)))
            part = context.take(np.arange(rows.start, rows.stop))
            features = self.encoder.context_features(part, self.encoding)
            pixels = self.encoder.context.pixels(part)
            if pixels is not None:
                features = np.hstack([features, pixels])
            with torch.no_grad():
                embedded = self.net.embed(self._tensor(features).unsqueeze(0))
            yield rows, embedded, self._tensor(self.encoder.centre(part))

    def _values(self, embedded: Tensor, centre: Tensor, actions: Tensor) -> Tensor:
        """Return the mean over the members, (B, Q), for actions (B, Q, d)."""
        return evaluate(self.net, embedded, self._action_features(centre, actions)).mean(0)

    def _action_features(self, centre: Tensor, actions: Tensor) -> Tensor:
        """Return what the members see of actions (B, Q, d), shape (M, B, Q, width)."""
        encode = self.encoder.action_encoder(self.encoding, self.net.device)
        features = encode(actions - centre.unsqueeze(1)).unsqueeze(0)
        return features.expand(self.net.n_members, -1, -1, -1)

    def _tensor(self, values: npt.NDArray[np.generic]) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float32, device=self.net.device)


def on_sample(
    data: TrainingData, first_stage: FirstStage, device: torch.device
) -> tuple[TrainingData, FirstStage, BlockSource]:
    """Return rows that stand for all, what the first stage left for them, and all rows as one block."""
    rows = sample_rows(len(data), LARGE_ROWS)
    target = on_device(first_stage.target.astype(np.float32), device)
    block = replace(resident(data, device).block, target=target, distribution=first_stage.distribution)
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
        With target and distribution.
    settings : NetworkSettings
    n_members : int
    encoder : StructuralEncoder
    encoding : str
    rule : DrawRule
    variance_weight : float
        Of the variance of h under the action distribution.
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
            if batch.target is None or batch.distribution is None:
                raise ValueError("Expected rows that the first stage has filled.")
            features, centre = columns.encode(batch.context)
            rows = torch.arange(len(batch), device=device).expand(n_members, -1)
            nodes = rule.draw(batch.distribution, rows, draws)
            values = evaluate(
                net, net.embed(features.unsqueeze(0)), encode_action(nodes.actions - centre.unsqueeze(1))
            )
            losses = rule.loss(values, nodes, batch.target.expand(n_members, -1), batch.distribution, weight)
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
