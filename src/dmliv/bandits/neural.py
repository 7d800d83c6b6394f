"""Offline bandits whose uncertainty comes from the gradient of a network in its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from dmliv.bandits.gradient_networks import BanditNetwork, GradientReward, add, filled, fit_random_features
from dmliv.bandits.inputs import BanditRows
from dmliv.bandits.rewards import RewardModel
from dmliv.bandits.rule import OfflineBandit, draw_seed
from dmliv.data import FloatArray, IntArray
from dmliv.errors import InputError, TrainingDivergedError, check_number, check_whole
from dmliv.progress import ProgressReporter, progress_for

Mode = Literal["one-pass", "batch", "stream"]

_WEIGHT_PENALTY = 1e-4


class _Trainer:
    """Adam on half the mean squared error plus half the penalised squared weights."""

    def __init__(self, network: BanditNetwork, rows: BanditRows, learning_rate: float) -> None:
        self.network, self.rows, self._rate = network, rows, learning_rate
        self._mean = [np.zeros_like(matrix) for matrix in network.parameters]
        self._square = [np.zeros_like(matrix) for matrix in network.parameters]
        self._penalty = network.weight_masks(_WEIGHT_PENALTY)
        self._steps = 0

    def step(self, batch: IntArray) -> None:
        """Take one step on the given rows."""
        encoded = _disjoint(self.rows.inputs[batch], self.rows.codes[batch], self.rows.n_actions)
        factors = self.network.factors_on_blocks(encoded)
        gradient = factors.weighted_sum((factors.output - self.rows.reward[batch]) / len(batch))
        self._steps += 1
        rate = self._rate * np.sqrt(1.0 - 0.999**self._steps) / (1.0 - 0.9**self._steps)
        epsilon = 1e-8 * np.sqrt(1.0 - 0.999**self._steps)
        for matrix, derivative, penalty, mean, square in zip(
            self.network.parameters, gradient, self._penalty, self._mean, self._square, strict=True
        ):
            slope = derivative + penalty * matrix
            mean[:] += 0.1 * (slope - mean)
            square[:] += 0.001 * (slope * slope - square)
            matrix[:] -= rate * mean / (np.sqrt(square) + epsilon)


def _disjoint(inputs: FloatArray, codes: IntArray, n_actions: int) -> FloatArray:
    """Return inputs (n, d) in the blocks of their actions, shape (n, K * d)."""
    encoded = np.zeros((len(inputs), n_actions, inputs.shape[1]))
    encoded[np.arange(len(inputs)), codes] = inputs
    return encoded.reshape(len(inputs), -1)


def train_streaming(
    trainer: _Trainer,
    batches: Callable[[int], Iterator[IntArray]],
    every: int,
    ridge: float,
    progress: ProgressReporter,
) -> GradientReward:
    """Go through the rows once, in order: train, then add the new rows' gradients to the precision.

    Parameters
    ----------
    trainer : _Trainer
    batches : callable
        From the number of rows that have come to the batches of an update.
    every : int
        New rows between two updates.
    ridge : float
        Precision before any row.
    progress : ProgressReporter

    Raises
    ------
    TrainingDivergedError
        If the weights stop being finite.
    """
    network, rows = trainer.network, trainer.rows
    precision = tuple(filled(network, ridge) for _ in range(rows.n_actions))
    starts = range(0, len(rows), every)
    with progress.stage("bandit network", len(starts)) as advance, np.errstate(all="ignore"):
        for start in starts:
            seen = min(start + every, len(rows))
            for batch in batches(seen):
                trainer.step(batch)
            codes = rows.codes[start:seen]
            for action in np.unique(codes):
                own = start + np.flatnonzero(codes == action)
                factors = network.factors_of(rows.inputs[own], int(action))
                share = np.full(len(own), 1.0 / network.smaller_width)
                add(precision[action], factors.squared().weighted_sum(share))
            advance()
    if not all(np.isfinite(matrix).all() for matrix in network.parameters):
        raise TrainingDivergedError(
            "Training of the bandit network diverged: its weights are not finite. Lower learning_rate, or "
            "look for extreme values in the data."
        )
    return GradientReward(network, precision)


@dataclass(eq=False, repr=False, kw_only=True)
class NeuraLCB(OfflineBandit):
    """Lower confidence bounds of a network, with a diagonal precision of its gradient for each action.

    Rows come one after the other: the network is trained on what has come, and the gradient of every new row,
    taken at the network of that moment, adds to the precision of its action.

    Parameters
    ----------
    mode : {"one-pass", "batch", "stream"}
        The published rules train after every row: ``"batch"`` takes ``n_steps`` steps on ``batch_size`` rows
        drawn from all so far (a million steps for 10,000 rows), ``"stream"`` one step on the new row.
        ``"one-pass"`` is the batch rule once in ``update_every`` rows.
    update_every : int
        New rows between two updates of a one-pass fit.
    n_steps, batch_size : int
        Steps of an update and rows of a step; not used by ``"stream"``.
    learning_rate : float
        Of Adam. 1e-4 and 1e-3 were published; the lower one suits ``"batch"`` with its many steps.
    widths : (int, int)
        Hidden units; (100, 100) was published for real data.
    ridge : float
        Precision before any row.
    random_state : int, RandomState or None
        Seed of initial weights and batches.
    verbose : bool
        Show a progress bar.
    beta, n_actions, action_range, action_kind, intercept
        As for :class:`LinLCB`.
    """

    beta: float = field(default=0.1, kw_only=False)
    mode: Mode = "one-pass"
    update_every: int = 50
    n_steps: int = 100
    batch_size: int = 50
    learning_rate: float = 1e-3
    widths: tuple[int, int] = (20, 20)
    ridge: float = 0.1
    intercept: bool = True
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.mode not in get_args(Mode):
            raise InputError(f"Expected mode to be one of {get_args(Mode)}, got {self.mode!r}.")
        check_whole(update_every=self.update_every, n_steps=self.n_steps, batch_size=self.batch_size)
        check_number(above=0.0, learning_rate=self.learning_rate, ridge=self.ridge)

    def _learn(self, rows: BanditRows) -> RewardModel:
        generator = np.random.default_rng(draw_seed(self.random_state))
        network = _draw_network(rows, self.widths, generator)

        def batches(seen: int) -> Iterator[IntArray]:
            if self.mode == "stream":
                yield np.array([seen - 1])
            else:
                yield from (generator.integers(seen, size=self.batch_size) for _ in range(self.n_steps))

        return train_streaming(
            _Trainer(network, rows, float(self.learning_rate)),
            batches,
            self.update_every if self.mode == "one-pass" else 1,
            float(self.ridge),
            progress_for(self.verbose),
        )


@dataclass(eq=False, repr=False, kw_only=True)
class NeuralLinGreedy(OfflineBandit):
    """The mean of :class:`NeuralLinLCB` without pessimism: its ``beta`` is zero.

    Parameters
    ----------
    widths, ridge, n_actions, action_range, action_kind, intercept, random_state
        As for :class:`NeuralLinLCB`.
    """

    widths: tuple[int, int] = (20, 20)
    ridge: float = 0.1
    intercept: bool = True
    random_state: int | np.random.RandomState | None = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number(above=0.0, ridge=self.ridge)

    def _learn(self, rows: BanditRows) -> RewardModel:
        generator = np.random.default_rng(draw_seed(self.random_state))
        return fit_random_features(_draw_network(rows, self.widths, generator), rows, float(self.ridge))


@dataclass(eq=False, repr=False, kw_only=True)
class NeuralLinLCB(NeuralLinGreedy):
    """Lower confidence bounds of a diagonal ridge regression on the gradient of an untrained network.

    All actions share one weight for each feature. The regression keeps only the diagonal of the features'
    second moments, as published: correlated features add up, so its mean exaggerates.

    Parameters
    ----------
    widths, ridge, random_state
        As for :class:`NeuraLCB`.
    beta, n_actions, action_range, action_kind, intercept
        As for :class:`LinLCB`.
    """

    beta: float = field(default=0.1, kw_only=False)


def _draw_network(rows: BanditRows, widths: Sequence[int], generator: np.random.Generator) -> BanditNetwork:
    if not isinstance(widths, Sequence) or len(widths) != 2:
        raise InputError(f"Expected widths as two whole numbers of hidden units, got {widths!r}.")
    for width in widths:
        check_whole(least=2, widths=width)
    return BanditNetwork.draw(rows.inputs.shape[1], rows.n_actions, (widths[0], widths[1]), generator)
