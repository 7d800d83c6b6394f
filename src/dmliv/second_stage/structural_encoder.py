"""Encodings of the structural input (context, action)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dmliv.data import Table, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.nets.columns import ColumnEncoder, Columns
from dmliv.nets.encoding import PiecewiseLinear, PiecewiseLinearTensor, TableEncoder
from dmliv.nets.images import ImageColumns
from dmliv.nets.settings import LARGE_ROWS
from dmliv.nets.stacked import StackedMLP

FloatArray = npt.NDArray[np.float64]

# Relative ridge of the context mean of the action: enough to keep collinear bins solvable.
_CENTRE_RIDGE = 1e-3
# Rows of a large table that are encoded at a time.
_PIECE_ROWS = 1 << 12

#: Encodings a structural network can choose from.
STRUCTURAL_ENCODINGS = ("raw", "standardised", "piecewise", "piecewise_action")


@savable
@dataclass(frozen=True)
class StructuralEncoder:
    """Encodes contexts once and actions whenever they are drawn.

    The encodings are ``"raw"`` (context columns as they are), ``"standardised"``, ``"piecewise"``
    (piecewise-linear context, plain action) and ``"piecewise_action"`` (both piecewise linear). A discrete
    action is always one-hot.

    A *centred* encoder splits the action into (a linear estimate of) its mean in that context and the rest,
    and shows the network both. This only renames the inputs of h, so any estimate is valid, but it decides
    what a network learns first. A raw action is also a good predictor of the context, and a network trained
    to match projections uses it as one: with a weak instrument that costs nothing in the loss and everything
    in h. Of the two parts the mean may stand in for the context, harmlessly, and the rest cannot.

    The estimate should not have seen the row's own action. With many context features a regression of actions
    follows each of them a little, hidden confounder included, and what is left of a predicted action then
    moves with the confounder. Predictions of models that never saw the row carry nothing of it.

    Attributes
    ----------
    context : TableEncoder
    action_width : int
        Width d of an action vector.
    action_knots : tuple of PiecewiseLinear
        One per column of a continuous action, empty for a discrete one.
    centre_coefficients : ndarray, shape (1 + context width, d), or None
        Linear map from piecewise-linear context features to the mean action; None leaves actions as they are.
    """

    context: TableEncoder
    action_width: int
    action_knots: tuple[PiecewiseLinear, ...]
    centre_coefficients: FloatArray | None

    @classmethod
    def learn(
        cls,
        data: TrainingData,
        n_bins: int,
        *,
        centred: bool,
        predicted: FloatArray | None = None,
        image: ImageColumns | None = None,
    ) -> StructuralEncoder:
        """Learn all encodings from training rows.

        Parameters
        ----------
        data : TrainingData
        n_bins : int
            Bins of a numeric column.
        centred : bool
        predicted : ndarray, shape (n, d), optional
            Mean action of each row given its context and instrument; the mean in a context is learned from
            these, or from the actions themselves where there are none.
        image : ImageColumns, optional
        """
        schema = data.context_schema
        context = TableEncoder.learn(data.context, schema.n_levels, n_bins, image, schema)
        actions = data.action_spec.vectors(data.action)
        coefficients = None
        if centred:
            coefficients, centre = _context_mean(context, data, actions if predicted is None else predicted)
            actions = actions - centre
        continuous = data.action_spec.kind == "continuous"
        knots = tuple(PiecewiseLinear.learn(column, n_bins) for column in actions.T) if continuous else ()
        return cls(context, data.action_spec.width, knots, coefficients)

    def centre(self, context: Table) -> npt.NDArray[np.float32]:
        """Return what is subtracted from an action in each context, shape (n, d)."""
        if self.centre_coefficients is None:
            return np.zeros((len(context), self.action_width), dtype=np.float32)
        parts = [
            _with_intercept(self.context.piecewise_linear(piece)) @ self.centre_coefficients
            for _, piece in pieces_of(context)
        ]
        return np.concatenate(parts).astype(np.float32)

    def context_features(self, context: Table, encoding: str) -> npt.NDArray[np.float32]:
        """Return context inputs, shape (n, width)."""
        if encoding not in STRUCTURAL_ENCODINGS:
            raise InputError(
                f"Expected second-stage encodings among {STRUCTURAL_ENCODINGS}, got {encoding!r}."
            )
        if encoding == "raw":
            features = self.context.raw(context)
        elif encoding == "standardised":
            features = self.context.standardised(context)
        else:
            features = self.context.piecewise_linear(context)
        if self.centre_coefficients is not None:
            features = np.hstack([features, self.centre(context)])
        return features.astype(np.float32)

    def action_encoder(self, encoding: str, device: torch.device) -> ActionEncoder:
        """Return the action part of an encoding as a function of tensors."""
        if encoding == "piecewise_action" and self.action_knots:
            return ActionEncoder(PiecewiseLinearTensor(list(self.action_knots), device))
        return ActionEncoder(None)

    def action_features_width(self, encoding: str) -> int:
        """Return how many inputs an action becomes."""
        if encoding == "piecewise_action" and self.action_knots:
            return self.action_width + sum(knots.width for knots in self.action_knots)
        return self.action_width


@savable
@dataclass(frozen=True)
class ActionEncoder:
    """Centred action vectors (..., d) to network inputs (..., width)."""

    piecewise: PiecewiseLinearTensor | None

    def __call__(self, actions: Tensor) -> Tensor:
        """Encode actions."""
        if self.piecewise is None:
            return actions
        return torch.cat([actions, self.piecewise.encode(actions)], dim=-1)


class StructuralColumns:
    """Makes the context inputs of a :class:`StructuralEncoder` from columns, for a batch at a time."""

    def __init__(self, encoder: StructuralEncoder, encoding: str, device: torch.device) -> None:
        if encoding not in STRUCTURAL_ENCODINGS:
            raise InputError(
                f"Expected second-stage encodings among {STRUCTURAL_ENCODINGS}, got {encoding!r}."
            )
        self._columns, self._encoding = ColumnEncoder(encoder.context, device), encoding
        self._action_width = encoder.action_width
        self._intercept, self._slopes = None, None
        if encoder.centre_coefficients is not None:
            whole = torch.as_tensor(encoder.centre_coefficients, dtype=torch.float32, device=device)
            self._intercept, self._slopes = whole[:1], whole[1:]

    @property
    def width(self) -> int:
        """Number of context inputs."""
        return self.encode(self._columns.no_rows())[0].shape[1]

    def encode(self, context: Columns) -> tuple[Tensor, Tensor]:
        """Return context inputs (n, width) and what is subtracted from actions there (n, d)."""
        bins = None
        if self._slopes is not None or self._encoding.startswith("piecewise"):
            bins = self._columns.piecewise_linear(context)
        if self._encoding == "raw":
            features = self._columns.raw(context)
        elif bins is None or self._encoding == "standardised":
            features = self._columns.standardised(context)
        else:
            features = bins
        if self._intercept is None or self._slopes is None or bins is None:
            return features, torch.zeros(
                (len(context), self._action_width), dtype=features.dtype, device=features.device
            )
        centre = torch.addmm(self._intercept, bins, self._slopes)
        return torch.cat([features, centre], dim=1), centre


def evaluate(net: StackedMLP, embedded: Tensor, action_features: Tensor) -> Tensor:
    """Return h (M, B, Q) from embedded contexts (M, B, e) and features of Q actions each (M, B, Q, a)."""
    n_actions = action_features.shape[2]
    wide = embedded.unsqueeze(2).expand(-1, -1, n_actions, -1)
    values = net.body(torch.cat([wide, action_features], dim=-1).flatten(1, 2))
    return values.view(action_features.shape[:3])


def pieces_of(context: Table) -> list[tuple[int, Table]]:
    """Return rows that are encoded together, each piece with the number of its first row.

    An ordinary table is one piece. The features of a large one are too wide to be held in double precision.
    """
    if len(context) <= LARGE_ROWS:
        return [(0, context)]
    starts = range(0, len(context), _PIECE_ROWS)
    return [(start, context.take(np.arange(len(context))[start : start + _PIECE_ROWS])) for start in starts]


def _context_mean(
    context: TableEncoder, data: TrainingData, actions: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Regress actions (n, d) on piecewise-linear contexts; return coefficients and fitted values (n, d)."""
    pieces, weight = pieces_of(data.context), data.weight[:, None]
    grams, moments, features = [], [], np.empty((0, 0))
    for start, piece in pieces:
        rows = slice(start, start + len(piece))
        features = _with_intercept(context.piecewise_linear(piece))
        grams.append(features.T @ (features * weight[rows]))
        moments.append(features.T @ (actions[rows] * weight[rows]))
    gram = reduce(np.add, grams)
    gram += _CENTRE_RIDGE * len(data) * np.diag([0.0] + [1.0] * (len(gram) - 1))
    coefficients = np.asarray(np.linalg.solve(gram, reduce(np.add, moments)), dtype=np.float64)
    if len(pieces) == 1:
        return coefficients, features @ coefficients
    fitted = [_with_intercept(context.piecewise_linear(piece)) @ coefficients for _, piece in pieces]
    return coefficients, np.concatenate(fitted)


def _with_intercept(features: FloatArray) -> FloatArray:
    return np.hstack([np.ones((len(features), 1)), features])
