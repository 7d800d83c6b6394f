"""Export of estimators and policies as ONNX files."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dmliv.data import OutcomeSpec
from dmliv.data.files import write_atomically
from dmliv.errors import InputError
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.export.graph import GraphBuilder
from dmliv.export.models import write_model
from dmliv.export.raw_rows import InputReader, level_numbers
from dmliv.inference.counterfactual import Counterfactual
from dmliv.policy.greedy import GreedyPolicy

#: The output of an exported estimator, and the value of a policy's recommendation net of its cost.
OUTCOME_OUTPUT = "expected_outcome"
#: The first output of an exported policy; of several action columns each has one with its number at the end.
ACTION_OUTPUT = "recommended_action"


def to_onnx(model: CounterfactualEstimator | GreedyPolicy, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator or policy as an ONNX file, which runs without this package and without torch.

    Every column of the action (estimators only) and of the context is an input of its own, named as in
    training and of shape (n,): 64-bit floats for numbers, strings for categories. Columns of arrays are
    called ``action``, or ``action_0`` and so on, and ``context_0`` and so on. An estimator has the output
    ``expected_outcome``, which is ``predict``. A policy has ``recommended_action`` (for an action of several
    columns ``recommended_action_0`` and so on) and ``expected_outcome``, net of costs. Outputs are 64-bit
    floats, labels of a discrete action strings where they are strings in training.

    A row with a missing or infinite number, or with a category that was not in training, has NaN in every
    output, or an empty string as its action. What the inputs are is also in the metadata of the file, as JSON
    under ``columns``.

    Parameters
    ----------
    model : estimator or GreedyPolicy
        The structural model must be made of networks, kernels or lines. A policy must choose from a list and
        have no ``min_support``.
    path : str or path
        Customarily ends in ``.onnx``.

    Raises
    ------
    InputError
        If the model cannot be exported: trees, images, a policy over a continuum; or not be written.
    ImportError
        If the package onnx is not installed.
    """
    if isinstance(model, GreedyPolicy):
        content = _policy_content(model)
    elif isinstance(model, CounterfactualEstimator):
        content = _estimator_content(model._fitted(), type(model).__name__)
    else:
        raise InputError(
            f"Expected a fitted estimator or a policy of one to export, got {type(model).__name__}; pass "
            "the estimator, or what its method policy returns."
        )
    try:
        write_atomically(Path(path), content)
    except OSError as error:
        raise InputError(
            f"Expected a path that can be written, got {str(path)!r}: {error.strerror or error}; choose "
            "another."
        ) from error


def _estimator_content(fitted: Counterfactual, name: str) -> bytes:
    graph = GraphBuilder()
    reader = InputReader(graph)
    action = reader.action(fitted.action)
    rows = reader.context(fitted.context)
    value = write_model(fitted.model, graph, rows, action)
    outcome = reader.with_nan(_in_user_units(graph, value, fitted.outcome))
    flat = graph.node("Reshape", outcome, graph.constant([-1]))
    return graph.content({OUTCOME_OUTPUT: (flat, False)}, _description(name, reader))


def _policy_content(policy: GreedyPolicy) -> bytes:
    fitted, space = policy._counterfactual, policy._space
    if space.is_continuum:
        raise InputError(
            "Expected a policy that chooses from a list of actions for an export, got one over a continuum; "
            "pass the candidates as an array, such as policy(np.linspace(low, high, 200))."
        )
    if policy._least is not None:
        raise InputError(
            "Expected a policy without min_support for an export, got one with it; leave "
            "min_support out, or serve the model with save and dmliv.load."
        )
    graph = GraphBuilder()
    reader = InputReader(graph)
    rows = reader.context(fitted.context)
    n_candidates = len(space.vectors)
    wide = rows.repeated(graph, n_candidates)
    value = write_model(fitted.model, graph, wide, graph.tiled(space.vectors, rows.n_rows))
    outcome = _in_user_units(graph, value, fitted.outcome)
    by_row = graph.node("Reshape", outcome, graph.constant([-1, n_candidates]))
    net = graph.node("Sub", by_row, graph.constant(policy._cost.of_candidates))
    best = graph.node("ArgMax", net, axis=1, keepdims=0)
    bad = graph.node("Reshape", reader.is_unusable(), graph.constant([-1]))
    highest = graph.node("ReduceMax", net, graph.constant([1]), keepdims=0)
    outputs = {}
    for name, candidates in _candidate_columns(policy).items():
        chosen = graph.node("Gather", graph.constant(candidates), best, axis=0)
        text = candidates.dtype.kind in "OU"
        missing = graph.constant(np.array("" if text else np.nan))
        outputs[name] = (graph.node("Where", bad, missing, chosen), text)
    outputs[OUTCOME_OUTPUT] = (graph.node("Where", bad, graph.constant(np.nan), highest), False)
    return graph.content(outputs, _description("GreedyPolicy", reader))


def _candidate_columns(policy: GreedyPolicy) -> dict[str, npt.NDArray[Any]]:
    """Return the candidates column by column, by the name of the output."""
    spec, candidates = policy._counterfactual.action, policy.candidates
    if spec.kind == "continuous":
        if candidates.ndim == 1:
            return {ACTION_OUTPUT: candidates.astype(np.float64)}
        return {f"{ACTION_OUTPUT}_{number}": column for number, column in enumerate(candidates.T)}
    if all(isinstance(level, str) for level in spec.levels):
        return {ACTION_OUTPUT: candidates.astype(object)}
    return {ACTION_OUTPUT: level_numbers(spec)[policy._space.vectors.argmax(axis=1)]}


def _in_user_units(graph: GraphBuilder, value: str, outcome: OutcomeSpec) -> str:
    scaled = graph.node("Mul", value, graph.constant(outcome.scale))
    return graph.node("Add", scaled, graph.constant(outcome.mean))


def _description(name: str, reader: InputReader) -> dict[str, str]:
    return {"model": name, "dmliv": version("dmliv"), "columns": json.dumps(reader.columns)}
