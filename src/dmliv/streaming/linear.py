"""Two-stage least squares on a folder of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dmliv.data import read_outcome
from dmliv.estimators import TwoStageLeastSquares
from dmliv.estimators.linear_rows import LinearRows
from dmliv.estimators.sieve import SieveColumns
from dmliv.first_stage.base import Runtime
from dmliv.streaming.rows import ParquetRows
from dmliv.streaming.scan import scan

# Of the sample, which settles units and knots; coefficients come from all rows.
_SAMPLE_SEED = 0


def fit_linear(
    estimator: TwoStageLeastSquares, rows: ParquetRows, sample_rows: int, runtime: Runtime
) -> TwoStageLeastSquares:
    """Estimate coefficients from all rows, read a row group at a time in each of a few passes."""
    found = scan(rows, sample_rows, estimator.action_kind, min_rows=2, seed=_SAMPLE_SEED, runtime=runtime)
    sample = found.sample

    def blocks(columns: SieveColumns) -> Iterator[LinearRows]:
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
