"""Kernel regressions that choose their own bandwidths and penalty by leave-one-out error.

Ridge regression in closed form gives the error of every row without that row from one decomposition. So a
bandwidth is a number to search over, and a penalty costs nothing. All rows of a final fit are visited a chunk
at a time; bandwidths are searched on a part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from dmliv.data import FloatArray, IntArray
from dmliv.kernels.features import LandmarkFeatures, chunks, median_scales
from dmliv.progress import Advance, ProgressReporter

# Rows that bandwidths are searched on: their choice is settled long before a fit is.
SEARCH_ROWS = 2000
#: Default penalties per row, the largest first.
PENALTIES = np.logspace(0.0, -8.0, 25)
# Bandwidths stay between these multiples of the median distance: below, the kernel sees single rows; above,
# it is a polynomial already and only rounding errors change.
_NARROWEST, _WIDEST = 0.05, 40.0
# Factors a coordinate search tries, coarse first.
_STEPS = (4.0, 2.0, 1.4)
# A search takes no step for less than this: it would follow the noise of the criterion.
_LEAST_GAIN = 5e-4
# Except that stiff columns become narrower for a clear gain only.
_STIFF_GAIN = 1e-2
# Numeric columns that each get their own bandwidth; more of them share one factor.
_MOST_SEPARATE = 8
# Landmarks of regressions that only choose bandwidths.
_SEARCH_LANDMARKS = 200
_LEAST_FREEDOM = 1e-8


@dataclass(frozen=True, eq=False)
class RidgePath:
    """Ridge regressions on the same features, for every penalty, and leave-one-out losses of the outcome's.

    Attributes
    ----------
    weights : ndarray, shape (p, g)
        Of the target.
    mean_losses : ndarray, shape (g,)
        Weighted mean of (outcome - prediction of the outcome without the row)^2.
    products : ndarray, shape (g, g)
        Weighted means of products of the losses under two penalties, which tell how surely they differ.
    n_rows : int
        Rows of positive weight.
    """

    weights: FloatArray
    mean_losses: FloatArray
    products: FloatArray
    n_rows: int

    @property
    def best(self) -> int:
        """Position of the penalty with the lowest loss."""
        return int(np.argmin(self.mean_losses))

    def cautious(self) -> int:
        """Return the position of the largest penalty whose loss is not clearly above the lowest.

        A function that is hard to see through the instruments hardly changes the loss; then the flat answer
        is the safer one.
        """
        best, squares = self.best, np.diag(self.products)
        excess = self.mean_losses - self.mean_losses[best]
        variance = squares - 2.0 * self.products[best] + squares[best] - excess**2
        error = np.sqrt(np.maximum(variance, 0.0) / self.n_rows)
        return int(np.flatnonzero(excess <= error)[0])


def ridge_losses(
    encode: Callable[[IntArray], FloatArray],
    rows: IntArray,
    target: FloatArray,
    outcome: FloatArray,
    weight: FloatArray,
    penalties: FloatArray = PENALTIES,
    advance: Advance = lambda: None,
) -> RidgePath:
    """Regress ``target`` on features under all penalties, with their leave-one-out losses on the outcome.

    A target that was estimated from the outcomes of all rows cannot serve for the loss: it contains the
    outcome of the row that is left out.

    Parameters
    ----------
    encode : callable
        Features of row numbers (k,), shape (k, p).
    rows : ndarray of int, shape (n,)
        Rows to use; the next three are indexed by them.
    target, outcome, weight : ndarray
    penalties : ndarray, shape (g,)
        Positive, per row, the largest first.
    advance : callable
        Called once per chunk in each of two passes.
    """
    parts = [rows[part] for part in chunks(len(rows))]
    # A single chunk is encoded once for both passes.
    known = {0: encode(parts[0])} if len(parts) == 1 else {}
    total, sides = float(weight[rows].sum()), np.column_stack([outcome, target])
    gram, moments = np.zeros((0, 0)), np.zeros((0, 2))
    for number, part in enumerate(parts):
        features = known[number] if number in known else encode(part)
        weighted = features * weight[part][:, None]
        gram = weighted.T @ features + (gram if number else 0.0)
        moments = weighted.T @ sides[part] + (moments if number else 0.0)
        advance()
    values, vectors = eigh(gram)
    shrinkage = 1.0 / (np.maximum(values, 0.0)[:, None] + total * penalties)
    rotated = vectors.T @ moments
    shrunk = shrinkage * rotated[:, :1]
    sums, products = np.zeros(len(penalties)), np.zeros((len(penalties), len(penalties)))
    for number, part in enumerate(parts):
        turned = (known[number] if number in known else encode(part)) @ vectors
        freedom = np.maximum(1.0 - (turned**2 @ shrinkage) * weight[part][:, None], _LEAST_FREEDOM)
        losses = ((outcome[part][:, None] - turned @ shrunk) / freedom) ** 2
        weighted = losses * weight[part][:, None]
        sums += weighted.sum(axis=0)
        products += weighted.T @ losses
        advance()
    n_rows = int(np.count_nonzero(weight[rows]))
    return RidgePath(vectors @ (shrinkage * rotated[:, 1:]), sums / total, products / total, n_rows)


def search_scales(
    loss: Callable[[FloatArray], float],
    start: FloatArray,
    medians: FloatArray,
    groups: Sequence[IntArray],
    *,
    n_stiff: int = 0,
    advance: Advance = lambda: None,
) -> FloatArray:
    """Return bandwidths (d,) with a low loss, moving one group of columns at a time by shrinking factors.

    Parameters
    ----------
    loss : callable
        Of bandwidths (d,).
    start, medians : ndarray, shape (d,)
        Where the search begins, and the medians that bound it.
    groups : sequence of ndarray of int
        Columns that keep their ratios.
    n_stiff : int
        The first columns, whose bandwidths shrink for a clear gain only.
    advance : callable
        Called `search_length` times.
    """
    scales, lowest = start, loss(start)
    for step in _STEPS:
        for group in groups:
            for factor in (step, 1.0 / step):
                stiff = factor < 1.0 and group[0] < n_stiff
                gain, before = _STIFF_GAIN if stiff else _LEAST_GAIN, scales
                while True:
                    candidate = scales.copy()
                    candidate[group] *= factor
                    ratio = candidate[group[0]] / medians[group[0]]
                    value = loss(candidate) if _NARROWEST <= ratio <= _WIDEST else np.inf
                    if value >= lowest * (1.0 - gain):
                        break
                    scales, lowest = candidate, value
                if scales is not before:
                    break
            advance()
    return scales


def search_length(groups: Sequence[IntArray]) -> int:
    """Return the number of steps of a search over these groups."""
    return len(_STEPS) * len(groups)


def column_groups(rows: FloatArray, blocks: Sequence[int]) -> list[IntArray]:
    """Return which of the columns (n, d) share a factor in a search over their bandwidths.

    Parameters
    ----------
    rows : ndarray, shape (n, d)
    blocks : sequence of int
        Widths of consecutive column groups that stand for one variable each.
    """
    starts = np.cumsum([0, *blocks])
    wide, indicators, numbers = [], [], []
    for start, width in zip(starts[:-1], blocks, strict=True):
        if width > 1:
            wide.append(np.arange(start, start + width))
        elif np.all((rows[:, start] == rows[:, start].min()) | (rows[:, start] == rows[:, start].max())):
            indicators.append(start)
        else:
            numbers.append(start)
    separate = [[number] for number in numbers] if len(numbers) <= _MOST_SEPARATE else [numbers]
    found = [np.array(group, dtype=np.int64) for group in (*separate, indicators) if group]
    return [*found, *wide]


def regression_scales(
    rows: FloatArray,
    blocks: Sequence[int],
    targets: FloatArray,
    weight: FloatArray,
    generator: np.random.Generator,
    progress: ProgressReporter,
) -> FloatArray:
    """Return the bandwidths that predict targets (n, k) from rows (n, d) best, leaving rows out.

    Targets should be of similar size. Rows in excess of a few thousand are not used.
    """
    if rows.shape[1] == 0:
        return np.empty(0)
    order = generator.permutation(np.flatnonzero(weight > 0.0))[:SEARCH_ROWS]
    rows, targets, weight = rows[order], targets[order], weight[order]
    medians = median_scales(rows, blocks, np.ones(rows.shape[1]), "product", generator)
    everything = np.arange(len(rows))

    def loss(scales: FloatArray) -> float:
        features = LandmarkFeatures.learn(rows[:_SEARCH_LANDMARKS], scales).encode(rows)
        paths = (
            ridge_losses(lambda part: features[part], everything, target, target, weight)
            for target in targets.T
        )
        return float(sum(path.mean_losses.min() for path in paths))

    start = min((medians, 3.0 * medians), key=loss)
    groups = column_groups(rows, blocks)
    with progress.stage("bandwidths of the exogenous columns", search_length(groups)) as advance:
        return search_scales(loss, start, medians, groups, advance=advance)
