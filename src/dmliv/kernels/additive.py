"""A covariance function of several terms, such as level(c) + slope(c) a + curve(c, a), and its derivatives.

Each term is a product: an amplitude, a function of the context, and a function of the other columns. Terms
that do not matter get a small amplitude when the parameters are found by marginal likelihood (see
:mod:`dmliv.kernels.evidence`), so that one model holds straight lines, additive curves and interactions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from dmliv.data import FloatArray, IntArray
from dmliv.data.savable import savable

# Covariances that are made at once: the factors of so many stay in the processor's cache.
CHUNK_SIZE = 1 << 16


@savable
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


@savable
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


@savable
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

    @property
    def straight(self) -> list[tuple[Term, slice]]:
        """The terms that are nothing but products of columns, each with its parameters' place."""
        return [(term, where) for term, where in self.located if not (term.context or term.curve)]

    @property
    def bent(self) -> list[tuple[Term, slice]]:
        """All other terms, each with its parameters' place."""
        return [(term, where) for term, where in self.located if term.context or term.curve]

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
        step = max(1, CHUNK_SIZE // max(1, len(right)))
        for start in range(0, len(left), step):
            rows = slice(start, start + step)
            found[rows] = Pair.of(kernel, left.take(rows), right).covariance(kernel.parameters).values
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


class _Room:
    """Arrays that are used again, in the same order: new memory at each step costs more than the step.

    Without ``reused`` all arrays are new.
    """

    def __init__(self, *, reused: bool = False) -> None:
        self._arrays: list[FloatArray] = []
        self._next, self._reused = 0, reused

    def restart(self) -> None:
        """Give the first array next."""
        self._next = 0

    def take(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return an array for what all rows of ``left`` and ``right`` make of each other."""
        shape = (len(left), len(right))
        if not self._reused:
            return np.empty(shape, dtype=left.dtype)
        if self._next == len(self._arrays):
            self._arrays.append(np.empty(shape, dtype=left.dtype))
        self._next += 1
        return self._arrays[self._next - 1]


@savable
@dataclass(frozen=True, eq=False)
class Pair:
    """Two sets of rows that a kernel compares.

    Attributes
    ----------
    kernel : AdditiveKernel
        Its parameters are not looked at.
    left, right : Inputs
    room : _Room
    """

    kernel: AdditiveKernel
    left: Inputs
    right: Inputs
    room: _Room = field(default_factory=_Room)

    @classmethod
    def of(
        cls,
        kernel: AdditiveKernel,
        left: Inputs,
        right: Inputs,
        *,
        single: bool = False,
        reused: bool = False,
    ) -> Pair:
        """Compare all rows of ``left`` with all of ``right``.

        Parameters
        ----------
        kernel : AdditiveKernel
        left, right : Inputs
        single : bool
            Whether in single precision.
        reused : bool
            Whether each :meth:`covariance` may overwrite the one before.
        """
        if single:
            left, right = left.single(), right.single()
        return cls(kernel, left, right, _Room(reused=reused))

    @cached_property
    def products(self) -> tuple[FloatArray, FloatArray, IntArray]:
        """Terms that are nothing but products of columns, which have low rank.

        The columns, shapes (n, r) and (m, r), and the position of the amplitude that each of them has among
        the kernel's parameters, shape (r,).
        """
        straight = self.kernel.straight
        left, right = (
            np.hstack([rows.context[:, :0], *(_products(term, rows) for term, _ in straight)])
            for rows in (self.left, self.right)
        )
        widths = [_products(term, self.right.take(slice(0))).shape[1] for term, _ in straight]
        return left, right, np.repeat([where.start for _, where in straight], widths).astype(np.int64)

    def covariance(self, parameters: FloatArray) -> Covariance:
        """Return the covariances for some parameters of the kernel, with all that derivatives need."""
        left, right, owners = self.products
        levels = np.exp(2.0 * parameters[owners]).astype(left.dtype)
        self.room.restart()
        values = np.matmul(left * levels, right.T, out=self.room.take(left, right))
        bent = [(self.term(term, parameters[where]), where) for term, where in self.kernel.bent]
        for each, _ in bent:
            values += each.values
        return Covariance(self, values, levels, bent)

    def term(self, term: Term, parameters: FloatArray, *, context_only: bool = False) -> TermMatrix:
        """Return one term of these rows; or no more of it than the factors of amplitude and context."""
        parameters = parameters.astype(self.left.context.dtype)
        n_context, rest = len(term.context), self._inner_products(term, context_only=context_only)
        level, scales = 2.0 * parameters[0], np.exp(-parameters[1:])
        matern: _Matern | None = None
        if n_context:
            ends = [self.kernel.blocks[block] for block in term.context]
            owners = np.repeat(np.arange(n_context), [stop - start for start, stop in ends])
            columns = np.concatenate([np.arange(start, stop) for start, stop in ends])
            scale = np.sqrt(3.0, dtype=scales.dtype) * scales[owners]
            left, right = self.left.context[:, columns] * scale, self.right.context[:, columns] * scale
            matern = _Matern.of(left, right, owners, level, rest, self.room)
        curve: _Curve | None = None
        if term.curve and not context_only:
            columns, scale = np.array(term.curve), scales[n_context:]
            left, right = self.left.curve[:, columns] * scale, self.right.curve[:, columns] * scale
            curve = _Curve.of(left, right, 0.0 if n_context else float(level), self.room, flat=term.flat)
        if matern is not None:
            values = matern.values if curve is None else self._product(matern.values, curve.values)
        elif curve is not None:
            values = curve.values if rest is None else self._product(rest, curve.values)
        else:
            shape = (len(self.left), len(self.right))
            values = np.full(shape, np.exp(level)) if rest is None else np.exp(level) * rest
        return TermMatrix(self, term, scales, values, rest, matern, curve)

    def _product(self, one: FloatArray, other: FloatArray) -> FloatArray:
        return np.multiply(one, other, out=self.room.take(self.left.context, self.right.context))

    def _inner_products(self, term: Term, *, context_only: bool) -> FloatArray | None:
        """Return what a term is linear in, multiplied; None where there is nothing of the kind."""
        left, right = self.left, self.right
        found: FloatArray | None = None
        if term.linear:
            found = np.matmul(left.context, right.context.T, out=self.room.take(left.context, right.context))
        if term.line and not context_only:
            columns = list(term.line)
            ours, others = left.line[:, columns], right.line[:, columns]
            lines = np.matmul(ours, others.T, out=self.room.take(ours, others))
            found = lines if found is None else np.multiply(found, lines, out=found)
        return found


def _products(term: Term, rows: Inputs) -> FloatArray:
    """Return the columns whose inner products are a term without bends, amplitude left out, shape (n, r)."""
    found = np.ones((len(rows), 1), dtype=rows.context.dtype)
    if term.linear:
        found = rows.context
    if term.line:
        lines = rows.line[:, list(term.line)]
        width = found.shape[1] * lines.shape[1]
        found = (found[:, :, None] * lines[:, None, :]).reshape(len(rows), width)
    return found


@savable
@dataclass(frozen=True, eq=False)
class Covariance:
    """Covariances of two sets of rows for some parameters.

    Attributes
    ----------
    pair : Pair
    values : ndarray, shape (n, m)
    levels : ndarray, shape (r,)
        Squared amplitude of each of the pair's products.
    bent : list of (TermMatrix, slice)
        All other terms, each with its parameters' place.
    """

    pair: Pair
    values: FloatArray
    levels: FloatArray
    bent: list[tuple[TermMatrix, slice]]

    def pull_back(self, slopes: FloatArray) -> FloatArray:
        """Return derivatives in the parameters of an objective with derivatives ``slopes`` (n, m)."""
        n_parameters = sum(term.n_parameters for term in self.pair.kernel.terms)
        left, right, owners = self.pair.products
        slopes = slopes.astype(self.values.dtype, copy=False)
        by_column = 2.0 * self.levels * np.sum(left * (slopes @ right), axis=0)
        found = np.zeros(n_parameters)
        np.add.at(found, owners, by_column)
        for each, where in self.bent:
            found[where] = each.pull_back(slopes)
        return found


@savable
@dataclass(frozen=True, eq=False)
class _Matern:
    """A Matern 3/2 kernel between two sets of rows, times amplitude and other factors.

    Attributes
    ----------
    left, right : ndarray, shapes (n, k) and (m, k)
        Columns in length scales, times the root of three.
    owners : ndarray of int, shape (k,)
        Which block each column belongs to.
    values, decay : ndarray, shape (n, m)
        (1 + d) exp(-d) and exp(-d), both with all factors.
    """

    left: FloatArray
    right: FloatArray
    owners: IntArray
    values: FloatArray
    decay: FloatArray

    @classmethod
    def of(
        cls,
        left: FloatArray,
        right: FloatArray,
        owners: IntArray,
        level: float,
        rest: FloatArray | None,
        room: _Room,
    ) -> _Matern:
        """Return the kernel times exp(level) and times ``rest``."""
        values, decay = room.take(left, right), room.take(left, right)
        if left.shape[1] == 1:
            np.abs(np.subtract(left, right.T, out=values), out=values)
        else:
            np.sqrt(squared_distances(left, right, out=values), out=values)
        np.exp(np.subtract(level, values, out=decay), out=decay)
        if rest is not None:
            decay *= rest
        values += 1.0
        values *= decay
        return cls(left, right, owners, values, decay)

    def pull_back(self, slopes: FloatArray) -> FloatArray:
        """Return derivatives in the blocks' log length scales; ``slopes`` (n, m) are those in the values."""
        by_column = _sums_of_squares(slopes * self.decay, self.left, self.right)
        return np.asarray(np.bincount(self.owners, by_column), dtype=np.float64)


@savable
@dataclass(frozen=True, eq=False)
class _Curve:
    """A Gaussian kernel of functions that are zero at zero, times an amplitude.

    Attributes
    ----------
    left, right : ndarray, shapes (n, k) and (m, k)
        Columns in length scales.
    bell : ndarray, shape (n, m)
        The Gaussian kernel as it is.
    at_zero : tuple of ndarray, shapes (n, 1) and (m, 1), or (n, 1 + k) and (m, 1 + k)
        What is taken from it has low rank: values at zero, and slopes there if the functions are flat.
    values : ndarray, shape (n, m)
    """

    left: FloatArray
    right: FloatArray
    bell: FloatArray
    at_zero: tuple[FloatArray, FloatArray]
    values: FloatArray

    @classmethod
    def of(cls, left: FloatArray, right: FloatArray, level: float, room: _Room, *, flat: bool) -> _Curve:
        """Return the kernel times exp(level)."""
        bell = squared_distances(left, right, out=room.take(left, right))
        bell *= -0.5
        bell += left.dtype.type(level)
        np.exp(bell, out=bell)
        ours = np.exp(level - 0.5 * np.sum(left**2, axis=1, keepdims=True))
        others = np.exp(-0.5 * np.sum(right**2, axis=1, keepdims=True))
        at_zero = (ours, others)
        if flat:
            at_zero = (np.hstack([ours, ours * left]), np.hstack([others, others * right]))
        values = np.matmul(at_zero[0], at_zero[1].T, out=room.take(left, right))
        return cls(left, right, bell, at_zero, np.subtract(bell, values, out=values))

    def pull_back(self, slopes: FloatArray) -> FloatArray:
        """Return derivatives in the columns' log length scales; ``slopes`` (n, m) are those in the values."""
        found = _sums_of_squares(slopes * self.bell, self.left, self.right)
        ours, others = self.at_zero
        by_left = ours * (slopes @ others)
        by_right = others * (slopes.T @ ours)
        found -= by_left.sum(axis=1) @ self.left**2 + by_right.sum(axis=1) @ self.right**2
        if ours.shape[1] > 1:
            found += 2.0 * by_left[:, 1:].sum(axis=0)
        return found


@savable
@dataclass(frozen=True, eq=False)
class TermMatrix:
    """One term between two sets of rows: its values, shape (n, m), and the factors they are made of."""

    pair: Pair
    term: Term
    scales: FloatArray
    values: FloatArray
    rest: FloatArray | None
    matern: _Matern | None
    curve: _Curve | None

    @property
    def curve_scales(self) -> FloatArray:
        """Length scales of the curve columns."""
        return np.asarray(1.0 / self.scales[len(self.term.context) :])

    def anchored_at(self, rows: FloatArray) -> FloatArray:
        """Return the curve's factor between rows of all curve columns (g, r) and the right side, (g, m)."""
        return _Curve.of(*self._curve_columns(rows), 0.0, _Room(), flat=False).values

    def anchored_gradient(self, rows: FloatArray) -> FloatArray:
        """Return derivatives of :meth:`anchored_at` in the term's columns, shape (g, m, columns)."""
        left, right = self._curve_columns(rows)
        curve = _Curve.of(left, right, 0.0, _Room(), flat=False)
        apart = right[None] - left[:, None]
        at_zero = (curve.at_zero[0] @ curve.at_zero[1].T)[:, :, None] * left[:, None]
        return np.asarray((curve.bell[:, :, None] * apart + at_zero) / self.curve_scales)

    def pull_back(self, slopes: FloatArray) -> FloatArray:
        """Return derivatives in the parameters of an objective with derivatives ``slopes`` (n, m)."""
        slopes = slopes.astype(self.values.dtype, copy=False)
        found = [np.array([2.0 * np.vdot(slopes, self.values)])]
        if self.matern is not None:
            found.append(self.matern.pull_back(slopes if self.curve is None else slopes * self.curve.values))
        if self.curve is not None:
            factor = self.rest if self.matern is None else self.matern.values
            found.append(self.curve.pull_back(slopes if factor is None else slopes * factor))
        return np.concatenate(found)

    def _curve_columns(self, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        columns, scales = list(self.term.curve), self.scales[len(self.term.context) :]
        return rows[:, columns] * scales, self.pair.right.curve[:, columns] * scales


def squared_distances(left: FloatArray, right: FloatArray, out: FloatArray | None = None) -> FloatArray:
    """Return squared distances of rows (n, d) and rows (m, d), shape (n, m)."""
    if left.shape[1] == 1:
        # Exact: kernels of one column fall off so regularly that rounding would show.
        found = np.subtract(left, right.T, out=out)
        return np.square(found, out=found)
    # One product of matrices in place of a table for each column.
    ours, others = (np.sum(each**2, axis=1, keepdims=True) for each in (left, right))
    found = (
        np.hstack([left, ours, np.ones_like(ours)])
        @ np.hstack([-2.0 * right, np.ones_like(others), others]).T
    )
    return np.asarray(np.maximum(found, 0.0, out=found))


def _sums_of_squares(weights: FloatArray, left: FloatArray, right: FloatArray) -> FloatArray:
    """Return sum over i, j of weights (n, m) times (left_i - right_j)^2, by column, shape (k,)."""
    k = right.shape[1]
    moved = weights @ np.hstack([right, right**2, np.ones((len(right), 1), dtype=right.dtype)])
    crossed = np.sum(left * moved[:, :k], axis=0)
    return np.asarray(moved[:, -1] @ left**2 + moved[:, k:-1].sum(axis=0) - 2.0 * crossed)
