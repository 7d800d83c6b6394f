"""Reward models of offline bandits: the mean reward of every action and how uncertain it is.

All work on the disjoint encoding of an input x and an action a, x in the block of the action and zeros
elsewhere, and differ in the features they take of it: itself and a Gaussian kernel here, the gradient of a
network in `gradient_networks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh

from dmliv.bandits.inputs import BanditRows
from dmliv.data import FloatArray
from dmliv.kernels.features import gaussian_kernel

# Eigenvalues of a kernel matrix below this part of the largest are rounding errors.
_JITTER = 1e-12


class RewardModel(Protocol):
    """A fitted model of the reward of K actions."""

    def estimate(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return mean and width of every action at inputs (n, d), each of shape (n, K)."""
        ...


@dataclass(frozen=True, eq=False)
class LinearReward:
    """Ridge regression in each action's own block.

    Attributes
    ----------
    covariance : ndarray, shape (K, d, d)
        (ridge I + sum x x')^-1 over the rows of an action.
    weights : ndarray, shape (K, d)
    """

    covariance: FloatArray
    weights: FloatArray

    @classmethod
    def fit(cls, rows: BanditRows, ridge: float) -> LinearReward:
        """Fit one regression to the rows of every action."""
        identity = np.eye(rows.inputs.shape[1])
        covariance, weights = [], []
        for action in range(rows.n_actions):
            own = rows.codes == action
            x = rows.inputs[own]
            factor = cho_factor(ridge * identity + x.T @ x)
            covariance.append(cho_solve(factor, identity))
            weights.append(cho_solve(factor, x.T @ rows.reward[own]))
        return cls(np.stack(covariance), np.stack(weights))

    def estimate(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return x'theta and the root of x' covariance x."""
        squares = [np.sum((inputs @ covariance) * inputs, axis=1) for covariance in self.covariance]
        return inputs @ self.weights.T, np.sqrt(np.maximum(np.stack(squares, axis=1), 0.0))


@dataclass(frozen=True, eq=False)
class KernelReward:
    """Gaussian-process regression on the disjoint encoding.

    Rows of one action have the kernel exp(-|x - x'|^2 / 2 l^2), rows of different actions, whose encodings
    are orthogonal, exp(-(|x|^2 + |x'|^2) / 2 l^2).

    Attributes
    ----------
    rows : BanditRows
        The m rows it was fitted to.
    length_scales : ndarray, shape (d,)
    whitening : ndarray, shape (m, m)
        W with W W' the inverse of the kernel matrix plus noise.
    weights : ndarray, shape (m,)
    """

    rows: BanditRows
    length_scales: FloatArray
    whitening: FloatArray
    weights: FloatArray

    @classmethod
    def fit(cls, rows: BanditRows, length_scale: float, noise: float) -> KernelReward:
        """Fit all rows together; ``noise`` is a variance."""
        inputs, codes = rows.inputs, rows.codes
        scales = np.full(inputs.shape[1], length_scale)
        kernel = np.where(
            codes[:, None] == codes,
            gaussian_kernel(inputs, inputs, scales),
            _kernel_across(inputs, inputs, scales),
        )
        values, vectors = eigh(kernel)
        # Close rows make the matrix singular up to rounding, which may even leave negative eigenvalues.
        values = np.maximum(values, _JITTER * values[-1]) + noise
        whitening = vectors / np.sqrt(values)
        return cls(rows, scales, whitening, whitening @ (whitening.T @ rows.reward))

    def estimate(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return posterior mean and standard deviation; the prior variance is one."""
        across = _kernel_across(inputs, self.rows.inputs, self.length_scales)
        extra = gaussian_kernel(inputs, self.rows.inputs, self.length_scales) - across
        mean = np.empty((len(inputs), self.rows.n_actions))
        variance = np.empty_like(mean)
        # All actions share the kernel across actions, so the costly product with it is taken once.
        shared_mean, shared = across @ self.weights, across @ self.whitening
        for action in range(self.rows.n_actions):
            own = np.flatnonzero(self.rows.codes == action)
            mean[:, action] = shared_mean + extra[:, own] @ self.weights[own]
            explained = shared + extra[:, own] @ self.whitening[own]
            variance[:, action] = 1.0 - np.einsum("ij,ij->i", explained, explained)
        return mean, np.sqrt(np.maximum(variance, 0.0))


@dataclass(frozen=True)
class RandomReward:
    """Uniform random numbers in place of rewards, the same ones at every call."""

    n_actions: int
    seed: int

    def estimate(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return random numbers and zeros, each of shape (n, K)."""
        means = np.random.default_rng(self.seed).random((len(inputs), self.n_actions))
        return means, np.zeros_like(means)


def _kernel_across(left: FloatArray, right: FloatArray, scales: FloatArray) -> FloatArray:
    """Return the kernel between rows of different actions, shape (n, m)."""
    origin = np.zeros((1, len(scales)))
    return gaussian_kernel(left, origin, scales) * gaussian_kernel(right, origin, scales).T
