"""DML-IV and two-stage least squares on a folder of Parquet files: memory does not grow with the rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from dmliv.data import read_outcome
from dmliv.data.parquet import ParquetRows, RowGroup, hashed_parts, scan
from dmliv.errors import InputError
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.estimators.least_squares import TwoStageLeastSquares
from dmliv.estimators.linear_rows import LinearRows
from dmliv.estimators.series import SeriesColumns
from dmliv.estimators.two_stage import TwoStageIV
from dmliv.first_stage.crossfit import MemberPlan, fill_rows, make_folds, plan_members, start_from_pilot
from dmliv.first_stage.distributions import assemble
from dmliv.first_stage.nuisances import ActionModel, Exogenous, IntArray, OutcomeModel
from dmliv.first_stage.parquet_blocks import NuisanceFiles, ParquetSource, Prediction
from dmliv.learners import Learners, neural
from dmliv.nets.device import single_thread
from dmliv.nets.settings import LARGE_ROWS
from dmliv.parallel.runtime import Runtime
from dmliv.progress import ProgressReporter, SilentProgress
from dmliv.second_stage.remainder import fit_structural

Estimator = TypeVar("Estimator", bound=CounterfactualEstimator)

# A sample by hash varies in size. This one surely counts as large, so that it is encoded piece by piece.
_SAMPLE_ROWS = LARGE_ROWS + 2_000


def fit_parquet(
    estimator: Estimator,
    rows: ParquetRows,
    *,
    nuisances: str | os.PathLike[str] | None = None,
    sample_rows: int = _SAMPLE_ROWS,
    buffer_rows: int = 200_000,
    pass_rows: int | None = None,
    progress: ProgressReporter | None = None,
) -> Estimator:
    """Fit an estimator to rows that need not fit in memory.

    All rows are read and checked once. A sample of them, by the hash of row numbers, settles units, encodings
    and other choices, as it would for a large table in memory. Networks learn from all rows: row groups are
    read in random order, a buffer of them is shuffled, and every network of a stack learns from the rows of
    its folds. The fold of a row is a hash of its number. Predictions of the first stage are written as
    Parquet files with the same names and the same rows, where the second stage reads them. The fitted
    estimator keeps the sample's predictions in ``first_stage_``, not those of all rows. Two-stage least
    squares adds row groups up, a few times over.

    Parameters
    ----------
    estimator : DMLIV, CEDMLIV, DeepIV or TwoStageLeastSquares
        The first three with :func:`dmliv.learners.neural`. It is changed and returned.
    rows : ParquetRows
    nuisances : str or path, optional
        Folder for the predictions of the first stage; ``_nuisances`` beside the files by default.
    sample_rows : int
        Rows of the sample, about; all rows if there are fewer.
    buffer_rows : int
        Rows in memory at a time, about. Rows that are ordered in the files need a larger buffer or smaller
        row groups to be mixed well.
    pass_rows : int, optional
        Rows of one epoch; each epoch then reads other row groups. By default all rows.
    progress : ProgressReporter, optional
        By default bars if the estimator is ``verbose``.

    Returns
    -------
    The fitted estimator.

    Raises
    ------
    InputError
        If rows cannot be used, or the learners cannot learn from blocks of rows.
    """
    for name, value in (("sample_rows", sample_rows), ("buffer_rows", buffer_rows), ("pass_rows", pass_rows)):
        if value is not None and value < 1:
            raise InputError(f"Expected a positive {name}, got {value}; pass {LARGE_ROWS}, say.")
    if isinstance(estimator, TwoStageLeastSquares):
        runtime = Runtime(torch.device("cpu"), progress or SilentProgress(), 1)
        return cast(Estimator, fit_linear(estimator, rows, sample_rows, runtime))
    place = _place(rows, nuisances)
    _fit_networks(estimator, rows, place, sample_rows, buffer_rows, pass_rows, progress)
    return estimator


def can_stream(estimator: CounterfactualEstimator) -> bool:
    """Tell whether an estimator can learn from blocks of rows."""
    if isinstance(estimator, TwoStageLeastSquares):
        return True
    try:
        _streaming(estimator)
    except InputError:
        return False
    return True


def _fit_networks(
    given: CounterfactualEstimator,
    rows: ParquetRows,
    place: Path,
    sample_rows: int,
    buffer_rows: int,
    pass_rows: int | None,
    progress: ProgressReporter | None,
) -> None:
    estimator = _streaming(given)
    request = estimator._request(progress)
    learners: Any = request.learners
    pilot, n_folds, runtime = request.pilot, request.n_folds, request.runtime
    fold_seed, outcome_seed, action_seed, second_seed, sample_seed = request.seeds(5)
    found = scan(
        rows,
        sample_rows,
        estimator.action_kind,
        min_rows=request.fewest_rows,
        seed=sample_seed,
        progress=runtime.progress,
    )
    n_parts = max(2, n_folds)
    plan = plan_members(
        np.arange(n_parts) if n_folds > 1 else np.zeros(n_parts, dtype=np.int64),
        n_folds,
        True,
        make_folds(n_parts, 2, np.random.default_rng(fold_seed)),
    )
    source = ParquetSource(rows, found, n_parts, fold_seed, runtime.device, buffer_rows, pass_rows)
    parts = hashed_parts(found.row_ids, n_parts, fold_seed)
    uses = _uses(plan, n_parts).to(runtime.device)
    on_sample = [
        replace(
            member, fit_rows=_rows_of(parts, member.fit_rows), used_rows=_rows_of(parts, member.used_rows)
        )
        for member in plan
    ]
    fold = parts if n_folds > 1 else np.zeros_like(parts)
    with single_thread():
        action_model = learners.action.fit_source(
            found.sample, parts, source, uses, seed=action_seed, runtime=runtime
        )
        started, left, filled = None, found.sample, None
        if pilot is not None:
            started = start_from_pilot(
                found.sample, fold, on_sample, action_model, pilot, seed=outcome_seed, runtime=runtime
            )
            left = started.residual_rows(found.sample)
        if started is not None and started.pilot_stands:
            first_stage = started
        else:
            if started is not None and started.pilot is not None:
                source = replace(source, pilot=started.pilot.model.predict)
            outcome_model = None
            if request.outcome is not None:
                outcome_model = learners.outcome.fit_source(
                    left, parts, source, uses, seed=outcome_seed, runtime=runtime
                )
            files = NuisanceFiles(place)
            files.write(_predictions(source, plan, n_folds, outcome_model, action_model, runtime))
            filled = replace(source, nuisances=files)
            first_stage = fill_rows(left, fold, on_sample, outcome_model, action_model, runtime)
            first_stage = first_stage if started is None else started.joined(first_stage)
        model = fit_structural(
            learners.structural, found.sample, first_stage, seed=second_seed, runtime=runtime, source=filled
        )
    estimator._adopt(found.sample, first_stage, model, seed=second_seed)


def _streaming(estimator: CounterfactualEstimator) -> TwoStageIV:
    """Return a two-stage estimator whose learners can learn from blocks of rows; raise for any other."""
    if not isinstance(estimator, TwoStageIV):
        raise InputError(
            "Expected DMLIV, CEDMLIV, DeepIV or TwoStageLeastSquares to fit on files, got "
            f"{type(estimator).__name__}; read the table and call fit."
        )
    learners: Learners = neural() if estimator.learners is None else estimator.learners
    roles = learners.outcome, learners.action, learners.structural
    if all(getattr(each, "streams", False) for each in roles):
        return estimator
    raise InputError(
        "Expected learners that can learn from blocks of rows, which are those of neural() without images, "
        f"got {', '.join(type(each).__name__ for each in roles[:2])} and {type(roles[2]).__name__}; pass "
        "learners=neural(), or read the table and call fit."
    )


def _place(rows: ParquetRows, nuisances: str | os.PathLike[str] | None) -> Path:
    if nuisances is not None:
        place = Path(nuisances)
        if any(place.resolve() == path.parent.resolve() for path in rows.files):
            raise InputError(
                f"Expected a folder for predictions apart from the rows, got {str(place)!r} for both; name "
                "another."
            )
        return place
    return rows.files[0].parent / "_nuisances"


def _uses(plan: list[MemberPlan], n_parts: int) -> Tensor:
    uses = torch.zeros(len(plan), n_parts, dtype=torch.float32)
    for member, each in enumerate(plan):
        uses[member, torch.from_numpy(each.fit_rows)] = 1.0
    return uses


def _predictions(
    source: ParquetSource,
    plan: list[MemberPlan],
    n_folds: int,
    outcome_model: OutcomeModel | None,
    action_model: ActionModel,
    runtime: Runtime,
) -> Iterator[tuple[RowGroup, Prediction]]:
    """Yield what members that fill rows say about each row group, in order."""
    groups = source.rows.groups
    nothing = np.empty(0, dtype=np.int64)
    with runtime.progress.stage("predictions of the first stage", len(groups)) as advance:
        for group in groups:
            context, instrument, table = source.tables(group)
            exogenous, parts = Exogenous(context, instrument), source.parts(group)
            wanted: list[IntArray] = [
                _rows_of(parts, member.used_rows) if member.fills else nothing for member in plan
            ]
            target = source.outcome(context, table)
            if outcome_model is not None:
                for where, values in zip(wanted, outcome_model.predict(exogenous, wanted), strict=True):
                    target[where] = values
            distributions = action_model.distributions(exogenous, wanted)
            used = [index for index, where in enumerate(wanted) if len(where)]
            indices = [torch.from_numpy(wanted[index]).to(runtime.device) for index in used]
            distribution = assemble(group.n_rows, indices, [distributions[index] for index in used])
            fold = parts if n_folds > 1 else np.zeros_like(parts)
            yield group, Prediction(fold, target.astype(np.float32), distribution)
            advance()


def _rows_of(parts: IntArray, wanted: IntArray) -> IntArray:
    return np.flatnonzero(np.isin(parts, wanted))


# Of the sample, which settles units and knots; coefficients come from all rows.
_SAMPLE_SEED = 0


def fit_linear(
    estimator: TwoStageLeastSquares, rows: ParquetRows, sample_rows: int, runtime: Runtime
) -> TwoStageLeastSquares:
    """Estimate coefficients from all rows, read a row group at a time in each of a few passes."""
    found = scan(
        rows, sample_rows, estimator.action_kind, min_rows=2, seed=_SAMPLE_SEED, progress=runtime.progress
    )
    sample = found.sample

    def blocks(columns: SeriesColumns) -> Iterator[LinearRows]:
        with runtime.progress.stage("two-stage least squares", len(rows.groups)) as advance:
            for group in rows.groups:
                table = rows.read(group)
                weight = np.ones(len(table))
                if rows.weight is not None:
                    weight = table.column(rows.weight).to_numpy().astype(np.float64)
                yield columns.rows(
                    read_outcome(table.column(rows.outcome).to_numpy()),
                    sample.action_spec.read(rows.part(table, "action")),
                    sample.instrument_schema.read(rows.part(table, "instrument"), len(table)),
                    sample.context_schema.read(rows.part(table, "context"), len(table)),
                    weight,
                )
                advance()

    return estimator.fit_blocks(sample, blocks)
