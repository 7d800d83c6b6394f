"""Gaussian kernels and the finite features that stand for them.

A function of the kernel's space is a weight vector over features, whether these are exact on a set of
landmark points or random Fourier features. Inputs are rows of numbers whose first columns are the action.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from scipy.linalg import eigh
from scipy.spatial.distance import pdist

from dmliv.data import FloatArray, IntArray
from dmliv.data.savable import savable
from dmliv.progress import Advance

Bandwidth = Literal["product", "joint"]

# Rows held at once when features of many rows are needed: about 100 MB for 2000 features.
CHUNK_ROWS = 4096
_KERNEL_ROWS = 256
# Pairs of this many rows settle a median to about a percent; all pairs of 100,000 rows would not fit.
_MEDIAN_ROWS = 1000
# Eigenvalues of a kernel matrix below this part of the largest are rounding errors.
_EIGENVALUE_TOLERANCE = 1e-12


def median_scales(
    rows: FloatArray,
    blocks: Sequence[int],
    units: FloatArray,
    bandwidth: Bandwidth,
    generator: np.random.Generator,
) -> FloatArray:
    """Return the bandwidth of every column by the median rule, shape (d,).

    Parameters
    ----------
    rows : ndarray, shape (n, d)
        Standardised columns.
    blocks : sequence of int
        Widths of consecutive column groups that stand for one variable each: 1 for a number, the number of
        levels for a one-hot category.
    units : ndarray, shape (d,)
        The user's units: what each column was divided by. They decide which columns a joint kernel sees.
    bandwidth : {"product", "joint"}
        ``"product"`` takes v = median distance block by block, for a product of kernels exp(-d^2 / 2 v^2).
        ``"joint"`` takes one kernel exp(-d^2 / q) in the user's units, with q the median squared
        distance between whole rows.
    generator : Generator
        Draws the rows compared when there are many.
    """
    if len(rows) > _MEDIAN_ROWS:
        rows = rows[generator.choice(len(rows), _MEDIAN_ROWS, replace=False)]
    if bandwidth == "joint":
        return np.asarray(_median_distance(rows * units) / np.sqrt(2.0) / units)
    starts = np.cumsum([0, *blocks])
    medians = [
        _median_distance(rows[:, start : start + width])
        for start, width in zip(starts[:-1], blocks, strict=True)
    ]
    return np.repeat(medians, blocks)


def _median_distance(rows: FloatArray) -> float:
    """Return the median distance over all ordered pairs, or over differing ones if most pairs are equal."""
    distances = pdist(rows)
    # Every ordered pair is every unordered one twice and each row with itself, at distance zero. Sorted, the
    # zeros come first, and each distance has two places.
    middle = np.array([len(rows) ** 2 - 1, len(rows) ** 2]) // 2
    places = np.maximum(middle - len(rows), -1) // 2
    median = 0.0
    if distances.size and places[1] >= 0:
        used = np.unique(places[places >= 0])
        ordered = np.partition(distances, used)
        median = float(np.mean([ordered[place] if place >= 0 else 0.0 for place in places]))
    if median > 0.0:
        return median
    differing = distances[distances > 0.0]
    return float(np.median(differing)) if differing.size else 1.0


def gaussian_kernel(left: FloatArray, right: FloatArray, scales: FloatArray) -> FloatArray:
    """Return exp(-|(x - y) / scales|^2 / 2) for rows x of ``left`` (n, d) and y of ``right`` (m, d)."""
    left, right = left / scales, right / scales
    sizes, right_sizes = np.sum(left**2, axis=1)[:, None], np.sum(right**2, axis=1)
    kernel = left @ right.T
    # In place and a few rows at a time: the result can be large, and so would be every copy of it.
    for start in range(0, len(kernel), _KERNEL_ROWS):
        rows = slice(start, start + _KERNEL_ROWS)
        part = kernel[rows]
        part *= 2.0
        np.subtract(sizes[rows] + right_sizes, part, out=part)
        np.maximum(part, 0.0, out=part)
        part *= -0.5
        np.exp(part, out=part)
    return np.asarray(kernel)


class FeatureMap(Protocol):
    """A finite feature map phi."""

    @property
    def width(self) -> int:
        """Number of features."""
        ...

    def encode(self, rows: FloatArray) -> FloatArray:
        """Return phi of rows (n, d), shape (n, width)."""
        ...


class KernelFeatures(FeatureMap, Protocol):
    """Features of rows (action, context) and the functions h(x) = phi(x)' w they span."""

    def grid(self, weights: FloatArray, actions: FloatArray, context: FloatArray) -> FloatArray:
        """Return h for actions (m, d_a) and contexts (n, d_c), shape (n, m)."""
        ...

    def gradient(self, weights: FloatArray, rows: FloatArray, n_columns: int) -> FloatArray:
        """Return the derivative of h in the first ``n_columns`` columns of rows (n, d)."""
        ...


@savable
@dataclass(frozen=True, eq=False)
class LandmarkFeatures:
    """Features whose inner products are the kernel, exactly, wherever one of two points is a landmark.

    Ridge regression on them, with the training points as landmarks, is kernel ridge regression.

    Attributes
    ----------
    landmarks : ndarray, shape (m, d)
    scales : ndarray, shape (d,)
    whitening : ndarray, shape (m, width)
        K^(-1/2) of the landmarks' kernel matrix, as its eigenvectors over the roots of the eigenvalues.
    """

    landmarks: FloatArray
    scales: FloatArray
    whitening: FloatArray

    @classmethod
    def learn(cls, landmarks: FloatArray, scales: FloatArray) -> LandmarkFeatures:
        """Decompose the kernel matrix of the landmarks."""
        values, vectors = eigh(gaussian_kernel(landmarks, landmarks, scales))
        kept = values > _EIGENVALUE_TOLERANCE * values[-1]
        return cls(landmarks, scales, vectors[:, kept] / np.sqrt(values[kept]))

    @property
    def width(self) -> int:
        """Number of features."""
        return int(self.whitening.shape[1])

    def encode(self, rows: FloatArray) -> FloatArray:
        """Return phi of rows."""
        return gaussian_kernel(rows, self.landmarks, self.scales) @ self.whitening

    def project(self, action_means: FloatArray, context: FloatArray) -> FloatArray:
        """Return the mean of phi over random actions, shape (n, width).

        Parameters
        ----------
        action_means : ndarray, shape (n, m)
            Mean kernel of each row's action with the actions of the landmarks.
        context : ndarray, shape (n, d_c)
        """
        first = self.landmarks.shape[1] - context.shape[1]
        by_context = gaussian_kernel(context, self.landmarks[:, first:], self.scales[first:])
        return np.asarray((action_means * by_context) @ self.whitening)

    def grid(self, weights: FloatArray, actions: FloatArray, context: FloatArray) -> FloatArray:
        """Return h for every context with every action: the kernel is a product over columns."""
        n_columns = actions.shape[1]
        by_action = gaussian_kernel(actions, self.landmarks[:, :n_columns], self.scales[:n_columns])
        by_context = gaussian_kernel(context, self.landmarks[:, n_columns:], self.scales[n_columns:])
        return np.asarray((by_context * (self.whitening @ weights)) @ by_action.T)

    def gradient(self, weights: FloatArray, rows: FloatArray, n_columns: int) -> FloatArray:
        """Return the derivative: sum over landmarks of coefficient, kernel and scaled difference."""
        terms = gaussian_kernel(rows, self.landmarks, self.scales) * (self.whitening @ weights)
        pull = terms @ self.landmarks[:, :n_columns] - terms.sum(axis=1)[:, None] * rows[:, :n_columns]
        return np.asarray(pull / self.scales[:n_columns] ** 2)


@savable
@dataclass(frozen=True, eq=False)
class FourierFeatures:
    """Random Fourier features sqrt(2 / D) cos(x' frequencies + phases): the kernel up to O(1 / sqrt(D)).

    Attributes
    ----------
    frequencies : ndarray, shape (d, D)
    phases : ndarray, shape (D,)
    """

    frequencies: FloatArray
    phases: FloatArray

    @classmethod
    def draw(cls, scales: FloatArray, n_features: int, generator: np.random.Generator) -> FourierFeatures:
        """Draw the frequencies of the Gaussian kernel with bandwidths ``scales`` (d,)."""
        frequencies = generator.standard_normal((len(scales), n_features)) / scales[:, None]
        return cls(frequencies, generator.uniform(0.0, 2.0 * np.pi, n_features))

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.phases)

    @property
    def _height(self) -> float:
        return float(np.sqrt(2.0 / self.width))

    def encode(self, rows: FloatArray) -> FloatArray:
        """Return phi of rows."""
        return np.asarray(self._height * np.cos(rows @ self.frequencies + self.phases))

    def grid(self, weights: FloatArray, actions: FloatArray, context: FloatArray) -> FloatArray:
        """Return h for every context with every action, by the addition theorem of the cosine."""
        n_columns = actions.shape[1]
        by_action = actions @ self.frequencies[:n_columns]
        by_context = context @ self.frequencies[n_columns:] + self.phases
        cosines = (np.cos(by_context) * weights) @ np.cos(by_action).T
        return np.asarray(self._height * (cosines - (np.sin(by_context) * weights) @ np.sin(by_action).T))

    def gradient(self, weights: FloatArray, rows: FloatArray, n_columns: int) -> FloatArray:
        """Return the derivative."""
        sines = np.sin(rows @ self.frequencies + self.phases) * weights
        return np.asarray(-self._height * (sines @ self.frequencies[:n_columns].T))


@savable
@dataclass(frozen=True, eq=False)
class Moments:
    """Weighted sums of products over the rows of one sample; all that ridge regression needs of them.

    z stands for instrument features (width p), x for structural features (width q), y for the outcome.
    """

    zz: FloatArray
    zx: FloatArray
    zy: FloatArray
    xx: FloatArray
    xy: FloatArray
    yy: float
    total: float

    @classmethod
    def of(
        cls,
        structural: FeatureMap,
        exogenous: FeatureMap,
        sample: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
        advance: Advance,
    ) -> Moments:
        """Sum over a sample (structural rows, instrument rows, outcome, weight), a chunk at a time."""
        rows, instruments, outcome, weight = sample
        p, q = exogenous.width, structural.width
        zz, zx, zy = np.zeros((p, p)), np.zeros((p, q)), np.zeros(p)
        xx, xy = np.zeros((q, q)), np.zeros(q)
        for part in chunks(len(rows)):
            root = np.sqrt(weight[part])
            x = structural.encode(rows[part]) * root[:, None]
            z = exogenous.encode(instruments[part]) * root[:, None]
            y = outcome[part] * root
            zz += z.T @ z
            zx += z.T @ x
            zy += z.T @ y
            xx += x.T @ x
            xy += x.T @ y
            advance()
        return cls(zz, zx, zy, xx, xy, float(np.sum(weight * outcome**2)), float(weight.sum()))


def chunks(n_rows: int) -> list[IntArray]:
    """Return consecutive row numbers in pieces of at most `CHUNK_ROWS`."""
    return [np.arange(start, min(start + CHUNK_ROWS, n_rows)) for start in range(0, n_rows, CHUNK_ROWS)]


def ridge_path(gram: FloatArray, moment: FloatArray, penalties: FloatArray) -> FloatArray:
    """Return (gram + penalty I)^-1 moment for every penalty from one eigen-decomposition.

    Parameters
    ----------
    gram : ndarray, shape (p, p)
        Symmetric and positive semi-definite.
    moment : ndarray, shape (p,)
    penalties : ndarray, shape (g,)
        Positive.

    Returns
    -------
    ndarray, shape (p, g)
    """
    values, vectors = eigh(gram)
    rotated = vectors.T @ moment
    # Rounding can push an eigenvalue below zero by more than the smallest penalties.
    return np.asarray(vectors @ (rotated[:, None] / (np.maximum(values, 0.0)[:, None] + penalties)))


def regress_features(first: Moments, second: Moments, penalties: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Regress structural on instrument features and choose the penalty on the second sample.

    Returns
    -------
    errors : ndarray, shape (g,)
        Mean squared error of the predicted features on the second sample, up to a constant.
    projection : ndarray, shape (p, q)
        Coefficients under the best penalty.
    """
    values, vectors = eigh(first.zz)
    values = np.maximum(values, 0.0)
    rotated = vectors.T @ first.zx
    # In the eigenbasis a penalty only rescales rows, so both traces of the error cost O(p^2) per penalty.
    cross = np.sum((vectors.T @ second.zx) * rotated, axis=1)
    square = (vectors.T @ second.zz @ vectors) * (rotated @ rotated.T)
    shrinkage = 1.0 / (values[:, None] + first.total * penalties)
    errors = (np.sum(shrinkage * (square @ shrinkage), axis=0) - 2.0 * (cross @ shrinkage)) / second.total
    best = shrinkage[:, np.argmin(errors)]
    return errors, np.asarray(vectors @ (best[:, None] * rotated))
