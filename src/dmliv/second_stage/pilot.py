"""The pilot: a control-function regression that h starts from.

If one residual V of the action given context and instrument carries the confounding, then
E[outcome | C, Z, A] = h(C, A) + lambda(V): an ordinary regression, with all of the action's variation
(Newey, Powell and Vella, 1999; Imbens and Newey, 2009). DML-IV then needs to learn only what the pilot
leaves: E[outcome - pilot(C, A) | C, Z] is the projection of h - pilot, whatever the pilot is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular

from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.errors import InputError
from dmliv.first_stage.base import Runtime
from dmliv.first_stage.laws import ActionLaw
from dmliv.kernels.additive import AdditiveKernel, Inputs, Term
from dmliv.kernels.evidence import JITTER, STARTS, Control, Searched
from dmliv.kernels.features import chunks
from dmliv.kernels.process import ProcessSettings, Regression, regress, start_kernel
from dmliv.nets.encoding import products
from dmliv.nets.images import ImageColumns
from dmliv.second_stage.base import action_vectors
from dmliv.second_stage.features import StructuralEncoder
from dmliv.second_stage.kernel import column_blocks, kernel_encoder
from dmliv.second_stage.pilot_model import CONTROL, STRUCTURAL, PilotModel, PilotSpace, pilot_inputs

_BINS = 24
# Context columns with a length scale of their own; the least relevant of more share one.
_MOST_BLOCKS = 24
# Context columns that h may bend in on their own.
_MOST_CURVES = 20
# Directions of the first stage's error that the outcome regression knows of.
_ERROR_FEATURES = 100
# Columns of the instrument that the slope of the control variable may depend on.
_MOST_PRODUCTS = 10
# Action columns whose mean is searched for; further ones take the parameters of the last.
_MOST_SEARCHES = 3
# Rows that the moments of the remainder are tested on, at most.
_TEST_ROWS = 5000
# Standard deviations of the remainder that are tried, in those of h before the data were seen.
_REMAINDER_SIZES = (0.05, 0.1, 0.2, 0.4, 0.8)
# A spread of the action that varies by this share of its mean, or more, makes ranks worth a try.
_UNEVEN_SPREAD = 0.15


@dataclass(frozen=True, eq=False)
class Pilot:
    """A fitted pilot.

    Attributes
    ----------
    values : ndarray, shape (n,)
        The pilot at the observed actions, for each row by a fit without its fold.
    model : PilotModel
        The pilot of all rows.
    first : ActionMean
    regression : Regression
    """

    values: FloatArray
    model: PilotModel
    first: ActionMean
    regression: Regression

    def project(self, context: Table, law: ActionLaw) -> FloatArray:
        """Return the mean of the pilot of all rows over the action distribution of every row, shape (n,)."""
        return self.model.project(context, law)

    def evidence_against(self, data: TrainingData, law: ActionLaw, *, seed: int) -> dict[str, float]:
        """Return how strongly the moments speak for a remainder: logarithms of Bayes factors, by its size.

        The remainder h - pilot has the covariances of h, times a small factor: of its common slope, its
        common curve, all slopes, or slopes and curves. Its projection on context and instrument is then a
        Gaussian process too, and outcome minus pilot either has it as its mean, or none.

        Parameters
        ----------
        data : TrainingData
            With the outcome as it was observed.
        law : ActionLaw
        seed : int
            Draws the rows, if there are many.
        """
        used = np.flatnonzero(data.weight > 0.0)
        rows = np.sort(np.random.default_rng([seed, 8]).permutation(used)[:_TEST_ROWS])
        context, root = data.context.take(rows), np.sqrt(data.weight[rows])
        left = root * (data.outcome[rows] - self.values[rows])
        noise = max(float(left @ left) / len(rows), np.finfo(np.float64).eps)
        found = {}
        for name, space in self.model.space.action_parts().items():
            inner = space.kernel.matrix(space.landmarks, space.landmarks, STRUCTURAL)
            factor = cholesky(inner + JITTER * np.mean(np.diag(inner)) * np.eye(len(inner)), lower=True)
            projected = space.projected(context, law, rows)
            features = solve_triangular(factor, projected.T, lower=True).T * root[:, None]
            values, vectors = eigh(features.T @ features)
            values, moments = np.maximum(values, 0.0), vectors.T @ (features.T @ left)
            for size in _REMAINDER_SIZES:
                signal = size**2 * values
                gain = np.sum(size**2 * moments**2 / (noise * (noise + signal)) - np.log1p(signal / noise))
                found[f"{name}, {size:g}"] = 0.5 * float(gain)
        # A pilot without the action stands: an instrument that says so little cannot contradict it.
        return found or {"nothing": 0.0}


@dataclass(frozen=True)
class ControlFunction:
    """Pilot learner: h(context, action) + lambda(residual of the action), by Gaussian processes.

    Lambda is a curve in the residual, plus the residual times a line in context and instrument: where the
    confounding differs between contexts, or the residual means something else at another instrument, its
    slope may follow.

    The mean of the action given context and instrument is a regression of its own, averaged with that of the
    action distribution in the proportions that fit held-out rows best. The error it was estimated with is a
    part of the second regression's model, so that it does not pull h towards the confounded regression.
    Amplitudes and length scales have the highest marginal likelihood; h and lambda follow in closed form, for
    each row without its fold.

    Parameters
    ----------
    settings : ProcessSettings
    least_strength : float
        Where the instrument explains so little that rows times R^2 / (1 - R^2) is below this, out of fold,
        the pilot is the mean outcome in a context, and h has no effect of the action.
    image : ImageColumns, optional
        Context columns that are pixels, as fixed features; an estimator passes that of its learners.
    """

    settings: ProcessSettings = field(default_factory=ProcessSettings)
    least_strength: float = 10.0
    image: ImageColumns | None = None

    def __post_init__(self) -> None:
        """Check the number."""
        if not isinstance(self.least_strength, (int, float, np.number)) or not self.least_strength >= 0.0:
            raise InputError(
                f"Expected a least_strength of at least 0, got {self.least_strength!r}; pass 10, say."
            )

    def fit(
        self,
        data: TrainingData,
        law: ActionLaw,
        fold: IntArray,
        *,
        seed: int,
        runtime: Runtime,
        like: Pilot | None = None,
    ) -> Pilot:
        """Fit the pilot to all rows, and without each fold.

        Parameters
        ----------
        data : TrainingData
        law : ActionLaw
            Action distribution of every row, by models that did not see its fold.
        fold : ndarray of int, shape (n,)
        seed : int
            Draws landmarks and the rows that parameters are searched on.
        runtime : Runtime
        like : Pilot, optional
            A pilot of the same rows, perhaps with other weights, whose choices and parameters are kept.
        """
        generator = np.random.default_rng([seed, 7])
        action = action_vectors(data.action_spec, data.action)
        part = _Rows(data, action, law, fold, generator, runtime)
        if like is not None:
            return self._fit_like(part, like)
        first = ActionMean.fit(part, self.image, self.settings, None)
        if first.strength < self.least_strength:
            return self._fit_level(part, first, None)
        choices = {"residual": self._fit_with(part, first, None)}
        scores = first.with_ranks(data, law)
        if scores is not None:
            choices["rank"] = self._fit_with(part, scores, None)
        evidence = {name: each.regression.searched.evidence for name, each in choices.items()}
        if len(choices) > 1:
            # The moments need no control variable: they may veto one that the regression prefers.
            for name, each in choices.items():
                evidence[name] -= max(0.0, *each.evidence_against(data, law, seed=seed).values())
        best = max(evidence, key=lambda name: evidence[name])
        told = {"control_variable": best, **choices[best].model.told, "evidence": evidence}
        return replace(choices[best], model=replace(choices[best].model, told=told))

    def _fit_like(self, rows: _Rows, like: Pilot) -> Pilot:
        """Return a pilot with the choices and parameters of another."""
        first = ActionMean.fit(rows, self.image, self.settings, like.first)
        searched, chosen = like.regression.searched, like.model.told["control_variable"]
        if chosen == "none":
            return self._fit_level(rows, first, searched)
        ranked = first.with_ranks(rows.data, rows.law) if chosen == "rank" else None
        found = self._fit_with(rows, first if ranked is None else ranked, searched)
        told = {"control_variable": chosen, **found.model.told}
        return replace(found, model=replace(found.model, told=told))

    def _fit_with(self, rows: _Rows, first: ActionMean, searched: Searched | None) -> Pilot:
        data, action = rows.data, rows.action
        bends, d, k = data.action_spec.kind == "continuous", action.shape[1], first.control.columns.shape[1]
        spread = first.spread(data.context, action)
        control = first.control.columns
        inputs = pilot_inputs(
            first.encoder,
            first.columns,
            spread,
            bends,
            data.context,
            action,
            np.hstack([control, products(control, first.instrument)]),
            control,
        )
        blocks, level = first.blocks, first.level_terms
        everything, lines = tuple(range(len(blocks))), tuple(range(d))
        control_lines = tuple(range(2 * d, 2 * d + k))
        # Where the residual's meaning changes with the instrument, its slope does.
        moving = tuple(range(2 * d + k, inputs.line.shape[1]))
        terms = [*level, Term(line=lines), Term(line=moving, part=CONTROL)]
        if blocks:
            terms += [
                Term(linear=True, line=lines),
                Term(context=everything, line=lines),
                Term(context=everything, line=tuple(range(d, 2 * d))),
                Term(linear=True, line=control_lines, part=CONTROL),
            ]
        if bends:
            terms += [Term(curve=(column,)) for column in range(d)]
            terms += [Term(curve=lines)] if d > 1 else []
            terms += [Term(context=everything, curve=lines)] if blocks else []
        first_control = d if bends else 0
        controls = tuple(range(first_control, first_control + k))
        terms += [Term(curve=(column,), flat=True, part=CONTROL) for column in controls]
        terms += [Term(curve=controls, flat=True, part=CONTROL)] if k > 1 else []
        regression = regress(
            start_kernel(blocks, terms, inputs, rows.generator),
            inputs,
            data.outcome,
            data.weight,
            rows.fold,
            self.settings,
            control=first.control,
            start_slopes=_whole_slopes(inputs, data, d, k),
            searched=searched,
            generator=rows.generator,
            progress=rows.runtime.progress,
            label="pilot: control function",
        )
        told = {
            "instrument_strength": first.strength,
            "share_of_kernel_mean": first.kernel_shares.tolist(),
            "slopes_of_control": regression.searched.slopes.tolist(),
            "noise": regression.searched.noise,
        }
        levels = _mean_control(regression, inputs, first.control, data.weight)
        return _finished(rows, first, spread, regression, inputs, levels, told)

    def _fit_level(self, rows: _Rows, first: ActionMean, searched: Searched | None) -> Pilot:
        """Return a pilot without the action: the instrument says too little about its effect."""
        data, spread = rows.data, first.spread(rows.data.context, rows.action)
        bends = data.action_spec.kind == "continuous"
        none = np.empty((len(data), 0))
        inputs = pilot_inputs(
            first.encoder, first.columns, spread, bends, data.context, rows.action, none, none
        )
        regression = regress(
            start_kernel(first.blocks, first.level_terms, inputs, rows.generator),
            inputs,
            data.outcome,
            data.weight,
            rows.fold,
            self.settings,
            searched=searched,
            generator=rows.generator,
            progress=rows.runtime.progress,
            label="pilot: mean outcome",
        )
        told: dict[str, object] = {"control_variable": "none", "instrument_strength": first.strength}
        no_levels = np.zeros(1 + len(regression.fold_weights))
        return _finished(rows, first, spread, regression, inputs, no_levels, told)


@dataclass(frozen=True, eq=False)
class _Rows:
    """What both regressions of a pilot need of the rows."""

    data: TrainingData
    action: FloatArray
    law: ActionLaw
    fold: IntArray
    generator: np.random.Generator
    runtime: Runtime


def _finished(
    rows: _Rows,
    first: ActionMean,
    spread: FloatArray,
    regression: Regression,
    inputs: Inputs,
    levels: FloatArray,
    told: dict[str, object],
) -> Pilot:
    """Return the pilot of a regression; ``levels`` are those of all rows and then without each fold."""
    space = PilotSpace(
        first.encoder,
        first.columns,
        spread,
        rows.data.action_spec.kind == "continuous",
        regression.searched.kernel,
        regression.landmarks,
    )
    values = regression.out_of_fold(inputs, rows.fold, STRUCTURAL) + levels[1:][rows.fold]
    return Pilot(values, PilotModel(space, regression.weights, float(levels[0]), told), first, regression)


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


@dataclass(frozen=True, eq=False)
class ActionMean:
    """The mean of the action given context and instrument, and what it leaves: the control variable.

    Attributes
    ----------
    encoder : StructuralEncoder
    columns : ndarray of int
        Order of its columns.
    blocks : tuple of (int, int)
        Of the ordered columns.
    level_terms : tuple of Term
        Functions of the context alone.
    mean : ndarray, shape (n, k)
        Of each action column; of each level but the first if the action is discrete.
    residual_spread : ndarray, shape (k,)
    control : Control
    strength : float
        Rows times R^2 / (1 - R^2) of what the instrument adds to the context; of the weakest column.
    kernel_shares : ndarray, shape (k,)
        Share of the regression in the mean; the rest is the action distribution's.
    searched : tuple of k Searched
        Parameters of each column's regression.
    instrument : ndarray, shape (n, q)
        Standardised columns of the instrument, the first few.
    """

    encoder: StructuralEncoder
    columns: IntArray
    blocks: tuple[tuple[int, int], ...]
    level_terms: tuple[Term, ...]
    mean: FloatArray
    residual_spread: FloatArray
    control: Control
    strength: float
    kernel_shares: FloatArray
    searched: tuple[Searched, ...]
    instrument: FloatArray

    @classmethod
    def fit(
        cls, part: _Rows, image: ImageColumns | None, settings: ProcessSettings, like: ActionMean | None
    ) -> ActionMean:
        """Fit the mean of every action column; with the parameters of another fit, if one is given."""
        data, action, law, fold, generator = part.data, part.action, part.law, part.fold, part.generator
        predicted = law.mean().cpu().double().numpy()
        encoder = StructuralEncoder.learn(data, _BINS, centred=True, predicted=predicted, image=image)
        # Raises where pixels need trained convolutions.
        widths = column_blocks(kernel_encoder(data.context, data.context_schema, image))
        context = encoder.context.standardised(data.context)
        discrete = data.action_spec.kind == "discrete"
        targets, in_law = (action[:, 1:], predicted[:, 1:]) if discrete else (action, predicted)
        columns, blocks = _blocks(context, widths, np.column_stack([data.outcome, targets]))
        context = context[:, columns]
        level = _level_terms(context, blocks)
        instrument = kernel_encoder(data.instrument, data.instrument_schema).standardised(data.instrument)
        inputs = Inputs(context, instrument, instrument[:, _many_valued(instrument)])
        kernel = start_kernel(blocks, _action_terms(level, blocks, inputs), inputs, generator)
        mean, outside = np.empty(targets.shape), np.empty(targets.shape)
        errors, strengths, shares = [], [], []
        found: list[Searched] = []
        used = generator.permutation(np.flatnonzero(data.weight > 0.0))[: settings.n_landmarks]
        for column, target in enumerate(targets.T):
            centre, scale = float(target.mean()), max(float(target.std()), 1e-12)
            scaled = (target - centre) / scale
            known = found[-1] if column >= _MOST_SEARCHES else None
            regression = regress(
                kernel,
                inputs,
                scaled,
                data.weight,
                fold,
                settings,
                searched=known if like is None else like.searched[column],
                starts=STARTS[:1],
                generator=generator,
                progress=part.runtime.progress,
                label="pilot: mean of the action",
            )
            found.append(regression.searched)
            own = centre + scale * regression.out_of_fold(inputs, fold)
            share = _stacked_share(target, own, in_law[:, column], data.weight)
            if like is not None:
                share = float(like.kernel_shares[column])
            others = (1.0 - share) * in_law[:, column]
            outside[:, column] = share * own + others
            # The posterior's error belongs to its own mean, which has seen the row's action. Means without
            # the fold have further errors, which would pull h towards the confounded regression.
            mean[:, column] = share * (centre + scale * regression.predict(inputs)) + others
            left = target - mean[:, column]
            spread = max(float(np.sqrt(np.average(left**2, weights=data.weight))), 1e-12)
            errors.append(regression.error_features(inputs, _ERROR_FEATURES) * (share * scale / spread))
            shares.append(share)
            if like is None:
                without = _without_instrument(regression, inputs, scaled, data.weight, fold, len(level), used)
                alone, both = target - centre - scale * without, target - outside[:, column]
                ratio = np.average(alone**2, weights=data.weight) / np.average(both**2, weights=data.weight)
                n_effective = data.weight.sum() ** 2 / np.sum(data.weight**2)
                strengths.append(float(n_effective * (ratio - 1.0)))
        left = targets - mean
        spreads = np.maximum(np.sqrt(np.average(left**2, axis=0, weights=data.weight)), 1e-12)
        control = Control(left / spreads, errors)
        # The probability of the first level is what the others leave.
        predicted = np.column_stack([1.0 - outside.sum(axis=1), outside]) if discrete else outside
        centred = StructuralEncoder.learn(data, _BINS, centred=True, predicted=predicted, image=image)
        strength = min(strengths) if like is None else like.strength
        return cls(
            centred,
            columns,
            blocks,
            level,
            mean,
            spreads,
            control,
            strength,
            np.array(shares),
            tuple(found),
            instrument[:, :_MOST_PRODUCTS],
        )

    def spread(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the standard deviations of the centred actions, shape (d,)."""
        return np.asarray(np.maximum((action - self.encoder.centre(context)).std(axis=0), 1e-12))

    def with_ranks(self, data: TrainingData, law: ActionLaw) -> ActionMean | None:
        """Return normal scores of the action's rank as control variable, where its spread is uneven.

        The rank in the estimated distribution is the control variable if the action rises with the hidden
        cause, whatever the spread; the residual is, if the spread is the same everywhere.
        """
        if data.action_spec.kind == "discrete" or self.mean.shape[1] != 1:
            return None
        shift = self.mean - law.mean().cpu().double().numpy()
        found = law.normal_scores(data.action.astype(np.float64) - shift)
        if found is None:
            return None
        scores, spread = found
        if spread.std() < _UNEVEN_SPREAD * spread.mean():
            return None
        # What the residual's size has to do with the estimated spread, in standard errors.
        size = np.abs(self.control.columns[:, 0])
        sure = float(np.corrcoef(size, spread)[0, 1]) * np.sqrt(len(spread))
        if not sure > 4.0:
            return None
        scale = max(float(scores.std()), 1e-12)
        local = (self.residual_spread[0] / (spread * scale))[:, None]
        control = Control(scores[:, None] / scale, [self.control.errors[0] * local])
        return replace(self, control=control)


def _blocks(
    context: FloatArray, widths: Sequence[int], targets: FloatArray
) -> tuple[IntArray, tuple[tuple[int, int], ...]]:
    """Return an order of the context's columns, and the blocks of the ordered columns.

    A variable is a block. Where there are many, those related most to outcome and action, or whose squares
    are, come first; of very many, the last share a block.
    """
    starts = np.cumsum([0, *widths])
    variables = [np.arange(start, stop) for start, stop in itertools.pairwise(starts)]
    if len(variables) > _MOST_CURVES:
        standardised = (targets - targets.mean(axis=0)) / np.maximum(targets.std(axis=0), 1e-12)
        squares = context**2 - np.mean(context**2, axis=0)
        sizes = np.maximum(np.sqrt(np.mean(squares**2, axis=0)), 1e-12)[:, None]
        related = np.maximum(np.abs(context.T @ standardised), np.abs(squares.T @ standardised) / sizes)
        by_variable = [-float(related[each].max()) for each in variables]
        variables = [variables[number] for number in np.argsort(by_variable, kind="stable")]
    if len(variables) > _MOST_BLOCKS:
        variables = [*variables[: _MOST_BLOCKS - 1], np.concatenate(variables[_MOST_BLOCKS - 1 :])]
    ends = np.cumsum([0, *(len(each) for each in variables)]).tolist()
    columns = np.concatenate([np.empty(0, dtype=np.int64), *variables]).astype(np.int64)
    return columns, tuple(itertools.pairwise(ends))


def _many_valued(columns: FloatArray) -> IntArray:
    """Return the columns with more than two values, which functions can bend in."""
    if not len(columns):
        return np.empty(0, dtype=np.int64)
    two = (columns == columns.min(axis=0)) | (columns == columns.max(axis=0))
    return np.flatnonzero(~two.all(axis=0))


def _level_terms(context: FloatArray, blocks: Sequence[tuple[int, int]]) -> tuple[Term, ...]:
    """Return a constant, a line, a curve in each numeric column, and a function of all columns."""
    if not blocks:
        return (Term(),)
    many = set(_many_valued(context).tolist())
    numeric = [number for number, (start, stop) in enumerate(blocks) if stop - start == 1 and start in many]
    # Blocks are in the order of their relevance if there are too many for all of them.
    curves = [Term(context=(number,)) for number in numeric[:_MOST_CURVES]]
    together = [Term(context=tuple(range(len(blocks))))] if len(blocks) > 1 or not curves else []
    return (Term(), Term(linear=True), *curves, *together)


def _action_terms(
    level: Sequence[Term], blocks: Sequence[tuple[int, int]], inputs: Inputs
) -> tuple[Term, ...]:
    """Return terms of the action's mean: of the context, and what the instrument adds."""
    lines, curves = tuple(range(inputs.line.shape[1])), tuple(range(inputs.curve.shape[1]))
    terms = [*level, Term(line=lines), *(Term(curve=(column,)) for column in curves)]
    if blocks:
        everything = tuple(range(len(blocks)))
        terms.append(Term(context=everything, line=lines))
        terms += [Term(context=everything, curve=curves)] if curves else []
    elif len(curves) > 1:
        terms.append(Term(curve=curves))
    return tuple(terms)


def _without_instrument(
    regression: Regression,
    inputs: Inputs,
    target: FloatArray,
    weight: FloatArray,
    fold: IntArray,
    n_level: int,
    landmarks: IntArray,
) -> FloatArray:
    """Return the mean of the action given the context alone, out of fold, with the same parameters."""
    kernel = regression.searched.kernel
    parameters = np.concatenate([kernel.parameters[where] for where in kernel.slices[:n_level]])
    level = AdditiveKernel(kernel.blocks, kernel.terms[:n_level], parameters)
    searched = replace(regression.searched, kernel=level)
    control = Control.none(len(inputs))
    return Regression.fit(searched, inputs, target, weight, control, fold, landmarks).out_of_fold(
        inputs, fold
    )


def _stacked_share(target: FloatArray, own: FloatArray, other: FloatArray, weight: FloatArray) -> float:
    """Return the share of ``own`` in the mean of two predictions that fits best, in [0, 1]."""
    apart = own - other
    size = float(np.average(apart**2, weights=weight))
    if size <= 0.0:
        return 1.0
    return float(np.clip(np.average(apart * (target - other), weights=weight) / size, 0.0, 1.0))


def _whole_slopes(inputs: Inputs, data: TrainingData, d: int, k: int) -> FloatArray:
    """Return slopes of the control variables as if all association of action and outcome were confounding."""
    design = np.hstack([np.ones((len(data), 1)), inputs.context, inputs.line[:, 2 * d : 2 * d + k]])
    root = np.sqrt(data.weight)
    found = np.linalg.lstsq(design * root[:, None], data.outcome * root, rcond=None)[0]
    return np.asarray(np.clip(found[-k:], -3.0, 3.0))
