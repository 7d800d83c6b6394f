"""Gaussian process regression with an additive kernel, through landmarks: closed form, folds included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, eigh, solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import pdist

from dmliv.data import FloatArray, IntArray
from dmliv.data.savable import savable
from dmliv.errors import check_whole
from dmliv.kernels.additive import AdditiveKernel, Inputs, Term
from dmliv.kernels.evidence import DECISION_ROWS, SLOPE_PRIOR, STARTS, Rows, Searched, search, whitening
from dmliv.kernels.features import chunks
from dmliv.progress import ProgressReporter

# Pairs of this many rows settle a median distance.
_MEDIAN_ROWS = 300
# Directions of an error with a smaller share of its variance are left out.
_LEAST_ERROR = 1e-4
# Landmarks of a search beyond those that were asked for.
_MOST_FURTHER = 80


@savable
@dataclass(frozen=True)
class ProcessSettings:
    """How large the parts of a regression are.

    Parameters
    ----------
    n_landmarks : int
        Rows that span the final regression, at most.
    n_search_rows, n_search_landmarks : int
        Rows whose marginal likelihood is maximised, and the landmarks among them, at most; two more for every
        column of the context, because categories with many levels need them. Few rows take two thirds of the
        landmarks and half of the search rows: more would cost time and bring nothing.
    """

    n_landmarks: int = 600
    n_search_rows: int = 2000
    n_search_landmarks: int = 150

    def for_rows(self, n_rows: int) -> ProcessSettings:
        """Return the sizes for a number of rows."""

        def between(share: float, most: int, per_row: float) -> int:
            return min(most, max(round(share * most), round(per_row * n_rows)))

        return ProcessSettings(
            between(2 / 3, self.n_landmarks, 0.1),
            between(1 / 2, self.n_search_rows, 0.5),
            between(2 / 3, self.n_search_landmarks, 0.02),
        )

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_whole(
            n_landmarks=self.n_landmarks,
            n_search_rows=self.n_search_rows,
            n_search_landmarks=self.n_search_landmarks,
        )


def start_kernel(
    blocks: Sequence[tuple[int, int]], terms: Sequence[Term], inputs: Inputs, generator: np.random.Generator
) -> AdditiveKernel:
    """Return a kernel with length scales at the median distances of its columns.

    Parameters
    ----------
    blocks : sequence of (int, int)
        Of the context.
    terms : sequence of Term
    inputs : Inputs
    generator : numpy.random.Generator
        Draws the rows that are compared.
    """
    some = inputs.take(generator.permutation(len(inputs))[:_MEDIAN_ROWS])
    context = [_log_median(some.context[:, start:stop]) for start, stop in blocks]
    curve = [_log_median(some.curve[:, [column]]) for column in range(some.curve.shape[1])]
    parameters = [
        [0.0, *(context[block] for block in term.context), *(curve[column] for column in term.curve)]
        for term in terms
    ]
    return AdditiveKernel(tuple(blocks), tuple(terms), np.concatenate([np.empty(0), *parameters]))


def _log_median(columns: FloatArray) -> float:
    distances = pdist(columns)
    differing = distances[distances > 1e-9]
    return float(np.log(np.median(differing))) if len(differing) else 0.0


@savable
@dataclass(frozen=True, eq=False)
class Regression:
    """A Gaussian process fitted to all rows, and to the rows outside each fold.

    Attributes
    ----------
    searched : Searched
    landmarks : Inputs
    whiten : ndarray, shape (m, m)
        Inverse of the lower Cholesky factor of the landmarks' covariances.
    weights : ndarray, shape (m,)
        f(x) = sum over landmarks of weight times covariance with x.
    fold_weights : ndarray, shape (folds, m)
        The same without the rows of each fold; those of all rows if there is one fold.
    posterior : ndarray, shape (m, m)
        Posterior covariance of the weights of whitened features.
    evidence : float
        A bound on the log marginal likelihood of all rows.
    """

    searched: Searched
    landmarks: Inputs
    whiten: FloatArray
    weights: FloatArray
    fold_weights: FloatArray
    posterior: FloatArray
    evidence: float

    @classmethod
    def fit(
        cls,
        searched: Searched,
        rows: Rows,
        fold: IntArray,
        landmarks: IntArray,
        start_slopes: FloatArray | None = None,
    ) -> Regression:
        """Solve the regression of all rows, and without each fold.

        Parameters
        ----------
        searched : Searched
        rows : Rows
            n rows.
        fold : ndarray of int, shape (n,)
        landmarks : ndarray of int, shape (m,)
        start_slopes : ndarray, shape (d,), optional
            Centre of the prior of the control columns' slopes. With it they are found anew on all rows; a
            search has seen some of them.
        """
        points = rows.inputs.take(landmarks)
        whiten = whitening(searched.kernel.matrix(points, points))
        grams, unexplained = _fold_grams(searched, whiten, points, rows, fold)
        if start_slopes is not None and len(searched.slopes):
            searched = replace(searched, slopes=_slopes_of(grams.sum(), searched, start_slopes))
        system = grams.sum().at(searched.slopes)
        solver = cho_factor(system.gram + searched.noise * np.eye(len(system.gram)))
        m = len(landmarks)

        def weights(solved: FloatArray) -> FloatArray:
            return np.asarray(whiten.T @ solved[:m])

        of_all = weights(cho_solve(solver, system.moment))
        n_folds = int(fold.max()) + 1
        by_fold = np.tile(of_all, (n_folds, 1))
        if n_folds > 1:
            for number in range(n_folds):
                outside = grams.without(number).at(searched.slopes)
                ridge = searched.noise * np.eye(len(outside.gram))
                by_fold[number] = weights(cho_solve(cho_factor(outside.gram + ridge), outside.moment))
        posterior = searched.noise * cho_solve(solver, np.eye(len(system.gram)))[:m, :m]
        evidence = -0.5 * len(rows) * np.log(searched.noise) - system.loss(searched.noise)
        evidence -= 0.5 * unexplained / searched.noise
        return cls(searched, points, whiten, of_all, by_fold, posterior, float(evidence))

    def predict(self, inputs: Inputs, part: str | None = None) -> FloatArray:
        """Return f, or one part of it, of the fit to all rows, shape (n,)."""
        pieces = [
            self.searched.kernel.matrix(inputs.take(rows), self.landmarks, part) @ self.weights
            for rows in chunks(len(inputs))
        ]
        return np.concatenate([np.empty(0), *pieces])

    def out_of_fold(self, inputs: Inputs, fold: IntArray, part: str | None = None) -> FloatArray:
        """Return f, or one part of it, by the fit without the fold of each row, shape (n,)."""
        found = np.empty(len(inputs))
        for rows in chunks(len(inputs)):
            covariances = self.searched.kernel.matrix(inputs.take(rows), self.landmarks, part)
            found[rows] = np.einsum("nm,nm->n", covariances, self.fold_weights[fold[rows]])
        return found

    def error_features(self, inputs: Inputs, most: int, part: str | None = None) -> FloatArray:
        """Return features F of the error of f, shape (n, at most ``most``): F F' is its covariance over rows.

        Of a part, they are what the part makes of errors at the landmarks. Directions with little variance
        are left out.
        """
        root = cholesky(self.posterior + 1e-12 * np.eye(len(self.posterior)), lower=True)
        rows = chunks(len(inputs))
        covariances = [self.searched.kernel.matrix(inputs.take(each), self.landmarks, part) for each in rows]
        features = self.whiten.T @ root
        m = len(features)
        gram = sum((each.T @ each for each in covariances), np.zeros((m, m)))
        values, vectors = eigh(features.T @ gram @ features)
        n_needed = int(np.sum(values > _LEAST_ERROR * values.sum()))
        chosen = features @ vectors[:, ::-1][:, : min(most, n_needed)]
        return np.vstack([chosen[:0], *(each @ chosen for each in covariances)])


def regress(
    kernel: AdditiveKernel,
    rows: Rows,
    fold: IntArray,
    settings: ProcessSettings,
    *,
    start_slopes: FloatArray | None = None,
    searched: Searched | None = None,
    starts: Sequence[tuple[float, float]] = STARTS,
    generator: np.random.Generator,
    progress: ProgressReporter,
    label: str,
) -> Regression:
    """Find parameters by marginal likelihood on some rows, then solve the regression of all rows.

    Parameters
    ----------
    kernel : AdditiveKernel
        As :func:`start_kernel` makes it.
    rows : Rows
    fold : ndarray of int, shape (n,)
    settings : ProcessSettings
    start_slopes : ndarray, shape (d,), optional
        Of the control columns, as for :func:`~dmliv.kernels.evidence.search`.
    searched : Searched, optional
        Parameters to take as they are.
    starts : sequence of (float, float)
        As for :func:`~dmliv.kernels.evidence.search`.
    generator : numpy.random.Generator
        Draws rows and landmarks among the rows of positive weight.
    progress : ProgressReporter
    label : str
    """
    settings = settings.for_rows(len(rows))
    used = generator.permutation(np.flatnonzero(rows.weight > 0.0))
    if searched is None:
        searched = search(
            kernel,
            rows.take(used[:DECISION_ROWS]),
            np.empty(0) if start_slopes is None else start_slopes,
            n_rows=settings.n_search_rows,
            n_landmarks=settings.n_search_landmarks + min(2 * rows.inputs.context.shape[1], _MOST_FURTHER),
            progress=progress,
            label=label,
            starts=starts,
        )
    return Regression.fit(searched, rows, fold, used[: settings.n_landmarks], start_slopes)


@savable
@dataclass(frozen=True, eq=False)
class _System:
    """Normal equations of the whitened features, and the weighted square of what is to be explained."""

    gram: FloatArray
    moment: FloatArray
    square: float

    def loss(self, noise: float) -> float:
        """Return what the equations add to minus the log marginal likelihood."""
        root = cholesky(self.gram / noise + np.eye(len(self.gram)), lower=True)
        half = solve_triangular(root, self.moment / noise, lower=True)
        return float(np.log(np.diag(root)).sum() + 0.5 * self.square / noise - 0.5 * half @ half)


@savable
@dataclass(frozen=True, eq=False)
class _Grams:
    """Inner products of whitened features, errors of the control columns, these columns, and the target.

    Attributes
    ----------
    products : ndarray, shape (k, width, width)
        By fold.
    n_features : int
    widths : tuple of int
        Of the errors of each control column.
    n_free : int
        Number of the free errors.
    """

    products: FloatArray
    n_features: int
    widths: tuple[int, ...]
    n_free: int

    def sum(self) -> _Grams:
        """Return the products of all folds."""
        return replace(self, products=self.products.sum(axis=0, keepdims=True))

    def without(self, fold: int) -> _Grams:
        """Return the products of all folds but one."""
        return replace(self, products=self.products.sum(axis=0, keepdims=True) - self.products[[fold]])

    def at(self, slopes: FloatArray) -> _System:
        """Return the normal equations for slopes of the control columns."""
        (products,) = self.products
        scales = [np.full(width, slope) for width, slope in zip(self.widths, slopes, strict=True)]
        scale = np.concatenate([np.ones(self.n_features), *scales, np.ones(self.n_free)])
        size = len(scale)
        left = np.concatenate([-slopes, [1.0]])
        gram = products[:size, :size] * scale[:, None] * scale
        return _System(
            gram, (products[:size, size:] @ left) * scale, float(left @ products[size:, size:] @ left)
        )


def _fold_grams(
    searched: Searched, whiten: FloatArray, points: Inputs, rows: Rows, fold: IntArray
) -> tuple[_Grams, float]:
    """Return inner products by fold, and the variance of f at the rows that landmarks leave unexplained."""
    control, m = rows.control, len(points)
    rest = np.column_stack([*control.errors, control.free, control.columns, rows.target])
    products, prior = np.zeros((int(fold.max()) + 1, *(2 * [m + rest.shape[1]]))), 0.0
    for number in range(len(products)):
        own = np.flatnonzero(fold == number)
        for part in (own[each] for each in chunks(len(own))):
            inputs, root = rows.inputs.take(part), np.sqrt(rows.weight[part])
            columns = np.vstack([searched.kernel.matrix(points, inputs), rest[part].T]) * root
            products[number] += columns @ columns.T
            prior += float(rows.weight[part] @ searched.kernel.diagonal(inputs))
    # Whitened at the end, when the length of the rows is gone.
    products[:, :m] = whiten @ products[:, :m]
    products[:, :, :m] = products[:, :, :m] @ whiten.T
    explained = sum(float(np.trace(each[:m, :m])) for each in products)
    return _Grams(products, m, control.widths, control.free.shape[1]), max(0.0, prior - explained)


def _slopes_of(grams: _Grams, searched: Searched, centre: FloatArray) -> FloatArray:
    """Return the slopes of the control columns with the highest posterior, other parameters as they are."""

    def loss(slopes: FloatArray) -> float:
        apart = (slopes - centre) / SLOPE_PRIOR
        return grams.at(slopes).loss(searched.noise) + 0.5 * float(apart @ apart)

    found = minimize(loss, searched.slopes, method="BFGS", options={"maxiter": 20, "gtol": 1e-2})
    return np.asarray(found.x if found.fun <= loss(searched.slopes) else searched.slopes)
