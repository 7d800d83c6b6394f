"""The second stage of kernel methods: h in a kernel's space, seen through the mean of the action's kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dmliv.data import FloatArray, IntArray
from dmliv.kernels.features import LandmarkFeatures, chunks, median_scales
from dmliv.kernels.ridge import (
    PENALTIES,
    SEARCH_ROWS,
    RidgePath,
    column_groups,
    ridge_losses,
    search_length,
    search_scales,
)
from dmliv.progress import Advance, ProgressReporter

# The search for h starts from a wide kernel in the action, a smooth function, and narrows it for a clear gain
# only: bends that the projection hardly shows are noise.
_ACTION_START = 16.0


ActionMeans = Callable[[IntArray, FloatArray, FloatArray], FloatArray]
"""Kernel mean embedding of the action given context and instrument: E[k(A, landmark)], shape (n, m), of rows
(n,), landmark actions (m, d) and the kernel's scales (d,)."""


@dataclass(frozen=True, eq=False)
class ProjectedFit:
    """A solved `ProjectedProblem`.

    Attributes
    ----------
    features : LandmarkFeatures
        Of rows (action, context).
    weights : ndarray, shape (width,)
    penalty : float
    losses : ndarray, shape (g,)
        Leave-one-out loss of every penalty.
    """

    features: LandmarkFeatures
    weights: FloatArray
    penalty: float
    losses: FloatArray


@dataclass(frozen=True, eq=False)
class ProjectedProblem:
    """The second stage of any kernel IV method: find h with target = E[h(context, A)], row by row.

    The kernel is a product over columns, so the mean of a feature of (action, context) is the mean of the
    action's kernel times the kernel of the context, which is known.

    Attributes
    ----------
    action : ndarray, shape (n, d_a)
        Observed actions, for landmarks and median distances.
    action_blocks : sequence of int
    context : ndarray, shape (n, d_c)
    context_blocks : sequence of int
    means : ActionMeans
    target, outcome, weight : ndarray, shape (n,)
        h is fitted to the target; bandwidths and penalty are those that predict the outcome.
    """

    action: FloatArray
    action_blocks: Sequence[int]
    context: FloatArray
    context_blocks: Sequence[int]
    means: ActionMeans
    target: FloatArray
    outcome: FloatArray
    weight: FloatArray

    def solve(
        self,
        context_scales: FloatArray,
        n_landmarks: int,
        generator: np.random.Generator,
        *,
        penalties: FloatArray = PENALTIES,
        progress: ProgressReporter,
    ) -> ProjectedFit:
        """Choose bandwidths, starting from those of the context, then the penalty, and fit all rows."""
        scales = self.search(context_scales, n_landmarks, generator, penalties=penalties, progress=progress)
        return self.fit(scales, n_landmarks, generator, penalties=penalties, progress=progress)

    def search(
        self,
        context_scales: FloatArray,
        n_landmarks: int,
        generator: np.random.Generator,
        *,
        n_rows: int = SEARCH_ROWS,
        penalties: FloatArray = PENALTIES,
        progress: ProgressReporter,
    ) -> FloatArray:
        """Return bandwidths of all columns, shape (d_a + d_c,), starting from those of the context.

        No more than ``n_rows`` rows are looked at, and no more landmarks than a fifth of them.
        """
        order = generator.permutation(np.flatnonzero(self.weight > 0.0))
        n_landmarks = min(n_landmarks, max(1, n_rows // 5))
        points, rows = self._points(order[:n_landmarks]), np.sort(order[:n_rows])
        return self._choose_scales(context_scales, points, rows, generator, penalties, progress)

    def fit(
        self,
        scales: FloatArray,
        n_landmarks: int,
        generator: np.random.Generator,
        *,
        penalties: FloatArray = PENALTIES,
        progress: ProgressReporter,
    ) -> ProjectedFit:
        """Choose the penalty for given bandwidths and fit all rows of positive weight."""
        used = np.flatnonzero(self.weight > 0.0)
        features = LandmarkFeatures.learn(self._points(generator.permutation(used)[:n_landmarks]), scales)
        with progress.stage("kernel regression", 2 * len(chunks(len(used)))) as advance:
            path = self._path(features, used, {}, penalties, advance)
        position = path.cautious()
        return ProjectedFit(features, path.weights[:, position], float(penalties[position]), path.mean_losses)

    def project(self, fitted: ProjectedFit, rows: IntArray) -> FloatArray:
        """Return E[h(context, A)] of a fit for any rows, shape (n,)."""
        width = self.action.shape[1]
        landmarks, scales = fitted.features.landmarks[:, :width], fitted.features.scales[:width]
        parts = [
            fitted.features.project(self.means(part, landmarks, scales), self.context[part]) @ fitted.weights
            for part in (rows[chunk] for chunk in chunks(len(rows)))
        ]
        return np.concatenate([np.empty(0), *parts])

    def _points(self, rows: IntArray) -> FloatArray:
        landmarks = np.sort(rows)
        return np.hstack([self.action[landmarks], self.context[landmarks]])

    def _choose_scales(
        self,
        context_scales: FloatArray,
        points: FloatArray,
        rows: IntArray,
        generator: np.random.Generator,
        penalties: FloatArray,
        progress: ProgressReporter,
    ) -> FloatArray:
        width = self.action.shape[1]
        blocks = [*self.action_blocks, *self.context_blocks]
        columns = np.hstack([self.action[rows], self.context[rows]])
        medians = median_scales(columns, blocks, np.ones(columns.shape[1]), "product", generator)
        known: dict[bytes, FloatArray] = {}

        def loss(scales: FloatArray) -> float:
            path = self._path(LandmarkFeatures.learn(points, scales), rows, known, penalties)
            return float(path.mean_losses.min())

        start = np.concatenate([_ACTION_START * medians[:width], context_scales])
        by_context = column_groups(self.context[rows], self.context_blocks)
        groups = column_groups(self.action[rows], self.action_blocks)
        groups += [width + group for group in by_context]
        with progress.stage("bandwidths of the structural model", search_length(groups)) as advance:
            return search_scales(loss, start, medians, groups, n_stiff=width, advance=advance)

    def _path(
        self,
        features: LandmarkFeatures,
        rows: IntArray,
        known: dict[bytes, FloatArray],
        penalties: FloatArray,
        advance: Advance = lambda: None,
    ) -> RidgePath:
        width = self.action.shape[1]
        landmarks, scales = features.landmarks[:, :width], features.scales[:width]

        def encode(part: IntArray) -> FloatArray:
            # While only bandwidths of the context move, the means of the action's kernel stay.
            key = scales.tobytes()
            if len(part) == len(rows) and key in known:
                means = known[key]
            else:
                means = self.means(part, landmarks, scales)
                if len(part) == len(rows):
                    known[key] = means
            return features.project(means, self.context[part])

        return ridge_losses(encode, rows, self.target, self.outcome, self.weight, penalties, advance)
