"""Debiased estimates: one step from the fitted h towards the moments that it should fulfil.

For a linear functional theta of h, the corrected estimate is
``theta(h_hat) + mean q(C, Z) (R - h_hat(C, A))``
with balancing weights q, an estimated Riesz representer of theta that depends on context and instrument only.
For any q the error is ``mean q * noise + theta(b) - mean q * b`` with the bias function b = h0 - h_hat.
The first part has mean zero, because q does not look at the action. The second is small if q weights
functions of (C, A) as theta does. So q minimises the variance of the first part plus the square of the
second, the worst case over b as smooth as the kernel of the features phi (minimax linear estimation). q is a
combination of the projected features E[phi | C, Z]. The standard error has three parts: the noise; a smooth
b of ``smooth_bias`` standard deviations of the outcome, as far as q does not balance it; and a rough b of
``rough_bias`` that no weights could balance: it differs from context to context, so it matters for single
contexts and cancels in averages over many.

The weights of a row come from rows of other folds: the distribution of the action, the moments, and so q. All
is linear in the functional, so one vector and one matrix hold the answers to every question.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import InputError, check_number, check_whole
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.distributions import ActionDistribution
from dmliv.first_stage.nuisances import Exogenous
from dmliv.inference.functionals import POINTWISE, Band, Functional
from dmliv.inference.landmarks import KernelLandmarks
from dmliv.inference.scores import ScoreProducts
from dmliv.kernels.features import LandmarkFeatures, chunks, gaussian_kernel
from dmliv.kernels.projected import ActionMeans
from dmliv.nets.encoding import TableEncoder
from dmliv.nets.images import ImageColumns
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.kernel import KernelBandwidths, KernelModel, KernelStructural
from dmliv.second_stage.structural import StructuralModel

# Rows that the moments of a fold are taken from, at most: more would not change digits that count.
_MOMENT_ROWS = 50_000
# Rows whose kernel matrix stands for a mean over all rows.
_LENGTH_ROWS = 200
# Quadrature points per component and action column. Any function of context and instrument may weigh rows,
# and the coarse means over few nodes hold more than the exact ones: intervals are narrower, and what q leaves
# unbalanced is measured on actions themselves.
_POINTS = 3
# The weights guard against a bias so many times larger than the standard error allows for: bias is worse
# than noise.
_CAUTION = 1.6
# The standard deviation of the noise is counted so many times: with that, errors were most nearly as large as
# standard errors on simulated data. Chosen together with the defaults below, see docs/results/coverage.md.
_NOISE_FACTOR = 1.1
# Keeps the normal equations of q invertible where features hardly differ.
_JITTER = 1e-12


@savable(renamed={"miss_sd": "smooth_bias", "rough_sd": "rough_bias"})
@dataclass(frozen=True)
class Debiased:
    """Intervals around debiased estimates; the standard error includes bounds on the bias of h.

    Parameters
    ----------
    n_landmarks : int
        Nystroem landmarks of (context, action), whose features span the bias of h that is corrected.
    smooth_bias : float
        Bound on the smooth part of the bias of h, in standard deviations of the outcome. Larger is more
        cautious.
    rough_bias : float
        Bound on a bias that differs from context to context, in the same units. It widens intervals for
        single contexts, such as bands of curves, and hardly those of averages.
    action_bandwidth : float
        How fast the bias may change with the action: the bandwidth of its kernel in median distances between
        actions, at most. Levels of a discrete action have little in common, whatever this is.
    """

    n_landmarks: int = 200
    smooth_bias: float = 0.5
    rough_bias: float = 0.1
    action_bandwidth: float = 1.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_whole(n_landmarks=self.n_landmarks)
        check_number(above=0.0, smooth_bias=self.smooth_bias, action_bandwidth=self.action_bandwidth)
        check_number(least=0.0, rough_bias=self.rough_bias)

    def check(self, n_folds: int) -> None:
        """Refuse one fold, before anything is fitted."""
        if n_folds < 2:
            raise InputError(
                "Expected n_folds of at least 2 for debiased intervals, got 1: the weights of a row "
                "must come from models that were not fitted on it. Use DMLIV, or inference='bootstrap'."
            )

    def learn(
        self,
        data: TrainingData,
        first_stage: FirstStage,
        model: StructuralModel,
        *,
        image: ImageColumns | None = None,
        cluster: IntArray | None = None,
        seed: int,
        runtime: Runtime,
    ) -> SeriesUncertainty:
        """Learn the correction of any linear functional of ``model``, and its covariance.

        Parameters
        ----------
        data : TrainingData
        first_stage : FirstStage
            Of at least two folds.
        model : StructuralModel
            The fitted h.
        image : ImageColumns, optional
            Context columns that are pixels.
        cluster : ndarray of int, shape (n,), optional
            Rows of one cluster may depend on each other.
        seed : int
        runtime : Runtime
        """
        n_folds = len(first_stage.fold_members)
        self.check(n_folds)
        landmarks = self._sieve(data, first_stage, model, image, seed, runtime)
        weight = data.weight / data.weight.sum()
        effective = 1.0 / float((weight**2).sum())
        residual = data.outcome - model.predict(data.context, data.action_spec.vectors(data.action))
        noise = float(weight @ residual**2)
        exogenous = Exogenous(data.context, data.instrument)
        generator = np.random.default_rng([seed, 3])
        rows = np.flatnonzero(data.weight > 0.0)
        width = landmarks.features.width
        moment, balance = np.zeros(width), np.zeros((width, width))
        scores = ScoreProducts(width, cluster)
        with runtime.progress.stage("debiasing", n_folds) as advance:
            for fold, member in enumerate(first_stage.fold_members):
                of_member = _distribution_of_member(first_stage, exogenous, member)
                means = partial(of_member.node_means, n_points=_POINTS)
                outside = rows[first_stage.fold[rows] != fold]
                if len(outside) > _MOMENT_ROWS:
                    outside = np.sort(generator.choice(outside, _MOMENT_ROWS, replace=False))
                riesz = self._riesz_weights(landmarks, data, means, outside, noise / effective)
                inside = rows[first_stage.fold[rows] == fold]
                for part in (inside[chunk] for chunk in chunks(len(inside))):
                    weights = landmarks.project(data.context.take(part), means, part) @ riesz
                    score = weights * (weight[part] * residual[part])[:, None]
                    moment += score.sum(axis=0)
                    scores.add(part, score)
                    features = landmarks.encode(data.context.take(part), _actions(data, part))
                    balance += features.T @ (weight[part][:, None] * weights)
                advance()
        imbalance = self.smooth_bias * (balance - np.eye(width))
        covariance = _NOISE_FACTOR**2 * scores.sum() + imbalance.T @ imbalance
        sizes = float(self.smooth_bias), float(self.rough_bias)
        return SeriesUncertainty(landmarks.encoder, landmarks.features, moment, covariance, *sizes)

    def _riesz_weights(
        self, landmarks: KernelLandmarks, data: TrainingData, means: ActionMeans, rows: IntArray, noise: float
    ) -> FloatArray:
        """Return the matrix that turns projected features and a functional's features into q.

        q of a row is ``projected @ matrix @ functional``, with the matrix of shape (width, width).
        """
        width = landmarks.features.width
        cross, square = np.zeros((width, width)), np.zeros((width, width))
        weight = data.weight[rows] / data.weight[rows].sum()
        for chunk in chunks(len(rows)):
            part = rows[chunk]
            context = data.context.take(part)
            projected = landmarks.project(context, means, part)
            weighted = weight[chunk][:, None] * projected
            cross += weighted.T @ landmarks.encode(context, _actions(data, part))
            square += weighted.T @ projected
        size = (_CAUTION * self.smooth_bias) ** 2
        system = size * (cross @ cross.T) + noise * square
        system[np.diag_indices(width)] += _JITTER * max(float(np.trace(system)) / width, 1e-300)
        return np.asarray(size * cho_solve(cho_factor(system), cross))

    def _sieve(
        self,
        data: TrainingData,
        first_stage: FirstStage,
        model: StructuralModel,
        image: ImageColumns | None,
        seed: int,
        runtime: Runtime,
    ) -> KernelLandmarks:
        """Choose or take over the bandwidths of a kernel for h, but let the bias bend in the action."""
        if isinstance(model, KernelModel) and isinstance(model.features, LandmarkFeatures):
            bandwidths = KernelBandwidths(model.encoder, model.features.scales)
        else:
            kernel = KernelStructural(self.n_landmarks, n_search_rows=1000, image=image)
            plug_in = replace(first_stage, target=data.outcome)
            bandwidths = kernel.search(data, plug_in, seed=seed, runtime=runtime)
        generator = np.random.default_rng([seed, 4])
        return KernelLandmarks.learn(data, bandwidths, self.n_landmarks, self.action_bandwidth, generator)


@savable(
    formerly=("SieveUncertainty",),
    renamed={"miss_sd": "smooth_bias", "rough_sd": "rough_bias"},
)
@dataclass(frozen=True, eq=False)
class SeriesUncertainty:
    """The correction of every linear functional of h, and its covariance, in a space of features.

    Attributes
    ----------
    encoder : TableEncoder
        Turns contexts into numbers.
    features : LandmarkFeatures
        Of rows (action, context).
    correction : ndarray, shape (width,)
        What to add to h.
    covariance : ndarray, shape (width, width)
    smooth_bias, rough_bias : float
        As in :class:`Debiased`.
    """

    encoder: TableEncoder
    features: LandmarkFeatures
    correction: FloatArray
    covariance: FloatArray
    smooth_bias: float
    rough_bias: float

    name: ClassVar[str] = "debiased"

    @property
    def width(self) -> int:
        """Number of features."""
        return self.features.width

    @property
    def words(self) -> str:
        """What the intervals are."""
        return (
            f"{POINTWISE} and the model's error has no jumps. In simulations intervals of means and "
            "pointwise bands cover the truth as often as they should where effects are smooth; with twenty "
            "context columns bands covered it in only 80 % of cases. They are centred on the model's answer "
            "after a correction for its bias, so the model's own curve need not lie in the middle, nor even "
            "inside."
        )

    def evaluate(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the features of every row, shape (n, width)."""
        rows = np.hstack([action, self.encoder.standardised(context)])
        parts = [self.features.encode(rows[part]) for part in chunks(len(rows))]
        return np.vstack([np.empty((0, self.features.width)), *parts])

    def unseen(self, functional: Functional, applied: FloatArray) -> FloatArray:
        """Return the variance of what the features cannot see of a functional.

        That is a smooth bias where no landmark is near, such as beyond the observed actions: the part of the
        functional's squared length in the kernel's space that the features do not have, for a mean over many
        rows that of some of them. And it is the rough bias, which is one draw per row.
        """
        context = self.encoder.standardised(functional.context)
        points = [np.hstack([action, context]) / self.features.scales for _, action in functional.terms]
        signs = [coefficient for coefficient, _ in functional.terms]
        by_row = np.zeros(len(context))
        for left, first in zip(signs, points, strict=True):
            for right, second in zip(signs, points, strict=True):
                by_row += left * right * np.exp(-0.5 * np.sum((first - second) ** 2, axis=1))
        if functional.weight is None:
            rough, hidden = by_row, by_row - np.sum(applied**2, axis=1)
        else:
            rough = np.array([functional.weight**2 @ by_row])
            some = np.unique(np.linspace(0, len(context) - 1, _LENGTH_ROWS).astype(np.int64))
            weight = functional.weight[some] / functional.weight[some].sum()
            signed = np.concatenate([sign * weight for sign in signs])
            rows = np.vstack([each[some] for each in points])
            kernel = gaussian_kernel(rows, rows, np.ones(rows.shape[1]))
            seen = signed @ self.features.encode(rows * self.features.scales)
            hidden = np.array([signed @ kernel @ signed - seen @ seen])
        variance = self.smooth_bias**2 * np.maximum(hidden, 0.0) + self.rough_bias**2 * np.maximum(rough, 0.0)
        return np.asarray(variance)

    def band(self, plug_in: FloatArray, applied: FloatArray, unseen: FloatArray, alpha: float) -> Band:
        """Return corrected estimates with normal intervals."""
        estimate = plug_in + applied @ self.correction
        variance = np.einsum("nd,de,ne->n", applied, self.covariance, applied) + unseen
        return Band.normal(estimate, variance, alpha)


def _distribution_of_member(first_stage: FirstStage, exogenous: Exogenous, member: int) -> ActionDistribution:
    """Return the distribution of one fold's model at every row: in memory one at a time."""
    everything, nothing = np.arange(len(exogenous)), np.empty(0, dtype=np.int64)
    wanted = [everything if each == member else nothing for each in range(first_stage.n_members)]
    return first_stage.action_model.distributions(exogenous, wanted)[member]


def _actions(data: TrainingData, rows: IntArray) -> FloatArray:
    return data.action_spec.vectors(data.action[rows])
