"""The one training loop: AdamW on a stack of networks, each member with its own rows and its own stopping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dmliv.data.savable import savable
from dmliv.errors import InputError, TrainingDivergedError
from dmliv.nets.adam import Adam
from dmliv.nets.device import single_thread
from dmliv.nets.randomness import IntArray, Randomness, epoch_order
from dmliv.nets.stacked import StackedMLP
from dmliv.progress import ProgressReporter

# Rows of one held-out evaluation pass per member; larger sets are evaluated in chunks to keep memory flat.
_EVALUATION_CHUNK = 4096


@savable
@dataclass(frozen=True)
class TrainingPlan:
    """How long and how fast to train.

    Parameters
    ----------
    epochs : int
        Passes over the rows of the largest member.
    batch_size : int
        Rows per member and step.
    learning_rate : float
        Peak learning rate of AdamW.
    weight_decay : float
        Decoupled weight decay, on all parameters.
    schedule : {"cosine", "constant"}
        ``"cosine"`` warms up over ``warmup`` of the steps and then falls to zero along a half cosine.
    warmup : float
        Share of the steps in which the learning rate rises; only for ``"cosine"``.
    clip_norm : float
        Limit of each member's gradient norm.
    patience : int or None
        Stop a member after this many epochs without a better held-out loss and return its best weights.
        ``None`` trains the whole budget and returns the last weights.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: float = 0.1
    clip_norm: float = 5.0
    patience: int | None = None

    def __post_init__(self) -> None:
        """Check the numbers a user may have set."""
        if self.epochs < 1 or self.batch_size < 1:
            raise InputError(
                f"Expected at least one epoch and one row per batch, got epochs={self.epochs} and "
                f"batch_size={self.batch_size}."
            )
        if self.schedule not in ("cosine", "constant"):
            raise InputError(f"Expected schedule 'cosine' or 'constant', got {self.schedule!r}.")
        if not 0.0 <= self.warmup <= 1.0 or self.weight_decay < 0.0:
            raise InputError(
                f"Expected a warm-up share in [0, 1] and a weight decay of at least 0, got "
                f"warmup={self.warmup} and weight_decay={self.weight_decay}."
            )
        if not self.learning_rate > 0.0:
            raise InputError(f"Expected a positive learning rate, got {self.learning_rate}.")

    def rate_at(self, step: int, total: int) -> float:
        """Return the learning rate of a step."""
        if self.schedule == "constant":
            return self.learning_rate
        warm = max(1, round(self.warmup * total))
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(1, total - warm)))


@savable
@dataclass(frozen=True)
class TrainingRecord:
    """What happened during training.

    Attributes
    ----------
    train_loss : ndarray, shape (epochs, M)
        Mean training loss of every epoch and member.
    heldout_loss : ndarray, shape (epochs, M), or None
        Held-out loss after every evaluated epoch.
    """

    train_loss: npt.NDArray[np.float64]
    heldout_loss: npt.NDArray[np.float64] | None

    @property
    def final_heldout(self) -> npt.NDArray[np.float64]:
        """Held-out loss of the returned weights, shape (M,): the last, or with patience the best."""
        if self.heldout_loss is None:
            raise ValueError("This training had no held-out rows.")
        return np.asarray(self.heldout_loss[-1])

    def of_members(self, members: slice) -> TrainingRecord:
        """Return what happened to some of the members."""
        heldout = None if self.heldout_loss is None else self.heldout_loss[:, members]
        return TrainingRecord(self.train_loss[:, members], heldout)


class Objective(Protocol):
    """What is minimised; it holds the network and the data."""

    def row_loss(self, rows: Tensor, *, training: bool) -> Tensor:
        """Return one loss per member and row, shape (M, B), for row indices of shape (M, B)."""
        ...


def train(
    net: StackedMLP,
    objective: Objective,
    row_sets: Sequence[IntArray],
    plan: TrainingPlan,
    *,
    generator: Randomness,
    progress: ProgressReporter,
    label: str,
    weight: Tensor | None = None,
    heldout_sets: Sequence[IntArray] | None = None,
    seed_groups: Sequence[int] | None = None,
    rate_factors: Sequence[float] | None = None,
    epoch_rows: int | None = None,
) -> TrainingRecord:
    """Train every member of ``net`` on its own rows, all in one sequence of steps.

    Parameters
    ----------
    net : StackedMLP
        The networks; changed in place and left in evaluation mode.
    objective : Objective
        Row losses of ``net``.
    row_sets : sequence of M index arrays
        The rows each member learns from. Members with fewer rows see them slightly more often.
    plan : TrainingPlan
        Budget, rates and stopping.
    generator : numpy.random.Generator, or a sequence of them
        Order of the rows; several for groups of members.
    progress : ProgressReporter
        Shows epochs.
    label : str
        Name of the stage in progress bars and errors.
    weight : Tensor, shape (n,), optional
        Row weights with mean one.
    heldout_sets : sequence of M index arrays, optional
        Validation rows of each member; needed for ``plan.patience``.
    seed_groups : sequence of M int, optional
        Members with the same number (and the same rows) have common random numbers: they see their rows in
        the same order, so that they differ by their settings alone.
    rate_factors : sequence of M float, optional
        Each member's learning rate as a multiple of the plan's.
    epoch_rows : int, optional
        Rows of an epoch; by default those of the largest member.

    Returns
    -------
    TrainingRecord

    Raises
    ------
    TrainingDivergedError
        If a loss stops being a finite number.
    """
    if len(row_sets) != net.n_members:
        raise ValueError(f"Expected {net.n_members} row sets, got {len(row_sets)}.")
    if plan.patience is not None and heldout_sets is None:
        raise ValueError("Early stopping needs held-out rows.")
    largest = max(len(rows) for rows in row_sets) if epoch_rows is None else epoch_rows
    batch_size = min(plan.batch_size, largest)
    steps = math.ceil(largest / batch_size)

    def epoch_losses() -> Iterator[Tensor]:
        order = epoch_order(row_sets, steps * batch_size, generator, seed_groups).to(net.device)
        for step in range(steps):
            rows = order[:, step * batch_size : (step + 1) * batch_size]
            loss = objective.row_loss(rows, training=True)
            yield (loss if weight is None else loss * weight[rows]).mean(dim=1)

    heldout = _Heldout(net, objective, heldout_sets, weight) if heldout_sets is not None else None
    return descend(
        net,
        epoch_losses,
        steps,
        plan,
        progress=progress,
        label=label,
        rate_factors=rate_factors,
        heldout=None if heldout is None else heldout.evaluate,
    )


def descend(
    net: StackedMLP,
    epoch_losses: Callable[[], Iterator[Tensor]],
    steps: int,
    plan: TrainingPlan,
    *,
    progress: ProgressReporter,
    label: str,
    rate_factors: Sequence[float] | None = None,
    heldout: Callable[[], npt.NDArray[np.float64]] | None = None,
    shows_steps: bool = False,
) -> TrainingRecord:
    """Take AdamW steps along the losses of one epoch after the other; where batches come from is not asked.

    Parameters
    ----------
    net : StackedMLP
        The networks; changed in place and left in evaluation mode.
    epoch_losses : callable
        Returns the losses (M,) of the batches of a new epoch, each made when it is asked for.
    steps : int
        Batches of an epoch, about: the schedule of learning rates needs it.
    plan : TrainingPlan
        Rates, stopping and the number of epochs.
    progress, label, rate_factors
        As for :func:`train`.
    heldout : callable, optional
        Returns the held-out loss of each member, (M,).
    shows_steps : bool
        Whether progress is shown by steps, for epochs that take minutes.

    Returns
    -------
    TrainingRecord
    """
    optimiser = Adam([net.flat], plan.weight_decay, decoupled=True)
    stopping = _Stopping(net, plan.patience) if plan.patience is not None else None
    # A step is proportional to the learning rate: moving a share of the way is a member's own smaller rate.
    pace, peak_factor = None, 1.0
    if rate_factors is not None:
        peak_factor = max(rate_factors)
        if min(rate_factors) < peak_factor:
            pace = net.spread_over_members([1.0 - factor / peak_factor for factor in rate_factors])
    before = torch.empty_like(net.flat.detach()) if pace is not None else torch.empty(0)
    train_curve, heldout_curve = [], []
    all_steps = plan.epochs * steps
    with single_thread(), progress.stage(label, all_steps if shows_steps else plan.epochs) as advance:
        for epoch in range(plan.epochs):
            net.train()
            total, taken = torch.zeros(net.n_members, dtype=torch.float32, device=net.device), 0
            for member_loss in epoch_losses():
                net.flat.grad = None
                member_loss.sum().backward()  # type: ignore[no-untyped-call]
                net.scale_gradients(plan.clip_norm)
                rate = peak_factor * plan.rate_at(min(epoch * steps + taken, all_steps), all_steps)
                if pace is None:
                    optimiser.step(rate)
                else:
                    before.copy_(net.flat.detach())
                    optimiser.step(rate)
                    net.flat.data.lerp_(before, pace)
                total += member_loss.detach()
                taken += 1
                if shows_steps:
                    advance()
            train_curve.append((total / taken).cpu().double().numpy())
            _check_finite(train_curve[-1], label, epoch)
            if not shows_steps:
                advance()
            if heldout is not None and (stopping is not None or epoch == plan.epochs - 1):
                heldout_curve.append(heldout())
                if stopping is not None and stopping.all_stopped(heldout_curve[-1]):
                    break
    # The last step comes after the last loss, so its result is looked at directly.
    if stopping is not None:
        heldout_curve.append(stopping.restore_best())
    _check_finite(np.where(net.members_finite(), train_curve[-1], np.nan), label, len(train_curve) - 1)
    net.eval()
    net.drop_workspace()
    net.flat.grad = None
    return TrainingRecord(
        train_loss=np.stack(train_curve),
        heldout_loss=np.stack(heldout_curve) if heldout_curve else None,
    )


def _check_finite(losses: npt.NDArray[np.float64], label: str, epoch: int) -> None:
    if not np.isfinite(losses).all():
        raise TrainingDivergedError(
            f"Training of '{label}' diverged: the loss of {int((~np.isfinite(losses)).sum())} of "
            f"{losses.size} networks is not finite after epoch {epoch + 1}. Lower the learning rate of this "
            "learner, or look for extreme values in the data."
        )


class _Heldout:
    """Mean loss of every member on its held-out rows."""

    def __init__(
        self, net: StackedMLP, objective: Objective, sets: Sequence[IntArray], weight: Tensor | None
    ) -> None:
        self._net, self._objective = net, objective
        longest = max(len(rows) for rows in sets)
        # Shorter sets are filled with their first row at weight zero, so that all members share one shape.
        rows = np.stack([np.concatenate([r, np.full(longest - len(r), r[0])]) for r in sets])
        used = np.stack([np.arange(longest) < len(r) for r in sets])
        self._rows = torch.from_numpy(rows).to(net.device)
        self._weight = torch.from_numpy(used).to(net.device, torch.float32)
        if weight is not None:
            self._weight = self._weight * weight[self._rows]

    @torch.no_grad()
    def evaluate(self) -> npt.NDArray[np.float64]:
        self._net.eval()
        total = torch.zeros(self._net.n_members, dtype=torch.float32, device=self._net.device)
        for rows, weight in zip(
            torch.split(self._rows, _EVALUATION_CHUNK, dim=1),
            torch.split(self._weight, _EVALUATION_CHUNK, dim=1),
            strict=True,
        ):
            total += (self._objective.row_loss(rows, training=False) * weight).sum(dim=1)
        return (total / self._weight.sum(dim=1)).cpu().double().numpy()


class _Stopping:
    """Keeps the best weights of each member; a member without improvement for ``patience`` epochs is done."""

    def __init__(self, net: StackedMLP, patience: int) -> None:
        self._net, self._patience = net, patience
        self._best = net.flat.detach().clone()
        self._loss = np.full(net.n_members, np.inf)
        self._waited = np.zeros(net.n_members, dtype=np.int64)

    def all_stopped(self, losses: npt.NDArray[np.float64]) -> bool:
        # A stopped member goes on training with the others, but its result is settled.
        better = (losses < self._loss) & (self._waited < self._patience)
        self._net.copy_members(
            self._net.flat.detach(), self._best, torch.from_numpy(better).to(self._net.device)
        )
        self._loss = np.where(better, losses, self._loss)
        self._waited = np.where(
            better, 0, np.where(self._waited < self._patience, self._waited + 1, self._patience)
        )
        return bool((self._waited >= self._patience).all())

    def restore_best(self) -> npt.NDArray[np.float64]:
        with torch.no_grad():
            self._net.flat.copy_(self._best)
        return self._loss
