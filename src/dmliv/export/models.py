"""Fitted structural models, written into a graph: h of rows in model units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce, singledispatch
from operator import add, mul

import numpy as np
from torch import Tensor, nn

from dmliv.data import FloatArray
from dmliv.errors import InputError
from dmliv.estimators.deep_gmm import AdversarialModel
from dmliv.estimators.feature_model import FeatureFit, FeatureModel
from dmliv.estimators.series import PowerBasis, SeriesModel
from dmliv.export.encodings import (
    write_action,
    write_centre,
    write_context,
    write_piecewise_linear,
    write_standardised,
)
from dmliv.export.graph import Block, side_by_side
from dmliv.export.raw_rows import ContextRows
from dmliv.kernels.additive import AdditiveKernel, Inputs, Term
from dmliv.kernels.features import FourierFeatures, KernelFeatures, LandmarkFeatures
from dmliv.nets.feature_maps import FeatureMap
from dmliv.nets.stacked import StackedMLP
from dmliv.second_stage.averaged import AveragedModel
from dmliv.second_stage.kernel import KernelModel
from dmliv.second_stage.linear import LinearStructuralModel
from dmliv.second_stage.network import NeuralStructuralModel
from dmliv.second_stage.pilot_model import STRUCTURAL, ColumnMean, PilotedModel, PilotModel, PilotSpace
from dmliv.second_stage.regressor import RegressorStructuralModel
from dmliv.second_stage.structural import StructuralModel


@singledispatch
def write_model(model: StructuralModel, rows: ContextRows, action: Block) -> Block:
    """Write h of contexts and actions (model units); return its values, shape (n, 1)."""
    del rows, action
    raise InputError(
        f"Expected a network, a kernel or a linear model for an export, got {type(model).__name__}; serve it "
        "with save and dmliv.load."
    )


@write_model.register
def _(model: RegressorStructuralModel, rows: ContextRows, action: Block) -> Block:
    del rows, action
    raise InputError(
        "Expected a network, a kernel or a linear model for an export, got a regressor of scikit-learn such "
        "as trees; fit with learners=neural() or kernel(), or serve the model with save and dmliv.load."
    )


@write_model.register
def _(model: AdversarialModel, rows: ContextRows, action: Block) -> Block:
    return write_model(model.networks, rows, action)


@write_model.register
def _(model: NeuralStructuralModel, rows: ContextRows, action: Block) -> Block:
    centre = write_centre(model.encoder, rows)
    context = write_context(model.encoder, model.encoding, rows, centre)
    own = write_action(model.encoder, model.encoding, action, centre)
    return _write_networks(model.net, side_by_side([context, own]))


@write_model.register
def _(model: LinearStructuralModel, rows: ContextRows, action: Block) -> Block:
    columns = side_by_side([write_standardised(model.encoder.context, rows), action])
    return columns @ model.coefficients[1:, None] + model.coefficients[:1]


@write_model.register
def _(model: KernelModel, rows: ContextRows, action: Block) -> Block:
    columns = side_by_side([action, write_standardised(model.encoder, rows)])
    return _write_kernel(model.features, model.weights, columns)


@write_model.register
def _(model: PilotedModel, rows: ContextRows, action: Block) -> Block:
    pilot = write_model(model.pilot, rows, action)
    if model.remainder is None:
        return pilot
    return pilot + write_model(model.remainder, rows, action)


@write_model.register
def _(model: PilotModel, rows: ContextRows, action: Block) -> Block:
    space = model.space
    inputs = _PilotInputs.write(space, rows, action)
    kernel = space.kernel.part(STRUCTURAL)
    return _write_sum(kernel, space.landmarks, model.weights, model.level, inputs)


@write_model.register
def _(model: FeatureModel, rows: ContextRows, action: Block) -> Block:
    plain = model.reader.encoding == "standardised"
    write = write_standardised if plain else write_piecewise_linear
    context = write(model.reader.encoder, rows)
    return _mean([_write_fit(fit, context, action) for fit in model.fits])


@write_model.register
def _(model: SeriesModel, rows: ContextRows, action: Block) -> Block:
    columns = side_by_side([rows.numeric, *(block.pick(range(1, block.width)) for block in rows.levels)])
    if model.action_spec.kind == "discrete":
        features = action.pick(range(1, action.width))
    else:
        values = action * model.action_spec.scale + model.action_spec.mean
        powers = [_write_powers(basis, values.pick([i])) for i, basis in enumerate(model.bases)]
        features = side_by_side(powers)
    slopes = columns @ model.slopes[1:] + model.slopes[:1]
    base = columns @ model.base[1:, None] + model.base[:1]
    outcome = base + (slopes * features).row_sums()
    return (outcome - model.outcome_spec.mean) / model.outcome_spec.scale


@write_model.register
def _(model: AveragedModel, rows: ContextRows, action: Block) -> Block:
    k = len(model.controls)
    wide = rows.crossed(model.controls, model.n_levels)
    values = write_model(model.model, wide, action.repeated(k))
    return values.folded(k) @ model.weight[:, None]


def _write_networks(net: StackedMLP, inputs: Block) -> Block:
    """Write all members side by side and return their mean, shape (n, outputs)."""
    values = inputs
    for number, (weight, bias) in enumerate(net.layers()):
        values = (values.apply("Relu") if number else values) @ _numbers(weight) + _numbers(bias)
    return values.apply("ReduceMean", np.array([0]), keepdims=0)


def _write_kernel(features: KernelFeatures, weights: FloatArray, columns: Block) -> Block:
    if isinstance(features, FourierFeatures):
        height = float(np.sqrt(2.0 / features.width))
        # A sine, because older onnxruntimes have no cosine in double precision.
        angles = columns @ features.frequencies + (features.phases + 0.5 * np.pi)
        return angles.apply("Sin") @ (height * weights)[:, None]
    if not isinstance(features, LandmarkFeatures):
        raise InputError(
            f"Expected landmark or Fourier features for an export, got {type(features).__name__}; serve the "
            "model with save and dmliv.load."
        )
    distance = _write_distances(columns, features.landmarks, features.scales)
    return _bell(distance) @ (features.whitening @ weights)[:, None]


def _write_distances(columns: Block, landmarks: FloatArray, scales: FloatArray) -> Block:
    """Write squared distances of rows and landmarks (m, width) in length scales (width,), shape (n, m)."""
    scaled = landmarks / scales
    own = columns / scales
    squares: Block = (own * own).row_sums() + np.sum(scaled**2, axis=1)
    return (squares - own @ (2.0 * scaled.T)).apply("Max", 0.0)


def _bell(squared_distance: Block) -> Block:
    return (squared_distance * -0.5).apply("Exp")


@dataclass(frozen=True)
class _PilotInputs:
    """What a pilot's kernel sees of rows, without the control variables: h does not depend on them."""

    context: Block
    line: Block
    curve: Block

    @classmethod
    def write(cls, space: PilotSpace, rows: ContextRows, action: Block) -> _PilotInputs:
        columns = space.columns
        own = write_standardised(columns.encoder, rows).pick(columns.order)
        centre = side_by_side([_write_column_mean(mean, own) for mean in columns.centre])
        context = side_by_side([own, centre])
        if not columns.bends:
            # The probability of the first level is what the others leave.
            centre = side_by_side([centre.row_sums() * -1.0 + 1.0, centre])
        centred = (action - centre) / columns.spread
        return cls(context, side_by_side([action, centred, centre]), action)


def _write_column_mean(mean: ColumnMean, context: Block) -> Block:
    """Write the mean of an action column in each context, shape (n, 1)."""
    inputs = _PilotInputs(context, context, context)
    return _write_sum(mean.kernel, mean.landmarks, mean.weights, mean.level, inputs)


def _write_sum(
    kernel: AdditiveKernel,
    landmarks: Inputs,
    landmark_weights: FloatArray,
    level: float,
    inputs: _PilotInputs,
) -> Block:
    """Write a constant plus a sum over landmarks, shape (n, 1)."""
    total = inputs.context.each_row(np.array([level]))
    for term, where in kernel.located:
        parameters = kernel.parameters[where]
        weights = np.exp(2.0 * parameters[0]) * landmark_weights
        factors = _write_term(kernel.blocks, landmarks, term, parameters[1:], inputs)
        total = total + (reduce(mul, factors) @ weights[:, None] if factors else weights.sum())
    return total


def _write_term(
    columns_of_blocks: Sequence[tuple[int, int]],
    landmarks: Inputs,
    term: Term,
    log_scales: FloatArray,
    inputs: _PilotInputs,
) -> list[Block]:
    """Write the factors of a term between rows and landmarks, each (n, m); none where it is a constant."""
    factors: list[Block] = []
    scales, n_context = np.exp(log_scales), len(term.context)
    if term.linear:
        factors.append(inputs.context @ landmarks.context.T)
    if term.line:
        line = np.array(term.line)
        factors.append(inputs.line.pick(line) @ landmarks.line[:, line].T)
    if term.context:
        blocks = [np.arange(*columns_of_blocks[block]) for block in term.context]
        columns = np.concatenate(blocks)
        # Matern 3/2: the distance is multiplied by the root of three.
        by_column = np.repeat(scales[:n_context], [len(block) for block in blocks]) / np.sqrt(3.0)
        own = inputs.context.pick(columns)
        distance = _write_distances(own, landmarks.context[:, columns], by_column).apply("Sqrt")
        factors.append((distance + 1.0) * distance.apply("Neg").apply("Exp"))
    if term.curve:
        curve = np.array(term.curve)
        own, points, widths = inputs.curve.pick(curve), landmarks.curve[:, curve], scales[n_context:]
        from_zero = _write_distances(own, np.zeros((1, len(curve))), widths)
        heights = np.exp(-0.5 * np.sum((points / widths) ** 2, axis=1))
        bell = _bell(_write_distances(own, points, widths))
        factors.append(bell - _bell(from_zero) * heights)
    return factors


def _write_fit(fit: FeatureFit, context: Block, action: Block) -> Block:
    """Write one fit of deep features: all products of [psi, 1] and [xi, 1]."""
    u = _numbers(fit.coefficients)
    weights = _write_map(fit.context_map, context) @ u[:, :-1].T + u[:, -1]
    psi = _write_map(fit.action_map, action)
    level, slopes = weights.pick([psi.width]), weights.pick(range(psi.width))
    return level + (slopes * psi).row_sums()


def _write_map(feature_map: FeatureMap, values: Block) -> Block:
    for part in feature_map.body:
        if isinstance(part, nn.Linear):
            values = values @ _numbers(part.weight).T + _numbers(part.bias)
        elif isinstance(part, nn.BatchNorm1d):
            state = {name: _numbers(each) for name, each in part.state_dict().items()}
            factor = state["weight"] / np.sqrt(state["running_var"] + part.eps)
            values = values * factor + (state["bias"] - state["running_mean"] * factor)
        else:
            values = values.apply("Relu")
    return values


def _write_powers(basis: PowerBasis, column: Block) -> Block:
    blocks = [
        column,
        *((column - basis.centre).apply("Pow", float(power)) for power in range(2, basis.degree + 1)),
    ]
    if len(basis.knots):
        blocks.append((column - basis.knots).apply("Relu").apply("Pow", float(basis.degree)))
    return side_by_side(blocks)


def _mean(values: list[Block]) -> Block:
    return reduce(add, values) * (1.0 / len(values))


def _numbers(values: Tensor) -> FloatArray:
    return np.asarray(values.detach().cpu().double())
