"""A space of smooth functions of (context, action) that is narrow enough in the action to show bends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.kernels.features import LandmarkFeatures, median_scales
from dmliv.kernels.projected import ActionMeans
from dmliv.nets.encoding import TableEncoder
from dmliv.second_stage.kernel import KernelBandwidths, action_blocks

# Bandwidth between levels of a discrete action, in distances: what h misses at one says little of another.
_LEVEL_BANDWIDTH = 0.5


@dataclass(frozen=True, eq=False)
class KernelLandmarks:
    """Kernel features of (context, action), and their means over an action distribution.

    Attributes
    ----------
    encoder : TableEncoder
        Turns contexts into numbers.
    features : LandmarkFeatures
        Of rows (action, context).
    action_width : int
    """

    encoder: TableEncoder
    features: LandmarkFeatures
    action_width: int

    @classmethod
    def learn(
        cls,
        data: TrainingData,
        bandwidths: KernelBandwidths,
        n_landmarks: int,
        action_bandwidth: float,
        generator: np.random.Generator,
    ) -> KernelLandmarks:
        """Draw landmarks, and take the bandwidths of a kernel for h, but let functions bend in the action.

        Parameters
        ----------
        data : TrainingData
        bandwidths : KernelBandwidths
            Found for h.
        n_landmarks : int
        action_bandwidth : float
            Bandwidth in the action, in median distances, at most. Levels of a discrete action have little in
            common, whatever this is.
        generator : Generator
        """
        used = generator.permutation(np.flatnonzero(data.weight > 0.0))
        action = data.action_spec.vectors(data.action)
        width = action.shape[1]
        medians = median_scales(
            action[used], action_blocks(data.action_spec), np.ones(width), "product", generator
        )
        scales = bandwidths.scales.copy()
        most = action_bandwidth if data.action_spec.kind == "continuous" else _LEVEL_BANDWIDTH
        scales[:width] = np.minimum(scales[:width], most * medians)
        landmarks = np.sort(used[:n_landmarks])
        context = bandwidths.encoder.standardised(data.context.take(landmarks))
        features = LandmarkFeatures.learn(np.hstack([action[landmarks], context]), scales)
        return cls(bandwidths.encoder, features, width)

    def encode(self, context: Table, action: FloatArray) -> FloatArray:
        """Return phi of contexts and actions (n, d), shape (n, width)."""
        return self.features.encode(np.hstack([action, self.encoder.standardised(context)]))

    def project(self, context: Table, means: ActionMeans, rows: IntArray) -> FloatArray:
        """Return E[phi | C, Z] of some rows, whose contexts are given, shape (n, width).

        Parameters
        ----------
        context : Table
        means : ActionMeans
            Of the action's kernel over its distribution.
        rows : ndarray of int, shape (n,)
        """
        landmarks = self.features.landmarks[:, : self.action_width]
        by_action = means(rows, landmarks, self.features.scales[: self.action_width])
        return self.features.project(by_action, self.encoder.standardised(context))
