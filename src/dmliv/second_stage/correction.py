"""What a fitted h leaves of the outcome, given back as a small, smooth function of (context, action)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.errors import InputError
from dmliv.first_stage.base import Exogenous
from dmliv.first_stage.crossfit import FirstStage, JudgedSplit
from dmliv.kernels.features import chunks
from dmliv.second_stage.base import StructuralModel
from dmliv.second_stage.judging import TrialProjections, judged_losses, not_clearly_worse
from dmliv.second_stage.kernel import KernelBandwidths, KernelModel
from dmliv.second_stage.law_means import LawMeans
from dmliv.second_stage.score import project
from dmliv.second_stage.sieve import KernelSieve

# Quadrature points per action column in the mean over an action law without a closed form.
_POINTS = 3


@dataclass(frozen=True)
class KernelCorrection:
    """Adds to a fitted h the smooth function that explains best what its projection leaves of the outcome.

    Penalties and short training flatten h where it bends in the action, because a projection hardly shows
    bends. If what is missing is a Gaussian process of a known standard deviation, its posterior mean is a
    ridge regression of outcome minus projection on projected features. The largest standard deviation is
    taken that rows which the nuisances never saw do not speak against, or none.

    Parameters
    ----------
    sizes : tuple of float
        Candidates for the standard deviation of what is missing, in those of the outcome.
    n_landmarks : int
        Features of (context, action).
    action_bandwidth : float
        How fast the correction may change with the action: its bandwidth in median distances, at most.
    """

    sizes: tuple[float, ...] = (0.2, 0.4)
    n_landmarks: int = 200
    action_bandwidth: float = 1.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not self.sizes or not all(0.0 < size < np.inf for size in self.sizes):
            raise InputError(f"Expected positive sizes, got {self.sizes}; pass (0.2, 0.4), say.")
        if self.n_landmarks < 1 or not 0.0 < self.action_bandwidth < np.inf:
            raise InputError(
                f"Expected positive numbers, got n_landmarks={self.n_landmarks} and "
                f"action_bandwidth={self.action_bandwidth}."
            )

    def learn(
        self,
        model: StructuralModel,
        trials: Sequence[TrialProjections],
        data: TrainingData,
        first_stage: FirstStage,
        bandwidths: KernelBandwidths,
        *,
        fit_rows: Sequence[IntArray],
        judging_rows: Sequence[IntArray],
        seed: int,
    ) -> KernelModel | None:
        """Return what to add to ``model``; None where held-out rows speak for nothing.

        Parameters
        ----------
        model : StructuralModel
            Fitted to all rows.
        trials : sequence of TrialProjections
            Of the same kind of model, fitted on each half.
        data : TrainingData
        first_stage : FirstStage
        bandwidths : KernelBandwidths
            Of a kernel for h.
        fit_rows, judging_rows : sequence of ndarray of int
            Of each half.
        seed : int
            Draws the landmarks.
        """
        generator = np.random.default_rng([seed, 3])
        sieve = KernelSieve.learn(data, bandwidths, self.n_landmarks, self.action_bandwidth, generator)
        by_half = [
            self._try_half(sieve, trial, data, split, fit, judging)
            for trial, split, fit, judging in zip(
                trials, first_stage.splits, fit_rows, judging_rows, strict=True
            )
        ]
        judged = {0.0: judged_losses(data, judging_rows, trials)}
        for size, corrected in zip(self.sizes, zip(*by_half, strict=True), strict=True):
            judged[size] = judged_losses(data, judging_rows, corrected)
        chosen = max(not_clearly_worse(judged, margin=1.0))
        if chosen == 0.0:
            return None
        losses = {f"{size:g}": float(each.mean()) for size, each in judged.items()}
        told = {"size": chosen, "n_features": float(sieve.features.width)}
        weights = self.solve(sieve, model, data, first_stage, chosen)
        return KernelModel(sieve.encoder, sieve.features, weights, told, losses)

    @staticmethod
    def solve(
        sieve: KernelSieve, model: StructuralModel, data: TrainingData, first_stage: FirstStage, size: float
    ) -> FloatArray:
        """Return the weights of the correction of one size, shape (width,), from all rows.

        Parameters
        ----------
        sieve : KernelSieve
        model : StructuralModel
            What is corrected.
        data : TrainingData
        first_stage : FirstStage
        size : float
        """
        rows = np.flatnonzero(data.weight > 0.0)
        left = data.outcome - project(model, first_stage.law, Exogenous(data.context, data.instrument))
        width, means = sieve.features.width, LawMeans(first_stage.law, _POINTS)
        gram, moment, noise = np.zeros((width, width)), np.zeros(width), 0.0
        for part in (rows[chunk] for chunk in chunks(len(rows))):
            projected = sieve.project(data.context.take(part), means, part)
            weighted = projected * data.weight[part][:, None]
            gram += weighted.T @ projected
            moment += weighted.T @ left[part]
            noise += float(data.weight[part] @ left[part] ** 2)
        return _ridge(gram, moment, noise / float(data.weight.sum()), (size,))[:, 0]

    def _try_half(
        self,
        sieve: KernelSieve,
        trial: TrialProjections,
        data: TrainingData,
        split: JudgedSplit,
        fit_rows: IntArray,
        judging_rows: IntArray,
    ) -> list[TrialProjections]:
        """Return the corrected projections of one half, by size."""
        means = LawMeans(split.law, _POINTS)
        at_fit = sieve.project(data.context.take(fit_rows), means, fit_rows)
        at_judging = sieve.project(data.context.take(judging_rows), means, judging_rows)
        weight, left = data.weight[fit_rows], data.outcome[fit_rows] - trial.fit
        weighted = at_fit * weight[:, None]
        noise = float(weight @ left**2) / float(weight.sum())
        found = _ridge(weighted.T @ at_fit, weighted.T @ left, noise, self.sizes)
        return [
            TrialProjections(trial.fit + at_fit @ weights, trial.judging + at_judging @ weights)
            for weights in found.T
        ]


def _ridge(gram: FloatArray, moment: FloatArray, noise: float, sizes: Sequence[float]) -> FloatArray:
    """Return posterior means (width, sizes) of weights with prior standard deviations ``sizes``."""
    values, vectors = eigh(gram)
    penalties = noise / np.square(np.asarray(sizes))
    rotated = (vectors.T @ moment)[:, None]
    return np.asarray(vectors @ (rotated / (np.maximum(values, 0.0)[:, None] + penalties)))
