"""Words of a report that follow from its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dmliv.data import Column, FloatArray, IntArray, Table, TableSchema
from dmliv.diagnostics.strength import WEAK_F, InstrumentStrength
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.inference.counterfactual import Counterfactual
from dmliv.report.contents import ContextColumn, Fact, PolicySummary, RoleRow

_MOST_COLUMNS = 40
_MOST_LEVELS = 6
_MOST_IN_CAPTION = 4
_FEW_ROWS = 200
_MANY_AT_EDGE = 0.5
_MANY_UNSUPPORTED = 0.1


def columns_read(
    fitted: Counterfactual,
    outcome_name: str,
    outcome: FloatArray | None,
    action: FloatArray | IntArray,
    context: Table,
    instruments: tuple[TableSchema, Table] | None,
    controls: tuple[TableSchema, Table] | None = None,
) -> tuple[RoleRow, ...]:
    """Return the role of every column and how it was read."""
    about = f"numeric, mean {fitted.outcome.mean:.4g}, deviation {fitted.outcome.scale:.4g} in training"
    rows = [RoleRow("outcome", outcome_name, about if outcome is None else _number_words(outcome))]
    spec = fitted.action
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
    tables = [("context", fitted.context, context)]
    if instruments is not None:
        tables.insert(0, ("instrument", *instruments))
    if controls is not None:
        tables.append(("control", *controls))
    for role, schema, table in tables:
        found = {column.name: (column, values) for column, values in schema.pairs(table)}
        # Controls that are contexts as well are not among those found.
        names = [name for name in schema.input_order if name in found]
        rows += [RoleRow(role, name, _column_words(*found[name])) for name in names[:_MOST_COLUMNS]]
        if len(names) > _MOST_COLUMNS:
            rows.append(RoleRow(role, f"and {len(names) - _MOST_COLUMNS:,} more", ""))
    return tuple(rows)


def first_stage_facts(estimator: CounterfactualEstimator) -> tuple[Fact, ...]:
    """Return how well the first stage fits, where the estimator knows."""
    losses: Mapping[str, float] = getattr(estimator, "nuisance_losses_", {})
    where = "out of fold" if getattr(estimator, "n_folds", 1) > 1 else "in sample"
    words = {
        "outcome_r2": f"Outcome from context and instrument: R² {where}",
        "outcome_mse": f"Outcome: mean squared error {where}",
        "action_r2": f"Action from context and instrument: R² {where}",
        "action_mse": f"Action: mean squared error {where}",
        "action_accuracy": f"Action from context and instrument: share right {where}",
        "action_nll": f"Action distribution: negative log-likelihood {where}",
    }
    found = [Fact(label, f"{losses[key]:.3g}") for key, label in words.items() if key in losses]
    found += [
        Fact(f"Partial F of the instruments for {name}", f"{value:.3g}")
        for name, value in getattr(estimator, "first_stage_f_", {}).items()
    ]
    return tuple(found)


def settings_chosen(estimator: CounterfactualEstimator) -> tuple[Fact, ...]:
    """Return what the learners say of themselves, the short of it."""
    first_stage = getattr(estimator, "first_stage_", None)
    models = {
        "Outcome model": getattr(first_stage, "outcome_model", None),
        "Action model": getattr(first_stage, "action_model", None),
        "Structural model": estimator._fitted().model,
    }
    facts = []
    for name, model in models.items():
        described = None if model is None else _plain(model.describe())
        if described:
            facts.append(Fact(name, described))
    return tuple(facts)


def cautions(
    strength: InstrumentStrength | None, n_rows: int, policy: PolicySummary, losses: Mapping[str, float]
) -> tuple[str, ...]:
    """Return what speaks against relying on the numbers."""
    found = []
    if strength is not None and strength.is_weak:
        found.append(
            f"The instrument is weak: it explains {100.0 * strength.partial_r2:.2g} % of what the context "
            f"leaves open of the action (F {strength.projected_f:.2g}, below {WEAK_F:g})."
        )
    if losses.get("outcome_r2", 1.0) <= 0.0:
        found.append("Context and instrument predict the outcome no better than its mean does.")
    if n_rows < _FEW_ROWS:
        found.append(f"The report rests on only {n_rows} rows.")
    if policy.edge_share is not None and policy.edge_share > _MANY_AT_EDGE:
        found.append(
            f"{policy.edge_share:.0%} of the recommendations lie at the edge of the actions on offer: "
            "the best action may lie beyond, or the model extrapolates."
        )
    if policy.outside_share > 0.0:
        found.append(f"{policy.outside_share:.0%} of the recommendations lie outside the observed actions.")
    if policy.gain_interval is not None and policy.gain_interval[0] <= 0.0 <= policy.gain_interval[1]:
        found.append(
            "The recommendations may be no better than the actions in the data: with 95 % confidence the "
            f"gain lies between {policy.gain_interval[0]:.4g} and {policy.gain_interval[1]:.4g}."
        )
    unseen = 0.0 if policy.support is None else float(np.mean(policy.support < policy.least_support))
    if unseen > _MANY_UNSUPPORTED:
        found.append(f"{unseen:.0%} of the recommended actions are hardly ever seen in such contexts.")
    return tuple(found)


def row_words(columns: Sequence[ContextColumn], row: int) -> str:
    """Return the context of a row, the columns that matter most first."""
    shown = [
        f"{each.column.name} {_value_words(each.column, float(each.values[row]))}"
        for each in columns[:_MOST_IN_CAPTION]
    ]
    return ", ".join(shown) + (", ..." if len(columns) > _MOST_IN_CAPTION else "")


def _value_words(column: Column, value: float) -> str:
    return column.levels[int(value)] if column.kind == "categorical" else f"{value:.4g}"


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
