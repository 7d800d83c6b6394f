"""A covariance function of several terms, such as level(c) + slope(c) a + curve(c, a), and its derivatives.

Each term is a product: an amplitude, a function of the context, and a function of the other columns. Terms
that do not matter get a small amplitude when the parameters are found by marginal likelihood (see
:mod:`dmliv.kernels.evidence`), so that one model holds straight lines, additive curves and interactions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dmliv.data import FloatArray, IntArray

# Kernel values held at once while a matrix is made term by term.
CHUNK_ROWS = 1024


@dataclass(frozen=True, eq=False)
class Inputs:
    """Rows that a kernel compares.

    Attributes
    ----------
    context : ndarray, shape (n, p)
        Columns that level, slopes and curves depend on.
    line : ndarray, shape (n, q)
        Columns that terms are linear in.
    curve : ndarray, shape (n, r)
        Columns that terms may bend in.
    """

    context: FloatArray
    line: FloatArray
    curve: FloatArray

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.context)

    def take(self, rows: IntArray | slice) -> Inputs:
        """Return some rows."""
        return Inputs(self.context[rows], self.line[rows], self.curve[rows])

    def single(self) -> Inputs:
        """Return the rows in single precision."""
        parts: list[Any] = [each.astype(np.float32) for each in (self.context, self.line, self.curve)]
        return Inputs(*parts)


@dataclass(frozen=True)
class Term:
    """One product of the covariance function.

    Attributes
    ----------
    context : tuple of int
        Blocks of context columns, each with a length scale of its own: a Matern 3/2 kernel of their distance.
    linear : bool
        Whether the term is linear in all context columns instead.
    line : tuple of int
        Columns of ``line`` that the term is linear in.
    curve : tuple of int
        Columns of ``curve``, each with a length scale: a Gaussian kernel of functions that are zero where
        all these columns are zero. So a term that bends in the action holds no level of its own.
    flat : bool
        Whether these functions have no slope at zero either: lines are left to other terms.
    part : str
        Name of the sum that the term belongs to.
    expected : float
        Amplitude that the term is expected to have before any data are seen: small for what is seldom there.
    spread : float
        Standard deviation of the logarithm of the amplitude around that; small where it should stay.
    optional : bool
        Whether the term may be left out where the data do not ask for it.
    """

    context: tuple[int, ...] = ()
    linear: bool = False
    line: tuple[int, ...] = ()
    curve: tuple[int, ...] = ()
    flat: bool = False
    part: str = "structural"
    expected: float = 0.3
    spread: float = 1.5
    optional: bool = True

    @property
    def n_parameters(self) -> int:
        """Number of parameters: log amplitude, log scales of the context, log scales of the curve."""
        return 1 + len(self.context) + len(self.curve)


@dataclass(frozen=True, eq=False)
class AdditiveKernel:
    """A sum of terms with their parameters.

    Attributes
    ----------
    blocks : tuple of (int, int)
        First and last (excluded) column of each block of the context.
    terms : tuple of Term
    parameters : ndarray, shape (sum of the terms' n_parameters,)
        Logarithms of amplitudes and length scales, term by term.
    """

    blocks: tuple[tuple[int, int], ...]
    terms: tuple[Term, ...]
    parameters: FloatArray

    @property
    def slices(self) -> list[slice]:
        """Which parameters belong to each term."""
        ends = np.cumsum([0, *(term.n_parameters for term in self.terms)]).tolist()
        return [slice(start, stop) for start, stop in itertools.pairwise(ends)]

    @property
    def located(self) -> list[tuple[Term, slice]]:
        """The terms, each with its parameters' place."""
        return list(zip(self.terms, self.slices, strict=True))

    def with_parameters(self, parameters: FloatArray) -> AdditiveKernel:
        """Return the same terms with other parameters."""
        return replace(self, parameters=np.asarray(parameters, dtype=np.float64))

    def only(self, terms: Sequence[int]) -> AdditiveKernel:
        """Return the kernel of some terms, by number."""
        slices = self.slices
        parameters = np.concatenate([np.empty(0), *(self.parameters[slices[k]] for k in terms)])
        return AdditiveKernel(self.blocks, tuple(self.terms[k] for k in terms), parameters)

    def part(self, name: str) -> AdditiveKernel:
        """Return the terms of one part."""
        return self.only([number for number, term in enumerate(self.terms) if term.part == name])

    def matrix(self, left: Inputs, right: Inputs, part: str | None = None) -> FloatArray:
        """Return the covariances of rows (n) and rows (m), shape (n, m), of one part or of all."""
        kernel = self if part is None else self.part(part)
        found = np.empty((len(left), len(right)))
        for start in range(0, len(left), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            pair = Pair.of(kernel, left.take(rows), right)
            found[rows] = sum(
                (pair.term(term, kernel.parameters[where]).values() for term, where in kernel.located),
                np.zeros((len(pair.left), len(right))),
            )
        return found

    def diagonal(self, rows: Inputs) -> FloatArray:
        """Return the variances of rows, shape (n,)."""
        return sum(
            (variance(term, self.parameters[where], rows)[0] for term, where in self.located),
            np.zeros(len(rows)),
        )


def variance(term: Term, parameters: FloatArray, rows: Inputs) -> tuple[FloatArray, FloatArray]:
    """Return the variances (n,) of a term and their derivatives (n_parameters, n)."""
    rest = np.full(len(rows), np.exp(2.0 * parameters[0]))
    if term.linear:
        rest = rest * np.sum(rows.context**2, axis=1)
    if term.line:
        rest = rest * np.sum(rows.line[:, list(term.line)] ** 2, axis=1)
    slopes = np.zeros((term.n_parameters, len(rows)))
    if not term.curve:
        slopes[0] = 2.0 * rest
        return rest, slopes
    squares = rows.curve[:, list(term.curve)] ** 2 * np.exp(-2.0 * parameters[1 + len(term.context) :])
    total = squares.sum(axis=1)
    at_zero = np.exp(-total)
    values = rest * (1.0 - at_zero * (1.0 + total if term.flat else 1.0))
    slopes[0] = 2.0 * values
    slopes[1 + len(term.context) :] = -2.0 * (rest * at_zero * (total if term.flat else 1.0)) * squares.T
    return values, slopes


@dataclass(frozen=True, eq=False)
class Pair:
    """What terms with any parameters need of two sets of rows: distances and inner products.

    Attributes
    ----------
    left, right : Inputs
    blocks, columns : tuple of int
        Blocks of the context and columns of the curves that the terms look at.
    distances : ndarray, shape (blocks, n * m)
        Squared distances by block.
    curve_distances : ndarray, shape (columns, n * m)
    """

    left: Inputs
    right: Inputs
    blocks: tuple[int, ...]
    columns: tuple[int, ...]
    distances: FloatArray
    curve_distances: FloatArray

    @classmethod
    def of(cls, kernel: AdditiveKernel, left: Inputs, right: Inputs, *, single: bool = False) -> Pair:
        """Compare all rows of ``left`` with all of ``right``, in single precision if so wished."""
        if single:
            left, right = left.single(), right.single()
        blocks = tuple(sorted({block for term in kernel.terms for block in term.context}))
        bending = {column for term in kernel.terms for column in term.curve}
        columns = tuple(sorted(column for column in bending if column < left.curve.shape[1]))
        ends = [kernel.blocks[block] for block in blocks]
        context = [squared_distances(left.context[:, a:b], right.context[:, a:b]) for a, b in ends]
        curve = [squared_distances(left.curve[:, [k]], right.curve[:, [k]]) for k in columns]
        size = len(left) * len(right)
        dtype = left.context.dtype
        found = [np.array(each, dtype=dtype).reshape(len(each), size) for each in (context, curve)]
        return cls(left, right, blocks, columns, *found)

    def context_distances(self, term: Term) -> FloatArray:
        """Return the squared distances of a term's blocks."""
        return _picked(self.distances, [self.blocks.index(block) for block in term.context])

    def bending_distances(self, term: Term) -> FloatArray:
        """Return the squared distances of a term's curve columns."""
        return _picked(self.curve_distances, [self.columns.index(column) for column in term.curve])

    def term(self, term: Term, parameters: FloatArray, *, context_only: bool = False) -> TermMatrix:
        """Return one term of these rows; or no more of it than :meth:`TermMatrix.without_columns` needs."""
        shape, own = (len(self.left), len(self.right)), list(term.context)
        parameters = parameters.astype(self.distances.dtype)
        amplitude = np.full(shape if not context_only else (0, 0), np.exp(2.0 * parameters[0]))
        if term.linear and not context_only:
            amplitude *= self.left.context @ self.right.context.T
        if term.line and not context_only:
            columns = list(term.line)
            amplitude *= self.left.line[:, columns] @ self.right.line[:, columns].T
        weights = np.exp(-2.0 * parameters[1:])
        context: tuple[FloatArray, FloatArray] | None = None
        if own:
            distance = np.sqrt((3.0 * weights[: len(own)]) @ self.context_distances(term)).reshape(shape)
            decay = np.exp(-distance)
            context = ((1.0 + distance) * decay, decay)
        curve: tuple[FloatArray, FloatArray, FloatArray] | None = None
        if term.curve and not context_only:
            columns, scales = list(term.curve), weights[len(own) :]
            bell = np.exp(-0.5 * (scales @ self.bending_distances(term)).reshape(shape))
            left = np.exp(-0.5 * (self.left.curve[:, columns] ** 2 @ scales))
            right = np.exp(-0.5 * (self.right.curve[:, columns] ** 2 @ scales))
            curve = (bell, left, right)
        return TermMatrix(self, term, weights, float(np.exp(2.0 * parameters[0])), amplitude, context, curve)


@dataclass(frozen=True, eq=False)
class TermMatrix:
    """One term between two sets of rows: its factors, from which values and derivatives come."""

    pair: Pair
    term: Term
    weights: FloatArray
    level: float
    amplitude: FloatArray
    context: tuple[FloatArray, FloatArray] | None
    curve: tuple[FloatArray, FloatArray, FloatArray] | None

    def values(self) -> FloatArray:
        """Return the covariances, shape (n, m)."""
        found = self.amplitude if self.context is None else self.amplitude * self.context[0]
        return found if self.curve is None else found * self._anchored()

    def without_columns(self) -> FloatArray:
        """Return the factors of amplitude and context alone, shape (n, m): no line, no curve."""
        if self.context is not None and not self.term.linear:
            return self.level * self.context[0]
        found = np.full((len(self.pair.left), len(self.pair.right)), self.level)
        if self.term.linear:
            found *= self.pair.left.context @ self.pair.right.context.T
        return found if self.context is None else found * self.context[0]

    @property
    def curve_scales(self) -> FloatArray:
        """Length scales of the curve columns."""
        return np.asarray(self.weights[len(self.term.context) :] ** -0.5)

    def anchored_at(self, rows: FloatArray) -> FloatArray:
        """Return the curve's factor between rows of all curve columns (g, r) and the right side, (g, m)."""
        columns, scales = list(self.term.curve), self.curve_scales
        left, right = rows[:, columns] / scales, self.pair.right.curve[:, columns] / scales
        bell = np.exp(-0.5 * squared_distances(left, right))
        sizes = np.exp(-0.5 * np.sum(left**2, axis=1)), np.exp(-0.5 * np.sum(right**2, axis=1))
        return np.asarray(bell - sizes[0][:, None] * sizes[1])

    def anchored_gradient(self, rows: FloatArray) -> FloatArray:
        """Return derivatives of :meth:`anchored_at` in the term's columns, shape (g, m, columns)."""
        columns, scales = list(self.term.curve), self.curve_scales
        left, right = rows[:, columns] / scales, self.pair.right.curve[:, columns] / scales
        bell = np.exp(-0.5 * squared_distances(left, right))
        sizes = np.exp(-0.5 * np.sum(left**2, axis=1)), np.exp(-0.5 * np.sum(right**2, axis=1))
        apart = right[None] - left[:, None]
        at_zero = (sizes[0][:, None] * sizes[1])[:, :, None] * left[:, None]
        return np.asarray((bell[:, :, None] * apart + at_zero) / scales)

    def pull_back(self, slopes: FloatArray) -> FloatArray:
        """Return derivatives in the parameters of an objective with derivatives ``slopes`` (n, m)."""
        term, found = self.term, np.zeros(self.term.n_parameters)
        n_context = len(term.context)
        outer = slopes.astype(self.amplitude.dtype) * self.amplitude
        without_context = outer if self.curve is None else outer * self._anchored()
        if self.context is None:
            found[0] = 2.0 * without_context.sum()
        else:
            found[0] = 2.0 * np.vdot(without_context, self.context[0])
            inner = (without_context * self.context[1]).reshape(-1)
            own = self.pair.context_distances(term)
            found[1 : 1 + n_context] = 3.0 * self.weights[:n_context] * (own @ inner)
        if self.curve is not None:
            bell, left, right = self.curve
            without_curve = outer if self.context is None else outer * self.context[0]
            columns = list(term.curve)
            moved = self.pair.bending_distances(term) @ (without_curve * bell).reshape(-1)
            at_zero = without_curve * left[:, None] * right
            ours, others = self.pair.left.curve[:, columns], self.pair.right.curve[:, columns]
            if self.term.flat:
                moved += 2.0 * np.sum(ours * (at_zero @ others), axis=0)
                at_zero = at_zero * self._tangent()
            moved -= at_zero.sum(axis=1) @ ours**2 + at_zero.sum(axis=0) @ others**2
            found[1 + n_context :] = self.weights[n_context:] * moved
        return found

    def _anchored(self) -> FloatArray:
        if self.curve is None:
            raise ValueError("Expected a term that bends.")
        bell, left, right = self.curve
        at_zero = left[:, None] * right
        return np.asarray(bell - (at_zero * self._tangent() if self.term.flat else at_zero))

    def _tangent(self) -> FloatArray:
        """Return one plus the scaled inner products of the curve columns, shape (n, m)."""
        columns = list(self.term.curve)
        scales = self.weights[len(self.term.context) :]
        return np.asarray(
            1.0 + (self.pair.left.curve[:, columns] * scales) @ self.pair.right.curve[:, columns].T
        )


def _picked(rows: FloatArray, wanted: list[int]) -> FloatArray:
    """Return some rows of a large array, as a view where they are neighbours."""
    if wanted == list(range(wanted[0], wanted[0] + len(wanted))):
        return rows[wanted[0] : wanted[0] + len(wanted)]
    return rows[wanted]


def squared_distances(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return squared distances of rows (n, d) and rows (m, d), shape (n, m)."""
    if left.shape[1] == 1:
        return np.asarray((left - right.T) ** 2)
    sizes = np.sum(left**2, axis=1)[:, None] + np.sum(right**2, axis=1)
    return np.asarray(np.maximum(sizes - 2.0 * (left @ right.T), 0.0))
