"""Export of estimators and policies as ONNX files."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dmliv.data.files import write_atomically
from dmliv.errors import InputError
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.export.graph import Block
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
    reader = InputReader()
    action = reader.action(fitted.action)
    rows = reader.context(fitted.context)
    outcome = write_model(fitted.model, rows, action) * fitted.outcome.scale + fitted.outcome.mean
    return _content(name, reader, {OUTCOME_OUTPUT: (_unless(reader, np.nan, outcome), False)})


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
    reader = InputReader()
    rows = reader.context(fitted.context)
    n_candidates = len(space.vectors)
    values = write_model(fitted.model, rows.repeated(n_candidates), rows.numeric.tiled(space.vectors))
    outcome = (values * fitted.outcome.scale + fitted.outcome.mean).folded(n_candidates)
    net = outcome - policy._cost.of_candidates
    best = net.apply("ArgMax", width=1, axis=1)
    outputs = {}
    for name, candidates in _candidate_columns(policy).items():
        text = candidates.dtype.kind in "OU"
        outputs[name] = (_unless(reader, "" if text else np.nan, best.chosen_from(candidates)), text)
    highest = net.apply("ReduceMax", np.array([1]), width=1)
    outputs[OUTCOME_OUTPUT] = (_unless(reader, np.nan, highest), False)
    return _content("GreedyPolicy", reader, outputs)


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


def _unless(reader: InputReader, missing: float | str, values: Block) -> Block:
    """Return values (n, 1), or what stands for none in rows that cannot be used."""
    return reader.is_unusable().apply("Where", np.array(missing), values)


def _content(name: str, reader: InputReader, outputs: dict[str, tuple[Block, bool]]) -> bytes:
    told = {"model": name, "dmliv": version("dmliv"), "columns": json.dumps(reader.columns)}
    return reader.graph.content(outputs, told)
