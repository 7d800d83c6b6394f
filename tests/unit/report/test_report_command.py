"""``dmliv report`` as a user runs it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression
from typer.testing import CliRunner, Result

from dmliv import DMLIV, TwoStageLeastSquares
from dmliv.cli import app
from dmliv.learners import Learners


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})


@pytest.fixture
def files(curved: Any, sample: Any, tmp_path: Path) -> tuple[Path, Path, Path]:
    model, data = tmp_path / "model.dmliv", tmp_path / "data.csv"
    curved.save(model)
    pd.concat([sample.X, sample.T, sample.Z], axis=1).assign(profit=sample.Y).to_csv(data, index=False)
    return model, data, tmp_path / "report.html"


def test_report_of_a_saved_model(files: tuple[Path, Path, Path]) -> None:
    model, data, page = files
    result = run("report", model, data, "-o", page, "--outcome", "profit", "--actions", "15:25:6")
    assert result.exit_code == 0, result.output
    assert f"Report: {page}" in result.stdout
    text = page.read_text(encoding="utf-8")
    assert "Effect of price on profit" in text
    # The instrument is found by the name that the model knows.
    assert "Partial R2 of the instrument" in text
    assert "6 actions from 15 to 25" in text


def test_a_table_without_outcome_and_instrument_will_do(files: tuple[Path, Path, Path]) -> None:
    model, data, page = files
    pd.read_csv(data).drop(columns=["profit", "fuel"]).to_csv(data, index=False)
    result = run("report", model, data, "-o", page)
    assert result.exit_code == 0, result.output
    assert "the table has no instrument" in page.read_text(encoding="utf-8")


def test_missing_values_are_refused_or_dropped(files: tuple[Path, Path, Path]) -> None:
    model, data, page = files
    table = pd.read_csv(data)
    table.loc[3, "time"] = np.nan
    table.to_csv(data, index=False)
    result = run("report", model, data, "-o", page)
    assert result.exit_code == 1
    assert "missing values" in result.stderr
    dropped = run("report", model, data, "-o", page, "--drop-missing")
    assert dropped.exit_code == 0, dropped.output
    assert "299 rows" in page.read_text(encoding="utf-8")


def test_errors_say_what_to_pass(files: tuple[Path, Path, Path], sample: Any, straight: Any) -> None:
    model, data, page = files
    result = run("report", model, "-o", page)
    assert result.exit_code == 1
    assert "'price', 'time', 'kind', 'seats'" in result.stderr
    assert "pass the training table" in result.stderr
    result = run("report", model, data, "-o", page.parent / "missing" / "report.html")
    assert result.exit_code == 1
    assert "missing folder" in result.stderr
    pd.read_csv(data).rename(columns={"price": "prize"}).to_csv(data, index=False)
    result = run("report", model, data, "-o", page)
    assert result.exit_code == 1
    assert "did you mean 'prize'" in result.stderr
    TwoStageLeastSquares().fit(sample.Y, sample.T.to_numpy(), Z=sample.Z, X=sample.X).save(model)
    result = run("report", model, data, "-o", page)
    assert result.exit_code == 1
    assert "dmliv.report.write_report" in result.stderr
    assert not page.exists()


@pytest.mark.parametrize("named", [True, False], ids=["named", "known to the model"])
def test_controls_and_weights_are_used(named: bool, sample: Any, tmp_path: Path) -> None:
    model, data, page = tmp_path / "model.dmliv", tmp_path / "data.csv", tmp_path / "report.html"
    table = pd.concat([sample.X, sample.T, sample.Z], axis=1).assign(profit=sample.Y)
    table.assign(share=1.0 + (table["kind"] == "family")).to_csv(data, index=False)
    controls = ("--control", "kind", "--control", "seats")
    if named:
        roles = ("--outcome", "profit", "--action", "price", "--instrument", "fuel", "--context", "time")
        fitted = run("fit", data, *roles, *controls, "--weight", "share", "--method", "2sls", "-o", model)
        assert fitted.exit_code == 0, fitted.output
        assert len(re.findall(r"control\s+│ (?:kind|seats)", fitted.stdout)) == 2
    else:
        lines = Learners(LinearRegression(), LinearRegression(), LinearRegression())  # type: ignore[arg-type]
        estimator = DMLIV(lines, n_folds=2, random_state=0)
        estimator.fit(sample.Y, sample.T, Z=sample.Z, X=sample.X[["time"]], W=sample.X[["kind", "seats"]])
        estimator.save(model)
    options = ("--instrument", "fuel", *controls) if named else ()
    result = run("report", model, data, "-o", page, "--outcome", "profit", "--weight", "share", *options)
    assert result.exit_code == 0, result.output
    text = page.read_text(encoding="utf-8")
    assert "rows count by their weights" in text
    assert text.count("<td>control</td>") == 2
    unknown = run("report", model, data, "-o", page, "--weight", "shares")
    assert unknown.exit_code == 1
    assert "did you mean 'share'" in unknown.stderr
