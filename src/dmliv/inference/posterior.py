"""Intervals from the pilot: the posterior of its control-function regression, with robust noise.

Where the pilot is h, its regression is linear in the coefficients of its features. The posterior covariance
of the coefficients has two parts: what noise does to the estimate, and what shrinkage may have taken from h.
Here the first is a sandwich, which holds for noise that differs between rows and for clusters. The slopes of
the control variable are coefficients as well, and errors of the first stage are effects with a covariance of
their own, so that both widen the intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.first_stage.blocks import data_at
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.nuisances import PilotLearner
from dmliv.inference.functionals import POINTWISE, Band, Functional
from dmliv.inference.scores import ScoreProducts
from dmliv.kernels.additive import AdditiveKernel, Inputs
from dmliv.kernels.evidence import SLOPE_PRIOR
from dmliv.kernels.features import chunks
from dmliv.second_stage.pilot import ControlFunction, Pilot
from dmliv.second_stage.pilot_model import CONTROL, STRUCTURAL, PilotedModel, PilotSpace
from dmliv.second_stage.structural import StructuralModel

# A row that decides its own fit keeps this share of its residual's variance at least.
_LEAST_FREE = 0.05
# Rows that stand for all in the variance of a mean, and rows whose points are compared at once.
_MEAN_ROWS, _CHUNK_ROWS = 200, 32


@savable
@dataclass(frozen=True)
class Posterior:
    """Intervals from the posterior of the pilot.

    They hold if the pilot's assumption does: one control variable carries the confounding. The estimate in
    the middle is the plug-in estimate. Where the moments of the instrument contradict the pilot, where the
    instrument is too weak for one, or where another learner takes its place, there is no such posterior.
    """

    def check(self, n_folds: int, pilot: PilotLearner | None) -> None:
        """Refuse a fit that cannot have a posterior, before anything is fitted."""
        if n_folds < 2:
            raise InputError(
                "Expected n_folds of at least 2 for inference='posterior', got 1: where it does not hold, "
                "debiased intervals take its place. Use DMLIV, or inference='bootstrap'."
            )
        if not isinstance(pilot, ControlFunction):
            raise InputError(
                f"Expected pilot='control-function' for inference='posterior', got {pilot!r}; pass "
                "inference='debiased'."
            )

    def suits(self, first_stage: FirstStage, model: StructuralModel) -> bool:
        """Return whether h is a pilot with a posterior, and depends on the action."""
        return (
            isinstance(model, PilotedModel)
            and model.remainder is None
            and isinstance(first_stage.pilot, Pilot)
            and first_stage.pilot.model.details["control_variable"] != "none"
        )

    def learn(
        self, data: TrainingData, first_stage: FirstStage, *, cluster: IntArray | None = None
    ) -> PosteriorUncertainty:
        """Learn the covariance of the pilot's coefficients.

        Parameters
        ----------
        data : TrainingData
        first_stage : FirstStage
            With a pilot that :meth:`suits`.
        cluster : ndarray of int, shape (n,), optional
            Rows of one cluster may depend on each other.
        """
        pilot = first_stage.pilot
        if not isinstance(pilot, Pilot):
            raise TypeError(f"Expected a control-function pilot, got {type(pilot).__name__}.")
        if pilot.sample is not None:
            data = data_at(data, pilot.sample)
            cluster = None if cluster is None else cluster[pilot.sample]
        design = _Design(pilot, data)
        return design.uncertainty(cluster)


class _Design:
    """The columns of a pilot's regression: features, errors of the first stage, and the control variable."""

    def __init__(self, pilot: Pilot, data: TrainingData) -> None:
        self._pilot, self._data = pilot, data
        self._inputs = pilot.regression_inputs(data)
        regression, control = pilot.regression, pilot.first.control
        self._searched, self._n_features = regression.searched, len(regression.landmarks)
        scaled = [slope * error for slope, error in zip(self._searched.slopes, control.errors, strict=True)]
        self._errors = np.column_stack([*scaled, control.free])
        self._target = data.outcome - control.columns @ self._searched.slopes
        self._control = control.columns

    def uncertainty(self, cluster: IntArray | None) -> PosteriorUncertainty:
        """Return the covariance of features and slopes."""
        noise, m = self._searched.noise, self._n_features
        width = m + self._errors.shape[1]
        weight = self._data.weight
        gram, moment, of_control = np.zeros((width, width)), np.zeros(width), np.zeros(m)
        for rows, columns, control_part in self._parts():
            gram += (columns * weight[rows, None]).T @ columns
            moment += columns.T @ (weight[rows] * self._target[rows])
            of_control += weight[rows] @ control_part
        solution = cho_solve(cho_factor(gram + noise * np.eye(width)), moment)
        # The slope of the control variable acts on the variable as it is without its estimated error.
        corrected, start = self._control.copy(), m
        for column, error in enumerate(self._pilot.first.control.errors):
            corrected[:, column] += error @ solution[start : start + error.shape[1]]
            start += error.shape[1]
        k = corrected.shape[1]
        system, scores = np.zeros((width + k, width + k)), ScoreProducts(width + k, cluster)
        for rows, columns, _ in self._parts():
            whole = np.hstack([columns, corrected[rows]])
            system += (whole * weight[rows, None]).T @ whole
        prior = noise * np.concatenate([np.ones(width), np.full(k, SLOPE_PRIOR**-2)])
        inverse = cho_solve(cho_factor(system + np.diag(prior)), np.eye(width + k))
        for rows, columns, _ in self._parts():
            whole = np.hstack([columns, corrected[rows]])
            residual = self._target[rows] - columns @ solution
            leverage = weight[rows] * np.einsum("nd,de,ne->n", whole, inverse, whole)
            residual /= np.sqrt(np.maximum(1.0 - leverage, _LEAST_FREE))
            scores.add(rows, whole * (weight[rows] * residual)[:, None])
        covariance = inverse @ scores.sum() @ inverse + noise * (inverse * prior) @ inverse
        kept = np.concatenate([np.arange(m), width + np.arange(k)])
        level = np.concatenate([of_control, weight @ corrected]) / weight.sum()
        space = PilotSpace(self._pilot.first.columns, self._searched.kernel, self._pilot.regression.landmarks)
        return PosteriorUncertainty(
            space, self._pilot.regression.whiten, level, covariance[np.ix_(kept, kept)]
        )

    def _parts(self) -> Iterator[tuple[IntArray, FloatArray, FloatArray]]:
        """Yield rows, their columns, and the part of their features that is the control function's."""
        regression = self._pilot.regression
        kernel, landmarks, whiten = regression.searched.kernel, regression.landmarks, regression.whiten
        for rows in chunks(len(self._inputs)):
            inputs = self._inputs.take(rows)
            of_control = kernel.matrix(inputs, landmarks, CONTROL) @ whiten.T
            of_h = kernel.matrix(inputs, landmarks, STRUCTURAL) @ whiten.T
            yield rows, np.hstack([of_h + of_control, self._errors[rows]]), of_control


@savable
@dataclass(frozen=True, eq=False)
class PosteriorUncertainty:
    """The covariance of a pilot's coefficients.

    Attributes
    ----------
    space : PilotSpace
    whiten : ndarray, shape (m, m)
        Turns covariances with the landmarks into features.
    level : ndarray, shape (m + k,)
        Mean features of the control function, and mean control variables: what h is lifted by.
    covariance : ndarray, shape (m + k, m + k)
        Of the coefficients of the features and of the slopes of the control variables.
    """

    space: PilotSpace
    whiten: FloatArray
    level: FloatArray
    covariance: FloatArray

    name: ClassVar[str] = "posterior"

    @property
    def width(self) -> int:
        """Number of coefficients."""
        return len(self.level)

    @property
    def words(self) -> str:
        """What the intervals are."""
        return (
            f"{POINTWISE} and one control variable carries the confounding, as the pilot assumes. The "
            "moments of the instrument do not contradict that."
        )

    def evaluate(self, context: Table, action: FloatArray) -> FloatArray:
        """Return what h is at every row as a sum over coefficients, shape (n, m + k)."""
        found = np.tile(self.level, (len(context), 1))
        m = len(self.whiten)
        for rows in chunks(len(context)):
            found[rows, :m] += self._features(context.take(rows), action[rows])
        return found

    def unseen(self, functional: Functional, applied: FloatArray) -> FloatArray:
        """Return the variance of what the features cannot see, such as h far from all landmarks.

        Of a mean over many rows, some of them stand for all.
        """
        del applied
        n_rows, signs = len(functional.context), np.array([sign for sign, _ in functional.terms])
        if functional.weight is not None:
            some = np.unique(np.linspace(0, n_rows - 1, _MEAN_ROWS).astype(np.int64))
            weight = functional.weight[some] / functional.weight[some].sum()
            signed = np.outer(signs, weight).ravel()
            hidden = self._hidden(functional, some)
            return np.array([max(float(signed @ hidden @ signed), 0.0)])
        found = np.empty(n_rows)
        for start in range(0, n_rows, _CHUNK_ROWS):
            rows = np.arange(start, min(start + _CHUNK_ROWS, n_rows))
            hidden = self._hidden(functional, rows).reshape(2 * (len(signs), len(rows)))
            found[rows] = np.einsum("aibi,a,b->i", hidden, signs, signs)
        return np.maximum(found, 0.0)

    def band(self, plug_in: FloatArray, applied: FloatArray, unseen: FloatArray, alpha: float) -> Band:
        """Return the estimates with normal intervals."""
        variance = np.einsum("nd,de,ne->n", applied, self.covariance, applied) + unseen
        return Band.normal(plug_in, variance, alpha)

    def _features(self, context: Table, action: FloatArray) -> FloatArray:
        """Return features, shape (n, m)."""
        inputs = self._inputs(context, action)
        return self._kernel.matrix(inputs, self.space.landmarks) @ self.whiten.T

    def _hidden(self, functional: Functional, rows: IntArray) -> FloatArray:
        """Return covariances of what the features leave of h at some rows, one term after the other."""
        context = functional.context.take(rows)
        parts = [self._inputs(context, action[rows]) for _, action in functional.terms]
        inputs = Inputs(
            *(np.vstack(each) for each in zip(*(vars(part).values() for part in parts), strict=True))
        )
        features = self._kernel.matrix(inputs, self.space.landmarks) @ self.whiten.T
        return np.asarray(self._kernel.matrix(inputs, inputs) - features @ features.T)

    def _inputs(self, context: Table, action: FloatArray) -> Inputs:
        columns, nothing = self.space.columns, np.empty((len(action), 0))
        return columns.inputs(columns.context(context), action, nothing, nothing)

    @property
    def _kernel(self) -> AdditiveKernel:
        return self.space.kernel.part(STRUCTURAL)
