"""Intervals from the shell are those of the verbs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from typer.testing import CliRunner, Result

import dmliv
from dmliv.cli import app
from dmliv.cli.options import fit_options
from dmliv.data.files import read_columns
from dmliv.errors import InputError

ROLES = ("--outcome", "sales", "--action", "price", "--instrument", "fuel", "--context", "time")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "120"})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("intervals")
    rng = np.random.default_rng(100)
    time, fuel, hidden = rng.uniform(0, 10, 200), rng.standard_normal(200), rng.standard_normal(200)
    price = 20.0 + 3.0 * fuel + 2.0 * hidden
    sales = 100.0 - 2.0 * price + 10.0 * hidden + time
    table = {"sales": sales, "price": price, "fuel": fuel, "time": time, "shop": np.arange(200) // 4}
    pa.csv.write_csv(pa.table(table), folder / "data.csv")
    model = folder / "model.dmliv"
    options = ("--learners", "kernel", "--folds", "2", "--cluster", "shop")
    result = run("fit", folder / "data.csv", *ROLES, *options, "-o", model)
    assert result.exit_code == 0, result.output
    return model, folder / "data.csv"


def test_effects_have_intervals(files: tuple[Path, Path]) -> None:
    model, data = files
    out = data.parent / "effects.csv"
    result = run("effect", model, data, "--from", "18", "--to", "20", "-o", out)
    assert result.exit_code == 0, result.output
    estimator, X = dmliv.load(model), read_columns(data, {"context": ["time"]})
    ends = estimator.ate_interval(X, T0=18.0, T1=20.0)
    assert f"{ends[0]:.4g} to {ends[1]:.4g}" in result.stdout
    found = read_columns(out, {"context": ["effect", "lower", "upper"]})
    for name, expected in zip(
        ("lower", "upper"), estimator.effect_interval(X, T0=18.0, T1=20.0), strict=True
    ):
        np.testing.assert_allclose(found.column(name).to_numpy(), expected)


def test_recommendations_have_intervals_and_a_gain(files: tuple[Path, Path]) -> None:
    model, data = files
    result = run("recommend", model, data, "--actions", "15:25:11")
    assert result.exit_code == 0, result.output
    table = read_columns(data, {"context": ["time"], "action": ["price"]})
    X, T = table.select(["time"]), table.select(["price"])
    policy = dmliv.load(model).policy(np.linspace(15.0, 25.0, 11))
    for ends in (policy.value_interval(X), policy.value_interval(X, versus=T)):
        assert f"{ends[0]:.4g} to {ends[1]:.4g}" in result.stdout
    new = data.parent / "new.csv"
    pa.csv.write_csv(X, new)
    assert "Gain over" not in run("recommend", model, new, "--actions", "15:25:11").stdout


def test_intervals_where_the_method_has_them() -> None:
    for method, folds, wanted, expected in (
        ("dml-iv", None, None, {"inference": "debiased"}),
        ("dml-iv", None, False, {}),
        ("dml-iv", 1, None, {}),
        ("kiv", None, None, {}),
    ):
        assert fit_options(method, folds, wanted, None) == expected
    with pytest.raises(InputError, match="Expected --intervals for dml-iv"):
        fit_options("kiv", None, True, None)
    with pytest.raises(InputError, match="Expected --cluster only for dml-iv"):
        fit_options("kiv", None, None, "shop")


def test_intervals_from_the_posterior(files: tuple[Path, Path]) -> None:
    data, model = files[1], files[1].parent / "posterior.dmliv"
    options = ("--learners", "kernel", "--folds", "2", "--inference", "posterior", "-o", model)
    result = run("fit", data, *ROLES, *options)
    assert result.exit_code == 0, result.output
    est = dmliv.load(model)
    assert est.inference_ == "posterior"
    shown = run("effect", model, data, "--from", "18", "--to", "20")
    assert shown.exit_code == 0, shown.output
    low, high = est.ate_interval(read_columns(data, {"context": ["time"]}), T0=18.0, T1=20.0)
    assert low < -4.0 < high


def test_a_kind_of_interval_that_cannot_be() -> None:
    assert fit_options("deepiv", None, None, None, "bootstrap") == {"inference": "bootstrap"}
    with pytest.raises(InputError, match="--inference only for dml-iv, ce-dml-iv, deepiv, got it for kiv"):
        fit_options("kiv", None, None, None, "bootstrap")
    with pytest.raises(InputError, match="no --inference with --no-intervals, got posterior"):
        fit_options("dml-iv", None, False, None, "posterior")
