"""The numbers of a report, from a fitted estimator and a table; nothing is trained or drawn here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dmliv.data import FloatArray, IntArray, Table, TableSchema, TrainingData, read_outcome, read_weight
from dmliv.data.controls import Controls, joined
from dmliv.data.schema import Source
from dmliv.diagnostics.checks import judge, strength_findings
from dmliv.diagnostics.findings import warnings_of
from dmliv.diagnostics.recommendations import edge_rows, least_support
from dmliv.diagnostics.strength import InstrumentStrength, instrument_strength
from dmliv.errors import InputError, common_length
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.inference.counterfactual import Counterfactual
from dmliv.policy.decisions import Decisions
from dmliv.policy.spaces import Box, Interval
from dmliv.progress import ProgressReporter, SilentProgress
from dmliv.report.action_axes import action_axes, default_actions
from dmliv.report.bands import grid_band, mean_band, mean_interval
from dmliv.report.contents import (
    ActionAxis,
    ActionSection,
    ContextColumn,
    Curve,
    PolicySummary,
    ReportContents,
    explained_share,
)
from dmliv.report.panel import design_panel
from dmliv.report.words import (
    columns_read,
    computed_diagnostics,
    first_stage_findings,
    pilot_words,
    policy_findings,
    row_words,
    settings_chosen,
)

# More rows would change no figure but take longer.
MOST_ROWS = 2000
_MOST_CURVE_ROWS = 500
_MOST_CONSTANTS = 200
_TREE_ANSWERS = 21
# Effects that differ by less than this part of the outcome are one effect.
_ROUNDING = 1e-9
_SHOWN_EFFECTS = (
    (0.1, "A row with a low effect"),
    (0.5, "A row with a median effect"),
    (0.9, "A row with a high effect"),
)


def gather(
    estimator: CounterfactualEstimator,
    *,
    T: object,
    X: object = None,
    Y: object = None,
    Z: object = None,
    W: object = None,
    sample_weight: object = None,
    actions: object = None,
    title: str | None = None,
    outcome_name: str = "outcome",
    seed: int = 0,
    progress: ProgressReporter | None = None,
) -> ReportContents:
    """Gather everything a report says.

    Parameters
    ----------
    estimator, T, X, Y, Z, W, sample_weight, actions, title, outcome_name, seed, progress
        As for :func:`dmliv.report.write_report`.

    Returns
    -------
    ReportContents
    """
    fitted = estimator._fitted()
    action_read = fitted.action.read(T)
    n_rows = len(action_read)
    if not n_rows:
        raise InputError("Expected at least one row to report on, got none; pass the training table, say.")
    everything = fitted.read_context(X, n_rows)
    outcome = None if Y is None else read_outcome(Y, n_rows)
    weight = read_weight(sample_weight, n_rows)
    rows = _drawn_rows(weight, seed)
    context, action = everything.take(rows), action_read[rows]
    with (progress or SilentProgress()).stage("report", 5) as advance:
        controls = _controls(fitted, everything, W)
        strength, instruments = _strength(
            estimator, _with_controls(fitted, everything, controls), action_read, weight, Z, seed
        )
        advance()
        axes = action_axes(fitted, action, actions)
        offered = default_actions(axes, fitted.action, action) if actions is None else actions
        policy, asked = estimator.policy(offered), _as_input(fitted, context)
        decisions = _with_support(estimator, policy.decide(asked), context)
        advance()
        sections = tuple(_section(fitted, axis, context, decisions, seed) for axis in axes)
        advance()
        tree = policy.tree(asked, max_actions=_TREE_ANSWERS) if fitted.context.columns else None
        summary = _summary(fitted, policy.candidates, offered, context, action, decisions, axes)
        if outcome is not None:
            summary = replace(summary, observed_outcome=float(np.average(outcome, weights=weight)))
        advance()
        panel = design_panel(
            fitted,
            context,
            [each.column for each in sections[0].columns],
            [axis.vectors for axis in axes],
            axes[0].allowed,
            seed,
        )
        advance()
    first_stage = first_stage_findings(estimator)
    shown = (
        *first_stage,
        *(() if strength is None else strength_findings(strength)),
        judge("n_rows", n_rows),
        *policy_findings(summary),
    )
    diagnostics = computed_diagnostics(estimator, shown)
    tables = [("context", fitted.context, everything)]
    if instruments is not None:
        tables.insert(0, ("instrument", *instruments))
    if controls is not None:
        tables.append(("control", *controls))
    return ReportContents(
        title=title or _title(fitted, outcome_name),
        method=type(estimator).__name__,
        outcome_name=outcome_name,
        n_rows=n_rows,
        n_used=len(np.unique(rows)),
        roles=columns_read(
            outcome_name,
            fitted.outcome if outcome is None else outcome,
            fitted.action,
            action_read,
            tables,
        ),
        first_stage=first_stage,
        settings=settings_chosen(estimator),
        strength=strength,
        cautions=tuple(warnings_of((*shown, *diagnostics))),
        diagnostics=diagnostics,
        sections=sections,
        policy=summary,
        tree=tree,
        panel=panel,
        weighted=sample_weight is not None,
        interval_words="" if fitted.uncertainty is None else fitted.uncertainty.words,
        pilot=pilot_words(estimator),
    )


def _title(fitted: Counterfactual, outcome_name: str) -> str:
    names = fitted.action.names if fitted.action.named else ("the action",)
    target = "the outcome" if outcome_name == "outcome" else outcome_name
    return f"Effect of {' and '.join(names)} on {target}"


def _drawn_rows(weight: FloatArray, seed: int) -> IntArray:
    """Return the rows of a report: a sample of many, drawn with the weights (n,)."""
    order = np.random.default_rng(seed).permutation(len(weight))
    if np.all(weight == 1.0):
        return np.sort(order[:MOST_ROWS])
    # Even steps along the weights give a row its share to within one draw.
    edges = np.cumsum(weight[order]) / weight.sum()
    steps = (np.arange(MOST_ROWS) + 0.5) / MOST_ROWS
    return np.sort(order[np.minimum(np.searchsorted(edges, steps), len(order) - 1)])


def _controls(fitted: Counterfactual, context: Table, W: object) -> tuple[TableSchema, Table] | None:
    """Read the controls that are not in the context as well."""
    if W is None:
        return None
    source = Source.of(W, "control")
    common_length({"context": len(context), "control": source.n_rows})
    schema = Controls.learn(fitted.context, context, source).columns
    return schema, schema.read(source, len(context))


def _with_controls(
    fitted: Counterfactual, context: Table, controls: tuple[TableSchema, Table] | None
) -> tuple[TableSchema, Table]:
    if controls is None:
        return fitted.context, context
    return Controls(fitted.context, controls[0]).together, joined(context, controls[1])


def _strength(
    estimator: CounterfactualEstimator,
    context: tuple[TableSchema, Table],
    action: FloatArray | IntArray,
    weight: FloatArray,
    Z: object,
    seed: int,
) -> tuple[InstrumentStrength | None, tuple[TableSchema, Table] | None]:
    """Measure the strength of the instrument, if the table has one."""
    if Z is None:
        return None, None
    fitted = estimator._fitted()
    schema = getattr(estimator, "_instrument_schema", None) or TableSchema.learn(Z, "instrument")
    table = schema.read(Z, len(action))
    data = TrainingData(
        # The strength does not depend on the outcome.
        outcome=np.zeros(len(action)),
        action=action,
        instrument=table,
        context=context[1],
        weight=weight,
        outcome_spec=fitted.outcome,
        action_spec=fitted.action,
        instrument_schema=schema,
        context_schema=context[0],
    )
    return instrument_strength(data, seed=seed), (schema, table)


def _as_input(fitted: Counterfactual, context: Table) -> Any:
    """Return rows in the form a user passes them, for methods that read rows themselves."""
    if not fitted.context.columns:
        return None
    found: dict[str, Any] = {}
    for column, values in fitted.context.pairs(context):
        found[column.name] = (
            values
            if column.kind == "numeric"
            else np.array(column.levels, dtype=object)[values.astype(np.int64)]
        )
    return pa.table({name: pa.array(found[name]) for name in fitted.context.input_order})


def _with_support(estimator: CounterfactualEstimator, decisions: Decisions, context: Table) -> Decisions:
    """Return the recommendations with their support, where the action distribution is known."""
    support = estimator._action_support()
    if support is None:
        return decisions
    # Of the chosen actions alone: of all candidates it would take long where there are several columns.
    vectors = estimator._fitted().read_action(decisions.action, len(decisions))
    return replace(decisions, support=support.probability(context, vectors[:, None, :])[:, 0])


def _section(
    fitted: Counterfactual, axis: ActionAxis, context: Table, decisions: Decisions, seed: int
) -> ActionSection:
    """Estimate the effects, curves and recommendations along one action column."""
    moved = fitted.value_grid(context, np.stack([axis.start, axis.end]))
    effects = moved[:, 1] - moved[:, 0]
    if np.ptp(effects) <= _ROUNDING * np.abs(moved).max():
        effects = np.full(len(effects), effects.mean())
    level = moved.mean(axis=1)
    pairs = list(fitted.context.pairs(context))
    # Where the effect is constant, columns are ranked by the outcome instead.
    ranked = effects if np.ptp(effects) > 0.0 else level
    ranks = [explained_share(column, values, ranked) for column, values in pairs]
    order = np.argsort(-np.array(ranks), kind="stable")
    columns = tuple(
        ContextColumn(column, values, explained_share(column, values, effects))
        for column, values in (pairs[position] for position in order)
    )
    some = np.random.default_rng(seed).permutation(len(context))[:_MOST_CURVE_ROWS]
    shown = context.take(np.sort(some))
    average = fitted.value_grid(shown, axis.vectors).mean(axis=0)
    band = mean_band(fitted, shown, axis.vectors)
    curves = [Curve("Average", f"mean over {len(some):,} rows", average, *band)]
    if columns:
        for share, words in _SHOWN_EFFECTS:
            row = int(np.abs(effects - np.quantile(effects, share)).argmin())
            alone = context.take(np.array([row]))
            outcome = fitted.value_grid(alone, axis.vectors)[0]
            lower, upper = (
                None if each is None else each[0] for each in grid_band(fitted, alone, axis.vectors)
            )
            curves.append(Curve(words, row_words(columns, row), outcome, lower, upper))
    start, end = (np.tile(each, (len(context), 1)) for each in (axis.start, axis.end))
    return ActionSection(
        axis,
        tuple(curves),
        effects,
        columns,
        _on_axis(fitted, axis, decisions),
        mean_interval(fitted, context, end, start),
    )


def _on_axis(fitted: Counterfactual, axis: ActionAxis, decisions: Decisions) -> FloatArray:
    """Return recommendations in units of an axis, shape (n,)."""
    if fitted.action.kind == "discrete":
        return np.asarray(fitted.action.read(decisions.action), dtype=np.float64)
    place = fitted.action.names.index(axis.name)
    return np.asarray(decisions.action.reshape(len(decisions), -1)[:, place], dtype=np.float64)


def _summary(
    fitted: Counterfactual,
    candidates: npt.NDArray[Any],
    offered: object,
    context: Table,
    action: FloatArray | IntArray,
    decisions: Decisions,
    axes: tuple[ActionAxis, ...],
) -> PolicySummary:
    """Estimate the outcome of the recommendations, and how far they are from the data."""
    spec = fitted.action
    vectors = fitted.read_action(spec.to_user(action))
    is_discrete = spec.kind == "discrete"
    if is_discrete:
        common = int(np.bincount(action.astype(np.int64)).argmax())
        average, average_words = np.eye(len(spec.levels))[[common]], str(spec.levels[common])
        offered_words = ", ".join(str(each) for each in candidates)
        outside = ~np.isin(_on_axis(fitted, axes[0], decisions), np.unique(axes[0].observed))
    else:
        average = vectors.mean(axis=0, keepdims=True)
        average_words = _numbers(fitted.action_to_user(average)[0])
        kind = (
            "all actions from" if isinstance(offered, Interval | Box) else f"{len(candidates)} actions from"
        )
        offered_words = f"{kind} {_numbers(candidates.min(axis=0))} to {_numbers(candidates.max(axis=0))}"
        chosen = decisions.action.reshape(len(decisions), -1)
        taken = np.reshape(spec.to_user(np.asarray(action, dtype=np.float64)), (-1, chosen.shape[1]))
        outside = ((chosen < taken.min(axis=0)) | (chosen > taken.max(axis=0))).any(axis=1)
    kept = np.unique(np.linspace(0, len(candidates) - 1, _MOST_CONSTANTS).astype(np.int64))
    constants = fitted.value_grid(context, fitted.read_action(candidates[kept])).mean(axis=0)
    best = candidates[kept[int(constants.argmax())]]
    today = fitted.outcome.to_user(fitted.model.predict(context, vectors))
    recommended = fitted.read_action(decisions.action, len(decisions))
    return PolicySummary(
        value=float(decisions.value.mean()),
        today_value=float(np.mean(today)),
        average_value=float(fitted.value_grid(context, average).mean()),
        constant_value=float(constants.max()),
        average_name="most common action" if is_discrete else "average action",
        average_action=average_words,
        constant_action=str(best) if is_discrete else _numbers(best),
        observed_outcome=None,
        offered=offered_words,
        outside_share=float(outside.mean()),
        edge_share=None if is_discrete else float(edge_rows(candidates, decisions).mean()),
        support=decisions.support,
        least_support=least_support(len(spec.names)),
        value_interval=mean_interval(fitted, context, recommended),
        gain_interval=mean_interval(fitted, context, recommended, vectors),
    )


def _numbers(action: Any) -> str:
    return ", ".join(f"{number:.4g}" for number in np.ravel(np.asarray(action, dtype=np.float64)))
