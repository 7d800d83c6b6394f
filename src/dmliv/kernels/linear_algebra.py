"""Bases and scales of regression designs, safe for columns that depend on each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

#: Relative size below which a direction of a standardised design counts as rounding error.
RANK_TOLERANCE = 1e-10


def standardise(columns: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Centre and scale all columns but the first, the constant.

    Returns
    -------
    to_user : ndarray, shape (p, p)
        Turns coefficients of the standardised columns into those of ``columns``.
    standardised : ndarray, shape (n, p)
    """
    mean = np.average(columns[:, 1:], axis=0, weights=weight)
    centred = columns[:, 1:] - mean
    scale = np.sqrt(np.average(centred**2, axis=0, weights=weight))
    varies = scale > 1e-12 * np.max(np.abs(columns[:, 1:]), axis=0, initial=0.0)
    # A column without variation carries nothing beyond the constant, only rounding errors.
    factor = np.where(varies, 1.0 / np.where(varies, scale, 1.0), 0.0)
    to_user = np.diag(np.concatenate([[1.0], factor]))
    to_user[0, 1:] = -mean * factor
    return to_user, np.hstack([columns[:, :1], centred * factor])


def orthonormal(columns: FloatArray, rank: int | None = None) -> FloatArray:
    """Return an orthonormal basis of the span of ``columns`` (n, p), shape (n, rank)."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    if rank is None:
        rank = int(np.sum(sizes > RANK_TOLERANCE * sizes[0])) if len(sizes) else 0
    return np.asarray(left[:, :rank])


def residualised(columns: FloatArray, basis: FloatArray) -> FloatArray:
    """Return what an orthonormal ``basis`` (n, r) does not explain of ``columns`` (n,) or (n, p)."""
    rest = columns - basis @ (basis.T @ columns)
    # Twice, because one subtraction of large numbers leaves rounding errors in the direction of the basis.
    return np.asarray(rest - basis @ (basis.T @ rest))
