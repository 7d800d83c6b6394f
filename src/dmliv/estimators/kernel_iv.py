"""Kernel instrumental-variable regression: two kernel ridge regressions on two samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from scipy.linalg import eigh
from sklearn.utils import check_random_state

from dmliv.counterfactual import Counterfactual
from dmliv.data import ActionKind, FloatArray, IntArray, Table, TrainingData, prepare
from dmliv.errors import InputError
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.kernels import (
    Bandwidth,
    FourierFeatures,
    KernelFeatures,
    LandmarkFeatures,
    Moments,
    chunks,
    median_scales,
    ridge_path,
)
from dmliv.nets.encoding import TableEncoder
from dmliv.progress import progress_for
from dmliv.second_stage.base import action_vectors

FeatureKind = Literal["auto", "exact", "random"]
Tuning = Literal["published", "valid"]

# Above this many rows the decompositions of exact kernel matrices take minutes.
_MOST_EXACT_ROWS = 3000
_FEWEST_ROWS = 20
_UNUSED_BINS = 2
# Shares of the rows: first stage, second stage and, for the valid rule, the choice of the second penalty.
_SHARES: dict[str, tuple[float, ...]] = {"published": (0.5, 0.5), "valid": (0.4, 0.4, 0.2)}


@dataclass(frozen=True, eq=False)
class KernelModel:
    """A fitted h in a kernel's space.

    Attributes
    ----------
    encoder : TableEncoder
        Turns contexts into numbers.
    features : KernelFeatures
        Of rows (action, context).
    weights : ndarray, shape (width,)
    chosen : dict of str to float
        Both penalties and the width.
    """

    encoder: TableEncoder
    features: KernelFeatures
    weights: FloatArray
    chosen: dict[str, float]

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""
        rows = self._rows(context, action)
        parts = [self.features.encode(rows[part]) @ self.weights for part in chunks(len(rows))]
        return np.concatenate([np.empty(0), *parts])

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action."""
        columns = self.encoder.standardised(context)
        parts = [self.features.grid(self.weights, actions, columns[part]) for part in chunks(len(columns))]
        return np.vstack([np.empty((0, len(actions))), *parts])

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative of h in the action."""
        rows, width = self._rows(context, action), action.shape[1]
        parts = [self.features.gradient(self.weights, rows[part], width) for part in chunks(len(rows))]
        return np.vstack([np.empty((0, width)), *parts])

    def describe(self) -> dict[str, object]:
        """Return the penalties and the number of features."""
        return dict(self.chosen)

    def _rows(self, context: Table, action: FloatArray) -> FloatArray:
        return np.hstack([action, self.encoder.standardised(context)])


class KernelIV(CounterfactualEstimator):
    """Kernel instrumental-variable regression (Singh, Sahani and Gretton, 2019).

    The first stage regresses features of (action, context) on features of (instrument, context) by ridge
    regression on one half of the rows. The second stage regresses the outcome on the predicted features, on
    the other half. Far from the data h falls back to the mean outcome.

    Parameters
    ----------
    features : {"auto", "exact", "random"}
        Exact kernels, random Fourier features, or exact up to 3000 rows and random above.
    n_features : int
        Number of random Fourier features; 100 in published comparisons.
    bandwidth : {"product", "joint"}
        A product of Gaussian kernels, one per column (per categorical column: one on its one-hot block), each
        with the median distance as bandwidth; it does not depend on units. Or one Gaussian kernel on the
        concatenated columns in the user's units, so that columns with large numbers count most.
    bandwidth_scale : float, optional
        Factor on all bandwidths; 1 is the published rule. By default 1 for the joint kernel and the root of
        the number of columns for the product, which otherwise vanishes between rows of many columns.
    tuning : {"published", "valid"}
        How the penalty of the second stage is chosen. The published rule compares h with the observed
        outcomes of the first half, which are confounded. The valid rule keeps a fifth of the rows apart and
        compares their outcomes with the *projected* h, as the instruments allow.
    first_penalties, second_penalties : sequence of float, optional
        Ridge penalties to choose from, per row; default 50 values from 1e-2 to 1e-10.
    action_kind : {"auto", "continuous", "discrete"}
        As for :class:`dmliv.DMLIV`.
    random_state : int, RandomState or None
        Seed of the split and of random features.
    verbose : bool
        Show progress bars.

    Attributes
    ----------
    first_penalty_, second_penalty_ : float
        The chosen penalties.
    first_stage_errors_, second_stage_errors_ : ndarray, shape (number of penalties,)
        The criterion that chose each, in model units; the first without a constant.
    structural_model_ : KernelModel
        The fitted h in model units.
    counterfactual_ : Counterfactual
        The fitted h in the user's units.
    """

    first_penalty_: float
    second_penalty_: float
    first_stage_errors_: FloatArray
    second_stage_errors_: FloatArray
    structural_model_: KernelModel

    def __init__(
        self,
        features: FeatureKind = "auto",
        *,
        n_features: int = 500,
        bandwidth: Bandwidth = "product",
        bandwidth_scale: float | None = None,
        tuning: Tuning = "published",
        first_penalties: Sequence[float] | None = None,
        second_penalties: Sequence[float] | None = None,
        action_kind: ActionKind = "auto",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ) -> None:
        self.features = features
        self.n_features = n_features
        self.bandwidth = bandwidth
        self.bandwidth_scale = bandwidth_scale
        self.tuning = tuning
        self.first_penalties = first_penalties
        self.second_penalties = second_penalties
        self.action_kind = action_kind
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, Y: object, T: object, *, Z: object, X: object = None, sample_weight: object = None) -> Self:
        """Learn h from outcome, action, instrument and context.

        Takes what :meth:`dmliv.DMLIV.fit` takes. Rows of weight zero are left out.

        Raises
        ------
        InputError
            If the data or a parameter cannot be used. The estimator is left as it was.
        """
        self._check_parameters()
        first_penalties = _penalties("first_penalties", self.first_penalties)
        second_penalties = _penalties("second_penalties", self.second_penalties)
        kind = self.action_kind
        data = prepare(Y, T, Z=Z, X=X, sample_weight=sample_weight, action_kind=kind, min_rows=_FEWEST_ROWS)
        used = np.flatnonzero(data.weight > 0)
        if len(used) < _FEWEST_ROWS:
            raise InputError(
                f"Expected at least {_FEWEST_ROWS} rows of positive weight, got {len(used)}; pass more data."
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        generator = np.random.default_rng(seed)
        ends = np.cumsum(_SHARES[self.tuning])[:-1] * len(used)
        samples = np.split(generator.permutation(used), ends.round().astype(int))
        encoder, (rows, structural), (instruments, exogenous) = self._choose_features(
            data, samples, generator
        )
        n_chunks = sum(len(chunks(len(sample))) for sample in samples)
        with progress_for(self.verbose).stage("kernel features", n_chunks) as advance:
            moments = [
                Moments.of(
                    structural,
                    exogenous,
                    (rows[part], instruments[part], data.outcome[part], data.weight[part]),
                    advance,
                )
                for part in samples
            ]
        first, second = moments[0], moments[1]
        first_errors, projection = _first_stage(first, second, first_penalties)
        weights = ridge_path(
            projection.T @ second.zz @ projection,
            projection.T @ second.zy,
            second_penalties * second.total,
        )
        if self.tuning == "published":
            second_errors = _squared_errors(first.xx, first.xy, first.yy, weights) / first.total
        else:
            third, projected = moments[2], projection @ weights
            second_errors = _squared_errors(third.zz, third.zy, third.yy, projected) / third.total
        chosen = int(np.argmin(second_errors))
        penalty = float(first_penalties[np.argmin(first_errors)])
        model = KernelModel(
            encoder,
            structural,
            weights[:, chosen],
            {
                "first_penalty": penalty,
                "second_penalty": float(second_penalties[chosen]),
                "n_features": structural.width,
            },
        )
        # Everything is ready: only now does the estimator change.
        self.first_penalty_, self.second_penalty_ = penalty, float(second_penalties[chosen])
        self.first_stage_errors_, self.second_stage_errors_ = first_errors, second_errors
        self.structural_model_ = model
        self.counterfactual_ = Counterfactual(model, data.outcome_spec, data.action_spec, data.context_schema)
        return self

    def _choose_features(
        self, data: TrainingData, samples: Sequence[IntArray], generator: np.random.Generator
    ) -> tuple[TableEncoder, tuple[FloatArray, KernelFeatures], tuple[FloatArray, KernelFeatures]]:
        """Return the context encoder; rows and features of (action, context) and (instrument, context)."""
        encoder = TableEncoder.learn(data.context, data.context_schema.n_levels, _UNUSED_BINS)
        context = _encode(data.context, encoder)
        z_encoder = TableEncoder.learn(data.instrument, data.instrument_schema.n_levels, _UNUSED_BINS)
        first_sample, used = samples[0], np.concatenate(samples)
        exact = self.features == "exact" or (self.features == "auto" and len(used) <= _MOST_EXACT_ROWS)
        parts = []
        for variables in (_encode_action(data), _encode(data.instrument, z_encoder)):
            rows = np.hstack([variables.columns, context.columns])
            blocks = [*variables.blocks, *context.blocks]
            units = np.concatenate([variables.units, context.units])
            # The product rule of the literature uses every row, the joint rule those of the first stage.
            measured = used if self.bandwidth == "product" else first_sample
            scales = median_scales(rows[measured], blocks, units, self.bandwidth, generator)
            factor = self.bandwidth_scale
            if factor is None:
                factor = np.sqrt(len(blocks)) if self.bandwidth == "product" else 1.0
            features: KernelFeatures = (
                LandmarkFeatures.learn(rows[first_sample], scales * factor)
                if exact
                else FourierFeatures.draw(scales * factor, self.n_features, generator)
            )
            parts.append((rows, features))
        return encoder, parts[0], parts[1]

    def _check_parameters(self) -> None:
        allowed = {
            "features": ("auto", "exact", "random"),
            "bandwidth": ("product", "joint"),
            "tuning": ("published", "valid"),
        }
        for name, values in allowed.items():
            value = getattr(self, name)
            if value not in values:
                raise InputError(f"Expected {name} to be one of {values}, got {value!r}; pass one of them.")
        scale = self.bandwidth_scale
        numeric = scale is None or isinstance(scale, (int, float, np.number))
        if not numeric or (scale is not None and not 0.0 < scale < np.inf):
            raise InputError(
                f"Expected a positive bandwidth_scale or None, got {scale!r}; pass 1.0 for the median rule."
            )
        if not isinstance(self.n_features, (int, np.integer)) or self.n_features < 1:
            raise InputError(
                f"Expected a positive whole number of random features, got n_features={self.n_features!r}; "
                "pass one, such as 500."
            )


def _penalties(name: str, values: Sequence[float] | None) -> FloatArray:
    if values is None:
        return np.logspace(-2.0, -10.0, 50)
    try:
        penalties = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        penalties = np.empty(0)
    if penalties.ndim != 1 or not penalties.size or not np.all(np.isfinite(penalties) & (penalties > 0.0)):
        raise InputError(f"Expected a sequence of positive numbers, got {name}={values!r}; pass penalties.")
    return penalties


@dataclass(frozen=True, eq=False)
class _Variables:
    """Standardised columns (n, d) of one role, the widths of its variables and the user's units (d,)."""

    columns: FloatArray
    blocks: list[int]
    units: FloatArray


def _encode(table: Table, encoder: TableEncoder) -> _Variables:
    units = np.concatenate([encoder.scale, np.ones(sum(encoder.n_levels))])
    return _Variables(encoder.standardised(table), [1] * len(encoder.scale) + list(encoder.n_levels), units)


def _encode_action(data: TrainingData) -> _Variables:
    spec, columns = data.action_spec, action_vectors(data.action_spec, data.action)
    if spec.kind == "discrete":
        return _Variables(columns, [spec.width], np.ones(spec.width))
    return _Variables(columns, [1] * spec.width, spec.scale)


def _first_stage(first: Moments, second: Moments, penalties: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Regress structural on instrument features and choose the penalty on the second sample.

    Returns
    -------
    errors : ndarray, shape (g,)
        Mean squared error of the predicted features on the second sample, up to a constant.
    projection : ndarray, shape (p, q)
        Coefficients under the best penalty.
    """
    values, vectors = eigh(first.zz)
    values = np.maximum(values, 0.0)
    rotated = vectors.T @ first.zx
    # In the eigenbasis a penalty only rescales rows, so both traces of the error cost O(p^2) per penalty.
    cross = np.sum((vectors.T @ second.zx) * rotated, axis=1)
    square = (vectors.T @ second.zz @ vectors) * (rotated @ rotated.T)
    shrinkage = 1.0 / (values[:, None] + first.total * penalties)
    errors = (np.sum(shrinkage * (square @ shrinkage), axis=0) - 2.0 * (cross @ shrinkage)) / second.total
    best = shrinkage[:, np.argmin(errors)]
    return errors, np.asarray(vectors @ (best[:, None] * rotated))


def _squared_errors(gram: FloatArray, moment: FloatArray, square: float, weights: FloatArray) -> FloatArray:
    """Return sum (y - phi' w)^2 for every column w of ``weights`` (p, g), from sums of products."""
    return np.asarray(square - 2.0 * (moment @ weights) + np.sum(weights * (gram @ weights), axis=0))
