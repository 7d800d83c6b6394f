"""The game of adversarial moments: a stack of models against a stack of critics, and who wins it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dmliv.errors import InputError, TrainingDivergedError, check_number, check_whole
from dmliv.nets.optimistic import OptimisticAdam
from dmliv.nets.stacked import StackedMLP
from dmliv.progress import ProgressReporter

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Rows of one evaluation pass; convolutions need far more memory per row than a perceptron.
_EVALUATION_CHUNK = 4096
_CONVOLUTION_CHUNK = 128


@dataclass(frozen=True)
class Player:
    """A stack of networks and what it makes of rows.

    Attributes
    ----------
    net : StackedMLP
    values : callable
        Returns the networks' values (M, B) at rows (M, B).
    """

    net: StackedMLP
    values: Callable[[Tensor], Tensor]


def game_losses(residual: Tensor, critic: Tensor, weight: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    """Return what each model and each critic minimises, both of shape (M,).

    With residual e = outcome - g and critic f the model minimises mean f e. The critic maximises it less a
    quarter of mean f^2 e^2, which weighs moments by their noise as efficient GMM does. Each loss moves its
    own player alone.

    Parameters
    ----------
    residual, critic : Tensor, shape (M, B)
    weight : Tensor, shape (M, B), or float
        Row weights of mean one.
    """
    fixed = residual.detach()
    model_loss = (weight * critic.detach() * residual).mean(dim=1)
    critic_loss = (weight * (0.25 * critic.square() * fixed.square() - critic * fixed)).mean(dim=1)
    return model_loss, critic_loss


def check_positive(**numbers: object) -> None:
    """Raise unless every value is a sequence of at least one positive, finite number."""
    for name, values in numbers.items():
        listed = list(values) if isinstance(values, (list, tuple, np.ndarray)) else []
        fine = [isinstance(value, (int, float, np.number)) and 0.0 < value < np.inf for value in listed]
        if not fine or not all(fine):
            raise InputError(f"Expected a sequence of positive numbers, got {name}={values!r}.")


@dataclass(frozen=True)
class GamePlan:
    """How long and how fast to play.

    Parameters
    ----------
    learning_rates : sequence of M float
        Of the models.
    critic_rate_factor : float
        The critics' rates as a multiple of the models'.
    epochs, batch_size : int
        Passes over the rows, and rows per step.
    evaluate_every : int
        Epochs between checkpoints.
    weight_decay : float
        Coupled, for both players.
    final_rate : float
        All rates fall along a half cosine to this share of themselves; 1 keeps them constant.
    """

    learning_rates: Sequence[float]
    critic_rate_factor: float
    epochs: int
    batch_size: int
    evaluate_every: int
    weight_decay: float = 0.0
    final_rate: float = 1.0

    def __post_init__(self) -> None:
        """Check the numbers a user may have set."""
        check_whole(epochs=self.epochs, batch_size=self.batch_size, evaluate_every=self.evaluate_every)
        check_positive(learning_rates=self.learning_rates)
        check_number(least=0.0, critic_rate_factor=self.critic_rate_factor, weight_decay=self.weight_decay)
        check_number(least=0.0, most=1.0, final_rate=self.final_rate)
        if self.critic_rate_factor == 0.0:
            raise InputError("Expected a critic that learns, got critic_rate_factor=0; pass 5, as published.")

    @property
    def n_checkpoints(self) -> int:
        """How often the players are evaluated: at regular times and at the end."""
        return math.ceil(self.epochs / self.evaluate_every)

    def rate_factor(self, progress: float) -> float:
        """Return the factor on all rates after a share ``progress`` of the steps."""
        return self.final_rate + (1.0 - self.final_rate) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Checkpoints:
    """What was stored during a game, at C times for M configurations.

    Attributes
    ----------
    epochs : ndarray of int, shape (C,)
        Epochs played before each checkpoint.
    residuals, critics : ndarray, shape (C, M, n_held_out)
        Outcome minus model, and the critics' values, on held-out rows.
    weights : list of C tensors
        The models' weights, on the CPU.
    """

    epochs: IntArray
    residuals: FloatArray
    critics: FloatArray
    weights: list[Tensor]

    @torch.no_grad()
    def networks(self, net: StackedMLP, kept: Sequence[tuple[int, int]]) -> StackedMLP:
        """Return a stack of the models ``kept``, each a (time, configuration) of the game of ``net``."""
        stack = net.subset([member for _, member in kept])
        for position, (time, member) in enumerate(kept):
            layers = net.layers(self.weights[time])
            for (weight, bias), (new_weight, new_bias) in zip(layers, stack.layers(), strict=True):
                new_weight[position] = weight[member]
                new_bias[position] = bias[member]
        return stack


def play(
    model: Player,
    critic: Player,
    outcome: Tensor,
    plan: GamePlan,
    *,
    fit_rows: IntArray,
    heldout_rows: IntArray,
    generator: np.random.Generator,
    progress: ProgressReporter,
    label: str,
    weight: Tensor | None = None,
) -> Checkpoints:
    """Play all configurations against their critics, in one sequence of simultaneous steps.

    Parameters
    ----------
    model, critic : Player
        Changed in place and left in evaluation mode.
    outcome : Tensor, shape (n,)
    plan : GamePlan
    fit_rows, heldout_rows : ndarray of int
        Rows to learn from, in batches that all configurations share, and validation rows.
    generator : numpy.random.Generator
        Order of the rows.
    progress : ProgressReporter
    label : str
        Name of the stage in progress bars and errors.
    weight : Tensor, shape (n,), optional
        Row weights with mean one.

    Raises
    ------
    TrainingDivergedError
        If no configuration stays finite.
    """
    net, other = model.net, critic.net
    rates = net.spread_over_members(plan.learning_rates)
    critic_rates = other.spread_over_members([plan.critic_rate_factor * rate for rate in plan.learning_rates])
    optimisers = (
        OptimisticAdam(net.flat, rates, weight_decay=plan.weight_decay),
        OptimisticAdam(other.flat, critic_rates, weight_decay=plan.weight_decay),
    )
    steps = math.ceil(len(fit_rows) / plan.batch_size)
    times, residuals, critics, weights = [], [], [], []
    with progress.stage(label, plan.epochs) as advance:
        for epoch in range(1, plan.epochs + 1):
            net.train()
            other.train()
            # Batches of nearly equal size: a last batch of a few rows would be all noise.
            batches = np.array_split(generator.permutation(fit_rows), steps)
            for step, batch in enumerate(batches, start=(epoch - 1) * steps):
                rows = torch.from_numpy(batch).to(net.device).expand(net.n_members, -1)
                residual = outcome[rows] - model.values(rows)
                losses = game_losses(residual, critic.values(rows), 1.0 if weight is None else weight[rows])
                net.flat.grad = other.flat.grad = None
                # Both gradients are taken at the same weights, before anybody moves.
                torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
                for optimiser in optimisers:
                    optimiser.step(plan.rate_factor(step / (plan.epochs * steps)))
            advance()
            if epoch % plan.evaluate_every == 0 or epoch == plan.epochs:
                times.append(epoch)
                values = evaluate_player(model, heldout_rows)
                residuals.append(outcome[torch.from_numpy(heldout_rows).to(net.device)].cpu() - values)
                critics.append(evaluate_player(critic, heldout_rows))
                weights.append(net.flat.detach().cpu().clone())
                if not bool(torch.isfinite(residuals[-1]).all(dim=1).any()):
                    raise TrainingDivergedError(
                        f"Training of '{label}' diverged: no configuration is finite after epoch {epoch}. "
                        "Lower the learning rates, or look for extreme values in the data."
                    )
    for player in (model, critic):
        player.net.eval()
        player.net.drop_workspace()
        player.net.flat.grad = None
    return Checkpoints(
        np.array(times),
        torch.stack(residuals).double().numpy(),
        torch.stack(critics).double().numpy(),
        weights,
    )


@torch.no_grad()
def evaluate_player(player: Player, rows: IntArray) -> Tensor:
    """Return a player's values (M, n) at rows (n,), without dropout, on the CPU."""
    net = player.net.eval()
    chunk = _EVALUATION_CHUNK if net.front is None else _CONVOLUTION_CHUNK
    parts = torch.split(torch.from_numpy(rows).to(net.device).expand(net.n_members, -1), chunk, dim=1)
    return torch.cat([player.values(part) for part in parts], dim=1).cpu()


def checkpoint_scores(residuals: FloatArray, critics: FloatArray, weight: FloatArray) -> FloatArray:
    """Score every stored residual against the pool of all stored critics, shape (C, M); higher is better.

    The score of e is minus the largest value of mean f e - mean f^2 e~^2 / 4 over the pool, where e~ is the
    mean of all residuals. Configurations or checkpoints that are not finite score minus infinity, and their
    critics are left out.

    Parameters
    ----------
    residuals, critics : ndarray, shape (C, M, n)
    weight : ndarray, shape (n,)
        Row weights.
    """
    shape = residuals.shape[:2]
    candidates, pool = (part.reshape(-1, part.shape[2]) for part in (residuals, critics))
    finite = np.isfinite(candidates).all(axis=1)
    pool = pool[np.isfinite(pool).all(axis=1)]
    share = weight / weight.sum()
    typical = candidates[finite].mean(axis=0)
    penalty = 0.25 * (pool**2 @ (share * typical**2))
    scores = np.full(len(candidates), -np.inf)
    violations = (candidates[finite] * share) @ pool.T - penalty
    scores[finite] = -violations.max(axis=1)
    return scores.reshape(shape)


def best_checkpoints(
    scores: FloatArray, *, burn_in: int, patience: int, n_best: int = 1
) -> list[tuple[int, int]]:
    """Choose the best configuration and its best checkpoints.

    Each configuration is read in order of time after ``burn_in`` checkpoints, until ``patience`` of them in a
    row were no better than the best before; the configuration with the best score wins.

    Parameters
    ----------
    scores : ndarray, shape (C, M)
    burn_in, patience : int
        Checkpoints; fewer than C to burn.
    n_best : int
        How many of the winner's checkpoints among those read to return, best first.

    Returns
    -------
    list of (checkpoint, configuration)
    """
    read: list[tuple[float, int, int]] = []
    for member in range(scores.shape[1]):
        column = scores[burn_in:, member]
        running = np.maximum.accumulate(column)
        # A checkpoint is new if it beats everything before it.
        last_best, stop = 0, len(column)
        for position in range(1, len(column)):
            if column[position] > running[position - 1]:
                last_best = position
            elif position - last_best >= patience:
                stop = position + 1
                break
        read.append((float(running[stop - 1]), stop, member))
    best, stop, member = max(read, key=lambda entry: entry[0])
    if best == -np.inf:
        raise TrainingDivergedError(
            "Expected a checkpoint with finite values, got none; lower the learning rates."
        )
    column = scores[burn_in : burn_in + stop, member]
    order = np.argsort(-column, kind="stable")[:n_best]
    return [(burn_in + int(position), member) for position in order if np.isfinite(column[position])]
