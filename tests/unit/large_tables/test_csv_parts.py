"""A CSV file in parts is the file as a whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from dmliv import TwoStageLeastSquares
from dmliv.data import ParquetRows, csv_as_parquet
from dmliv.data.files import read_columns
from dmliv.errors import InputError
from dmliv.estimators import can_stream, fit_parquet
from dmliv.progress import SilentProgress

from .conftest import ROLES, rows_of, write

N_ROWS = 60_000


def numbered(path: Path, late: str | None) -> Path:
    """Write a file of some megabytes whose last row but one holds something new."""
    numbers = [str(row) for row in range(N_ROWS)]
    if late is not None:
        numbers[-2] = late
    kinds = (f'"line {row % 3}\nof two"' for row in range(N_ROWS))
    lines = (f"{number},{kind},0.25,{'x' * 30}" for number, kind in zip(numbers, kinds, strict=True))
    path.write_text("number,kind,half,unused\n" + "\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("late", [None, "0.5", "", "1e3"])
def test_parts_hold_what_the_file_holds(tmp_path: Path, late: str | None) -> None:
    file = numbered(tmp_path / "rows.csv", late)
    roles = {"context": ["number", "kind"], "outcome": ["half"]}
    with csv_as_parquet(file, roles, place=tmp_path, progress=SilentProgress()) as written:
        parts = sorted(written.folder.iterdir())
        assert sum(pq.read_metadata(part).num_row_groups for part in parts) > 2
        table = pa.concat_tables([pq.read_table(part) for part in parts])
        assert written.n_rows == len(table) == N_ROWS
    whole = read_columns(file, roles)
    assert table.column_names == whole.column_names
    for name in ("number", "half"):
        assert table.column(name).type == whole.column(name).type
        assert table.column(name).to_pylist() == whole.column(name).to_pylist()
    assert table.column("kind").equals(whole.column("kind").cast(pa.string()))
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]


def test_text_after_empty_cells_is_text(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("word,yes\n" + ",true\n" * 200_000 + '"NA",3\n')
    with csv_as_parquet(
        file, {"context": ["word", "yes"]}, place=tmp_path, progress=SilentProgress()
    ) as written:
        last = pq.read_table(sorted(written.folder.iterdir())[-1]).to_pylist()[-1]
    assert last == {"word": "NA", "yes": "3"}


def test_numbers_with_text_among_them_are_refused_wherever_it_stands(tmp_path: Path) -> None:
    file = numbered(tmp_path / "rows.csv", "many")
    with (
        pytest.raises(InputError, match=r"one type in column 'number', got 59999 different .* 'many'"),
        csv_as_parquet(file, {"context": ["number"]}, place=tmp_path, progress=SilentProgress()),
    ):
        raise AssertionError
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]


def test_files_go_when_their_reader_fails(tmp_path: Path) -> None:
    file = numbered(tmp_path / "rows.csv", None)
    opened = csv_as_parquet(file, {"context": ["number"]}, place=tmp_path, progress=SilentProgress())
    folder = opened.__enter__().folder
    assert list(folder.iterdir())
    error = ZeroDivisionError()
    assert not opened.__exit__(ZeroDivisionError, error, None)
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "estimator",
    [
        TwoStageLeastSquares(),
        TwoStageLeastSquares(covariance="robust"),
        TwoStageLeastSquares(2, n_knots=1, interactions=True, covariance="robust"),
    ],
    ids=["line", "robust", "series"],
)
def test_two_stage_least_squares_from_files_is_that_of_the_table(
    tmp_path: Path, estimator: TwoStageLeastSquares, weighted: bool
) -> None:
    columns = rows_of(900, seed=110)
    columns["weight"] = np.random.default_rng(111).uniform(0.0, 2.0, 900)
    columns["weight"][:50] = 0.0
    rows = ParquetRows(write(tmp_path / "rows", columns), **ROLES, weight="weight" if weighted else None)
    found = TwoStageLeastSquares(**estimator.get_params())
    assert fit_parquet(found, rows) is found
    estimator.fit(
        columns["sales"],
        pa.table({"price": columns["price"]}),
        Z=pa.table({"fuel": columns["fuel"]}),
        X=pa.table({name: columns[name] for name in ("day", "kind")}),
        sample_weight=columns["weight"] if weighted else None,
    )
    assert found.feature_names_ == estimator.feature_names_
    np.testing.assert_allclose(found.coef_, estimator.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.cov_, estimator.cov_, rtol=1e-6, atol=1e-12)
    for name, statistic in estimator.first_stage_f_.items():
        assert found.first_stage_f_[name] == pytest.approx(statistic, rel=1e-7)
    if len(found.first_stage_f_) == 1:
        expected = estimator.anderson_rubin_interval().intervals
        np.testing.assert_allclose(found.anderson_rubin_interval().intervals, expected, rtol=1e-7)
    assert can_stream(found)
