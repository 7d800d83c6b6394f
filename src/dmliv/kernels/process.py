"""Gaussian process regression with an additive kernel, through landmarks: closed form, folds included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.spatial.distance import pdist

from dmliv.data import FloatArray, IntArray
from dmliv.errors import InputError
from dmliv.kernels.additive import AdditiveKernel, Inputs, Term
from dmliv.kernels.evidence import JITTER, STARTS, Control, Searched, search
from dmliv.kernels.features import chunks
from dmliv.progress import ProgressReporter

# Pairs of this many rows settle a median distance.
_MEDIAN_ROWS = 300
# Landmarks of a search beyond those that were asked for.
_MOST_FURTHER = 80


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
            between(1 / 2, self.n_search_rows, 0.2),
            between(2 / 3, self.n_search_landmarks, 0.02),
        )

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("n_landmarks", "n_search_rows", "n_search_landmarks"):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise InputError(
                    f"Expected a positive whole number for {name}, got {value!r}; pass 1 or more."
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


@dataclass(frozen=True, eq=False)
class Regression:
    """A Gaussian process fitted to all rows, and to the rows outside each fold.

    Attributes
    ----------
    searched : Searched
    landmarks : Inputs
    factor : ndarray, shape (m, m)
        Lower Cholesky factor of the landmarks' covariances.
    weights : ndarray, shape (m,)
        f(x) = sum over landmarks of weight times covariance with x.
    fold_weights : ndarray, shape (folds, m)
        The same without the rows of each fold; those of all rows if there is one fold.
    posterior : ndarray, shape (m, m)
        Posterior covariance of the weights of whitened features (see :meth:`features`).
    """

    searched: Searched
    landmarks: Inputs
    factor: FloatArray
    weights: FloatArray
    fold_weights: FloatArray
    posterior: FloatArray

    @classmethod
    def fit(
        cls,
        searched: Searched,
        inputs: Inputs,
        target: FloatArray,
        weight: FloatArray,
        control: Control,
        fold: IntArray,
        landmarks: IntArray,
    ) -> Regression:
        """Solve the regression of all rows, and without each fold.

        Parameters
        ----------
        searched : Searched
        inputs : Inputs
            n rows.
        target, weight : ndarray, shape (n,)
        control : Control
        fold : ndarray of int, shape (n,)
        landmarks : ndarray of int, shape (m,)
        """
        points = inputs.take(landmarks)
        inner = searched.kernel.matrix(points, points)
        factor = cholesky(inner + JITTER * np.mean(np.diag(inner)) * np.eye(len(inner)), lower=True)
        left = target - control.columns @ searched.slopes
        n_folds, m = int(fold.max()) + 1, len(landmarks)
        size = m + sum(each.shape[1] for each in control.errors)
        grams, moments = np.zeros((n_folds, size, size)), np.zeros((n_folds, size))
        for part in chunks(len(inputs)):
            own = solve_triangular(factor, searched.kernel.matrix(points, inputs.take(part)), lower=True)
            features = np.hstack([own.T, control.take(part).features(searched.slopes)])
            for number in np.unique(fold[part]):
                rows = fold[part] == number
                weighted = features[rows] * weight[part][rows][:, None]
                grams[number] += weighted.T @ features[rows]
                moments[number] += weighted.T @ left[part][rows]
        gram, moment = grams.sum(axis=0), moments.sum(axis=0)
        ridge = searched.noise * np.eye(size)
        whole = cho_factor(gram + ridge)
        posterior = searched.noise * cho_solve(whole, np.eye(size))[:m, :m]

        def weights(solved: FloatArray) -> FloatArray:
            return np.asarray(solve_triangular(factor, solved[:m], lower=True, trans="T"))

        of_all = weights(cho_solve(whole, moment))
        by_fold = np.tile(of_all, (n_folds, 1))
        if n_folds > 1:
            for number in range(n_folds):
                outside = cho_factor(gram - grams[number] + ridge)
                by_fold[number] = weights(cho_solve(outside, moment - moments[number]))
        return cls(searched, points, factor, of_all, by_fold, posterior)

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

    def error_features(self, inputs: Inputs, most: int) -> FloatArray:
        """Return features F of f's error at rows, shape (n, at most ``most``): F F' is its covariance.

        Directions with little variance over the rows are left out.
        """
        root = cholesky(self.posterior + 1e-12 * np.eye(len(self.posterior)), lower=True)
        pieces = [
            solve_triangular(
                self.factor, self.searched.kernel.matrix(self.landmarks, inputs.take(rows)), lower=True
            ).T
            @ root
            for rows in chunks(len(inputs))
        ]
        features = np.vstack(pieces)
        values, vectors = np.linalg.eigh(features.T @ features)
        return np.asarray(features @ vectors[:, ::-1][:, : min(most, len(values))])


def regress(
    kernel: AdditiveKernel,
    inputs: Inputs,
    target: FloatArray,
    weight: FloatArray,
    fold: IntArray,
    settings: ProcessSettings,
    *,
    control: Control | None = None,
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
    inputs, target, weight, fold, control
        As for :meth:`Regression.fit`.
    settings : ProcessSettings
    start_slopes : ndarray, shape (d,), optional
        Of the control columns.
    searched : Searched, optional
        Parameters to take as they are.
    starts : sequence of (float, float)
        As for :func:`~dmliv.kernels.evidence.search`.
    generator : numpy.random.Generator
        Draws rows and landmarks among the rows of positive weight.
    progress : ProgressReporter
    label : str
    """
    settings = settings.for_rows(len(inputs))
    control = Control.none(len(inputs)) if control is None else control
    used = generator.permutation(np.flatnonzero(weight > 0.0))
    rows = used[: settings.n_search_rows]
    if searched is None:
        n_landmarks = settings.n_search_landmarks + min(2 * inputs.context.shape[1], _MOST_FURTHER)
        searched = search(
            kernel,
            inputs.take(rows),
            target[rows],
            weight[rows],
            control.take(rows),
            np.empty(0) if start_slopes is None else start_slopes,
            landmarks=np.arange(min(n_landmarks, len(rows))),
            progress=progress,
            label=label,
            starts=starts,
        )
    landmarks = used[: settings.n_landmarks]
    return Regression.fit(searched, inputs, target, weight, control, fold, landmarks)
