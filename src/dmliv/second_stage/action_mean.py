"""The mean of the action given context and instrument, and what it leaves: the control variable."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.first_stage.base import Runtime
from dmliv.first_stage.laws import ActionLaw
from dmliv.kernels.additive import AdditiveKernel, Inputs, Term
from dmliv.kernels.evidence import STARTS, Control, Searched
from dmliv.kernels.process import ProcessSettings, Regression, regress, start_kernel
from dmliv.nets.images import ImageColumns
from dmliv.second_stage.kernel import column_blocks, kernel_encoder
from dmliv.second_stage.pilot_model import ColumnMean, PilotColumns

# Context columns with a length scale of their own; the least relevant of more share one.
_MOST_BLOCKS = 24
# Context columns that a mean may bend in on their own.
_MOST_CURVES = 20
# Directions of the mean's error that the outcome regression knows of.
_ERROR_FEATURES = 100
# Columns of the instrument that the slope of the control variable may depend on.
_MOST_PRODUCTS = 10
# Action columns whose mean is searched for; further ones take the parameters of the last.
_MOST_SEARCHES = 3
# Amplitude expected of an instrument whose effect on the action differs between contexts.
_INTERACTION = 0.1
# A spread of the action that varies by this share of its mean, or more, makes ranks worth a try.
_UNEVEN_SPREAD = 0.15


@dataclass(frozen=True, eq=False)
class PilotRows:
    """What both regressions of a pilot need of the rows.

    Attributes
    ----------
    data : TrainingData
    action : ndarray, shape (n, d)
    law : ActionLaw
        Action distribution of every row, by models that did not see its fold.
    fold : ndarray of int, shape (n,)
    generator : numpy.random.Generator
    runtime : Runtime
    """

    data: TrainingData
    action: FloatArray
    law: ActionLaw
    fold: IntArray
    generator: np.random.Generator
    runtime: Runtime


@dataclass(frozen=True, eq=False)
class ActionMean:
    """The mean of the action given context and instrument, and what it leaves: the control variable.

    Attributes
    ----------
    columns : PilotColumns
        Contexts as numbers, and the mean action in a context.
    blocks : tuple of (int, int)
        Of the context's columns.
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

    columns: PilotColumns
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
        cls, part: PilotRows, image: ImageColumns | None, settings: ProcessSettings, like: ActionMean | None
    ) -> ActionMean:
        """Fit the mean of every action column; with the parameters of another fit, if one is given."""
        data, action, fold, generator = part.data, part.action, part.fold, part.generator
        # Raises where pixels need trained convolutions.
        encoder = kernel_encoder(data.context, data.context_schema, image)
        context = encoder.standardised(data.context)
        predicted = part.law.mean().cpu().double().numpy()
        discrete = data.action_spec.kind == "discrete"
        targets, in_law = (action[:, 1:], predicted[:, 1:]) if discrete else (action, predicted)
        order, blocks = _blocks(context, column_blocks(encoder), np.column_stack([data.outcome, targets]))
        context = context[:, order]
        level = _level_terms(context, blocks)
        instrument = kernel_encoder(data.instrument, data.instrument_schema).standardised(data.instrument)
        inputs = Inputs(context, instrument, instrument[:, _many_valued(instrument)])
        kernel = start_kernel(blocks, _action_terms(level, blocks, inputs), inputs, generator)
        mean, centre = np.empty(targets.shape), list[ColumnMean]()
        errors, strengths, shares = [], [], []
        found: list[Searched] = []
        used = generator.permutation(np.flatnonzero(data.weight > 0.0))[
            : settings.for_rows(len(data)).n_landmarks
        ]
        for column, target in enumerate(targets.T):
            middle, scale = float(target.mean()), max(float(target.std()), 1e-12)
            scaled = (target - middle) / scale
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
            own = middle + scale * regression.out_of_fold(inputs, fold)
            share = _stacked_share(target, own, in_law[:, column], data.weight)
            if like is not None:
                share = float(like.kernel_shares[column])
            others = (1.0 - share) * in_law[:, column]
            # The posterior's error belongs to its own mean, which has seen the row's action. Means without
            # the fold have further errors, which would pull h towards the confounded regression.
            mean[:, column] = share * (middle + scale * regression.predict(inputs)) + others
            left = target - mean[:, column]
            spread = max(float(np.sqrt(np.average(left**2, weights=data.weight))), 1e-12)
            errors.append(regression.error_features(inputs, _ERROR_FEATURES) * (share * scale / spread))
            shares.append(share)
            centre.append(_in_context(regression, len(level), middle, scale))
            if like is None:
                without = _without_instrument(regression, inputs, scaled, data.weight, fold, len(level), used)
                alone, both = target - middle - scale * without, target - share * own - others
                ratio = np.average(alone**2, weights=data.weight) / np.average(both**2, weights=data.weight)
                n_effective = data.weight.sum() ** 2 / np.sum(data.weight**2)
                strengths.append(float(n_effective * (ratio - 1.0)))
        left = targets - mean
        spreads = np.maximum(np.sqrt(np.average(left**2, axis=0, weights=data.weight)), 1e-12)
        columns = PilotColumns(encoder, order, tuple(centre), np.ones(action.shape[1]), not discrete)
        centred = action - columns.centres(columns.context(data.context))
        return cls(
            replace(columns, spread=np.maximum(centred.std(axis=0), 1e-12)),
            blocks,
            level,
            mean,
            spreads,
            Control(left / spreads, errors),
            min(strengths) if like is None else like.strength,
            np.array(shares),
            tuple(found),
            instrument[:, :_MOST_PRODUCTS],
        )

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
        terms.append(Term(context=everything, line=lines, expected=_INTERACTION))
        terms += [Term(context=everything, curve=curves, expected=_INTERACTION)] if curves else []
    elif len(curves) > 1:
        terms.append(Term(curve=curves, expected=_INTERACTION))
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
    searched = replace(regression.searched, kernel=_level_kernel(regression, n_level))
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


def _in_context(regression: Regression, n_level: int, middle: float, scale: float) -> ColumnMean:
    """Return the mean in a context where the instrument is at its own mean: terms of it are zero there."""
    landmarks = regression.landmarks
    nothing = np.empty((len(landmarks), 0))
    return ColumnMean(
        _level_kernel(regression, n_level),
        Inputs(landmarks.context, nothing, nothing),
        scale * regression.weights,
        middle,
    )


def _level_kernel(regression: Regression, n_level: int) -> AdditiveKernel:
    """Return the first terms of a regression's kernel, which are functions of the context alone."""
    kernel = regression.searched.kernel
    parameters = np.concatenate([kernel.parameters[where] for where in kernel.slices[:n_level]])
    return AdditiveKernel(kernel.blocks, kernel.terms[:n_level], parameters)
