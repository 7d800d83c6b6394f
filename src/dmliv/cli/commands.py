"""The shell commands for models of one's own tables: fit, effect, recommend, report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dmliv.cli.inputs_outputs import (
    beside,
    known_columns,
    read_contexts,
    read_taken,
    require_choice,
    require_place,
    require_rows,
    warn,
)
from dmliv.cli.options import (
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
    str | None, typer.Option(help="Between the columns of CSV files; a comma, or a tab for .tsv.")
]
WeightOption = Annotated[str | None, typer.Option(help="Column with row weights.")]
ModelArgument = Annotated[Path, typer.Argument(help="A model file, as written by dmliv fit.")]


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
        typer.Option(help="Column to hold fixed while learning and not to ask for later; repeat it."),
    ] = None,
    weight: WeightOption = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "dml-iv",
    learners: Annotated[
        str | None, typer.Option(help=f"For dml-iv, ce-dml-iv and deepiv: one of {', '.join(LEARNERS)}.")
    ] = None,
    folds: Annotated[int | None, typer.Option(min=1, help="Folds, for dml-iv and deepiv.")] = None,
    pilot: Annotated[
        bool | None,
        typer.Option(
            "--pilot/--no-pilot",
            help="For dml-iv, ce-dml-iv and deepiv: start from a control-function regression, which is the "
            "default but with --learners paper.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of everything random.")] = 0,
    action_kind: Annotated[str, typer.Option(help="One of auto, continuous, discrete.")] = "auto",
    intervals: Annotated[
        bool | None,
        typer.Option(
            "--intervals/--no-intervals", help="Learn 95 % intervals; by default where the method has them."
        ),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Column with labels of rows that depend on each other.")
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave out rows with missing values.")
    ] = False,
    delimiter: DelimiterOption = None,
    stream_above: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Megabytes beyond which a CSV file is read in parts if the method can: with little memory, "
            "but without intervals unless it is 2sls.",
        ),
    ] = 100.0,
    config: ConfigOption = None,
) -> None:
    """Learn what the action does to the outcome, and save the model."""
    del config  # its callback has done the work
    from rich.console import Console

    from dmliv.cli.fitting import FitRequest, fit_and_show

    require_choice("--method", method, METHODS)
    if learners is not None:
        require_choice("--learners", learners, LEARNERS)
    require_choice("--action-kind", action_kind, ("auto", "continuous", "discrete"))
    estimator = make_estimator(method, learners, folds, seed, action_kind, pilot)
    options = fit_options(estimator, method, folds, intervals, cluster)
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
    data: Annotated[
        Path | None, typer.Argument(help="CSV or Parquet file with contexts; not for models without.")
    ] = None,
    start: Annotated[str, typer.Option("--from", help="Action to compare with; several columns: 1,2.")] = "0",
    end: Annotated[str, typer.Option("--to", help="Action whose effect is asked for.")] = "1",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV or Parquet file for the effect of every row.")
    ] = None,
    delimiter: DelimiterOption = None,
    config: ConfigOption = None,
) -> None:
    """Show what moving the action from one value to another does to the outcome."""
    del config
    from rich.console import Console

    from dmliv.cli.texts import far_actions, show_effect
    from dmliv.data import files
    from dmliv.persistence import load

    if output is not None:
        files.file_format(output)
        require_place(output)
    estimator = load(model)
    spec = estimator.counterfactual_.action
    first, last = read_action(start, spec), read_action(end, spec)
    contexts = read_contexts(estimator, data, delimiter)
    effects = estimator.effect(contexts, T0=first, T1=last)
    require_rows(len(effects))
    console = Console(highlight=False)
    has_intervals = estimator.counterfactual_.uncertainty is not None
    mean_ends = estimator.ate_interval(contexts, T0=first, T1=last) if has_intervals else None
    show_effect(console, effects, start, end, mean_ends)
    warn(far_actions(spec, first, last))
    if output is not None:
        found = {"effect": effects}
        if has_intervals:
            found["lower"], found["upper"] = estimator.effect_interval(contexts, T0=first, T1=last)
        files.write_columns(output, beside(contexts, found))
        console.print(f"Effects: {output}", soft_wrap=True, markup=False)


def recommend(
    model: ModelArgument,
    data: Annotated[
        Path | None, typer.Argument(help="CSV or Parquet file with contexts; not for models without.")
    ] = None,
    actions: Annotated[
        str | None,
        typer.Option(
            help="Actions to choose from: low:high (anything between), low:high:n (n of them), a,b,c, or for "
            "several columns low:high,low:high. By default all levels of a discrete action."
        ),
    ] = None,
    min_support: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Forbid actions that were less likely than this in a context."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV or Parquet file for every row's action.")
    ] = None,
    delimiter: DelimiterOption = None,
    config: ConfigOption = None,
) -> None:
    """Recommend the action with the highest expected outcome in each context."""
    del config
    import numpy as np
    from rich.console import Console

    from dmliv.cli.texts import decision_warnings, decision_worth, far_actions, show_decisions
    from dmliv.data import files
    from dmliv.persistence import load

    if output is not None:
        files.file_format(output)
        require_place(output)
    estimator = load(model)
    spec = estimator.counterfactual_.action
    policy = estimator.policy(read_actions(actions, spec), min_support=min_support)
    contexts = read_contexts(estimator, data, delimiter)
    decisions = policy.decide(contexts)
    require_rows(len(decisions))
    console = Console(highlight=False)
    taken = read_taken(estimator, data, delimiter)
    worth, doubts = decision_worth(estimator, policy, contexts, decisions, taken)
    show_decisions(console, decisions, spec, worth)
    warn(doubts)
    edge = None
    if spec.kind == "continuous":
        offered, chosen = (
            np.reshape(each, (len(each), -1)) for each in (policy.candidates, decisions.action)
        )
        low, high = offered.min(axis=0), offered.max(axis=0)
        edge = decisions.at_edge | ((chosen <= low) | (chosen >= high)).any(axis=1)
        warn(far_actions(spec, low, high))
    warn(decision_warnings(decisions, edge))
    if output is not None:
        found: dict[str, Any] = (
            {f"recommended_{spec.names[0]}": decisions.action}
            if decisions.action.ndim == 1
            else dict(zip((f"recommended_{name}" for name in spec.names), decisions.action.T, strict=True))
        )
        found["expected_outcome"] = decisions.value
        if edge is not None:
            found["at_edge"] = edge
        if decisions.support is not None:
            found["support"] = decisions.support
        files.write_columns(output, beside(contexts, found))
        console.print(f"Recommendations: {output}", soft_wrap=True, markup=False)


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
        typer.Option(help="Actions to recommend, as for recommend; by default those usual in the file."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Draws rows where there are many.")] = 0,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Leave out rows with missing values.")
    ] = False,
    delimiter: DelimiterOption = None,
    config: ConfigOption = None,
) -> None:
    """Write what a model says about a table as one HTML page, with a panel to try contexts."""
    del config
    from rich.console import Console

    from dmliv.data import files
    from dmliv.persistence import load
    from dmliv.progress import BarProgress
    from dmliv.report import write_report

    require_place(output)
    estimator = load(model)
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
    available = set(files.column_names(data, delimiter))
    controls = getattr(estimator, "_controls", None)
    roles = {
        "outcome": [outcome] if outcome else [],
        "action": list(spec.names),
        "instrument": known_columns(instrument, getattr(estimator, "_instrument_schema", None), available),
        "context": list(schema.input_order),
        "control": known_columns(control, None if controls is None else controls.columns, available),
        "weight": [weight] if weight else [],
    }
    table = files.read_columns(data, roles, delimiter=delimiter)
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
