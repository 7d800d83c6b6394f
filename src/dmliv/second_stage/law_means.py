"""Means of a Gaussian kernel of the action over its law."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dmliv.data import FloatArray, IntArray
from dmliv.first_stage.laws import ActionLaw, MixtureLaw, evaluation_nodes
from dmliv.kernels.features import gaussian_kernel

# Numbers in the kernel matrix of one chunk of rows with all their components or nodes.
_CHUNK_SIZE = 1 << 20


@dataclass(frozen=True, eq=False)
class LawMeans:
    """Mean kernels of actions under an action law: exact for mixtures of Gaussians and for classes.

    Attributes
    ----------
    law : ActionLaw
    n_points : int
        Points of the quadrature for other laws.
    """

    law: ActionLaw
    n_points: int

    def at(self, rows: IntArray, landmarks: FloatArray, scales: FloatArray) -> FloatArray:
        """Return E[k(A, landmark)] for rows (n,) and landmark actions (m, d), shape (n, m)."""
        if not isinstance(self.law, MixtureLaw):
            return NodeMeans(self.law, self.n_points).at(rows, landmarks, scales)
        found = np.empty((len(rows), len(landmarks)))
        step = max(1, _CHUNK_SIZE // max(1, self.law.weights.shape[1] * len(landmarks)))
        for start in range(0, len(rows), step):
            part = torch.from_numpy(rows[start : start + step]).to(self.law.weights.device)
            found[start : start + step] = mixture_means(self.law, part, landmarks, scales)
        return found


@dataclass(frozen=True, eq=False)
class NodeMeans:
    """Mean kernels over a few quadrature nodes of the action law.

    With few nodes and a narrow kernel they keep steps that the exact means smooth away. As estimates of means
    they are worse; as functions of context and instrument to weigh rows with they are a richer set.

    Attributes
    ----------
    law : ActionLaw
    n_points : int
        Points per component and action column.
    """

    law: ActionLaw
    n_points: int

    def at(self, rows: IntArray, landmarks: FloatArray, scales: FloatArray) -> FloatArray:
        """Return the mean of k(A, landmark) for rows (n,) and landmark actions (m, d), shape (n, m)."""
        device, found = self.law.mean().device, np.empty((len(rows), len(landmarks)))
        first = torch.zeros(1, dtype=torch.long, device=device)
        n_nodes = evaluation_nodes(self.law, first, self.n_points).weights.shape[-1]
        step = max(1, _CHUNK_SIZE // max(1, n_nodes * len(landmarks)))
        for start in range(0, len(rows), step):
            index = torch.from_numpy(rows[start : start + step]).to(device)
            nodes = evaluation_nodes(self.law, index, self.n_points)
            actions = nodes.actions.flatten(0, 1).cpu().double().numpy()
            kernel = gaussian_kernel(actions, landmarks, scales).reshape(len(index), n_nodes, -1)
            weights = nodes.weights.cpu().double().numpy()
            found[start : start + step] = (weights[:, None, :] @ kernel)[:, 0]
        return found


def mixture_means(
    law: MixtureLaw, rows: torch.Tensor, landmarks: FloatArray, scales: FloatArray
) -> FloatArray:
    """Return E[k(A, landmark)] of some rows of a mixture, shape (n, m).

    A Gaussian kernel is a Gaussian density without its constant, so its mean over a Gaussian is one too: the
    covariances add up.

    Parameters
    ----------
    law : MixtureLaw
    rows : Tensor of int, shape (n,)
    landmarks : ndarray, shape (m, d)
    scales : ndarray, shape (d,)
    """
    weights, means, factors = (
        each.index_select(0, rows).cpu().double().numpy() for each in (law.weights, law.means, law.factors)
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
