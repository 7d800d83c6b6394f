"""How a number differs along a column: groups of rows, and how much of the variance they explain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dmliv.data import Column, FloatArray, IntArray

_GROUPS = 10


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows grouped by a column.

    Attributes
    ----------
    member : ndarray of int, shape (n,)
        The group of each row, from 0.
    centres : ndarray, shape (k,)
        Median of the column in each group; for a category the code of its level.
    """

    member: IntArray
    centres: FloatArray

    def means(self, numbers: FloatArray) -> FloatArray:
        """Return the mean of numbers (n,) in each group, shape (k,)."""
        totals = np.bincount(self.member, weights=numbers, minlength=len(self.centres))
        return np.asarray(totals / np.bincount(self.member, minlength=len(self.centres)))


def grouped(column: Column, values: FloatArray | IntArray) -> Groups:
    """Group rows by level, by value where there are few, else into ten groups of equal size."""
    distinct, member = np.unique(values, return_inverse=True)
    if column.kind == "categorical" or len(distinct) <= _GROUPS:
        return Groups(member.astype(np.int64), distinct.astype(np.float64))
    edges = np.unique(np.quantile(values, np.linspace(0.0, 1.0, _GROUPS + 1)[1:-1]))
    _, found = np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)
    centres = np.array([np.median(values[found == group]) for group in range(int(found.max()) + 1)])
    return Groups(found.astype(np.int64), centres)


def explained_share(column: Column, values: FloatArray | IntArray, numbers: FloatArray) -> float:
    """Return the share of the variance of numbers (n,) between the groups of a column; 0 without variance."""
    total = float(np.var(numbers))
    if total <= 0.0:
        return 0.0
    groups = grouped(column, values)
    return float(np.var(groups.means(numbers)[groups.member]) / total)
