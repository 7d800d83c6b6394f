"""A fitted pilot: h as a sum of level, slopes and curves, each a smooth function of the context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dmliv.data import FloatArray, IntArray, Table
from dmliv.data.savable import savable
from dmliv.first_stage.distributions import ActionDistribution
from dmliv.kernels.additive import AdditiveKernel, Inputs, Pair, TermMatrix
from dmliv.kernels.block_index import BlockIndex
from dmliv.nets.encoding import TableEncoder
from dmliv.second_stage.structural import StructuralModel, project

STRUCTURAL, CONTROL = "structural", "control"
# Parts of the mean of the action.
LEVEL, INSTRUMENT = "level", "instrument"
# Rows that meet all landmarks at once.
_CHUNK_ROWS = 256
# Quadrature points per action column in the mean over a distribution without a closed form.
_POINTS = 3


@savable
@dataclass(frozen=True, eq=False)
class ColumnMean:
    """The mean of one action column in a context: level plus a sum over landmarks.

    Attributes
    ----------
    kernel : AdditiveKernel
        Of functions of the context alone.
    landmarks : Inputs
    weights : ndarray, shape (m,)
    level : float
    """

    kernel: AdditiveKernel
    landmarks: Inputs
    weights: FloatArray
    level: float

    def at(self, context: FloatArray) -> FloatArray:
        """Return the mean in contexts (n, p), shape (n,)."""
        nothing = np.empty((len(context), 0))
        rows = Inputs(context, nothing, nothing)
        return np.asarray(self.level + self.kernel.matrix(rows, self.landmarks) @ self.weights)


def split_image(encoder: TableEncoder, standardised: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the plain columns of contexts as numbers, and the features of their image, which come last."""
    width = standardised.shape[1] - encoder.n_image_features
    columns = np.asarray(standardised, dtype=np.float64)
    return columns[:, :width], columns[:, width:]


@savable
@dataclass(frozen=True, eq=False)
class PilotColumns:
    """What a pilot's kernel sees of contexts and actions.

    The slopes of h are in the action, and in what the action is beyond its mean in the context. That mean is
    a column of the context too: what moves the action from context to context often moves the outcome and the
    effect as well, and it is no instrument.

    Attributes
    ----------
    encoder : TableEncoder
        Contexts as numbers.
    order : ndarray of int, shape (p,)
        Order of its columns, so that the blocks of the kernel are neighbours.
    centre : tuple of ColumnMean
        Mean of every action column in a context, at the mean of the instrument; of every level but the first
        if the action is discrete.
    spread : ndarray, shape (d,)
        What centred actions are divided by.
    bends : bool
        Whether the action is continuous, so that h may bend in it.
    image : tuple of BlockIndex
        What stands for the features of an image: for what they do to the outcome, and to the action. Before
        they are ordered, the columns end with them.
    """

    encoder: TableEncoder
    order: IntArray
    centre: tuple[ColumnMean, ...]
    spread: FloatArray
    bends: bool
    image: tuple[BlockIndex, ...] = ()

    def context(self, context: Table) -> FloatArray:
        """Return contexts as numbers, the mean of each action column last, shape (n, p + k)."""
        plain, features = split_image(self.encoder, self.encoder.standardised(context))
        own = np.hstack([plain, *(index.at(features) for index in self.image)])
        return self.with_means(own[:, self.order])

    def with_means(self, own: FloatArray) -> FloatArray:
        """Return columns of contexts (n, p) and the mean of each action column there, shape (n, p + k)."""
        return np.column_stack([own, *(each.at(own) for each in self.centre)])

    def centres(self, context: FloatArray) -> FloatArray:
        """Return the mean action in contexts as :meth:`context` gives them, shape (n, d)."""
        found = context[:, context.shape[1] - len(self.centre) :]
        # The probability of the first level is what the others leave.
        return found if self.bends else np.column_stack([1.0 - found.sum(axis=1), found])

    def inputs(
        self, columns: FloatArray, action: FloatArray, control_lines: FloatArray, control_curves: FloatArray
    ) -> Inputs:
        """Return columns of contexts (n, p + k), actions (n, d) and functions of the control variable.

        Lines are in the action, the centred action, its mean in the context and ``control_lines``; curves in
        the action, if it is continuous, and in ``control_curves``.
        """
        centre = self.centres(columns)
        return Inputs(
            columns,
            np.hstack([action, (action - centre) / self.spread, centre, control_lines]),
            np.hstack([action, control_curves] if self.bends else [control_curves]),
        )


@savable
@dataclass(frozen=True, eq=False)
class PilotSpace:
    """Functions of (context, action) that a pilot can be: a kernel, its landmarks, and their inputs.

    Attributes
    ----------
    columns : PilotColumns
    kernel : AdditiveKernel
        The terms of the part ``"structural"`` make h.
    landmarks : Inputs
    """

    columns: PilotColumns
    kernel: AdditiveKernel
    landmarks: Inputs

    @property
    def width(self) -> int:
        """Number d of action columns."""
        return len(self.columns.spread)

    def of_action(self) -> PilotSpace:
        """Return the space of functions that depend on the action."""
        # Lines beyond these columns are in the mean of the action, which the context alone decides.
        kept = [
            number
            for number, term in enumerate(self.kernel.terms)
            if term.part == STRUCTURAL and (term.curve or (term.line and max(term.line) < 2 * self.width))
        ]
        return replace(self, kernel=self.kernel.only(kept))

    def parts(self) -> dict[str, list[int]]:
        """Return numbers of the terms of small parts, by name, and of all together."""
        terms = list(enumerate(self.kernel.terms))
        common = [(number, term) for number, term in terms if not term.context and not term.linear]
        wanted = {
            "slope": [number for number, term in common if term.line],
            "curve": [number for number, term in common if term.curve],
            "slopes": [number for number, term in terms if term.line],
            "slopes and curves": [number for number, _ in terms],
        }
        found: dict[str, list[int]] = {}
        for name, chosen in wanted.items():
            if chosen and (name == "curve" or all(len(chosen) > len(each) for each in found.values())):
                found[name] = chosen
        return found

    def terms(self, context: FloatArray) -> Iterator[TermMatrix]:
        """Yield what contexts (n, p) and landmarks make of the terms of h, actions left out."""
        nothing = np.empty((len(context), 0))
        kernel = self.kernel.part(STRUCTURAL)
        pair = Pair.of(kernel, Inputs(context, nothing, nothing), self.landmarks)
        for term, where in kernel.located:
            yield pair.term(term, kernel.parameters[where], context_only=True)

    def projected(
        self, columns: FloatArray, distribution: ActionDistribution, rows: IntArray
    ) -> Iterator[FloatArray]:
        """Yield each term's mean covariances with the landmarks over some rows' action distributions, (n, m).

        Parameters
        ----------
        columns : ndarray, shape (n, p + k)
            Of the contexts of these rows.
        distribution : ActionDistribution
            Of all rows.
        rows : ndarray of int, shape (n,)
        """
        mean, nothing = distribution.mean()[rows].cpu().double().numpy(), np.empty((len(rows), 0))
        inputs = self.columns.inputs(columns, mean, nothing, nothing)
        means, d = partial(distribution.kernel_means, n_points=_POINTS), self.width
        for each in self.terms(inputs.context):
            values = each.values
            if each.term.line:
                lines = list(each.term.line)
                values = values * (inputs.line[:, lines] @ self.landmarks.line[:, lines].T)
            if each.term.curve:
                curves = list(each.term.curve)
                points, scales = self.landmarks.curve[:, curves], each.curve_scales
                if len(curves) < d:
                    # Columns that the term leaves out do not matter: their kernel is as good as one.
                    wide = np.full(d, 1e6)
                    wide[curves] = scales
                    whole = np.zeros((len(points), d))
                    whole[:, curves] = points
                    points, scales = whole, wide
                bell = means(rows, points, scales)
                at_zero = means(rows, np.zeros((1, d)), scales)
                values = values * (bell - at_zero * np.exp(-0.5 * np.sum((points / scales) ** 2, axis=1)))
            yield values


@savable(renamed={"told": "details"})
@dataclass(frozen=True, eq=False)
class PilotModel:
    """h(c, a) = level + sum over landmarks of weight times covariance.

    Attributes
    ----------
    space : PilotSpace
    weights : ndarray, shape (m,)
    level : float
    details : dict
        What was found while fitting, in plain values.
    """

    space: PilotSpace
    weights: FloatArray
    level: float
    details: dict[str, object]

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""
        parts = [self._rows(context.take(rows), action[rows]) for rows in _pieces(len(action))]
        return np.concatenate([np.empty(0), *parts]) + self.level

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action; each context meets the landmarks once."""
        parts = [self._grid(context.take(rows), actions) for rows in _pieces(len(context))]
        return np.vstack([np.empty((0, len(actions))), *parts]) + self.level

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative of h in the action, shape (n, d)."""
        parts = [self._gradient(context.take(rows), action[rows]) for rows in _pieces(len(action))]
        return np.vstack([np.empty((0, action.shape[1])), *parts])

    def project(self, context: Table, distribution: ActionDistribution) -> FloatArray:
        """Return the mean of h over the action distribution of every row, shape (n,), in closed form."""
        parts = [
            self.project_columns(self.space.columns.context(context.take(rows)), distribution, rows)
            for rows in _pieces(len(context))
        ]
        return np.concatenate([np.empty(0), *parts])

    def project_columns(
        self, columns: FloatArray, distribution: ActionDistribution, rows: IntArray
    ) -> FloatArray:
        """Return the same of some rows, for columns of their contexts (n, p + k)."""
        found = np.full(len(rows), self.level)
        for piece in _pieces(len(rows)):
            for each in self.space.projected(columns[piece], distribution, rows[piece]):
                found[piece] += each @ self.weights
        return found

    def describe(self) -> dict[str, object]:
        """Return what was found while fitting."""
        return self.details

    def _slopes(self, each: TermMatrix, centre: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return slopes (n, d) of a term in the action, and its value (n,) where the action is zero.

        Parameters
        ----------
        each : TermMatrix
        centre : ndarray, shape (n, d)
            Mean action in each context.
        """
        d, spread, columns = self.space.width, self.space.columns.spread, list(each.term.line)
        by_column = np.zeros((len(centre), 3 * d))
        by_column[:, columns] = (each.values * self.weights) @ self.space.landmarks.line[:, columns]
        in_action, in_centred, in_centre = np.split(by_column, 3, axis=1)
        slopes = in_action + in_centred / spread
        return slopes, np.sum((in_centre - in_centred / spread) * centre, axis=1)

    def _rows(self, context: Table, action: FloatArray) -> FloatArray:
        columns = self.space.columns.context(context)
        found, centre = np.zeros(len(context)), self.space.columns.centres(columns)
        for each in self.space.terms(columns):
            if each.term.line:
                slopes, offset = self._slopes(each, centre)
                found += np.sum(slopes * action, axis=1) + offset
            elif each.term.curve:
                weighted = each.values * self.weights
                found += np.einsum("nm,nm->n", weighted, each.anchored_at(action))
            else:
                found += each.values @ self.weights
        return found

    def _grid(self, context: Table, actions: FloatArray) -> FloatArray:
        columns = self.space.columns.context(context)
        found, centre = np.zeros((len(context), len(actions))), self.space.columns.centres(columns)
        for each in self.space.terms(columns):
            if each.term.line:
                slopes, offset = self._slopes(each, centre)
                found += slopes @ actions.T + offset[:, None]
            elif each.term.curve:
                by_action = each.anchored_at(actions)
                found += (each.values * self.weights) @ by_action.T
            else:
                found += (each.values @ self.weights)[:, None]
        return found

    def _gradient(self, context: Table, action: FloatArray) -> FloatArray:
        columns = self.space.columns.context(context)
        found, centre = np.zeros(action.shape), self.space.columns.centres(columns)
        for each in self.space.terms(columns):
            if each.term.line:
                found += self._slopes(each, centre)[0]
            elif each.term.curve:
                bending = list(each.term.curve)
                weighted = each.values * self.weights
                found[:, bending] += np.einsum("nm,nmk->nk", weighted, each.anchored_gradient(action))
        return found


@savable(renamed={"told": "details"})
@dataclass(frozen=True, eq=False)
class PilotedModel:
    """h = pilot + remainder: what DML-IV adds to a pilot.

    Attributes
    ----------
    pilot : StructuralModel
    remainder : StructuralModel or None
        None where the moments do not contradict the pilot.
    details : dict
        How strongly the moments contradict the pilot, and how large the remainder is.
    """

    pilot: StructuralModel
    remainder: StructuralModel | None
    details: dict[str, object]

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""
        found = self.pilot.predict(context, action)
        return found if self.remainder is None else found + self.remainder.predict(context, action)

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action."""
        found = self.pilot.predict_grid(context, actions)
        return found if self.remainder is None else found + self.remainder.predict_grid(context, actions)

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative of h in the action."""
        found = self.pilot.gradient(context, action)
        return found if self.remainder is None else found + self.remainder.gradient(context, action)

    def project(self, context: Table, distribution: ActionDistribution) -> FloatArray:
        """Return the mean of h over the action distribution of every row, shape (n,)."""
        found = project(self.pilot, context, distribution)
        return found if self.remainder is None else found + project(self.remainder, context, distribution)

    def describe(self) -> dict[str, object]:
        """Return what pilot and remainder tell of themselves, and how large the remainder is."""
        details: dict[str, object] = {"pilot": self.pilot.describe(), **self.details}
        return details if self.remainder is None else {**details, "remainder": self.remainder.describe()}


def _pieces(n_rows: int) -> list[IntArray]:
    return [np.arange(start, min(start + _CHUNK_ROWS, n_rows)) for start in range(0, n_rows, _CHUNK_ROWS)]
