"""Reward models on the gradient of a network in its parameters, without ever writing the gradients out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dmliv.bandits.inputs import BanditRows
from dmliv.data import FloatArray

Matrices = tuple[FloatArray, FloatArray, FloatArray]

_NORMALISATION_EPSILON = 1e-5


@dataclass(frozen=True, eq=False)
class GradientFactors:
    """A network's output and its gradient in all parameters, row by row.

    The gradient of a row is three outer products left x right, one for each parameter matrix. Kept as
    factors, n gradients of p numbers take the memory of a few layers, and sums over parameters are matrix
    products.

    Attributes
    ----------
    output : ndarray, shape (n,)
    pairs : three pairs of ndarrays, shapes (n, i) and (n, j)
    """

    output: FloatArray
    pairs: tuple[tuple[FloatArray, FloatArray], ...]

    def squared(self) -> GradientFactors:
        """Return the factors of the squared gradient."""
        return GradientFactors(self.output, tuple((left**2, right**2) for left, right in self.pairs))

    def dot(self, matrices: Matrices) -> FloatArray:
        """Return each gradient's inner product with parameter-shaped matrices, shape (n,)."""
        parts = (
            np.einsum("ij,ij->i", left @ matrix, right)
            for (left, right), matrix in zip(self.pairs, matrices, strict=True)
        )
        return np.asarray(sum(parts))

    def weighted_sum(self, weight: FloatArray) -> Matrices:
        """Return the sum of weight (n,) times gradient over the rows, as parameter-shaped matrices."""
        (a, b), (c, d), (e, f) = self.pairs
        column = weight[:, None]
        return a.T @ (b * column), c.T @ (d * column), e.T @ (f * column)


@dataclass(frozen=True, eq=False)
class BanditNetwork:
    """A perceptron with two normalised hidden layers on the disjoint encoding of an input and an action.

    Attributes
    ----------
    first : ndarray, shape (K * d + 1, w1)
        Weights of the K blocks and, in the last row, offsets.
    second : ndarray, shape (w1 + 1, w2)
    rest : ndarray, shape (1, 2 * w1 + 3 * w2 + 1)
        Scale and offset of the first normalisation and of the second, output weights, output offset.
    n_inputs : int
        Width d of an input.
    """

    first: FloatArray
    second: FloatArray
    rest: FloatArray
    n_inputs: int

    @classmethod
    def draw(
        cls, n_inputs: int, n_actions: int, widths: tuple[int, int], generator: np.random.Generator
    ) -> BanditNetwork:
        """Draw weights uniformly with variance 1 / fan-in; offsets start at zero."""
        fan_in = n_inputs * n_actions
        w1, w2 = widths
        first = np.vstack([_uniform(generator, fan_in, w1), np.zeros((1, w1))])
        second = np.vstack([_uniform(generator, w1, w2), np.zeros((1, w2))])
        scales = [np.ones(w1), np.zeros(w1), np.ones(w2), np.zeros(w2)]
        rest = np.concatenate([*scales, _uniform(generator, w2, 1)[:, 0], [0.0]])
        return cls(first, second, rest[None], n_inputs)

    @property
    def parameters(self) -> Matrices:
        """The three parameter matrices; changing them changes the network."""
        return self.first, self.second, self.rest

    @property
    def smaller_width(self) -> int:
        """The smaller of both hidden widths, m."""
        return int(min(self.first.shape[1], self.second.shape[1]))

    def weight_masks(self, value: float) -> Matrices:
        """Return ``value`` at every weight and zero at offsets and scales, in the parameters' shapes."""
        first, second, rest = (np.zeros_like(matrix) for matrix in self.parameters)
        first[:-1], second[:-1], rest[0, -1 - self.second.shape[1] : -1] = value, value, value
        return first, second, rest

    def block(self, matrix: FloatArray, action: int) -> FloatArray:
        """Return the rows of a first-layer matrix that an action uses, and the offsets, shape (d + 1, w1)."""
        start = action * self.n_inputs
        return np.vstack([matrix[start : start + self.n_inputs], matrix[-1:]])

    def factors_of(self, inputs: FloatArray, action: int) -> GradientFactors:
        """Return output and gradient at inputs (n, d) with one action; of the first layer its block only."""
        return self._factors(inputs, self.block(self.first, action))

    def factors_on_blocks(self, encoded: FloatArray) -> GradientFactors:
        """Return output and gradient at encoded rows (n, K * d), in the whole first layer."""
        return self._factors(encoded, self.first)

    def _factors(self, inputs: FloatArray, first: FloatArray) -> GradientFactors:
        (w1, w2), rest = (first.shape[1], self.second.shape[1]), self.rest[0]
        scale1, offset1 = rest[:w1], rest[w1 : 2 * w1]
        scale2, offset2 = rest[2 * w1 : 2 * w1 + w2], rest[2 * w1 + w2 : 2 * w1 + 2 * w2]
        output_weights, output_offset = rest[-w2 - 1 : -1], rest[-1]
        normal1, spread1 = _normalise(inputs @ first[:-1] + first[-1])
        hidden1 = np.maximum(normal1 * scale1 + offset1, 0.0)
        normal2, spread2 = _normalise(hidden1 @ self.second[:-1] + self.second[-1])
        hidden2 = np.maximum(normal2 * scale2 + offset2, 0.0)
        back2 = (hidden2 > 0.0) * output_weights
        before2 = _through_normalisation(back2 * scale2, normal2, spread2)
        back1 = (hidden1 > 0.0) * (before2 @ self.second[:-1].T)
        before1 = _through_normalisation(back1 * scale1, normal1, spread1)
        one = np.ones((len(inputs), 1))
        return GradientFactors(
            hidden2 @ output_weights + output_offset,
            (
                (np.hstack([inputs, one]), before1),
                (np.hstack([hidden1, one]), before2),
                (one, np.hstack([back1 * normal1, back1, back2 * normal2, back2, hidden2, one])),
            ),
        )


@dataclass(frozen=True, eq=False)
class GradientReward:
    """Mean and width of rewards from a network and its gradient, over sqrt(m), with m the smaller width.

    Attributes
    ----------
    network : BanditNetwork
    precision : K triples of ndarrays
        Of the parameters, one diagonal for each action: ridge + sum of gradient^2 / m over training rows.
    weights : triple of ndarrays, optional
        Of a regression on the gradient, shared by all actions; without them the mean is the network's output.
    """

    network: BanditNetwork
    precision: tuple[Matrices, ...]
    weights: Matrices | None = None

    def estimate(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the mean and the root of the sum of gradient^2 / (m precision)."""
        m = self.network.smaller_width
        mean = np.empty((len(inputs), len(self.precision)))
        width = np.empty_like(mean)
        for action, (a, b, c) in enumerate(self.precision):
            factors = self.network.factors_of(inputs, action)
            mean[:, action] = (
                factors.output if self.weights is None else factors.dot(self.weights) / np.sqrt(m)
            )
            width[:, action] = np.sqrt(factors.squared().dot((1.0 / a, 1.0 / b, 1.0 / c)) / m)
        return mean, width


def fit_random_features(network: BanditNetwork, rows: BanditRows, ridge: float) -> GradientReward:
    """Return a ridge regression, one weight at a time, on the gradient of an untrained network over sqrt(m).

    The weights and their precision come from all rows together.
    """
    m = network.smaller_width
    precision, moment = filled(network, ridge), filled(network, 0.0)
    for action in range(rows.n_actions):
        own = np.flatnonzero(rows.codes == action)
        factors = network.factors_of(rows.inputs[own], action)
        add(precision, factors.squared().weighted_sum(np.full(len(own), 1.0 / m)))
        add(moment, factors.weighted_sum(rows.reward[own] / np.sqrt(m)))
    a, b, c = (total / scale for total, scale in zip(moment, precision, strict=True))
    return GradientReward(network, (precision,) * rows.n_actions, (a, b, c))


def filled(network: BanditNetwork, value: float) -> Matrices:
    """Return matrices of one value in the shapes of the parameters that one action uses."""
    block = network.block(network.first, 0)
    a, b, c = (np.full(matrix.shape, value) for matrix in (block, network.second, network.rest))
    return a, b, c


def add(total: Matrices, part: Matrices) -> None:
    """Add matrices in place."""
    for matrix, addend in zip(total, part, strict=True):
        np.add(matrix, addend, out=matrix)


def _uniform(generator: np.random.Generator, fan_in: int, width: int) -> FloatArray:
    bound = np.sqrt(3.0 / fan_in)
    return generator.uniform(-bound, bound, (fan_in, width))


def _row_means(values: FloatArray) -> FloatArray:
    """Return means over columns, shape (n, 1); several times faster on small batches than the method."""
    return np.asarray(np.add.reduce(values, axis=1, keepdims=True) / values.shape[1])


def _normalise(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return rows with mean zero and variance one, and one over their standard deviations, shape (n, 1)."""
    centred = values - _row_means(values)
    variance = np.einsum("ij,ij->i", centred, centred)[:, None] / values.shape[1]
    spread = 1.0 / np.sqrt(variance + _NORMALISATION_EPSILON)
    return centred * spread, spread


def _through_normalisation(gradient: FloatArray, normal: FloatArray, spread: FloatArray) -> FloatArray:
    """Return the gradient before a normalisation from the one behind it."""
    along = np.einsum("ij,ij->i", gradient, normal)[:, None] / gradient.shape[1]
    return np.asarray(spread * (gradient - _row_means(gradient) - normal * along))
