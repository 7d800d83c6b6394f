"""Means of a Gaussian kernel of the action over its distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dmliv.data import FloatArray, IntArray
from dmliv.first_stage.distributions import ActionDistribution, MixtureDistribution, evaluation_nodes
from dmliv.kernels.features import gaussian_kernel

# Numbers in the kernel matrix of one chunk of rows with all their components or nodes.
_CHUNK_SIZE = 1 << 20


@dataclass(frozen=True, eq=False)
class KernelMeans:
    """Mean kernels of actions under an action distribution: exact for mixtures of Gaussians and for classes.

    Attributes
    ----------
    distribution : ActionDistribution
    n_points : int
        Points of the quadrature for other distributions.
    """

    distribution: ActionDistribution
    n_points: int

    def at(self, rows: IntArray, landmarks: FloatArray, scales: FloatArray) -> FloatArray:
        """Return E[k(A, landmark)] for rows (n,) and landmark actions (m, d), shape (n, m)."""
        if not isinstance(self.distribution, MixtureDistribution):
            return NodeMeans(self.distribution, self.n_points).at(rows, landmarks, scales)
        found = np.empty((len(rows), len(landmarks)))
        step = max(1, _CHUNK_SIZE // max(1, self.distribution.weights.shape[1] * len(landmarks)))
        for start in range(0, len(rows), step):
            part = torch.from_numpy(rows[start : start + step]).to(self.distribution.weights.device)
            found[start : start + step] = mixture_means(self.distribution, part, landmarks, scales)
        return found


@dataclass(frozen=True, eq=False)
class NodeMeans:
    """Mean kernels over a few quadrature nodes of the action distribution.

    With few nodes and a narrow kernel they keep steps that the exact means smooth away. As estimates of means
    they are worse; as functions of context and instrument to weigh rows with they are a richer set.

    Attributes
    ----------
    distribution : ActionDistribution
    n_points : int
        Points per component and action column.
    """

    distribution: ActionDistribution
    n_points: int

    def at(self, rows: IntArray, landmarks: FloatArray, scales: FloatArray) -> FloatArray:
        """Return the mean of k(A, landmark) for rows (n,) and landmark actions (m, d), shape (n, m)."""
        device, found = self.distribution.mean().device, np.empty((len(rows), len(landmarks)))
        first = torch.zeros(1, dtype=torch.long, device=device)
        n_nodes = evaluation_nodes(self.distribution, first, self.n_points).weights.shape[-1]
        step = max(1, _CHUNK_SIZE // max(1, n_nodes * len(landmarks)))
        for start in range(0, len(rows), step):
            index = torch.from_numpy(rows[start : start + step]).to(device)
            nodes = evaluation_nodes(self.distribution, index, self.n_points)
            actions = nodes.actions.flatten(0, 1).cpu().double().numpy()
            kernel = gaussian_kernel(actions, landmarks, scales).reshape(len(index), n_nodes, -1)
            weights = nodes.weights.cpu().double().numpy()
            found[start : start + step] = (weights[:, None, :] @ kernel)[:, 0]
        return found


def mixture_means(
    distribution: MixtureDistribution, rows: torch.Tensor, landmarks: FloatArray, scales: FloatArray
) -> FloatArray:
    """Return E[k(A, landmark)] of some rows of a mixture, shape (n, m).

    A Gaussian kernel is a Gaussian density without its constant, so its mean over a Gaussian is one too: the
    covariances add up.

    Parameters
    ----------
    distribution : MixtureDistribution
    rows : Tensor of int, shape (n,)
    landmarks : ndarray, shape (m, d)
    scales : ndarray, shape (d,)
    """
    weights, means, factors = (
        each.index_select(0, rows).cpu().double().numpy()
        for each in (distribution.weights, distribution.means, distribution.factors)
    )
    # (n, G, m, d); with one action column nothing needs to be decomposed.
    apart = means[:, :, None, :] - landmarks
    if means.shape[-1] == 1:
        spread = np.hypot(factors[..., 0, 0], scales[0])
        squared = (apart[..., 0] / spread[:, :, None]) ** 2
        height = scales[0] / spread
    else:
        root = np.linalg.cholesky(factors @ factors.swapaxes(-1, -2) + np.diag(scales**2))
        squared = np.sum(np.linalg.solve(root, apart.swapaxes(-1, -2)) ** 2, axis=-2)
        height = np.prod(scales) / np.prod(np.diagonal(root, axis1=-2, axis2=-1), axis=-1)
    squared *= -0.5
    return np.asarray(((weights * height)[:, None, :] @ np.exp(squared, out=squared))[:, 0])
