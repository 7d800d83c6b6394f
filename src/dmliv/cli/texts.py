"""What the shell commands for models show: columns, findings, effects and recommendations as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from dmliv.data import ActionSpec, FloatArray, TrainingData
from dmliv.diagnostics.checks import far_action_finding, judge
from dmliv.diagnostics.findings import Finding, warnings_of
from dmliv.errors import InputError
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.policy.decisions import Decisions
from dmliv.policy.greedy import GreedyPolicy
from dmliv.report.words import columns_read

_MOST_LEVELS = 10


def show_columns(console: Console, data: TrainingData, outcome: str) -> None:
    """Print the role of every column and how it was read."""
    tables = [("instrument", data.instrument_schema, data.instrument)]
    if data.controls is None:
        tables.append(("context", data.context_schema, data.context))
    else:
        context, controls = data.controls.split(data.context)
        tables.append(("context", data.controls.context, context))
        tables.append(("control", data.controls.columns, controls))
    grid = Grid(title=f"{len(data):,} rows", title_justify="left")
    for heading in ("Role", "Column", "Read as"):
        grid.add_column(heading, overflow="fold")
    outcomes = data.outcome_spec.to_user(data.outcome)
    for row in columns_read(outcome, outcomes, data.action_spec, data.action, tables):
        grid.add_row(row.role, escape(row.name), escape(row.words))
    console.print(grid)


def show_findings(console: Console, title: str, findings: Iterable[Finding]) -> None:
    """Print the names and values of findings; nothing if there are none."""
    lines = [(finding.name, finding.shown) for finding in findings]
    if lines:
        _show_lines(console, title, lines)


def show_effect(
    console: Console,
    effects: FloatArray,
    start: str,
    end: str,
    interval: tuple[float, float] | None = None,
) -> None:
    """Print the mean effect, its interval if there is one, and how effects differ between rows."""
    grid = Grid(title=escape(f"Effect of the action from {start} to {end}"), title_justify="left")
    for heading in ("Rows", "Mean", "Lowest", "25 %", "Median", "75 %", "Highest"):
        grid.add_column(heading, justify="right")
    numbers = [effects.mean(), *np.quantile(effects, [0.0, 0.25, 0.5, 0.75, 1.0])]
    grid.add_row(f"{len(effects):,}", *(f"{number:.4g}" for number in numbers))
    console.print(grid)
    if interval is not None:
        console.print(f"95 % confidence interval of the mean effect: {_ends(interval)}.")


def far_warnings(spec: ActionSpec, *actions: Any) -> list[str]:
    """Return a warning for each continuous action far from those of the training rows."""
    return warnings_of(far_action_finding(spec, each) for each in actions if spec.kind == "continuous")


def decision_values(
    estimator: CounterfactualEstimator,
    policy: GreedyPolicy,
    contexts: Any,
    decisions: Decisions,
    taken: Any,
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return lines on the estimated outcome of recommendations, and warnings about the gain.

    Parameters
    ----------
    estimator : CounterfactualEstimator
    policy : GreedyPolicy
        Without costs.
    contexts : frame or None
    decisions : Decisions
        Of these contexts.
    taken : frame or None
        Actions that were taken in them.
    """
    value = float(decisions.value.mean())
    lines = [("Expected outcome, mean", f"{value:.4g}")]
    has_intervals = estimator.counterfactual_.uncertainty is not None
    if has_intervals:
        lines.append(_interval_line(policy.value_interval(contexts, actions=decisions.action)))
    if taken is None:
        return lines, []
    try:
        today = float(estimator.predict(taken, contexts).mean())
    except InputError as error:
        return lines, [f"The gain over the actions in the file cannot be computed: {error}"]
    lines.append(("Gain over the actions in the file", f"{value - today:.4g}"))
    if not has_intervals:
        return lines, []
    gain = policy.value_interval(contexts, actions=decisions.action, versus=taken)
    return [*lines, _interval_line(gain)], warnings_of([judge("gain", gain[0])])


def show_decisions(
    console: Console, decisions: Decisions, spec: ActionSpec, values: list[tuple[str, str]]
) -> None:
    """Print the estimated outcome of the recommendations, and how often each action is recommended."""
    lines = list(values)
    if spec.kind == "discrete":
        levels, counts = np.unique(decisions.action.astype(str), return_counts=True)
        for position in np.argsort(-counts)[:_MOST_LEVELS]:
            lines.append((f"{spec.names[0]} = {levels[position]}", f"{counts[position]:,} rows"))
    else:
        columns = decisions.action.reshape(len(decisions), -1).T
        for name, column in zip(spec.names, columns, strict=True):
            low, middle, high = np.quantile(column, [0.0, 0.5, 1.0])
            lines.append((f"{name}: lowest, median, highest", f"{low:.4g}, {middle:.4g}, {high:.4g}"))
    _show_lines(console, f"Recommendations for {len(decisions):,} rows", lines)


def _show_lines(console: Console, title: str, lines: list[tuple[str, str]]) -> None:
    grid = Grid(title=title, title_justify="left", show_header=False)
    grid.add_column()
    grid.add_column(justify="right")
    for label, value in lines:
        grid.add_row(escape(label), value)
    console.print(grid)


def _interval_line(ends: tuple[float, float]) -> tuple[str, str]:
    return "... 95 % confidence interval", _ends(ends)


def _ends(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.4g} to {interval[1]:.4g}"
