"""Fitted structural models, written into a graph: h of rows in model units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
from torch import nn

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
from dmliv.export.graph import NO_COLUMNS, Block, GraphBuilder
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
def write_model(model: StructuralModel, graph: GraphBuilder, rows: ContextRows, action: Block) -> str:
    """Write h of contexts and actions (model units); return its value, shape (n, 1)."""
    del graph, rows, action
    raise InputError(
        f"Expected a network, a kernel or a linear model for an export, got {type(model).__name__}; serve it "
        "with save and dmliv.load."
    )


@write_model.register
def _(model: RegressorStructuralModel, graph: GraphBuilder, rows: ContextRows, action: Block) -> str:
    del graph, rows, action
    raise InputError(
        "Expected a network, a kernel or a linear model for an export, got a regressor of scikit-learn such "
        "as trees; fit with learners=neural() or kernel(), or serve the model with save and dmliv.load."
    )


@write_model.register
def _(model: AdversarialModel, graph: GraphBuilder, rows: ContextRows, action: Block) -> str:
    return write_model(model.networks, graph, rows, action)


@write_model.register
def _(model: NeuralStructuralModel, graph: GraphBuilder, rows: ContextRows, action: Block) -> str:
    centre = write_centre(graph, model.encoder, rows)
    context = write_context(graph, model.encoder, model.encoding, rows, centre)
    own = write_action(graph, model.encoder, model.encoding, action, centre)
    return _write_networks(graph, model.net, graph.side_by_side([context, own]))


@write_model.register
def _(model: LinearStructuralModel, graph: GraphBuilder, rows: ContextRows, action: Block) -> str:
    columns = graph.side_by_side([write_standardised(graph, model.encoder.context, rows), action])
    coefficients = model.coefficients
    return graph.affine(columns, coefficients[1:, None], coefficients[:1], rows.n_rows).name


@write_model.register
def _(model: KernelModel, graph: GraphBuilder, rows: ContextRows, action: Block) -> str:
    columns = graph.side_by_side([action, write_standardised(graph, model.encoder, rows)])
    return _write_kernel(graph, model.features, model.weights, columns)


@write_model.register
def _(model: PilotedModel, graph: GraphBuilder, rows: ContextRows, action: Block) -> str:
    pilot = write_model(model.pilot, graph, rows, action)
    if model.remainder is None:
        return pilot
    return graph.node("Add", pilot, write_model(model.remainder, graph, rows, action))


@write_model.register
def _(model: PilotModel, graph: GraphBuilder, rows: ContextRows, action: Block) -> str:
    space = model.space
    inputs = _PilotInputs.write(graph, space, rows, action)
    kernel = space.kernel.part(STRUCTURAL)
    return _write_sum(graph, kernel, space.landmarks, model.weights, model.level, inputs, rows)


@write_model.register
def _(model: FeatureModel, graph: GraphBuilder, rows: ContextRows, action: Block) -> str:
    plain = model.reader.encoding == "standardised"
    write = write_standardised if plain else write_piecewise_linear
    context = write(graph, model.reader.encoder, rows)
    return _mean(graph, [_write_fit(graph, fit, rows, context, action) for fit in model.fits])


@write_model.register
def _(model: SeriesModel, graph: GraphBuilder, rows: ContextRows, action: Block) -> str:
    without_first = [graph.pick(block, np.arange(1, block.width)) for block in rows.levels]
    columns = graph.side_by_side([rows.numeric, *without_first])
    if model.action_spec.kind == "discrete":
        features = graph.pick(action, np.arange(1, action.width))
    else:
        spec = model.action_spec
        values = graph.scaled(action, -spec.mean / spec.scale, 1.0 / spec.scale)
        features = graph.side_by_side(
            [
                _write_powers(graph, basis, graph.pick(values, np.array([position])))
                for position, basis in enumerate(model.bases)
            ]
        )
    slopes = graph.affine(columns, model.slopes[1:], model.slopes[0], rows.n_rows)
    base = graph.affine(columns, model.base[1:, None], model.base[:1], rows.n_rows)
    effects = graph.row_sums(graph.node("Mul", slopes.name, features.name))
    outcome = Block(graph.node("Add", base.name, effects), 1)
    return graph.scaled(outcome, model.outcome_spec.mean, model.outcome_spec.scale).name


@write_model.register
def _(model: AveragedModel, graph: GraphBuilder, rows: ContextRows, action: Block) -> str:
    k = len(model.controls)
    wide = rows.crossed(graph, model.controls, model.n_levels)
    values = write_model(model.model, graph, wide, graph.repeated(action, k, rows.n_rows))
    by_row = graph.node("Reshape", values, graph.constant([-1, k]))
    return graph.node("MatMul", by_row, graph.constant(model.weight[:, None]))


def _write_networks(graph: GraphBuilder, net: StackedMLP, inputs: Block) -> str:
    """Write all members side by side and return their mean, shape (n, outputs)."""
    value = inputs.name
    layers = [
        (weight.detach().cpu().double().numpy(), bias.detach().cpu().double().numpy())
        for weight, bias in net.layers()
    ]
    for number, (weight, bias) in enumerate(layers):
        if number:
            value = graph.node("Relu", value)
        value = graph.node("MatMul", value, graph.constant(weight))
        value = graph.node("Add", value, graph.constant(bias))
    return graph.node("ReduceMean", value, graph.constant([0]), keepdims=0)


def _write_kernel(graph: GraphBuilder, features: KernelFeatures, weights: FloatArray, columns: Block) -> str:
    if isinstance(features, FourierFeatures):
        height = np.sqrt(2.0 / features.width)
        angles = graph.node("MatMul", columns.name, graph.constant(features.frequencies))
        cosines = graph.node("Cos", graph.node("Add", angles, graph.constant(features.phases)))
        return graph.node("MatMul", cosines, graph.constant((height * weights)[:, None]))
    if not isinstance(features, LandmarkFeatures):
        raise InputError(
            f"Expected landmark or Fourier features for an export, got {type(features).__name__}; serve the "
            "model with save and dmliv.load."
        )
    distance = _write_distances(graph, columns, features.landmarks, features.scales)
    kernel = _write_bell(graph, distance)
    return graph.node("MatMul", kernel, graph.constant((features.whitening @ weights)[:, None]))


def _write_distances(graph: GraphBuilder, columns: Block, landmarks: FloatArray, scales: FloatArray) -> str:
    """Write squared distances of rows and landmarks (m, width) in length scales (width,), shape (n, m)."""
    scaled = landmarks / scales
    rows = graph.node("Div", columns.name, graph.constant(scales))
    squares = graph.node(
        "Add", graph.row_sums(graph.node("Mul", rows, rows)), graph.constant(np.sum(scaled**2, axis=1))
    )
    products = graph.node("MatMul", rows, graph.constant(2.0 * scaled.T))
    return graph.node("Max", graph.node("Sub", squares, products), graph.constant(0.0))


def _write_bell(graph: GraphBuilder, squared_distance: str) -> str:
    return graph.node("Exp", graph.node("Mul", squared_distance, graph.constant(-0.5)))


@dataclass(frozen=True)
class _PilotInputs:
    """What a pilot's kernel sees of rows, without the control variables: h does not depend on them."""

    context: Block
    line: Block
    curve: Block

    @classmethod
    def write(cls, graph: GraphBuilder, space: PilotSpace, rows: ContextRows, action: Block) -> _PilotInputs:
        columns = space.columns
        own = graph.pick(write_standardised(graph, columns.encoder, rows), columns.order)
        means = [_write_column_mean(graph, mean, own, rows) for mean in columns.centre]
        centre = graph.side_by_side([Block(mean, 1) for mean in means])
        context = graph.side_by_side([own, centre])
        if not columns.bends:
            # The probability of the first level is what the others leave.
            others = graph.row_sums(centre.name)
            first = graph.node("Sub", graph.constant(1.0), others)
            centre = graph.side_by_side([Block(first, 1), centre])
        moved = graph.node("Sub", action.name, centre.name)
        centred = Block(graph.node("Div", moved, graph.constant(columns.spread)), action.width)
        return cls(context, graph.side_by_side([action, centred, centre]), action)


def _write_column_mean(graph: GraphBuilder, mean: ColumnMean, context: Block, rows: ContextRows) -> str:
    """Write the mean of an action column in each context, shape (n, 1)."""
    inputs = _PilotInputs(context, NO_COLUMNS, NO_COLUMNS)
    return _write_sum(graph, mean.kernel, mean.landmarks, mean.weights, mean.level, inputs, rows)


def _write_sum(
    graph: GraphBuilder,
    kernel: AdditiveKernel,
    landmarks: Inputs,
    landmark_weights: FloatArray,
    constant: float,
    inputs: _PilotInputs,
    rows: ContextRows,
) -> str:
    """Write a constant plus a sum over landmarks, shape (n, 1)."""
    values = []
    for term, where in kernel.located:
        parameters = kernel.parameters[where]
        weights = np.exp(2.0 * parameters[0]) * landmark_weights
        factors = _write_term(graph, kernel.blocks, landmarks, term, parameters[1:], inputs)
        if not factors:
            constant += float(weights.sum())
            continue
        product = factors[0]
        for factor in factors[1:]:
            product = graph.node("Mul", product, factor)
        values.append(graph.node("MatMul", product, graph.constant(weights[:, None])))
    total = graph.affine(NO_COLUMNS, np.empty((0, 1)), np.array([constant]), rows.n_rows).name
    for value in values:
        total = graph.node("Add", total, value)
    return total


def _write_term(
    graph: GraphBuilder,
    columns_of_blocks: Sequence[tuple[int, int]],
    landmarks: Inputs,
    term: Term,
    log_scales: FloatArray,
    inputs: _PilotInputs,
) -> list[str]:
    """Write the factors of a term between rows and landmarks, each (n, m); none where it is a constant."""
    factors: list[str] = []
    scales, n_context = np.exp(log_scales), len(term.context)
    if term.linear:
        factors.append(graph.node("MatMul", inputs.context.name, graph.constant(landmarks.context.T)))
    if term.line:
        line = np.array(term.line)
        own = graph.pick(inputs.line, line)
        factors.append(graph.node("MatMul", own.name, graph.constant(landmarks.line[:, line].T)))
    if term.context:
        blocks = [np.arange(*columns_of_blocks[block]) for block in term.context]
        columns = np.concatenate(blocks)
        # Matern 3/2: the distance is multiplied by the root of three.
        by_column = np.repeat(scales[:n_context], [len(block) for block in blocks]) / np.sqrt(3.0)
        own = graph.pick(inputs.context, columns)
        distance = graph.node("Sqrt", _write_distances(graph, own, landmarks.context[:, columns], by_column))
        decay = graph.node("Exp", graph.node("Neg", distance))
        factors.append(graph.node("Mul", graph.node("Add", distance, graph.constant(1.0)), decay))
    if term.curve:
        curve = np.array(term.curve)
        own, points, widths = graph.pick(inputs.curve, curve), landmarks.curve[:, curve], scales[n_context:]
        bell = _write_bell(graph, _write_distances(graph, own, points, widths))
        from_zero = _write_bell(graph, _write_distances(graph, own, np.zeros((1, len(curve))), widths))
        heights = np.exp(-0.5 * np.sum((points / widths) ** 2, axis=1))
        anchor = graph.node("Mul", from_zero, graph.constant(heights))
        factors.append(graph.node("Sub", bell, anchor))
    return factors


def _write_fit(graph: GraphBuilder, fit: FeatureFit, rows: ContextRows, context: Block, action: Block) -> str:
    """Write one fit of deep features: all products of [psi, 1] and [xi, 1]."""
    u = fit.coefficients.detach().cpu().double().numpy()
    xi = _write_map(graph, fit.context_map, context, rows.n_rows)
    psi = _write_map(graph, fit.action_map, action, rows.n_rows)
    by_context = graph.affine(xi, u[:, :-1].T, u[:, -1], rows.n_rows)
    weights = graph.pick(by_context, np.arange(psi.width))
    level = graph.pick(by_context, np.array([psi.width]))
    return graph.node("Add", level.name, graph.row_sums(graph.node("Mul", weights.name, psi.name)))


def _write_map(graph: GraphBuilder, feature_map: FeatureMap, inputs: Block, n_rows: str) -> Block:
    block = inputs
    for part in feature_map.body:
        if isinstance(part, nn.Linear):
            weight, bias = (each.detach().cpu().double().numpy() for each in (part.weight, part.bias))
            block = graph.affine(block, weight.T, bias, n_rows)
        elif isinstance(part, nn.BatchNorm1d):
            block = _write_normalisation(graph, part, block)
        else:
            block = Block(graph.node("Relu", block.name), block.width)
    return block


def _write_normalisation(graph: GraphBuilder, layer: nn.BatchNorm1d, block: Block) -> Block:
    state = {name: values.detach().cpu().double().numpy() for name, values in layer.state_dict().items()}
    factor = state["weight"] / np.sqrt(state["running_var"] + layer.eps)
    scaled = graph.node("Mul", block.name, graph.constant(factor))
    shift = graph.constant(state["bias"] - state["running_mean"] * factor)
    return Block(graph.node("Add", scaled, shift), block.width)


def _write_powers(graph: GraphBuilder, basis: PowerBasis, column: Block) -> Block:
    blocks = [column]
    centred = graph.node("Sub", column.name, graph.constant(basis.centre))
    for power in range(2, basis.degree + 1):
        blocks.append(Block(graph.node("Pow", centred, graph.constant(float(power))), 1))
    if len(basis.knots):
        beyond = graph.node("Relu", graph.node("Sub", column.name, graph.constant(basis.knots)))
        raised = graph.node("Pow", beyond, graph.constant(float(basis.degree)))
        blocks.append(Block(raised, len(basis.knots)))
    return graph.side_by_side(blocks)


def _mean(graph: GraphBuilder, values: list[str]) -> str:
    total = values[0]
    for value in values[1:]:
        total = graph.node("Add", total, value)
    return graph.node("Mul", total, graph.constant(1.0 / len(values)))
