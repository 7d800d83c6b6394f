"""What a report and ``dmliv fit`` say about a fit: its columns, first stage, settings and pilot in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from dmliv.data import ActionSpec, Column, FloatArray, IntArray, OutcomeSpec, Table, TableSchema
from dmliv.diagnostics.checks import judge, loss_findings, pilot_findings
from dmliv.diagnostics.findings import Finding
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.estimators.two_stage import TwoStageIV
from dmliv.report.contents import ContextColumn, PolicySummary, RoleRow
from dmliv.second_stage.pilot_model import PilotedModel

_MOST_COLUMNS = 40
_MOST_LEVELS = 6
_MOST_IN_CAPTION = 4
# Larger odds say nothing more.
_MOST_ODDS: Final = 1_000_000.0
_CONTROL_VARIABLES: Final = {
    "residual": "the residual of the action given context and instrument",
    "rank": "the rank of the action in its estimated distribution given context and instrument",
}
_WITHOUT_PILOT = "pilot=None (dmliv fit --no-pilot) estimates h from the moment conditions alone"


def columns_read(
    outcome_name: str,
    outcome: FloatArray | OutcomeSpec,
    spec: ActionSpec,
    action: FloatArray | IntArray,
    tables: Sequence[tuple[str, TableSchema, Table]],
) -> tuple[RoleRow, ...]:
    """Return the role of every column and how it was read.

    Parameters
    ----------
    outcome_name : str
    outcome : ndarray, shape (n,), or OutcomeSpec
        Outcomes in the user's units, or what is known of those of the training rows.
    spec : ActionSpec
    action : ndarray, shape (n,) or (n, d)
        As the model reads it.
    tables : sequence of (role, schema, table)
        Other columns; what a schema names but its table does not hold is left out.
    """
    about = (
        f"numeric, mean {outcome.mean:.4g}, standard deviation {outcome.scale:.4g} in training"
        if isinstance(outcome, OutcomeSpec)
        else _number_words(outcome)
    )
    rows = [RoleRow("outcome", outcome_name, about)]
    if spec.kind == "discrete":
        counts = np.bincount(action.astype(np.int64), minlength=len(spec.levels))
        rows.append(
            RoleRow("action", spec.names[0], _level_words([str(each) for each in spec.levels], counts))
        )
    else:
        numbers = np.asarray(spec.to_user(np.asarray(action, dtype=np.float64))).reshape(len(action), -1)
        rows += [
            RoleRow("action", name, _number_words(column))
            for name, column in zip(spec.names, numbers.T, strict=True)
        ]
    for role, schema, table in tables:
        found = {column.name: (column, values) for column, values in schema.pairs(table)}
        names = [name for name in schema.input_order if name in found]
        rows += [RoleRow(role, name, _column_words(*found[name])) for name in names[:_MOST_COLUMNS]]
        if len(names) > _MOST_COLUMNS:
            rows.append(RoleRow(role, f"and {len(names) - _MOST_COLUMNS:,} more", ""))
    return tuple(rows)


def row_words(columns: Sequence[ContextColumn], row: int) -> str:
    """Return the context of a row, the columns that matter most first."""
    shown = []
    for each in columns[:_MOST_IN_CAPTION]:
        value = float(each.values[row])
        level = each.column.levels[int(value)] if each.column.kind == "categorical" else f"{value:.4g}"
        shown.append(f"{each.column.name} {level}")
    return ", ".join(shown) + (", ..." if len(columns) > _MOST_IN_CAPTION else "")


def first_stage_findings(estimator: CounterfactualEstimator) -> tuple[Finding, ...]:
    """Return how well the first stage of a fitted estimator fits, as far as it keeps a record of it."""
    losses: Mapping[str, float] = getattr(estimator, "nuisance_losses_", {})
    partial_f: Mapping[str, float] = getattr(estimator, "first_stage_f_", {})
    return (
        *loss_findings(losses, cross_fitted=getattr(estimator, "n_folds", 1) > 1),
        *(judge("partial_f", value, feature=name) for name, value in partial_f.items()),
        *pilot_findings(estimator._fitted().model),
    )


def computed_diagnostics(estimator: CounterfactualEstimator, shown: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return what ``diagnostics()`` found, if it was called after the fit, without what is shown already."""
    if not isinstance(estimator, TwoStageIV) or estimator._diagnostics is None:
        return ()
    keys = {finding.key for finding in shown}
    return tuple(finding for finding in estimator._diagnostics.findings if finding.key not in keys)


def policy_findings(policy: PolicySummary) -> tuple[Finding, ...]:
    """Return how far the recommendations of a report can be trusted."""
    found = [judge("outside", policy.outside_share)]
    if policy.edge_share is not None:
        found.insert(0, judge("at_edge", policy.edge_share))
    if policy.gain_interval is not None:
        found.append(judge("gain", policy.gain_interval[0]))
    if policy.support is not None:
        found.append(judge("unsupported", float(np.mean(policy.support < policy.least_support))))
    return tuple(found)


def settings_chosen(estimator: CounterfactualEstimator) -> dict[str, str]:
    """Return what the learners chose, by model."""
    first_stage = getattr(estimator, "first_stage_", None)
    models = {
        "Outcome model": getattr(first_stage, "outcome_model", None),
        "Action model": getattr(first_stage, "action_model", None),
        "Structural model": estimator._fitted().model,
    }
    described = {name: _plain(model.describe()) for name, model in models.items() if model is not None}
    return {name: text for name, text in described.items() if text}


def pilot_words(estimator: CounterfactualEstimator) -> tuple[str, ...]:
    """Return sentences on the pilot of a fitted two-stage estimator; none for other estimators."""
    if not isinstance(estimator, TwoStageIV):
        return ()
    model = estimator.structural_model_
    if not isinstance(model, PilotedModel):
        return (_without_pilot(estimator),)
    details, pilot = model.describe(), model.pilot.describe()
    control = str(pilot.get("control_variable"))
    odds, size = _odds_against(details), f"{details['remainder_size']:.2g}"
    correction = f"its standard deviation at the observed actions is {size} times that of the pilot"
    if control == "none":
        weak = (
            "The instrument is too weak to show any effect of the action (odds that it changes the action at "
            f"all: {_ratio(pilot['instrument_evidence'])}), so the pilot is the mean outcome given the "
            "context."
        )
        if model.remainder is None:
            return weak, (
                "The moment conditions add nothing to it, so h does not depend on the action. "
                f"{_WITHOUT_PILOT}, whatever the strength of the instrument."
            )
        return weak, f"All effects come from a correction by the moment conditions{odds}: {correction}."
    start = "h, the expected outcome if the action is set, starts from a pilot"
    assumption = "The pilot rests on an assumption of its own."
    if control in _CONTROL_VARIABLES:
        start += (
            ": a control-function regression of the outcome on context, action and "
            f"{_CONTROL_VARIABLES[control]}"
        )
        assumption = f"The pilot assumes that this one {control} carries all of the confounding."
    if model.remainder is None:
        second = "The moment conditions do not contradict the pilot, so h is the pilot, without a correction."
    elif odds:
        second = f"The moment conditions contradict the pilot{odds}, so a correction was added: {correction}."
    else:
        second = f"A correction by the moment conditions was added: {correction}."
    return (
        f"{start}.",
        second,
        f"{assumption} A correction does not need it, but it repairs h only as far as the instrument "
        f"identifies h; the rest of h is the pilot's. {_WITHOUT_PILOT}.",
    )


def _without_pilot(estimator: TwoStageIV) -> str:
    start = "h has no pilot: it is estimated from the moment conditions alone"
    learners = estimator.learners
    if estimator.pilot is None:
        return f"{start} (pilot=None)."
    if learners is not None and not learners.with_pilot:
        return f"{start}, as in the paper."
    if learners is not None and not getattr(learners.structural, "takes_pilot", True):
        return f"{start}, because these learners make h linear in the action."
    return f"{start}."


def _odds_against(details: Mapping[str, object]) -> str:
    """Return the odds against the pilot in words, or nothing where it was not tested."""
    evidence = details.get("evidence_against_pilot")
    if not isinstance(evidence, Mapping) or not evidence:
        return ""
    return f" (odds of {_ratio(max(evidence.values()))})"


def _ratio(evidence: Any) -> str:
    """Return the odds that belong to the logarithm of a Bayes factor, in words."""
    if evidence > np.log(_MOST_ODDS):
        return f"more than {_MOST_ODDS:,.0f} to one"
    if evidence < 0.0:
        return "below one to one"
    return f"{float(f'{np.exp(evidence):.2g}'):,.0f} to one"


def _column_words(column: Column, values: FloatArray | IntArray) -> str:
    if column.kind == "numeric":
        return _number_words(np.asarray(values, dtype=np.float64))
    counts = np.bincount(values.astype(np.int64), minlength=len(column.levels))
    return _level_words(column.levels, counts)


def _number_words(numbers: FloatArray) -> str:
    low, middle, high = np.quantile(numbers, [0.0, 0.5, 1.0])
    return f"numeric, {low:.4g} to {high:.4g}, median {middle:.4g}"


def _level_words(levels: Sequence[str], counts: IntArray) -> str:
    order = np.argsort(-counts, kind="stable")[:_MOST_LEVELS]
    total = max(int(counts.sum()), 1)
    shown = ", ".join(f"{levels[each]} ({counts[each] / total:.0%})" for each in order)
    return f"{len(levels)} levels: {shown}" + (", ..." if len(levels) > _MOST_LEVELS else "")


def _plain(described: Mapping[str, object]) -> str:
    """Return a description without the long lists in it."""
    parts = []
    for key, value in described.items():
        words = key.replace("_", " ")
        if isinstance(value, Mapping):
            inner = _plain(value)
            parts += [f"{words}: {inner}"] if inner else []
        elif isinstance(value, str | bool | int):
            parts.append(f"{words} {value}")
        elif isinstance(value, float):
            parts.append(f"{words} {value:.3g}")
        elif isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value):
            parts.append(f"{words} {', '.join(dict.fromkeys(str(each) for each in value))}")
    return "; ".join(parts)
