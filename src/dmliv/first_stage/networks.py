"""Nuisances as stacked networks: one stack for the K outcome models, one for the K action models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dmliv.data import TrainingData
from dmliv.first_stage.base import Exogenous, FloatArray, IntArray, Runtime
from dmliv.first_stage.features import ExogenousEncoder
from dmliv.first_stage.laws import ActionLaw, CategoricalLaw, MixtureLaw
from dmliv.nets.heads import ClassHead, Head, MeanHead, MixtureHead
from dmliv.nets.settings import NetworkSettings
from dmliv.nets.stacked import StackedMLP, member_outputs
from dmliv.nets.training import TrainingRecord, train

# The choice of an encoding looks at no more rows than this: enough to tell encodings apart, and it keeps the
# price of choosing small next to the price of fitting.
_MOST_CHOICE_ROWS = 2000
_CHOICE_VALIDATION_ROWS = 400


@dataclass(frozen=True)
class NeuralOutcome:
    """Outcome learner: a network with squared loss.

    Parameters
    ----------
    settings : NetworkSettings
        Shape, encodings and training.
    """

    settings: NetworkSettings

    def fit(
        self, data: TrainingData, row_sets: Sequence[IntArray], *, seed: int, runtime: Runtime
    ) -> NeuralOutcomeModel:
        """Fit one network per row set."""
        target = data.outcome.astype(np.float32)
        stack = _fit_stack(
            data, target, MeanHead(), self.settings, row_sets, "outcome model", seed=seed, runtime=runtime
        )
        return NeuralOutcomeModel(stack)


@dataclass(frozen=True)
class NeuralOutcomeModel:
    """Fitted outcome networks."""

    stack: FittedStack

    def predict(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[FloatArray]:
        """Return the predictions of member m for its rows."""
        raw = self.stack.outputs(exogenous, row_sets)
        return [part.squeeze(-1).cpu().double().numpy() for part in raw]

    def describe(self) -> dict[str, object]:
        """Return the chosen encodings and the loss curve."""
        return self.stack.describe()


@dataclass(frozen=True)
class NeuralAction:
    """Action learner: a mixture density network, or a softmax classifier for a discrete action.

    Parameters
    ----------
    settings : NetworkSettings
        Shape, encodings and training.
    n_components : int
        Gaussians in the mixture.
    """

    settings: NetworkSettings
    n_components: int = 10

    def fit(
        self, data: TrainingData, row_sets: Sequence[IntArray], *, seed: int, runtime: Runtime
    ) -> NeuralActionModel:
        """Fit one network per row set."""
        head: MixtureHead | ClassHead
        if data.action_spec.kind == "discrete":
            head, target = ClassHead(data.action_spec.width), data.action.astype(np.float32)
        else:
            head = MixtureHead(self.n_components, data.action_spec.width)
            target = data.action.astype(np.float32)
        stack = _fit_stack(
            data, target, head, self.settings, row_sets, "action model", seed=seed, runtime=runtime
        )
        return NeuralActionModel(stack, head)


@dataclass(frozen=True)
class NeuralActionModel:
    """Fitted action networks."""

    stack: FittedStack
    head: MixtureHead | ClassHead

    def laws(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[ActionLaw]:
        """Return the action law of member m for its rows."""
        raw = self.stack.outputs(exogenous, row_sets)
        if isinstance(self.head, ClassHead):
            return [CategoricalLaw(self.head.probabilities(part)) for part in raw]
        return [MixtureLaw.from_parameters(self.head.parameters(part)) for part in raw]

    def describe(self) -> dict[str, object]:
        """Return the chosen encodings and the loss curve."""
        return self.stack.describe()


@dataclass(frozen=True)
class FittedStack:
    """M trained networks on the exogenous input, each with the encoding chosen for it.

    Attributes
    ----------
    net : StackedMLP
    encoder : ExogenousEncoder
    encodings : tuple of str, length M
    record : TrainingRecord
    """

    net: StackedMLP
    encoder: ExogenousEncoder
    encodings: tuple[str, ...]
    record: TrainingRecord

    @torch.no_grad()
    def outputs(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[Tensor]:
        """Return the raw outputs of member m for its rows, shape (rows, width)."""
        views = _EncodedViews.of(self.encoder, exogenous, self.encodings, self.net.device)
        return member_outputs(self.net, views.inputs, views.shift(row_sets))

    def describe(self) -> dict[str, object]:
        """Return the chosen encodings and the loss curve in plain values."""
        return {
            "encodings": list(self.encodings),
            "train_loss": self.record.train_loss.mean(axis=1).tolist(),
        }


@dataclass(frozen=True)
class _EncodedViews:
    """Rows in several encodings, one below the other, so that members with different encodings share a stack.

    Attributes
    ----------
    inputs : Tensor, shape (V * n, width)
        Narrow encodings are filled with zero columns.
    view : tuple of int, length M
        Which block of n rows a member reads.
    n_rows : int
    """

    inputs: Tensor
    view: tuple[int, ...]
    n_rows: int

    @classmethod
    def of(
        cls, encoder: ExogenousEncoder, exogenous: Exogenous, encodings: Sequence[str], device: torch.device
    ) -> _EncodedViews:
        used = list(dict.fromkeys(encodings))
        blocks = [encoder.encode(exogenous, name) for name in used]
        width = max(block.shape[1] for block in blocks)
        padded = [np.pad(block, ((0, 0), (0, width - block.shape[1]))) for block in blocks]
        inputs = torch.from_numpy(np.concatenate(padded)).to(device)
        return cls(inputs, tuple(used.index(name) for name in encodings), len(exogenous))

    def shift(self, row_sets: Sequence[IntArray]) -> list[IntArray]:
        return [rows + view * self.n_rows for rows, view in zip(row_sets, self.view, strict=True)]


@dataclass(frozen=True)
class _Supervised:
    """Objective of a network on fixed inputs and targets."""

    net: StackedMLP
    head: Head
    inputs: Tensor
    target: Tensor

    def row_loss(self, rows: Tensor, *, training: bool) -> Tensor:
        del training
        return self.head.row_loss(self.net(self.inputs[rows]), self.target[rows])


def _fit_stack(
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
    """Choose encodings from rows every member of a group may see, then train all members at once."""
    generator = np.random.Generator(np.random.SFC64(seed))
    exogenous = Exogenous(data.context, data.instrument)
    encoder = ExogenousEncoder.learn(exogenous, data.context_schema, data.instrument_schema, settings.n_bins)

    def run(
        encodings: Sequence[str],
        fit_sets: Sequence[IntArray],
        heldout_sets: Sequence[IntArray] | None,
        name: str,
    ) -> tuple[StackedMLP, TrainingRecord]:
        views = _EncodedViews.of(encoder, exogenous, encodings, runtime.device)
        copies = views.inputs.shape[0] // len(exogenous)
        repeat = (copies,) + (1,) * (target.ndim - 1)
        n_rows = max(len(rows) for rows in fit_sets)
        net = StackedMLP(
            len(encodings),
            (views.inputs.shape[1], *settings.hidden, head.width),
            dropout=settings.dropout_rates(n_rows),
            generator=generator,
            device=runtime.device,
        )
        record = train(
            net,
            _Supervised(net, head, views.inputs, torch.from_numpy(np.tile(target, repeat)).to(runtime.device)),
            views.shift(fit_sets),
            settings.plan(n_rows),
            generator=generator,
            progress=runtime.progress,
            label=name,
            weight=_weights(data.weight, copies, runtime.device),
            heldout_sets=None if heldout_sets is None else views.shift(heldout_sets),
        )
        return net, record

    chosen: list[str] = [settings.encodings[0]] * len(row_sets)
    if len(settings.encodings) > 1:
        trials = _choice_trials(row_sets, settings, generator)
        _, record = run(
            [trial.encoding for trial in trials],
            [trial.fit_rows for trial in trials],
            [trial.heldout_rows for trial in trials],
            f"{label}: choice of encoding",
        )
        chosen = _best_encodings(trials, record.final_heldout, settings.encodings, len(row_sets))
    fit_sets, heldout_sets = list(row_sets), None
    if settings.patience is not None:
        parts = [_split(rows, settings.validation_fraction, generator) for rows in row_sets]
        fit_sets, heldout_sets = [part[0] for part in parts], [part[1] for part in parts]
    net, record = run(chosen, fit_sets, heldout_sets, label)
    return FittedStack(net, encoder, tuple(chosen), record)


@dataclass(frozen=True)
class _Trial:
    """One short training that judges one encoding for one group of members."""

    members: tuple[int, ...]
    encoding: str
    fit_rows: IntArray
    heldout_rows: IntArray


def _choice_trials(
    row_sets: Sequence[IntArray], settings: NetworkSettings, generator: np.random.Generator
) -> list[_Trial]:
    # A member's encoding may not depend on rows that member must not see. Two halves of the members each
    # choose from the rows all their members share; with K folds that is the other half of the folds.
    halves = np.array_split(np.arange(len(row_sets)), min(2, len(row_sets)))
    trials = []
    for members in halves:
        shared = row_sets[members[0]]
        for member in members[1:]:
            shared = np.intersect1d(shared, row_sets[member], assume_unique=True)
        shared = generator.permutation(shared)[:_MOST_CHOICE_ROWS]
        # Few rows: several splits, so that every row judges once in a while and the choice is less noisy.
        heldout_size = max(1, round(settings.validation_fraction * len(shared)))
        n_splits = int(np.clip(_CHOICE_VALIDATION_ROWS // heldout_size, 1, 3))
        for split in range(n_splits):
            start = split * heldout_size
            heldout = shared[start : start + heldout_size]
            fit_rows = np.concatenate([shared[:start], shared[start + heldout_size :]])
            trials.extend(
                _Trial(tuple(members.tolist()), encoding, fit_rows, heldout) for encoding in settings.encodings
            )
    return trials


def _best_encodings(
    trials: Sequence[_Trial], losses: FloatArray, encodings: Sequence[str], n_members: int
) -> list[str]:
    chosen = [encodings[0]] * n_members
    for members in dict.fromkeys(trial.members for trial in trials):
        mean_loss = {
            name: np.mean(
                [
                    loss
                    for trial, loss in zip(trials, losses, strict=True)
                    if trial.members == members and trial.encoding == name
                ]
            )
            for name in encodings
        }
        best = min(encodings, key=lambda name: float(mean_loss[name]))
        for member in members:
            chosen[member] = best
    return chosen


def _split(
    rows: IntArray, fraction: float, generator: np.random.Generator
) -> tuple[IntArray, IntArray]:
    shuffled = generator.permutation(rows)
    heldout = max(1, round(fraction * len(rows)))
    return shuffled[heldout:], shuffled[:heldout]


def _weights(weight: FloatArray, copies: int, device: torch.device) -> Tensor | None:
    if np.all(weight == 1.0):
        return None
    return torch.from_numpy(np.tile(weight, copies).astype(np.float32)).to(device)
