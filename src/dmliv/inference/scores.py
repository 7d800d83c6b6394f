"""Sums of products of scores, robust to clusters."""

from __future__ import annotations

import numpy as np

from dmliv.data import FloatArray, IntArray


class ScoreProducts:
    """The sum over rows of products of their scores; of clusters, whose scores are added up first.

    Parameters
    ----------
    width : int
        Number of scores of a row.
    cluster : ndarray of int, shape (n,), or None
        Labels of the clusters; without them every row counts on its own.
    """

    def __init__(self, width: int, cluster: IntArray | None) -> None:
        self._codes = None if cluster is None else np.unique(cluster, return_inverse=True)[1]
        n_clusters = 0 if self._codes is None else int(self._codes.max()) + 1
        self._totals, self._products = np.zeros((n_clusters, width)), np.zeros((width, width))

    def add(self, rows: IntArray, scores: FloatArray) -> None:
        """Add the scores (r, width) of some rows (r,)."""
        if self._codes is None:
            self._products += scores.T @ scores
        else:
            np.add.at(self._totals, self._codes[rows], scores)

    def sum(self) -> FloatArray:
        """Return the sum of products, shape (width, width)."""
        return self._products if self._codes is None else self._totals.T @ self._totals
