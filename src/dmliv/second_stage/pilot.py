"""The pilot: a control-function regression that h starts from.

If one residual V of the action given context and instrument carries the confounding, then
E[outcome | C, Z, A] = h(C, A) + lambda(V): an ordinary regression, with all of the action's variation
(Newey, Powell and Vella, 1999; Imbens and Newey, 2009). DML-IV then needs to learn only what the pilot
leaves: E[outcome - pilot(C, A) | C, Z] is the projection of h - pilot, whatever the pilot is.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from scipy.linalg import eigh

from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.data.savable import savable
from dmliv.errors import InputError, check_whole
from dmliv.first_stage.blocks import data_at, sample_rows
from dmliv.first_stage.distributions import ActionDistribution
from dmliv.kernels.additive import Inputs, Term
from dmliv.kernels.evidence import Control, Rows, Searched, whitening
from dmliv.kernels.features import chunks
from dmliv.kernels.process import ProcessSettings, Regression, regress, start_kernel
from dmliv.nets.encoding import products
from dmliv.nets.images import ImageColumns
from dmliv.nets.settings import LARGE_ROWS
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.action_mean import ActionMean, PilotRows
from dmliv.second_stage.pilot_model import CONTROL, STRUCTURAL, PilotModel, PilotSpace

# Changes of the control variable's slope with context and instrument that are expected: hardly any. A
# larger value leaves h less certain wherever the instrument is not strong, though in most data the slope is
# the same everywhere. Between contexts the evidence has to be strong: where the instrument is weak, level and
# slopes of h can look like it.
_SLOPE_CHANGE, _SLOPE_CHANGE_SPREAD = 0.003, 0.5
# Amplitude of the common slope of the action: fixed and wide, so that a straight effect is hardly shrunk.
_SLOPE, _FIXED = 1.0, 0.1
# Amplitudes of what the mean action in a context adds to the level, in common and by context columns. They
# are fixed and large, so that contexts in which the action is higher say nothing about its effect.
_CENTRE, _CENTRE_BY_CONTEXT = 3.0, 1.0
# Amplitude expected of slopes that bend in one context column. With more columns than so many the search has
# too many amplitudes to find; slopes then bend in all columns together.
_BENDING_SLOPE, _MOST_SLOPES = 0.1, 10
# Rows that the moments of the remainder are tested on, at most.
_TEST_ROWS = 5000
# Standard deviations of the remainder that are tried, in those of h before the data were seen.
_REMAINDER_SIZES = (0.05, 0.1, 0.2, 0.4, 0.8)


@savable
@dataclass(frozen=True, eq=False)
class Pilot:
    """A fitted pilot.

    Attributes
    ----------
    values : ndarray, shape (n,)
        The pilot at the observed actions of the rows it learned from, for each by a fit without its fold.
    model : PilotModel
        The pilot of all of these rows.
    first : ActionMean
    regression : Regression
    sample : ndarray of int, shape (n,), or None
        These rows among all rows of a large table; None if they are all.
    """

    values: FloatArray
    model: PilotModel
    first: ActionMean
    regression: Regression
    sample: IntArray | None = None

    def at(self, data: TrainingData) -> FloatArray:
        """Return the pilot at the observed actions of all rows, shape (n,)."""
        if self.sample is None:
            return self.values
        found = self.model.predict(data.context, data.action_spec.vectors(data.action))
        found[self.sample] = self.values
        return found

    def project(self, context: Table, distribution: ActionDistribution) -> FloatArray:
        """Return the mean of the pilot of all rows over the action distribution of every row, shape (n,)."""
        if self.sample is None:
            return self.model.project_columns(self.first.context, distribution, np.arange(len(context)))
        found = self.model.project(context, distribution)
        found[self.sample] = self.model.project_columns(self.first.context, distribution, self.sample)
        return found

    def regression_inputs(self, data: TrainingData) -> Inputs:
        """Return what the regression of the outcome sees of its rows, whose ``data`` these are."""
        return _regression_inputs(self.first, data.action_spec.vectors(data.action))

    def evidence_against(
        self, data: TrainingData, distribution: ActionDistribution, *, seed: int
    ) -> dict[str, float]:
        """Return the logarithm of the Bayes factor for a remainder, by its size.

        The remainder h - pilot has the covariances of h, times a small factor: of its common slope, its
        common curve, all slopes, or slopes and curves. Its projection on context and instrument is then a
        Gaussian process too, and outcome minus pilot either has it as its mean, or none.

        Parameters
        ----------
        data : TrainingData
            With the outcome as it was observed.
        distribution : ActionDistribution
        seed : int
            Draws the rows, if there are many.
        """
        sample = np.arange(len(data)) if self.sample is None else self.sample
        used = np.flatnonzero(data.weight[sample] > 0.0)
        chosen = np.sort(np.random.default_rng([seed, 8]).permutation(used)[:_TEST_ROWS])
        rows = sample[chosen]
        root = np.sqrt(data.weight[rows])
        left = root * (data.outcome[rows] - self.values[chosen])
        noise = max(float(left @ left) / len(rows), np.finfo(np.float64).eps)
        found = {}
        # Terms that the pilot does without are among what it may leave.
        space = replace(self.model.space, kernel=self.regression.searched.candidates).of_action()
        parts = space.parts()
        projections = {name: np.zeros((len(rows), len(space.landmarks))) for name in parts}
        for number, values in enumerate(space.projected(self.first.context[chosen], distribution, rows)):
            for name in parts:
                if number in parts[name]:
                    projections[name] += values
        for name, projection in projections.items():
            kernel, projected = space.kernel.only(parts[name]), projection * root[:, None]
            whiten = whitening(kernel.matrix(space.landmarks, space.landmarks))
            values, vectors = eigh(whiten @ (projected.T @ projected) @ whiten.T)
            values, moments = np.maximum(values, 0.0), vectors.T @ (whiten @ (projected.T @ left))
            for size in _REMAINDER_SIZES:
                signal = size**2 * values
                gain = np.sum(size**2 * moments**2 / (noise * (noise + signal)) - np.log1p(signal / noise))
                found[f"{name}, {size:g}"] = 0.5 * float(gain)
        # A pilot without the action stands: an instrument that says so little cannot contradict it.
        return found or {"nothing": 0.0}


@savable(dropped={"least_strength": 5.0})
@dataclass(frozen=True)
class ControlFunction:
    """Pilot learner: h(context, action) + lambda(residual of the action), by Gaussian processes.

    H is a varying-coefficient model, a level and a slope of the action that depend on the context, with
    curves in the action where the data ask for them.

    Lambda is a curve in the residual, plus the residual times a line in context and instrument: where the
    confounding differs between contexts, or the residual means something else at another instrument, its
    slope may follow.

    The mean of the action given context and instrument is a regression of its own. The error it was estimated
    with is a part of the second regression's model, so that it does not pull h towards the confounded
    regression. Amplitudes and length scales have the highest marginal likelihood, and terms without which it
    is no lower are left out; h and lambda follow in closed form, for each row without its fold.

    Parameters
    ----------
    settings : ProcessSettings
    most_rows : int
        Of a larger table, the pilot is learned from a sample of so many rows.
    least_evidence : float
        Where the logarithm of the Bayes factor that the instrument moves the action is below this, the pilot
        is the mean outcome in a context, and h has no effect of the action.
    image : ImageColumns, optional
        Context columns that are pixels, as fixed features; an estimator passes that of its learners.
    """

    settings: ProcessSettings = field(default_factory=ProcessSettings)
    least_evidence: float = 3.0
    most_rows: int = LARGE_ROWS
    image: ImageColumns | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_whole(most_rows=self.most_rows)
        if not isinstance(self.least_evidence, (int, float, np.number)) or np.isnan(self.least_evidence):
            raise InputError(f"Expected a number for least_evidence, got {self.least_evidence!r}.")

    def fit(
        self,
        data: TrainingData,
        distribution: ActionDistribution,
        fold: IntArray,
        *,
        seed: int,
        runtime: Runtime,
    ) -> Pilot:
        """Fit the pilot to all rows, or to a sample of a large table, and without each fold.

        Parameters
        ----------
        data : TrainingData
        distribution : ActionDistribution
            Action distribution of every row, by models that did not see its fold.
        fold : ndarray of int, shape (n,)
        seed : int
            Draws landmarks and the rows that parameters are searched on.
        runtime : Runtime
        """
        rows, sample = self._rows(data, distribution, fold, seed, runtime)
        return replace(self._fit_anew(rows, seed), sample=sample)

    def fit_again(
        self,
        data: TrainingData,
        distribution: ActionDistribution,
        fold: IntArray,
        like: Pilot,
        *,
        seed: int,
        runtime: Runtime,
    ) -> Pilot:
        """Fit a pilot with the choices and parameters of ``like``, to its rows with other weights."""
        rows, sample = self._rows(data, distribution, fold, seed, runtime)
        return replace(self._fit_like(rows, like), sample=sample)

    def with_image(self, image: ImageColumns) -> ControlFunction:
        """Return the learner for contexts that hold pixels; a kernel compares fixed features of them."""
        return replace(self, image=replace(image, features="gradients"))

    def _rows(
        self,
        data: TrainingData,
        distribution: ActionDistribution,
        fold: IntArray,
        seed: int,
        runtime: Runtime,
    ) -> tuple[PilotRows, IntArray | None]:
        """Return the rows to learn from, and which they are of a large table."""
        sample = None
        if len(data) > self.most_rows:
            sample = sample_rows(len(data), self.most_rows)
            data, fold = data_at(data, sample), fold[sample]
            distribution = distribution.take(torch.from_numpy(sample))
        action, generator = data.action_spec.vectors(data.action), np.random.default_rng([seed, 7])
        return PilotRows(data, action, distribution, fold, generator, runtime), sample

    def _fit_anew(self, part: PilotRows, seed: int) -> Pilot:
        """Return a pilot with parameters of its own."""
        data, distribution = part.data, part.distribution
        first = ActionMean.fit(part, self.image, self.settings, None)
        if first.instrument_evidence < self.least_evidence:
            return self._fit_level(part, first, None)
        choices = {"residual": self._fit_with(part, first, None)}
        scores = first.with_ranks(data, distribution)
        if scores is not None:
            choices["rank"] = self._fit_with(part, scores, None)
        evidence = {name: each.regression.evidence for name, each in choices.items()}
        if len(choices) > 1:
            # The moments need no control variable: they may veto one that the regression prefers.
            for name, each in choices.items():
                evidence[name] -= max([0.0, *each.evidence_against(data, distribution, seed=seed).values()])
        best = max(evidence, key=lambda name: evidence[name])
        details = {"control_variable": best, **choices[best].model.details, "evidence": evidence}
        return replace(choices[best], model=replace(choices[best].model, details=details))

    def _fit_like(self, rows: PilotRows, like: Pilot) -> Pilot:
        """Return a pilot with the choices and parameters of another."""
        first = ActionMean.fit(rows, self.image, self.settings, like.first)
        searched, chosen = like.regression.searched, like.model.details["control_variable"]
        if chosen == "none":
            return self._fit_level(rows, first, searched)
        ranked = first.with_ranks(rows.data, rows.distribution) if chosen == "rank" else None
        found = self._fit_with(rows, first if ranked is None else ranked, searched)
        details = {"control_variable": chosen, **found.model.details}
        return replace(found, model=replace(found.model, details=details))

    def _fit_with(self, rows: PilotRows, first: ActionMean, searched: Searched | None) -> Pilot:
        data, d, k = rows.data, rows.action.shape[1], first.control.columns.shape[1]
        inputs = _regression_inputs(first, rows.action)
        blocks, terms = _outcome_terms(first, d, inputs.line.shape[1])
        regression = regress(
            start_kernel(blocks, terms, inputs, rows.generator),
            Rows(inputs, data.outcome, data.weight, first.control),
            rows.fold,
            self.settings,
            start_slopes=_whole_slopes(inputs, data, d, k),
            searched=searched,
            generator=rows.generator,
            progress=rows.runtime.progress,
            label="pilot: control function",
        )
        details = {
            "instrument_evidence": first.instrument_evidence,
            "slopes_of_control": regression.searched.slopes.tolist(),
            "noise": regression.searched.noise,
        }
        levels = _mean_control(regression, inputs, first.control, data.weight)
        return _finished(rows, first, regression, inputs, levels, details)

    def _fit_level(self, rows: PilotRows, first: ActionMean, searched: Searched | None) -> Pilot:
        """Return a pilot without the action: the instrument says too little about its effect."""
        data, none = rows.data, np.empty((len(rows.data), 0))
        inputs = first.columns.inputs(first.context, rows.action, none, none)
        regression = regress(
            start_kernel(first.blocks, first.level_terms, inputs, rows.generator),
            Rows(inputs, data.outcome, data.weight, Control.none(len(data))),
            rows.fold,
            self.settings,
            searched=searched,
            generator=rows.generator,
            progress=rows.runtime.progress,
            label="pilot: mean outcome",
        )
        details: dict[str, object] = {
            "control_variable": "none",
            "instrument_evidence": first.instrument_evidence,
        }
        no_levels = np.zeros(1 + len(regression.fold_weights))
        return _finished(rows, first, regression, inputs, no_levels, details)


def _regression_inputs(first: ActionMean, action: FloatArray) -> Inputs:
    """Return contexts, actions and control variables of the rows of a first stage as the kernel sees them."""
    control = first.control.columns
    moving = np.hstack([control, products(control, first.instrument)])
    return first.columns.inputs(first.context, action, moving, control)


def _outcome_terms(
    first: ActionMean, d: int, n_lines: int
) -> tuple[tuple[tuple[int, int], ...], tuple[Term, ...]]:
    """Return blocks of the context's columns, and the terms of h and of the control function.

    Parameters
    ----------
    first : ActionMean
    d : int
        Number of action columns.
    n_lines : int
        Number of columns that terms may be linear in: the action, the centred action, its mean in the
        context, the control variables, and their products with the instrument.
    """
    bends, k = first.columns.bends, first.control.columns.shape[1]
    ends = itertools.pairwise([0, d, 2 * d, 3 * d, 3 * d + k, n_lines])
    action, centred, centre, control, moving = (tuple(range(start, stop)) for start, stop in ends)
    blocks = first.blocks
    # Where the residual's meaning changes with the instrument, its slope does.
    terms = [
        *first.level_terms,
        Term(line=action, optional=False, expected=_SLOPE, spread=_FIXED),
        Term(line=moving, part=CONTROL, expected=_SLOPE_CHANGE),
    ]
    if blocks:
        # The mean action in the context is a variable like the others.
        width = blocks[-1][1]
        means = range(len(blocks), len(blocks) + k)
        blocks += tuple((width + column, width + column + 1) for column in range(k))
        everything = tuple(range(len(blocks)))
        single = [term.context for term in first.level_terms if len(term.context) == 1]
        single = single if len(single) <= _MOST_SLOPES else []
        terms += [
            *(Term(context=(mean,)) for mean in means),
            Term(linear=True, line=action),
            *(Term(context=each, line=action, expected=_BENDING_SLOPE) for each in single),
            Term(context=everything, line=action),
            Term(context=everything, line=centred),
            Term(line=centre, expected=_CENTRE, spread=_FIXED, optional=False),
            Term(linear=True, line=centre, expected=_CENTRE_BY_CONTEXT, spread=_FIXED, optional=False),
            Term(context=everything, line=centre),
            Term(
                linear=True, line=control, part=CONTROL, expected=_SLOPE_CHANGE, spread=_SLOPE_CHANGE_SPREAD
            ),
        ]
    if bends:
        terms += [Term(curve=(column,)) for column in action]
        terms += [Term(curve=action)] if d > 1 else []
        terms += [Term(context=everything, curve=action)] if blocks else []
    curves = tuple(range(d, d + k) if bends else range(k))
    terms += [Term(curve=(column,), flat=True, part=CONTROL) for column in curves]
    terms += [Term(curve=curves, flat=True, part=CONTROL)] if k > 1 else []
    return blocks, tuple(terms)


def _finished(
    rows: PilotRows,
    first: ActionMean,
    regression: Regression,
    inputs: Inputs,
    levels: FloatArray,
    details: dict[str, object],
) -> Pilot:
    """Return the pilot of a regression; ``levels`` are those of all rows and then without each fold."""
    space = PilotSpace(first.columns, regression.searched.kernel, regression.landmarks)
    values = regression.out_of_fold(inputs, rows.fold, STRUCTURAL) + levels[1:][rows.fold]
    return Pilot(values, PilotModel(space, regression.weights, float(levels[0]), details), first, regression)


def _mean_control(regression: Regression, inputs: Inputs, control: Control, weight: FloatArray) -> FloatArray:
    """Return the mean of the control function over all rows: by all rows, then without each fold.

    A mean of all rows in the pilot of each fold would let a row's own outcome into its value.
    """
    kernel, by_landmark = regression.searched.kernel, np.zeros(len(regression.landmarks))
    for rows in chunks(len(inputs)):
        by_landmark += weight[rows] @ kernel.matrix(inputs.take(rows), regression.landmarks, CONTROL)
    fits = np.vstack([regression.weights, regression.fold_weights])
    line = weight @ control.columns @ regression.searched.slopes
    return np.asarray((fits @ by_landmark + line) / weight.sum())


def _whole_slopes(inputs: Inputs, data: TrainingData, d: int, k: int) -> FloatArray:
    """Return slopes of the control variables as if all association of action and outcome were confounding."""
    design = np.hstack([np.ones((len(data), 1)), inputs.context, inputs.line[:, 3 * d : 3 * d + k]])
    root = np.sqrt(data.weight)
    found = np.linalg.lstsq(design * root[:, None], data.outcome * root, rcond=None)[0]
    return np.asarray(np.clip(found[-k:], -3.0, 3.0))
