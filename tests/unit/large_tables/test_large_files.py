"""``dmliv fit`` on rows that stream: a folder of Parquet files, and a CSV file that counts as large."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from typer.testing import CliRunner, Result

from dmliv import load
from dmliv.cli import app

from .conftest import rows_of, write

ROLES = ["--outcome", "sales", "--action", "price", "--instrument", "fuel", "--context", "day"]
LARGE = ["--stream-above", "0"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "120"})


def failure(result: Result) -> str:
    assert result.exit_code == 1, result.output
    line = result.stderr.splitlines()[-1]
    assert line.startswith("Error: Expected ")
    return line


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    columns = rows_of(300, seed=108) | {"shop": np.arange(300) // 10}
    pa.csv.write_csv(pa.table(columns), path)
    return path


def test_a_folder_is_fitted_and_saved(tmp_path: Path) -> None:
    folder, model = write(tmp_path / "rows", rows_of(300, seed=108)), tmp_path / "model.dmliv"
    result = run("fit", folder, *ROLES, "--method", "ce-dml-iv", "--no-pilot", "-o", model)
    assert result.exit_code == 0, result.output
    assert "300 rows in 3 files" in result.output
    # A method that never has intervals says nothing about them.
    assert "intervals" not in result.output
    assert load(model).predict(0.0, [[0.1], [0.2]]).shape == (2,)
    assert len(list((folder / "_nuisances").glob("*.parquet"))) == 3


def test_a_large_file_leaves_a_model_and_nothing_else(file: Path) -> None:
    model = file.parent / "model.dmliv"
    result = run("fit", file, *ROLES, *LARGE, "--folds", "2", "-o", model)
    assert result.exit_code == 0, result.output
    assert "300 rows in a large file, read in parts" in result.stdout
    assert "Linear first-stage F statistic (effective F)" in result.stdout
    assert "Warning: This model has no intervals" in result.stderr
    assert load(model).counterfactual_.uncertainty is None
    assert sorted(each.name for each in file.parent.iterdir()) == ["model.dmliv", "rows.csv"]


def test_no_word_about_intervals_that_nobody_wanted(file: Path) -> None:
    arguments = ("--folds", "2", "--no-intervals", "-o", file.parent / "m")
    result = run("fit", file, *ROLES, *LARGE, *arguments)
    assert result.exit_code == 0, result.output
    assert "intervals" not in result.stderr


def test_two_stage_least_squares_is_the_same_on_both_roads(file: Path) -> None:
    models: list[Any] = []
    for name, road in (("memory", []), ("parts", LARGE)):
        model = file.parent / name
        result = run("fit", file, *ROLES, *road, "--context", "kind", "--method", "2sls", "-o", model)
        assert result.exit_code == 0, result.output
        assert "intervals" not in result.stderr
        models.append(load(model))
    np.testing.assert_allclose(models[1].coef_, models[0].coef_, rtol=1e-9)
    np.testing.assert_allclose(models[1].cov_, models[0].cov_, rtol=1e-8)
    X = pa.table({"day": [0.0, 1.0], "kind": ["a", "b"]})
    ends = [model.ate_interval(X, T0=0.0, T1=1.0) for model in models]
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-8)


@pytest.mark.parametrize(
    "option",
    [
        ("--control", "shop"),
        ("--cluster", "shop"),
        ("--intervals",),
        ("--pilot",),
        ("--inference", "posterior"),
    ],
    ids=lambda option: option[0],
)
def test_what_rows_that_stream_cannot_have_is_refused(file: Path, option: tuple[str, ...]) -> None:
    model = file.parent / "m"
    large = failure(run("fit", file, *ROLES, *LARGE, *option, "-o", model))
    assert f"Expected no {option[0]} with a CSV file above 0 MB" in large
    assert "raise --stream-above" in large
    folder = write(file.parent / "rows", rows_of(300, seed=108))
    assert f"Expected no {option[0]} with a folder" in failure(
        run("fit", folder, *ROLES, *option, "-o", model)
    )
    assert not model.exists()


def test_methods_that_need_all_rows_say_so_of_a_folder_and_read_a_large_file(file: Path) -> None:
    folder, model = write(file.parent / "rows", rows_of(300, seed=109)), file.parent / "m"
    line = failure(run("fit", folder, *ROLES, "--method", "kiv", "-o", model))
    assert "Expected DMLIV, CEDMLIV, DeepIV or TwoStageLeastSquares" in line
    assert not model.exists()
    result = run("fit", file, *ROLES, *LARGE, "--method", "kiv", "-o", model)
    assert result.exit_code == 0, result.output
    assert "read in parts" not in result.stdout


def test_rows_are_counted_in_the_file(file: Path) -> None:
    text = file.read_text().splitlines()
    text[200] = "," + text[200].split(",", 1)[1]
    file.write_text("\n".join(text) + "\n")
    arguments = ("--method", "2sls", "-o", file.parent / "m")
    line = failure(run("fit", file, *ROLES, *LARGE, *arguments))
    assert "got 1 missing values (NaN or None), the first in row 199;" in line
    assert "(Rows are counted from row 0 of 'rows.csv'.)" in line
    assert [each.name for each in file.parent.iterdir()] == ["rows.csv"]
    result = run("fit", file, *ROLES, *LARGE, *arguments, "--drop-missing")
    assert result.exit_code == 0, result.output
    assert "1 rows with missing values left out." in result.stdout
    assert "299 rows" in result.stdout
