"""The shell commands for models of one's own tables: fit, effect, recommend, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dmliv.cli.inputs_outputs import (
    known_columns,
    load_model,
    read_rows,
    require_choice,
    require_place,
    require_rows,
    warn,
    write_rows,
)
from dmliv.cli.options import (
    ACTION_KINDS,
    INFERENCES,
    LEARNERS,
    METHODS,
    fit_options,
    make_estimator,
    read_action,
    read_actions,
    read_config,
)
from dmliv.errors import InputError, listed

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", callback=read_config, is_eager=True, help="TOML file with options by name, as defaults."
    ),
]
DelimiterOption = Annotated[
    str | None, typer.Option(help="Separates the columns of CSV files; a comma, or a tab for .tsv.")
]
WeightOption = Annotated[str | None, typer.Option(help="Column with row weights.")]
DropMissingOption = Annotated[
    bool, typer.Option("--drop-missing", help="Leave out rows with missing values.")
]
ModelArgument = Annotated[Path, typer.Argument(help="Model file, as written by dmliv fit.")]
ContextsArgument = Annotated[
    Path | None, typer.Argument(help="CSV or Parquet file with contexts; not for models without context.")
]
RowsOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="CSV or Parquet file to write, with a result per row.")
]


def fit(
    data: Annotated[Path, typer.Argument(help="CSV or Parquet file, or a folder of Parquet files.")],
    outcome: Annotated[str, typer.Option(help="Column with the outcome.")],
    action: Annotated[list[str], typer.Option(help="Column with the action; repeat it for several.")],
    instrument: Annotated[list[str], typer.Option(help="Column with an instrument; repeat it for several.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write.")],
    context: Annotated[
        list[str] | None, typer.Option(help="Column with a context; repeat it for several.")
    ] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(
            help="Column with a control: adjusted for in the fit and averaged over in effects and "
            "recommendations; repeat it for several."
        ),
    ] = None,
    weight: WeightOption = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "dml-iv",
    learners: Annotated[
        str | None, typer.Option(help=f"For dml-iv, ce-dml-iv and deepiv: one of {', '.join(LEARNERS)}.")
    ] = None,
    folds: Annotated[
        int | None, typer.Option(min=1, help="Folds of the cross-fitting, for dml-iv and deepiv.")
    ] = None,
    pilot: Annotated[
        bool | None,
        typer.Option(
            "--pilot/--no-pilot",
            help="For dml-iv, ce-dml-iv and deepiv: start from a control-function regression, the default "
            "except with --learners paper.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of all random numbers.")] = 0,
    action_kind: Annotated[str, typer.Option(help=f"One of {', '.join(ACTION_KINDS)}.")] = "auto",
    intervals: Annotated[
        bool | None,
        typer.Option(
            "--intervals/--no-intervals",
            help="Estimate 95 % confidence intervals; by default where the method has them.",
        ),
    ] = None,
    inference: Annotated[
        str | None,
        typer.Option(
            help="How intervals are made, for dml-iv, ce-dml-iv and deepiv: debiased (the default), "
            "posterior (narrower; for models with a pilot) or bootstrap."
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Column with cluster labels: rows of a cluster depend on each other.")
    ] = None,
    drop_missing: DropMissingOption = False,
    delimiter: DelimiterOption = None,
    stream_above: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Size in megabytes above which a CSV file is read in parts, if the method can. This takes "
            "little memory, but gives no intervals except for 2sls.",
        ),
    ] = 100.0,
    config: ConfigOption = None,
) -> None:
    """Estimate the effect of the action on the outcome, and save the model."""
    del config  # its callback has done the work
    from rich.console import Console

    from dmliv.cli.fitting import FitRequest, fit_and_show

    require_choice("--method", method, METHODS)
    require_choice("--learners", learners, LEARNERS)
    require_choice("--action-kind", action_kind, ACTION_KINDS)
    require_choice("--inference", inference, INFERENCES)
    estimator = make_estimator(method, learners, folds, seed, action_kind, pilot)
    options = fit_options(method, folds, intervals, cluster, inference)
    require_place(output)
    request = FitRequest(
        data=data,
        roles={
            "outcome": [outcome],
            "action": action,
            "instrument": instrument,
            "context": list(context or ()),
            "control": list(control or ()),
            "weight": [weight] if weight else [],
            "cluster": [cluster] if cluster else [],
        },
        output=output,
        options=options,
        intervals=intervals,
        inference=inference,
        seed=seed,
        drop_missing=drop_missing,
        delimiter=delimiter,
        stream_above=stream_above,
        pilot=pilot,
    )
    console = Console(highlight=False)
    fit_and_show(console, estimator, request)
    estimator.save(output)
    console.print(f"Model: {output}", soft_wrap=True, markup=False)


def effect(
    model: ModelArgument,
    data: ContextsArgument = None,
    start: Annotated[
        str, typer.Option("--from", help="Action to compare with; for several columns: 1,2.")
    ] = "0",
    end: Annotated[str, typer.Option("--to", help="Action whose effect is estimated.")] = "1",
    output: RowsOption = None,
    delimiter: DelimiterOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the effect on the outcome of moving the action from one value to another."""
    del config
    from rich.console import Console

    from dmliv.cli.texts import far_warnings, show_effect

    estimator = load_model(model, output)
    spec = estimator.counterfactual_.action
    first, last = read_action(start, spec), read_action(end, spec)
    contexts, _ = read_rows(estimator, data, delimiter)
    effects = estimator.effect(contexts, T0=first, T1=last)
    require_rows(len(effects))
    console = Console(highlight=False)
    has_intervals = estimator.counterfactual_.uncertainty is not None
    interval = estimator.ate_interval(contexts, T0=first, T1=last) if has_intervals else None
    show_effect(console, effects, start, end, interval)
    warn(far_warnings(spec, first, last))
    found = {"effect": effects}
    if output is not None and has_intervals:
        found["lower"], found["upper"] = estimator.effect_interval(contexts, T0=first, T1=last)
    write_rows(console, "Effects", output, contexts, found)


def recommend(
    model: ModelArgument,
    data: ContextsArgument = None,
    actions: Annotated[
        str | None,
        typer.Option(
            help="Actions to choose from: low:high (anything between), low:high:n (n of them), a,b,c, or for "
            "several columns low:high,low:high. By default all levels of a discrete action."
        ),
    ] = None,
    min_support: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Exclude actions with a lower probability given the context."),
    ] = None,
    output: RowsOption = None,
    delimiter: DelimiterOption = None,
    config: ConfigOption = None,
) -> None:
    """Recommend the action with the highest expected outcome in each context."""
    del config
    from rich.console import Console

    from dmliv.cli.texts import decision_values, far_warnings, show_decisions
    from dmliv.diagnostics.checks import judge
    from dmliv.diagnostics.findings import warnings_of
    from dmliv.diagnostics.recommendations import edge_rows

    estimator = load_model(model, output)
    spec = estimator.counterfactual_.action
    policy = estimator.policy(read_actions(actions, spec), min_support=min_support)
    contexts, taken = read_rows(estimator, data, delimiter, with_actions=True)
    decisions = policy.decide(contexts)
    require_rows(len(decisions))
    console = Console(highlight=False)
    values, doubts = decision_values(estimator, policy, contexts, decisions, taken)
    show_decisions(console, decisions, spec, values)
    warn(doubts)
    names = [f"recommended_{name}" for name in spec.names]
    columns = decisions.action.reshape(len(decisions), -1).T
    found: dict[str, Any] = {**dict(zip(names, columns, strict=True)), "expected_outcome": decisions.value}
    if spec.kind == "continuous":
        found["at_edge"] = edge_rows(policy.candidates, decisions)
        warn(far_warnings(spec, policy.candidates.min(axis=0), policy.candidates.max(axis=0)))
        warn(warnings_of([judge("at_edge", found["at_edge"].mean())]))
    if decisions.support is not None and decisions.min_support is not None:
        found["support"] = decisions.support
        lacking = (decisions.support < decisions.min_support).sum()
        warn(warnings_of([judge("min_support", lacking)]))
    write_rows(console, "Recommendations", output, contexts, found)


def report(
    model: ModelArgument,
    data: Annotated[
        Path | None,
        typer.Argument(help="CSV or Parquet file: the training table, or any with the same columns."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path("report.html"),
    outcome: Annotated[str | None, typer.Option(help="Column with the outcome, if the file has it.")] = None,
    instrument: Annotated[
        list[str] | None,
        typer.Option(help="Column with an instrument; by default those of the model that the file has."),
    ] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(help="Column with a control; by default those of the model that the file has."),
    ] = None,
    weight: WeightOption = None,
    actions: Annotated[
        str | None,
        typer.Option(help="Actions to choose from, as for recommend; by default those usual in the file."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of the sample of rows taken from a large file.")
    ] = 0,
    drop_missing: DropMissingOption = False,
    delimiter: DelimiterOption = None,
    config: ConfigOption = None,
) -> None:
    """Write what a model says about a table to one HTML page, with a panel for what-if questions."""
    del config
    from rich.console import Console

    from dmliv.data import files
    from dmliv.progress import BarProgress
    from dmliv.report import write_report

    require_place(output)
    estimator = load_model(model, None)
    spec, schema = estimator.counterfactual_.action, estimator.counterfactual_.context
    if not spec.named or (schema.columns and not schema.named):
        raise InputError(
            "Expected a model of named columns, as dmliv fit saves it, got one of arrays; call "
            "dmliv.report.write_report with the arrays."
        )
    if data is None:
        raise InputError(
            f"Expected a file with the columns {listed((*spec.names, *schema.input_order))}, got none, and a "
            f"model file holds no table; pass the training table, say: dmliv report {model} data.csv."
        )
    offered = None if actions is None else read_actions(actions, spec)
    available = files.column_names(data, delimiter)
    controls = getattr(estimator, "_controls", None)
    roles = {
        "outcome": [outcome] if outcome else [],
        "action": list(spec.names),
        "instrument": known_columns(instrument, getattr(estimator, "_instrument_schema", None), available),
        "context": list(schema.input_order),
        "control": known_columns(control, None if controls is None else controls.columns, available),
        "weight": [weight] if weight else [],
    }
    table = files.read_columns(data, roles, delimiter=delimiter, available=available)
    console = Console(highlight=False)
    if drop_missing:
        table, dropped = files.drop_missing(table)
        console.print(f"{dropped:,} rows with missing values left out.")
    require_rows(len(table))
    contents = write_report(
        estimator,
        output,
        T=table.select(roles["action"]),
        X=table.select(roles["context"]) if roles["context"] else None,
        Y=table.column(outcome) if outcome else None,
        Z=table.select(roles["instrument"]) if roles["instrument"] else None,
        W=table.select(roles["control"]) if roles["control"] else None,
        sample_weight=table.column(weight) if weight else None,
        actions=offered,
        title=title,
        outcome_name=outcome or "outcome",
        seed=seed,
        progress=BarProgress(),
    )
    warn(contents.cautions)
    console.print(f"Report: {output}", soft_wrap=True, markup=False)


COMMANDS = (fit, effect, recommend, report)
