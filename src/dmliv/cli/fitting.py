"""The two ways of ``dmliv fit``: a table in memory, or rows that stream from files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dmliv.cli.inputs_outputs import warn
from dmliv.cli.texts import show_columns, show_findings
from dmliv.data import ActionKind, IVData, ParquetRows, TrainingData, csv_as_parquet, files, prepare
from dmliv.data.parquet import scan
from dmliv.diagnostics.checks import sample_findings, strength_findings
from dmliv.diagnostics.findings import warnings_of
from dmliv.diagnostics.strength import instrument_strength
from dmliv.errors import InputError
from dmliv.estimators import can_stream, fit_parquet
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.nets.settings import LARGE_ROWS
from dmliv.progress import BarProgress
from dmliv.report.words import first_stage_findings, pilot_words

_MEGABYTE = 1e6


@dataclass(frozen=True)
class FitRequest:
    """What ``dmliv fit`` is asked for.

    Attributes
    ----------
    data : Path
        A file, or a folder of Parquet files.
    roles : dict of str to list of str
        Columns by role.
    output : Path
        Where the model goes; a large file is split into parts beside it.
    options : dict
        Of the estimator's ``fit``.
    intervals : bool or None
        Whether intervals are wanted; None if the command line does not say.
    seed : int
    drop_missing : bool
    delimiter : str or None
    stream_above : float
        Megabytes beyond which a CSV file is read in parts.
    pilot : bool or None
        Whether a pilot is wanted; None if the command line does not say.
    inference : str or None
        How intervals are made, if the command line says it.
    """

    data: Path
    roles: dict[str, list[str]]
    output: Path
    options: dict[str, Any]
    intervals: bool | None
    seed: int
    drop_missing: bool
    delimiter: str | None
    stream_above: float
    pilot: bool | None = None
    inference: str | None = None

    def single(self, role: str) -> str | None:
        """Return the only column of a role, or None."""
        return (*self.roles[role], None)[0]

    def columns(self) -> dict[str, Any]:
        """Return the columns of the roles that rows in memory and rows that stream have in common."""
        several = {role: self.roles[role] for role in ("action", "instrument", "context")}
        return {"outcome": self.roles["outcome"][0], "weight": self.single("weight"), **several}


def fit_and_show(console: Console, estimator: CounterfactualEstimator, request: FitRequest) -> None:
    """Fit an estimator; show what was read and how well it fits, and warn where the fit is in doubt.

    Raises
    ------
    InputError
        If the rows cannot be used, or an option is of no use for rows that stream.
    """
    try:
        if request.data.is_dir():
            _refuse_unstreamable(request, "a folder of Parquet files", "leave it out")
            _fit_parts(console, estimator, request, request.data)
        elif _is_large(estimator, request):
            _fit_large_csv(console, estimator, request)
        else:
            _fit_table(console, estimator, request)
    except np.linalg.LinAlgError as error:
        raise InputError(
            f"Expected columns that a regression can be solved with, got {str(error).lower()}; look for "
            "columns that hold almost one value, or extremely large or small ones."
        ) from error
    findings = first_stage_findings(estimator)
    show_findings(console, "First stage", findings)
    for sentence in pilot_words(estimator):
        console.print(sentence, markup=False)
    warn(warnings_of(findings))


def _show_rows(console: Console, rows: TrainingData, request: FitRequest) -> None:
    """Show how the columns were read and how strong the instrument is, before any time goes into a fit."""
    show_columns(console, rows, request.roles["outcome"][0])
    strength = strength_findings(instrument_strength(rows, seed=request.seed, progress=BarProgress()))
    show_findings(console, "Instrument", strength)
    warn(warnings_of((*strength, *sample_findings(rows.action_spec, rows.action))))


def _is_large(estimator: CounterfactualEstimator, request: FitRequest) -> bool:
    path = request.data
    if not path.is_file() or files.file_format(path) != "CSV":
        return False
    return path.stat().st_size > request.stream_above * _MEGABYTE and can_stream(estimator)


def _fit_table(console: Console, estimator: Any, request: FitRequest) -> None:
    """Fit to a table in memory."""
    roles, options = request.roles, dict(request.options)
    table = files.read_columns(request.data, roles, delimiter=request.delimiter)
    if request.drop_missing:
        table, dropped = files.drop_missing(table)
        _show_dropped(console, dropped)
    cluster = request.single("cluster")
    if cluster:
        options["cluster"] = table.column(cluster).to_numpy()
    rows = IVData.from_frame(table, control=roles["control"], **request.columns())
    # A frame keeps the name of its column, which a single Arrow column has not.
    taken = table.select(roles["action"])
    given = {"Z": rows.Z, "X": rows.X, "W": rows.W, "sample_weight": rows.sample_weight}
    prepared = prepare(rows.Y, taken, **given, action_kind=estimator.action_kind)
    # From here on the rows are held once, as the estimator reads them.
    del table, rows, taken, given
    _show_rows(console, prepared, request)
    estimator.fit_prepared(prepared, **options)


def _fit_large_csv(console: Console, estimator: CounterfactualEstimator, request: FitRequest) -> None:
    """Fit to a CSV file that is read in parts."""
    _refuse_unstreamable(
        request,
        f"a CSV file above {request.stream_above:g} MB",
        "leave it out, or raise --stream-above to hold the table in memory",
    )
    with csv_as_parquet(
        request.data,
        {role: names for role, names in request.roles.items() if role not in ("control", "cluster")},
        place=request.output.absolute().parent,
        progress=BarProgress(),
        delimiter=request.delimiter,
        dropping=request.drop_missing,
    ) as written:
        if request.drop_missing:
            _show_dropped(console, written.n_dropped)
        _fit_parts(console, estimator, request, written.folder, label=request.data.name)


def _fit_parts(
    console: Console,
    estimator: CounterfactualEstimator,
    request: FitRequest,
    folder: Path,
    label: str | None = None,
) -> None:
    """Fit to rows that stream from a folder of Parquet files."""
    rows = ParquetRows(folder, label=label, **request.columns())
    kind: ActionKind = getattr(estimator, "action_kind", "auto")
    sample = scan(rows, LARGE_ROWS, kind, min_rows=2, seed=request.seed, progress=BarProgress()).sample
    source = f"{len(rows.files):,} files" if label is None else "a large file, read in parts"
    console.print(f"{rows.n_rows:,} rows in {source}. In a sample of them:")
    _show_rows(console, sample, request)
    del sample
    fit_parquet(estimator, rows, progress=BarProgress())
    if request.options and request.intervals is None:
        advice = "fit one file" if label is None else "raise --stream-above"
        warn(
            [
                "This model has no intervals, because its rows were read in parts. To have them, "
                f"{advice} or draw a sample of the rows."
            ]
        )


def _refuse_unstreamable(request: FitRequest, source: str, advice: str) -> None:
    given = {
        "--control": bool(request.roles["control"]),
        "--cluster": bool(request.roles["cluster"]),
        "--intervals": bool(request.intervals),
        "--inference": request.inference is not None,
        "--pilot": bool(request.pilot),
        "--drop-missing": request.drop_missing and request.data.is_dir(),
    }
    for name, is_given in given.items():
        if is_given:
            raise InputError(f"Expected no {name} with {source}, got it; {advice}.")


def _show_dropped(console: Console, dropped: int) -> None:
    console.print(f"{dropped:,} rows with missing values left out.")
