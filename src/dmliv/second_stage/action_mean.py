"""The mean of the action given context and instrument, and what it leaves: the control variable."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.first_stage.distributions import ActionDistribution
from dmliv.kernels.additive import Inputs, Term
from dmliv.kernels.block_index import BlockIndex, Surroundings
from dmliv.kernels.evidence import STARTS, Control, Rows, Searched
from dmliv.kernels.process import ProcessSettings, Regression, regress, start_kernel
from dmliv.nets.encoding import TableEncoder
from dmliv.nets.images import ImageColumns
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.kernel import column_blocks, kernel_encoder
from dmliv.second_stage.pilot_model import INSTRUMENT, LEVEL, ColumnMean, PilotColumns, split_image

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
# Folds for what stands for an image, where the estimator has none.
_IMAGE_FOLDS = 5
# Amplitude expected of an instrument whose effect on the action differs between contexts.
_INTERACTION = 0.1
# A spread of the action that varies by this share of its mean, or more, makes ranks worth a try.
_UNEVEN_SPREAD = 0.15
# What an error of the mean action in a context does to the outcome beyond what the slope of the control
# variable says, as a standard deviation: without it contexts may pass for instruments.
_FREE_ERROR = 0.3


@dataclass(frozen=True, eq=False)
class PilotRows:
    """What both regressions of a pilot need of the rows.

    Attributes
    ----------
    data : TrainingData
    action : ndarray, shape (n, d)
    distribution : ActionDistribution
        Action distribution of every row, by models that did not see its fold.
    fold : ndarray of int, shape (n,)
    generator : numpy.random.Generator
    runtime : Runtime
    """

    data: TrainingData
    action: FloatArray
    distribution: ActionDistribution
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
    context : ndarray, shape (n, p + k)
        Of these rows; what stands for a row's image is by models that did not see the row's fold.
    blocks : tuple of (int, int)
        Of the context's columns.
    level_terms : tuple of Term
        Functions of the context alone.
    mean : ndarray, shape (n, k)
        Of each action column; of each level but the first if the action is discrete.
    residual_spread : ndarray, shape (k,)
    control : Control
    instrument_evidence : float
        Logarithm of the Bayes factor that the instrument moves the action; of the weakest column.
    searched : tuple of k Searched
        Parameters of each column's regression.
    instrument : ndarray, shape (n, q)
        Standardised columns of the instrument, the first few.
    """

    columns: PilotColumns
    context: FloatArray
    blocks: tuple[tuple[int, int], ...]
    level_terms: tuple[Term, ...]
    mean: FloatArray
    residual_spread: FloatArray
    control: Control
    instrument_evidence: float
    searched: tuple[Searched, ...]
    instrument: FloatArray

    @classmethod
    def fit(
        cls, part: PilotRows, pixels: ImageColumns | None, settings: ProcessSettings, like: ActionMean | None
    ) -> ActionMean:
        """Fit the mean of every action column; with the parameters of another fit, if one is given."""
        data, action, generator = part.data, part.action, part.generator
        # Raises where pixels need trained convolutions.
        encoder = kernel_encoder(data.context, data.context_schema, pixels)
        discrete = data.action_spec.kind == "discrete"
        targets = action[:, 1:] if discrete else action
        instrument = kernel_encoder(data.instrument, data.instrument_schema).standardised(data.instrument)
        if like is None:
            plain, image, widths = _in_place_of_image(part, encoder, targets, instrument)
            order, blocks = _blocks(plain, widths, np.column_stack([data.outcome, targets]))
            context = plain[:, order]
        else:
            image, order, blocks = like.columns.image, like.columns.order, like.blocks
            context = like.context[:, : len(order)]
        level = _level_terms(context, blocks)
        inputs = Inputs(context, instrument, instrument[:, _many_valued(instrument)])
        kernel = start_kernel(blocks, _action_terms(level, blocks, inputs), inputs, generator)
        mean, centre = np.empty(targets.shape), list[ColumnMean]()
        errors, free, strengths = [], [], []
        found: list[Searched] = []
        used = generator.permutation(np.flatnonzero(data.weight > 0.0))[
            : settings.for_rows(len(data)).n_landmarks
        ]
        for column, target in enumerate(targets.T):
            middle, scale = float(target.mean()), max(float(target.std()), 1e-12)
            table = Rows(inputs, (target - middle) / scale, data.weight, Control.none(len(data)))
            known = found[-1] if column >= _MOST_SEARCHES else None
            regression = regress(
                kernel,
                table,
                np.zeros(len(data), dtype=np.int64),
                settings,
                searched=known if like is None else like.searched[column],
                starts=STARTS[:1],
                generator=generator,
                progress=part.runtime.progress,
                label="pilot: mean of the action",
            )
            found.append(regression.searched)
            # The posterior's error belongs to the mean that has seen the row's action. Means without the fold
            # have further errors, which would pull h towards the confounded regression.
            mean[:, column] = middle + scale * regression.predict(inputs)
            left = target - mean[:, column]
            spread = max(float(np.sqrt(np.average(left**2, weights=data.weight))), 1e-12)
            unit = scale / spread
            errors.append(unit * regression.error_features(inputs, _ERROR_FEATURES))
            free.append(_FREE_ERROR * unit * regression.error_features(inputs, _ERROR_FEATURES, LEVEL))
            centre.append(_in_context(regression, middle, scale))
            if like is None:
                strengths.append(_evidence_for_instrument(regression, table, used))
        left = targets - mean
        spreads = np.maximum(np.sqrt(np.average(left**2, axis=0, weights=data.weight)), 1e-12)
        columns = PilotColumns(encoder, order, tuple(centre), np.ones(action.shape[1]), not discrete, image)
        with_means = columns.with_means(context)
        centred = action - columns.centres(with_means)
        return cls(
            replace(columns, spread=np.maximum(centred.std(axis=0), 1e-12)),
            with_means,
            blocks,
            level,
            mean,
            spreads,
            Control(left / spreads, errors, np.hstack(free)),
            min(strengths) if like is None else like.instrument_evidence,
            tuple(found),
            instrument[:, :_MOST_PRODUCTS],
        )

    def with_ranks(self, data: TrainingData, distribution: ActionDistribution) -> ActionMean | None:
        """Return normal scores of the action's rank as control variable, where its spread is uneven.

        The rank in the estimated distribution is the control variable if the action rises with the hidden
        cause, whatever the spread; the residual is, if the spread is the same everywhere.
        """
        if data.action_spec.kind == "discrete" or self.mean.shape[1] != 1:
            return None
        shift = self.mean - distribution.mean().cpu().double().numpy()
        found = distribution.normal_scores(data.action.astype(np.float64) - shift)
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
        known = self.control
        control = Control(scores[:, None] / scale, [known.errors[0] * local], known.free * local)
        return replace(self, control=control)


def _in_place_of_image(
    part: PilotRows, encoder: TableEncoder, targets: FloatArray, instrument: FloatArray
) -> tuple[FloatArray, tuple[BlockIndex, ...], list[int]]:
    """Return contexts with few columns in place of an image's features, how to make them, and widths.

    What an image does to the outcome, and to each action column, is learned from the other folds, and makes
    up to three columns each. Widths are those of the variables.
    """
    data, (generator,) = part.data, part.generator.spawn(1)
    plain, features = split_image(encoder, encoder.standardised(data.context))
    widths = column_blocks(encoder)
    if not features.shape[1]:
        return plain, (), widths
    fold = part.fold
    if fold.max() == 0:
        # One fold for all else: the same rows would learn the columns and be described by them.
        fold = generator.permutation(np.arange(len(fold)) % _IMAGE_FOLDS)
    none = plain[:, :0]
    around = [(data.outcome, Surroundings(plain, part.action, instrument))]
    around += [(target, Surroundings(plain, instrument, none)) for target in targets.T[:_MOST_SEARCHES]]
    learned = [
        BlockIndex.learn(features, columns, target, data.weight, fold, generator)
        for target, columns in around
    ]
    found = [each for each in learned if each is not None]
    context = np.hstack([plain, *(values for _, values in found)])
    return (
        context,
        tuple(index for index, _ in found),
        widths[:-1] + [1] * (context.shape[1] - plain.shape[1]),
    )


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
        return (Term(optional=False),)
    many = set(_many_valued(context).tolist())
    numeric = [number for number, (start, stop) in enumerate(blocks) if stop - start == 1 and start in many]
    # Blocks are in the order of their relevance if there are too many for all of them.
    curves = [Term(context=(number,)) for number in numeric[:_MOST_CURVES]]
    together = [Term(context=tuple(range(len(blocks))))] if len(blocks) > 1 or not curves else []
    return (Term(optional=False), Term(linear=True, optional=False), *curves, *together)


def _action_terms(
    level: Sequence[Term], blocks: Sequence[tuple[int, int]], inputs: Inputs
) -> tuple[Term, ...]:
    """Return terms of the action's mean: of the context, and what the instrument adds."""
    lines, curves = tuple(range(inputs.line.shape[1])), tuple(range(inputs.curve.shape[1]))
    terms = [Term(line=lines, optional=False), *(Term(curve=(column,)) for column in curves)]
    if blocks:
        everything = tuple(range(len(blocks)))
        terms.append(Term(context=everything, line=lines, expected=_INTERACTION))
        terms += [Term(context=everything, curve=curves, expected=_INTERACTION)] if curves else []
    elif len(curves) > 1:
        terms.append(Term(curve=curves, expected=_INTERACTION))
    return (
        *(replace(term, part=LEVEL) for term in level),
        *(replace(term, part=INSTRUMENT) for term in terms),
    )


def _evidence_for_instrument(regression: Regression, rows: Rows, landmarks: IntArray) -> float:
    """Return the log Bayes factor between the mean of the action and one of the context alone."""
    searched = replace(regression.searched, kernel=regression.searched.kernel.part(LEVEL))
    return (
        regression.evidence
        - Regression.fit(searched, rows, np.zeros(len(rows), dtype=np.int64), landmarks).evidence
    )


def _in_context(regression: Regression, middle: float, scale: float) -> ColumnMean:
    """Return the mean in a context where the instrument is at its own mean: terms of it are zero there."""
    landmarks = regression.landmarks
    nothing = np.empty((len(landmarks), 0))
    return ColumnMean(
        regression.searched.kernel.part(LEVEL),
        Inputs(landmarks.context, nothing, nothing),
        scale * regression.weights,
        middle,
    )
