"""h in the space of a Gaussian kernel, in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dmliv.data import ActionSpec, FloatArray, Table, TableSchema, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import InputError, check_whole
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.resampling import Resample, most_stacked
from dmliv.kernels.features import KernelFeatures, LandmarkFeatures, chunks
from dmliv.kernels.projected import ProjectedProblem
from dmliv.kernels.ridge import PENALTIES, SEARCH_ROWS, regression_scales
from dmliv.nets.encoding import TableEncoder
from dmliv.nets.images import ImageColumns
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.structural import StructuralModel

_UNUSED_BINS = 2


@savable
@dataclass(frozen=True)
class KernelStructural:
    """Structural learner: kernel ridge regression of the target on the projected kernel.

    With landmarks l_j drawn from the data, the features of a row are the means of k((A, context), l_j) over
    its action distribution, and h is the ridge regression of the target on them. Every column has its own
    bandwidth. Bandwidths and penalty have the lowest leave-one-out error when the observed outcome is
    regressed in place of the target, except that the largest penalty is taken that is not clearly worse.
    Nothing is trained: the same seed gives the same numbers, and the seed only draws the landmarks and the
    rows the bandwidths are searched on. Far from the data h falls back to the mean outcome.

    Parameters
    ----------
    n_landmarks : int
        Landmarks; all rows if there are fewer.
    n_points : int
        Quadrature points per action column in the mean over an action distribution that has no closed form.
    n_search_rows : int
        Rows that bandwidths are searched on, at most.
    image : ImageColumns, optional
        Context columns that are pixels. They need fixed features, ``ImageColumns(features="gradients")``.
    """

    n_landmarks: int = 300
    n_points: int = 3
    n_search_rows: int = SEARCH_ROWS
    image: ImageColumns | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_whole(n_landmarks=self.n_landmarks, n_points=self.n_points, n_search_rows=self.n_search_rows)

    @property
    def needs_validation(self) -> bool:
        """Whether fair splits are needed; leaving rows out takes their place."""
        return False

    def fit(self, data: TrainingData, first_stage: FirstStage, *, seed: int, runtime: Runtime) -> KernelModel:
        """Choose bandwidths and penalty, then solve the normal equations of all rows."""
        bandwidths = self.search(data, first_stage, seed=seed, runtime=runtime)
        return self.solve(data, first_stage, bandwidths, seed=seed, runtime=runtime)

    def search(
        self, data: TrainingData, first_stage: FirstStage, *, seed: int, runtime: Runtime
    ) -> KernelBandwidths:
        """Search the bandwidths, on part of the rows if there are many."""
        generator = np.random.default_rng(seed)
        encoder = kernel_encoder(data.context, data.context_schema, self.image)
        context, blocks = encoder.standardised(data.context), column_blocks(encoder)
        mean_action = first_stage.distribution.mean().cpu().double().numpy()
        # Outcome and mean action tell which columns of the context matter and how fast they act.
        targets = np.column_stack([data.outcome, mean_action / np.sqrt(mean_action.shape[1])])
        start = regression_scales(context, blocks, targets, data.weight, generator, runtime.progress)
        problem = self._problem(data, encoder, first_stage)
        scales = problem.search(
            start, self.n_landmarks, generator, n_rows=self.n_search_rows, progress=runtime.progress
        )
        return KernelBandwidths(encoder, scales)

    def solve(
        self,
        data: TrainingData,
        first_stage: FirstStage,
        bandwidths: KernelBandwidths,
        *,
        seed: int,
        runtime: Runtime,
        penalties: FloatArray = PENALTIES,
    ) -> KernelModel:
        """Choose one of the penalties and solve the normal equations of all rows."""
        encoder = bandwidths.encoder
        problem = self._problem(data, encoder, first_stage)
        generator = np.random.default_rng([seed, 1])
        fitted = problem.fit(
            bandwidths.scales, self.n_landmarks, generator, penalties=penalties, progress=runtime.progress
        )
        chosen = {"penalty": fitted.penalty, "n_features": fitted.features.width}
        return KernelModel(encoder, fitted.features, fitted.weights, chosen)

    def can_fit_again(self, model: StructuralModel) -> bool:
        """Return whether a model has bandwidths of its own, which random features have not."""
        return isinstance(model, KernelModel) and isinstance(model.features, LandmarkFeatures)

    def most_replicates(self, model: StructuralModel) -> int:
        """Return how many replicates are worth fitting at once: as many as the first stage likes."""
        del model
        return most_stacked(1)

    def fit_again(
        self,
        data: TrainingData,
        model: StructuralModel,
        first_stages: Sequence[FirstStage],
        resamples: Sequence[Resample],
        *,
        runtime: Runtime,
    ) -> list[KernelModel]:
        """Solve the normal equations of resampled rows, with the bandwidths and the penalty of a model."""
        if not isinstance(model, KernelModel) or not isinstance(model.features, LandmarkFeatures):
            raise TypeError(f"Expected a kernel model with landmarks, got {type(model).__name__}.")
        bandwidths = KernelBandwidths(model.encoder, model.features.scales)
        penalties = np.array([model.chosen["penalty"]])
        found = []
        for first_stage, resample in zip(first_stages, resamples, strict=True):
            # Each row weighs as much as all its copies.
            rows = replace(data, weight=data.weight * resample.counts)
            seed = resample.structural_seed
            found.append(
                self.solve(rows, first_stage, bandwidths, seed=seed, runtime=runtime, penalties=penalties)
            )
        return found

    def _problem(
        self, data: TrainingData, encoder: TableEncoder, first_stage: FirstStage
    ) -> ProjectedProblem:
        return ProjectedProblem(
            action=data.action_spec.vectors(data.action),
            action_blocks=action_blocks(data.action_spec),
            context=encoder.standardised(data.context),
            context_blocks=column_blocks(encoder),
            means=partial(first_stage.distribution.kernel_means, n_points=self.n_points),
            target=first_stage.target,
            outcome=data.outcome,
            weight=data.weight,
        )


@savable
@dataclass(frozen=True, eq=False)
class KernelBandwidths:
    """How contexts become numbers, and the bandwidth of every column of (action, context), shape (d,)."""

    encoder: TableEncoder
    scales: FloatArray


@savable(dropped={"choice_losses": {}})
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
        Penalties and the width.
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


def kernel_encoder(table: Table, schema: TableSchema, image: ImageColumns | None = None) -> TableEncoder:
    """Return the encoder of a kernel's inputs, which are fixed numbers."""
    encoder = TableEncoder.learn(table, schema.n_levels, _UNUSED_BINS, image, schema)
    if encoder.pixels(table) is not None:
        raise InputError(
            "Expected fixed image features for a kernel, got ImageColumns(features='convolution'); use "
            "features='gradients', or a neural learner."
        )
    return encoder


def column_blocks(encoder: TableEncoder) -> list[int]:
    """Return how many standardised columns each variable has: one, its levels, or all image features."""
    image = [encoder.n_image_features] if encoder.n_image_features else []
    return [1] * len(encoder.scale) + list(encoder.n_levels) + image


def action_blocks(spec: ActionSpec) -> list[int]:
    """Return the same for action vectors."""
    return [spec.width] if spec.kind == "discrete" else [1] * spec.width
