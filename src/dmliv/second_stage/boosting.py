"""h as boosted trees that descend the projected loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.tree import DecisionTreeRegressor

from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import check_number, check_whole
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.distributions import Nodes
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.regressor import (
    RegressorStructuralModel,
    draw_actions,
    learn_encoder,
    pair_inputs,
    row_indices,
)
from dmliv.second_stage.structural_encoder import StructuralEncoder

# Quadrature points per axis for the held-out loss: it decides when to stop, so it should not carry the
# variance of h that a few draws add.
_HELD_OUT_POINTS = 3


@savable
@dataclass(frozen=True)
class ProjectedBoosting:
    """Structural learner: gradient boosting of mean (target - E[h(context, A)])^2.

    With nodes a_ij and weights w_ij of row i, each round takes the residuals rho_i = target_i - sum_j w_ij
    h(c_i, a_ij), fits a tree to rho_i at all points (c_i, a_ij), and adds the tree with the step that the
    *projected* tree q_i = sum_j w_ij tree(c_i, a_ij) asks for, alpha = <rho, q> / <q, q>, times the learning
    rate nu. The training loss falls by nu (2 - nu) <rho, q>^2 / <q, q>, so it never rises.

    Recovering h from its projection is ill posed and the number of rounds is what regularises it: the later
    the round, the less of h's shape is visible in the projection. It is chosen on held-out rows, then all
    rows are fitted with that number. With weak instruments the flattening of
    :class:`~dmliv.second_stage.regressor.RegressorStructural` may serve better.

    Parameters
    ----------
    n_rounds : int
        Most rounds; exactly this many when ``validation_fraction`` is 0.
    learning_rate : float
        Share of the best step that is taken, in (0, 1].
    max_depth : int
        Depth of a tree.
    min_samples_leaf : int
        Rows in a leaf; the nodes of a row count as one row together.
    n_draws : int
        Fixed draws per row, the nodes. Distributions with finitely many actions are summed over exactly.
    validation_fraction : float
        Share of rows held out to choose the number of rounds, in [0, 1). Their targets come from the first
        stage as for all rows.
    patience : int
        Rounds without a better held-out loss after which the search ends.
    """

    n_rounds: int = 500
    learning_rate: float = 0.1
    max_depth: int = 3
    min_samples_leaf: int = 10
    n_draws: int = 5
    validation_fraction: float = 0.2
    patience: int = 30

    def __post_init__(self) -> None:
        """Check every number."""
        check_whole(
            n_rounds=self.n_rounds,
            max_depth=self.max_depth,
            min_samples_leaf=self.min_samples_leaf,
            n_draws=self.n_draws,
            patience=self.patience,
        )
        check_number(above=0.0, most=1.0, learning_rate=self.learning_rate)
        check_number(least=0.0, below=1.0, validation_fraction=self.validation_fraction)

    @property
    def needs_validation(self) -> bool:
        """Whether fair splits are needed; the number of rounds is chosen without them."""
        return False

    def fit(
        self, data: TrainingData, first_stage: FirstStage, *, seed: int, runtime: Runtime
    ) -> RegressorStructuralModel:
        """Choose the number of rounds on held-out rows, then boost on all rows."""
        draw_seed, split_seed, tree_seed = map(int, np.random.SeedSequence(seed).generate_state(3))
        encoder, distribution = learn_encoder(data), first_stage.distribution
        rows = np.arange(len(data))
        if distribution.is_finite:
            nodes = distribution.nodes(row_indices(distribution, rows), 1)
        else:
            nodes = draw_actions(distribution, rows, self.n_draws, draw_seed)
        points = _Points.at(nodes, rows, encoder, data, first_stage)
        n_rounds, held_out_losses = self.n_rounds, []
        # Rows of no weight say nothing about the loss; rounding down keeps at least one row to fit on.
        order = np.random.default_rng(split_seed).permutation(np.flatnonzero(data.weight > 0.0))
        held_out = np.sort(order[: int(self.validation_fraction * len(order))])
        if len(held_out):
            exact = distribution.evaluation_nodes(row_indices(distribution, held_out), _HELD_OUT_POINTS)
            stopping = _EarlyStopping(_Points.at(exact, held_out, encoder, data, first_stage), self.patience)
            kept = points.take(np.setdiff1d(rows, held_out))
            with runtime.progress.stage("structural model: rounds", self.n_rounds) as advance:
                self._boost(kept, self.n_rounds, tree_seed, advance, stopping)
            n_rounds, held_out_losses = stopping.best_round, stopping.losses
        with runtime.progress.stage("structural model", n_rounds) as advance:
            trees, losses = self._boost(points, n_rounds, tree_seed, advance)
        curves = {"training_losses": losses, "held_out_losses": held_out_losses}
        return RegressorStructuralModel(encoder, trees, {"n_rounds": len(trees.trees), **curves})

    def _boost(
        self,
        points: _Points,
        n_rounds: int,
        seed: int,
        advance: Callable[[], None],
        stopping: _EarlyStopping | None = None,
    ) -> tuple[TreeSum, list[float]]:
        """Return the trees and the training loss before the first and after every round."""
        fitted = TreeSum(float(np.average(points.target, weights=points.weight)), [], [])
        residual = points.target - fitted.start
        losses = [_mean_square(residual, points.weight)]
        pair_weights = (points.weight[:, None] * points.node_weights).reshape(-1)
        n_nodes = points.node_weights.shape[1]
        if stopping is not None:
            stopping.begin(fitted.start)
        for index in range(n_rounds):
            tree = DecisionTreeRegressor(
                max_depth=self.max_depth,
                min_samples_leaf=self.min_samples_leaf * n_nodes,
                random_state=(seed + index) % (2**31),
            )
            tree.fit(
                points.inputs, np.repeat(residual, n_nodes), sample_weight=pair_weights, check_input=False
            )
            projected = points.project(tree)
            length = float(np.sum(points.weight * projected**2))
            if length == 0.0:
                # No split changes the projection any more.
                break
            best_step = float(np.sum(points.weight * residual * projected)) / length
            fitted.trees.append(tree)
            fitted.steps.append(self.learning_rate * best_step)
            residual = residual - fitted.steps[-1] * projected
            losses.append(_mean_square(residual, points.weight))
            advance()
            if stopping is not None and stopping.is_done(tree, fitted.steps[-1]):
                break
        return fitted, losses


@savable
@dataclass(frozen=True)
class TreeSum:
    """A constant plus trees times their steps."""

    start: float
    trees: list[DecisionTreeRegressor]
    steps: list[float]

    def predict(self, inputs: FloatArray) -> FloatArray:
        """Return the sum at inputs (n, width), shape (n,)."""
        # The precision trees split in; converted once instead of once per tree.
        single = np.ascontiguousarray(inputs, dtype=np.float32)
        total = np.full(len(inputs), self.start)
        for tree, step in zip(self.trees, self.steps, strict=True):
            total += step * tree.predict(single, check_input=False)
        return total


@savable
@dataclass(frozen=True)
class _Points:
    """Rows with their nodes.

    Attributes
    ----------
    inputs : ndarray of float32, shape (n * Q, width)
    node_weights : ndarray, shape (n, Q)
    target, weight : ndarray, shape (n,)
    """

    inputs: npt.NDArray[np.float32]
    node_weights: FloatArray
    target: FloatArray
    weight: FloatArray

    @classmethod
    def at(
        cls,
        nodes: Nodes,
        rows: IntArray,
        encoder: StructuralEncoder,
        data: TrainingData,
        first_stage: FirstStage,
    ) -> _Points:
        """Return the given rows at the given nodes."""
        inputs = pair_inputs(encoder, data.context.take(rows), nodes).astype(np.float32)
        node_weights = nodes.weights.cpu().double().numpy()
        return cls(inputs, node_weights, first_stage.target[rows], data.weight[rows])

    def take(self, rows: IntArray) -> _Points:
        """Return some of the rows."""
        by_row = self.inputs.reshape(*self.node_weights.shape, -1)
        inputs = by_row[rows].reshape(-1, by_row.shape[2])
        return _Points(inputs, self.node_weights[rows], self.target[rows], self.weight[rows])

    def project(self, tree: DecisionTreeRegressor) -> FloatArray:
        """Return the mean of a tree over the nodes of each row, shape (n,)."""
        values = tree.predict(self.inputs, check_input=False).reshape(self.node_weights.shape)
        return np.asarray((self.node_weights * values).sum(axis=1))


class _EarlyStopping:
    """Follows the loss on held-out rows and says when to stop."""

    def __init__(self, points: _Points, patience: int) -> None:
        self._points = points
        self._patience = patience
        self._residual = points.target
        self.losses: list[float] = []

    def begin(self, start: float) -> None:
        """Judge the constant, round 0."""
        self._residual = self._points.target - start
        self.losses = [_mean_square(self._residual, self._points.weight)]

    @property
    def best_round(self) -> int:
        """The number of rounds with the lowest loss."""
        return int(np.argmin(self.losses))

    def is_done(self, tree: DecisionTreeRegressor, step: float) -> bool:
        """Judge one more tree and return whether the best round is out of patience."""
        self._residual = self._residual - step * self._points.project(tree)
        self.losses.append(_mean_square(self._residual, self._points.weight))
        return len(self.losses) - 1 - self.best_round >= self._patience


def _mean_square(residual: FloatArray, weight: FloatArray) -> float:
    return float(np.sum(weight * residual**2) / np.sum(weight))
