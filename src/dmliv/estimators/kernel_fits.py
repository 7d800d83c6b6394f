"""The two ways kernel IV is fitted: with learned bandwidths, and on separate samples as published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.kernels.features import (
    KernelFeatures,
    LandmarkFeatures,
    Moments,
    chunks,
    gaussian_kernel,
    regress_features,
    ridge_path,
)
from dmliv.kernels.projected import ProjectedProblem
from dmliv.kernels.ridge import regression_scales
from dmliv.nets.encoding import TableEncoder
from dmliv.nets.images import ImageColumns
from dmliv.progress import ProgressReporter
from dmliv.second_stage.kernel import action_blocks, column_blocks, kernel_encoder

# Halves that exchange their first stages when bandwidths are learned.
_N_FOLDS = 2


@dataclass(frozen=True, eq=False)
class Variables:
    """Standardised columns (n, d), the widths of the variables they stand for and the user's units (d,)."""

    columns: FloatArray
    blocks: list[int]
    units: FloatArray

    @classmethod
    def encode(cls, table: Table, encoder: TableEncoder) -> Variables:
        """Encode the rows of a table."""
        columns = encoder.standardised(table)
        units = np.concatenate([encoder.scale, np.ones(columns.shape[1] - len(encoder.scale))])
        return cls(columns, column_blocks(encoder), units)

    def beside(self, other: Variables) -> Variables:
        """Return these columns followed by others."""
        columns, units = np.hstack([self.columns, other.columns]), np.concatenate([self.units, other.units])
        return Variables(columns, [*self.blocks, *other.blocks], units)


@dataclass(frozen=True, eq=False)
class StageInputs:
    """The variables of both stages: (action, context) and (instrument, context)."""

    context_encoder: TableEncoder
    action: Variables
    context: Variables
    structural: Variables
    exogenous: Variables

    @classmethod
    def encode(cls, data: TrainingData, image: ImageColumns | None) -> StageInputs:
        """Encode training rows."""
        encoder = kernel_encoder(data.context, data.context_schema, image)
        context = Variables.encode(data.context, encoder)
        instrument = Variables.encode(
            data.instrument, kernel_encoder(data.instrument, data.instrument_schema)
        )
        spec = data.action_spec
        units = spec.scale if spec.kind == "continuous" else np.ones(spec.width)
        action = Variables(spec.vectors(data.action), action_blocks(spec), units)
        return cls(encoder, action, context, action.beside(context), instrument.beside(context))


@dataclass(frozen=True, eq=False)
class KernelSolution:
    """h as features and weights, with the chosen penalties and the errors that chose them."""

    features: KernelFeatures
    weights: FloatArray
    first_penalty: float
    second_penalty: float
    first_errors: FloatArray
    second_errors: FloatArray


def fit_samples(
    data: TrainingData,
    inputs: StageInputs,
    features: Sequence[KernelFeatures],
    samples: Sequence[IntArray],
    penalties: tuple[FloatArray, FloatArray],
    progress: ProgressReporter,
) -> KernelSolution:
    """Fit the published estimator: the first stage on one sample, the second on another."""
    structural, exogenous = features
    n_chunks = sum(len(chunks(len(sample))) for sample in samples)
    with progress.stage("kernel features", n_chunks) as advance:
        moments = [
            Moments.of(
                structural,
                exogenous,
                (
                    inputs.structural.columns[part],
                    inputs.exogenous.columns[part],
                    data.outcome[part],
                    data.weight[part],
                ),
                advance,
            )
            for part in samples
        ]
    first, second = moments[0], moments[1]
    first_errors, projection = regress_features(first, second, penalties[0])
    weights = ridge_path(
        projection.T @ second.zz @ projection, projection.T @ second.zy, penalties[1] * second.total
    )
    if len(samples) == 2:
        second_errors = _squared_errors(first.xx, first.xy, first.yy, weights) / first.total
    else:
        third, projected = moments[2], projection @ weights
        second_errors = _squared_errors(third.zz, third.zy, third.yy, projected) / third.total
    chosen = int(np.argmin(second_errors))
    first_penalty = float(penalties[0][np.argmin(first_errors)])
    return KernelSolution(
        structural,
        weights[:, chosen],
        first_penalty,
        float(penalties[1][chosen]),
        first_errors,
        second_errors,
    )


def fit_learned(
    data: TrainingData,
    inputs: StageInputs,
    n_landmarks: int,
    penalties: tuple[FloatArray, FloatArray],
    generator: np.random.Generator,
    progress: ProgressReporter,
) -> KernelSolution:
    """Learn all bandwidths, cross-fit the first stage and fit the second on all rows."""
    columns, action = inputs.exogenous.columns, inputs.action.columns
    used = generator.permutation(np.flatnonzero(data.weight > 0.0))
    targets = np.column_stack([data.outcome, action / np.sqrt(action.shape[1])])
    scales = regression_scales(columns, inputs.exogenous.blocks, targets, data.weight, generator, progress)
    fold = np.zeros(len(data), dtype=np.int64)
    fold[used] = np.arange(len(used)) % _N_FOLDS
    means = CrossFittedMeans(
        LandmarkFeatures.learn(columns[np.sort(used[:n_landmarks])], scales),
        columns,
        action,
        data.weight,
        fold,
        penalties[0],
    )
    problem = ProjectedProblem(
        action=action,
        action_blocks=inputs.action.blocks,
        context=inputs.context.columns,
        context_blocks=inputs.context.blocks,
        means=means.at,
        target=data.outcome,
        outcome=data.outcome,
        weight=data.weight,
    )
    n_context = inputs.context.columns.shape[1]
    fitted = problem.solve(
        scales[len(scales) - n_context :],
        n_landmarks,
        generator,
        penalties=penalties[1],
        progress=progress,
    )
    width = action.shape[1]
    errors, _ = means.regressions(fitted.features.landmarks[:, :width], fitted.features.scales[:width])[0]
    first_penalty = float(penalties[0][np.argmin(errors)])
    return KernelSolution(
        fitted.features, fitted.weights, first_penalty, fitted.penalty, errors, fitted.losses
    )


@dataclass(frozen=True, eq=False)
class _ActionKernel:
    """Kernels of actions with landmark actions (m, d), as features."""

    landmarks: FloatArray
    scales: FloatArray

    @property
    def width(self) -> int:
        return len(self.landmarks)

    def encode(self, rows: FloatArray) -> FloatArray:
        return gaussian_kernel(rows, self.landmarks, self.scales)


@dataclass(frozen=True, eq=False)
class CrossFittedMeans:
    """Mean kernels of actions by ridge regression on features of (instrument, context) in the other folds."""

    exogenous: LandmarkFeatures
    columns: FloatArray
    action: FloatArray
    weight: FloatArray
    fold: IntArray
    penalties: FloatArray
    _known: dict[bytes, list[tuple[FloatArray, FloatArray]]] = field(default_factory=dict)

    def at(self, rows: IntArray, landmarks: FloatArray, scales: FloatArray) -> FloatArray:
        """Return E[k(A, landmark)] for rows (n,) and landmark actions (m, d), shape (n, m)."""
        encoded, found = self.exogenous.encode(self.columns[rows]), np.empty((len(rows), len(landmarks)))
        for number, (_, projection) in enumerate(self.regressions(landmarks, scales)):
            own = self.fold[rows] == number
            found[own] = encoded[own] @ projection
        return found

    def regressions(self, landmarks: FloatArray, scales: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
        """Return, for every fold, the errors of the penalties and the coefficients from the other fold."""
        key = scales.tobytes() + landmarks.tobytes()
        if key not in self._known:
            kernel = _ActionKernel(landmarks, scales)
            samples = [np.flatnonzero((self.fold == k) & (self.weight > 0.0)) for k in range(_N_FOLDS)]
            moments = [
                Moments.of(
                    kernel,
                    self.exogenous,
                    (self.action[part], self.columns[part], np.zeros(len(part)), self.weight[part]),
                    lambda: None,
                )
                for part in samples
            ]
            # Only the last bandwidth is needed again: all chunks of rows ask for the same one.
            self._known.clear()
            self._known[key] = [
                regress_features(moments[1 - k], moments[k], self.penalties) for k in range(_N_FOLDS)
            ]
        return self._known[key]


def _squared_errors(gram: FloatArray, moment: FloatArray, square: float, weights: FloatArray) -> FloatArray:
    """Return sum (y - phi' w)^2 for every column w of ``weights`` (p, g), from sums of products."""
    return np.asarray(square - 2.0 * (moment @ weights) + np.sum(weights * (gram @ weights), axis=0))
