"""A few columns in place of a wide block, such as the features of an image: what it does to a target."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, solve, solve_triangular
from scipy.spatial.distance import pdist

from dmliv.data import FloatArray, IntArray
from dmliv.kernels.additive import squared_distances
from dmliv.kernels.evidence import inverse_of_lower
from dmliv.kernels.features import chunks

# Rows that the block's regression learns from, at most: it is solved exactly.
_MOST_ROWS = 6000
# Rows whose likelihood chooses its parameters, and pairs of rows that settle the median distance.
_CHOICE_ROWS, _MEDIAN_ROWS = 1000, 300
# What is tried: length scales in median distances, variances of what the block does, and of the noise.
_SCALES, _VARIANCES, _NOISES = (0.75, 1.0, 1.5, 2.0, 3.0), (0.25, 0.5, 1.0, 2.0), (0.05, 0.1, 0.2, 0.4)
# Variance of functions of the other columns alone.
_OTHER_VARIANCE = 0.3
# Length scale of the other columns, standardised, for each square root of their number.
_OTHER_SCALE = 1.5
# A block without which the log likelihood is not lower by this is left out.
_LEAST_EVIDENCE = 3.0
# Rows whose other columns meet every row's block, and columns that are kept of what is predicted there.
_REFERENCES, _MOST_COLUMNS = 24, 3


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Columns that stand beside a block, standardised.

    Attributes
    ----------
    near : ndarray, shape (n, p)
        What the block does may depend on them.
    moving : ndarray, shape (n, q)
        On them too, but less.
    others : ndarray, shape (n, r)
        They move the target on their own.
    """

    near: FloatArray
    moving: FloatArray
    others: FloatArray

    def factor(self, left: IntArray, right: IntArray) -> FloatArray:
        """Return what the block's covariances of some rows (n) with some rows (m) are multiplied by."""
        both = np.hstack([self.near, self.moving])
        return 0.5 + _smooth(self.near, left, right) + 0.3 * _smooth(both, left, right)

    def alone(self, left: IntArray, right: IntArray) -> FloatArray:
        """Return the covariances of what these columns do without the block."""
        everything = np.hstack([self.near, self.moving, self.others])
        lines = everything[left] @ everything[right].T
        bends = self.factor(left, right) + _smooth(everything, left, right)
        return np.asarray(_OTHER_VARIANCE * (lines + bends))


@dataclass(frozen=True, eq=False)
class BlockIndex:
    """A few columns that stand for a block: principal components of what is predicted with it.

    A Gaussian process predicts a target by the block times functions of other columns. Each row's block is
    then put beside the other columns of a few reference rows, and the predictions there are all that is kept
    of it. A kernel of these columns has few dimensions, and knows which differences between blocks matter.

    Attributes
    ----------
    landmarks : ndarray, shape (m, w)
        Blocks of the rows that were learned from.
    scale : float
    weights : ndarray, shape (m, k)
    centre : ndarray, shape (k,)
    """

    landmarks: FloatArray
    scale: float
    weights: FloatArray
    centre: FloatArray

    def at(self, block: FloatArray) -> FloatArray:
        """Return the index of blocks (n, w), shape (n, k)."""
        return _predict(block, self.landmarks, self.scale, self.weights) - self.centre

    @classmethod
    def learn(
        cls,
        block: FloatArray,
        around: Surroundings,
        target: FloatArray,
        weight: FloatArray,
        fold: IntArray,
        generator: np.random.Generator,
    ) -> tuple[BlockIndex, FloatArray] | None:
        """Learn an index, and return it with its values for these rows, each without the row's fold.

        None where the block says nothing about the target.

        Parameters
        ----------
        block : ndarray, shape (n, w)
        around : Surroundings
        target, weight : ndarray, shape (n,)
        fold : ndarray of int, shape (n,)
            Two or more.
        generator : numpy.random.Generator
            Draws the rows that are learned from, if there are many.
        """
        used = generator.permutation(np.flatnonzero(weight > 0.0))[:_MOST_ROWS]
        middle, spread = target[used].mean(), max(float(target[used].std()), 1e-12)
        outcome = (target[used] - middle) / spread
        chosen = _choose(block, around, outcome, used)
        if chosen is None:
            return None
        scale, variance, noise = chosen
        covariance = variance * _bell(squared_distances(block[used], block[used]), scale)
        covariance *= around.factor(used, used)
        covariance += around.alone(used, used)
        covariance[np.diag_indices(len(used))] += noise * weight[used].mean() / weight[used]
        half = inverse_of_lower(cholesky(covariance, lower=True, overwrite_a=True))
        precision = half.T @ half
        of_all = precision @ outcome
        at_references = variance * around.factor(used, used[:_REFERENCES])
        values = np.empty((len(block), at_references.shape[1]))
        for number in range(int(fold.max()) + 1):
            own, rows = np.flatnonzero(fold[used] == number), np.flatnonzero(fold == number)
            without = without_rows(precision, of_all, own)
            values[rows] = _predict(block[rows], block[used], scale, at_references * without[:, None])
        centre = values.mean(axis=0)
        _, spreads, directions = np.linalg.svd(values - centre, full_matrices=False)
        kept = min(_MOST_COLUMNS, int(np.sum(spreads > 1e-6 * spreads[0])))
        unit = directions[:kept].T * (np.sqrt(len(values)) / spreads[:kept])
        index = cls(block[used], scale, at_references * of_all[:, None] @ unit, centre @ unit)
        return index, (values - centre) @ unit


def without_rows(precision: FloatArray, of_all: FloatArray, rows: IntArray) -> FloatArray:
    """Return the solution of a system without some of its rows and columns; it is zero there.

    Parameters
    ----------
    precision : ndarray, shape (n, n)
        Inverse of the whole matrix.
    of_all : ndarray, shape (n,)
        Solution of the whole system.
    rows : ndarray of int, shape (k,)
    """
    if not len(rows):
        return of_all
    left_out = solve(precision[np.ix_(rows, rows)], of_all[rows], assume_a="pos")
    return np.asarray(of_all - precision[:, rows] @ left_out)


def _choose(
    block: FloatArray, around: Surroundings, outcome: FloatArray, used: IntArray
) -> tuple[float, float, float] | None:
    """Return scale, variance and noise with the highest likelihood, or None where no block has it."""
    rows, outcome = used[:_CHOICE_ROWS], outcome[:_CHOICE_ROWS]
    distances = pdist(block[rows[:_MEDIAN_ROWS]])
    differing = distances[distances > 1e-9]
    if not len(differing):
        return None
    median = float(np.median(differing))
    squares = squared_distances(block[rows], block[rows])
    factor, alone = around.factor(rows, rows), around.alone(rows, rows)
    tried: dict[tuple[float, float, float], float] = {}
    for share in _SCALES:
        covariance = factor * _bell(squares, share * median)
        for variance, noise in itertools.product(_VARIANCES, _NOISES):
            key = (share * median, variance, noise)
            tried[key] = _log_likelihood(variance * covariance + alone, noise, outcome)
    best = max(tried, key=lambda each: tried[each])
    without = max(_log_likelihood(alone, noise, outcome) for noise in (*_NOISES, 0.8))
    return best if tried[best] > without + _LEAST_EVIDENCE else None


def _log_likelihood(covariance: FloatArray, noise: float, outcome: FloatArray) -> float:
    root = cholesky(covariance + noise * np.eye(len(outcome)), lower=True)
    half = solve_triangular(root, outcome, lower=True)
    return float(-0.5 * half @ half - np.log(np.diag(root)).sum())


def _predict(block: FloatArray, landmarks: FloatArray, scale: float, weights: FloatArray) -> FloatArray:
    pieces = [
        _bell(squared_distances(block[rows], landmarks), scale) @ weights for rows in chunks(len(block))
    ]
    return np.vstack([np.empty((0, weights.shape[1])), *pieces])


def _bell(squares: FloatArray, scale: float) -> FloatArray:
    """Return a Matern 3/2 kernel of squared distances."""
    distance = np.sqrt(3.0 * squares) / scale
    return np.asarray((1.0 + distance) * np.exp(-distance))


def _smooth(columns: FloatArray, left: IntArray, right: IntArray) -> FloatArray:
    if not columns.shape[1]:
        return np.ones((len(left), len(right)))
    scale = _OTHER_SCALE * np.sqrt(columns.shape[1])
    return _bell(squared_distances(columns[left], columns[right]), float(scale))
