"""What the shell commands for models show: columns, fits, effects and recommendations as readable tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Grid

from dmliv.data import ActionSpec, FloatArray, TableSchema, TrainingData
from dmliv.diagnostics.strength import InstrumentStrength
from dmliv.errors import InputError, listed
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.policy.decisions import Decisions
from dmliv.policy.greedy import GreedyPolicy
from dmliv.report.pilot_words import pilot_cautions, pilot_words

# Columns of a role that are shown one by one.
_MOST_COLUMNS = 30
_FEW_ROWS = 200
_FEW_ROWS_PER_LEVEL = 10
# Standard deviations from the mean beyond which hardly any action was observed.
_FAR = 3.0
_MANY_AT_EDGE = 0.5


def show_columns(console: Console, data: TrainingData, outcome: str) -> None:
    """Print the role of every column and how it was read."""
    grid = Grid(title=f"{len(data):,} rows", title_justify="left")
    for heading in ("Role", "Column", "Read as"):
        grid.add_column(heading, overflow="fold")
    spec = data.outcome_spec
    grid.add_row("outcome", escape(outcome), f"numeric, mean {spec.mean:.4g}, deviation {spec.scale:.4g}")
    for number, name in enumerate(data.action_spec.names):
        grid.add_row("action", escape(name), escape(_action_words(data.action_spec, number)))
    schemas = [("instrument", data.instrument_schema)]
    if data.controls is None:
        schemas.append(("context", data.context_schema))
    else:
        schemas += [("context", data.controls.context), ("control", data.controls.columns)]
    for role, schema in schemas:
        shown = schema.input_order[:_MOST_COLUMNS]
        for name in shown:
            grid.add_row(role, escape(name), escape(_column_words(schema, name)))
        if len(schema.input_order) > len(shown):
            grid.add_row(role, f"... and {len(schema.input_order) - len(shown):,} more", "")
    console.print(grid)


def show_fit(console: Console, estimator: CounterfactualEstimator, strength: InstrumentStrength) -> None:
    """Print how well the first stage fits, and where h starts from."""
    grid = Grid(title="First stage", title_justify="left", show_header=False)
    grid.add_column()
    grid.add_column(justify="right")
    losses: dict[str, float] = getattr(estimator, "nuisance_losses_", {})
    folds = getattr(estimator, "n_folds", 1)
    where = "out of fold" if folds > 1 else "in sample"
    words = {
        "outcome_r2": f"Outcome given context and instrument, R2 {where}",
        "action_r2": f"Action given context and instrument, R2 {where}",
        "action_accuracy": f"Action given context and instrument, share right {where}",
    }
    for key, label in words.items():
        if key in losses:
            grid.add_row(label, f"{losses[key]:.3f}")
    for name, value in getattr(estimator, "first_stage_f_", {}).items():
        grid.add_row(f"Partial F of the instruments for {escape(name)}", f"{value:.3g}")
    grid.add_section()
    grid.add_row("Action by a simple model, R2 held out: context alone", f"{strength.context_r2:.3f}")
    grid.add_row("... and with the instrument", f"{strength.full_r2:.3f}")
    grid.add_row("Strength: share of the rest the instrument explains", f"{strength.partial_r2:.3f}")
    grid.add_row("Strength: F of what it moves, nonlinear", f"{strength.projected_f:,.1f}")
    grid.add_row("Strength: effective F, linear", f"{strength.effective_f:,.1f}")
    console.print(grid)
    for sentence in pilot_words(estimator):
        console.print(sentence, markup=False)


def fit_warnings(
    data: TrainingData, estimator: CounterfactualEstimator, strength: InstrumentStrength
) -> list[str]:
    """Return what speaks against relying on the fit."""
    found = list(pilot_cautions(estimator))
    if strength.is_weak:
        found.append(
            f"The instrument explains {100.0 * strength.partial_r2:.2g} % of what the context leaves open of "
            f"the action (F {strength.projected_f:.2g}): too little to learn effects from. Find a "
            "stronger instrument or more rows."
        )
    losses: dict[str, float] = getattr(estimator, "nuisance_losses_", {})
    if losses.get("outcome_r2", 1.0) <= 0.0:
        found.append(
            "The outcome is predicted no better than by its mean: there is no sign that context or "
            "instrument matter for it."
        )
    if len(data) < _FEW_ROWS:
        found.append(
            f"There are only {len(data)} rows; expect estimates that vary a lot from sample to sample."
        )
    if data.action_spec.kind == "discrete":
        counts = np.bincount(data.action.astype(np.int64), minlength=data.action_spec.width)
        rare = [
            level for level, n in zip(data.action_spec.levels, counts, strict=True) if n < _FEW_ROWS_PER_LEVEL
        ]
        if rare:
            found.append(
                f"Action levels with fewer than {_FEW_ROWS_PER_LEVEL} rows: {listed(rare)}; what is said of "
                "them rests on almost nothing."
            )
    return found


def show_effect(
    console: Console,
    effects: FloatArray,
    start: str,
    end: str,
    mean_ends: tuple[float, float] | None = None,
) -> None:
    """Print the mean effect, its interval if there is one, and how effects differ between rows."""
    grid = Grid(title=escape(f"Effect of the action from {start} to {end}"), title_justify="left")
    for heading in ("Rows", "Mean", "Lowest", "25 %", "Median", "75 %", "Highest"):
        grid.add_column(heading, justify="right")
    quantiles = np.quantile(effects, [0.0, 0.25, 0.5, 0.75, 1.0])
    numbers = [effects.mean(), *quantiles]
    grid.add_row(f"{len(effects):,}", *(f"{number:.4g}" for number in numbers))
    console.print(grid)
    if mean_ends is not None:
        console.print(f"Mean effect, with 95 % confidence: {_between(mean_ends)}.")


def far_actions(spec: ActionSpec, *actions: Any) -> list[str]:
    """Return a warning for each action far from those of the training rows."""
    found = []
    for action in actions if spec.kind == "continuous" else ():
        far = np.abs(np.atleast_2d((np.asarray(action, dtype=np.float64) - spec.mean) / spec.scale)) > _FAR
        if far.any():
            found.append(
                f"The action {_shown(action)} is more than {_FAR:g} standard deviations from the mean of the "
                f"training rows, {_shown(spec.mean)}: hardly any row speaks about it."
            )
    return found


def decision_worth(
    estimator: CounterfactualEstimator,
    policy: GreedyPolicy,
    contexts: Any,
    decisions: Decisions,
    taken: Any,
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return lines on what recommendations are worth, and what speaks against relying on the gain.

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
        ends = policy.value_interval(contexts, actions=decisions.action)
        lines.append(("... with 95 % confidence", _between(ends)))
    if taken is None:
        return lines, []
    try:
        today = float(estimator.predict(taken, contexts).mean())
    except InputError as error:
        return lines, [f"There is no comparison with the actions in the file: {error}"]
    lines.append(("Gain over the actions in the file", f"{value - today:.4g}"))
    doubts = []
    if has_intervals:
        ends = policy.value_interval(contexts, actions=decisions.action, versus=taken)
        lines.append(("... with 95 % confidence", _between(ends)))
        if ends[0] <= 0.0 <= ends[1]:
            doubts.append("The recommendations may be no better than the actions in the file.")
    return lines, doubts


def show_decisions(
    console: Console, decisions: Decisions, spec: ActionSpec, worth: list[tuple[str, str]]
) -> None:
    """Print what is recommended how often, and what that is worth."""
    title = f"Recommendations for {len(decisions):,} rows"
    grid = Grid(title=title, title_justify="left", show_header=False)
    grid.add_column()
    grid.add_column(justify="right")
    for label, value in worth:
        grid.add_row(label, value)
    if spec.kind == "discrete":
        levels, counts = np.unique(decisions.action.astype(str), return_counts=True)
        for position in np.argsort(-counts)[:10]:
            grid.add_row(escape(f"{spec.names[0]} = {levels[position]}"), f"{counts[position]:,} rows")
    else:
        columns = decisions.action.reshape(len(decisions), -1).T
        for name, values in zip(spec.names, columns, strict=True):
            low, middle, high = np.quantile(values, [0.0, 0.5, 1.0])
            shown = f"{low:.4g}, {middle:.4g}, {high:.4g}"
            grid.add_row(escape(f"{name}: lowest, median, highest"), shown)
    console.print(grid)


def decision_warnings(decisions: Decisions, at_edge: npt.NDArray[np.bool_] | None) -> list[str]:
    """Return what speaks against following the recommendations; ``at_edge`` is None for labels."""
    found = []
    edge = np.zeros(0) if at_edge is None else at_edge
    if len(edge) and edge.mean() > _MANY_AT_EDGE:
        found.append(
            f"{int(edge.sum())} of {len(edge)} recommendations lie on the edge of the allowed actions: a "
            "wider range may hold a better one, or the model extrapolates."
        )
    if decisions.support is not None and decisions.min_support is not None:
        lacking = int((decisions.support < decisions.min_support).sum())
        if lacking:
            found.append(
                f"{lacking} rows have no action with enough support; the best supported one is given."
            )
    return found


def _between(ends: tuple[float, float]) -> str:
    return f"between {ends[0]:.4g} and {ends[1]:.4g}"


def _action_words(spec: ActionSpec, number: int) -> str:
    if spec.kind == "discrete":
        return f"discrete with {len(spec.levels)} levels: {listed(spec.levels, 4)}"
    return f"numeric, mean {spec.mean[number]:.4g}, deviation {spec.scale[number]:.4g}"


def _column_words(schema: TableSchema, name: str) -> str:
    column = next(each for each in schema.columns if each.name == name)
    if column.kind == "numeric":
        return "numeric"
    return f"categorical with {len(column.levels)} levels: {listed(column.levels, 4)}"


def _shown(action: Any) -> str:
    return ", ".join(f"{number:.4g}" for number in np.ravel(np.asarray(action, dtype=np.float64)))
