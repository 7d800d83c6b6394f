"""The benchmark's commands, run as a user runs them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dmliv.benchmark.grids import GRID_NAMES, grid
from dmliv.benchmark.store import RecordStore
from dmliv.cli import app
from dmliv.cli.bench import read_numbers
from dmliv.errors import InputError


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "records"


def test_list_names_every_grid(folder: Path) -> None:
    result = bench("list", "--records", folder)
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(GRID_NAMES)
    trials = sum(not method.archived for method in grid("demand").methods) * 4 * 20
    assert f"{trials} trials      0 records" in result.stdout.splitlines()[0]


def test_list_shows_what_a_grid_consists_of() -> None:
    result = bench("list", "weak-instrument")
    assert result.exit_code == 0, result.output
    assert "strength 0.01, 5000 rows" in result.stdout
    assert "dml-iv-paper  (DML-IV, paper preset)" in result.stdout
    assert "dml-iv  (DML-IV; archived: records only)" in result.stdout


def test_run_resume_render_and_compare(folder: Path, tmp_path: Path) -> None:
    options = ("demand", "--methods", "2sls,kiv", "--sizes", "100", "--records", folder)
    first = bench("run", *options, "--seeds", "100")
    assert first.exit_code == 0, first.output
    assert "2 trials run, 0 of them failed; 0 had records before, 0 remain" in first.stdout
    assert "2sls, seed 100" in first.stderr
    second = bench("run", *options, "--seeds", "100-101")
    assert "2 trials run, 0 of them failed; 2 had records before, 0 remain" in second.stdout
    assert len((folder / "demand.jsonl").read_text().splitlines()) == 4

    rendered = bench("render", "demand", "--records", folder, "--output", tmp_path / "pages")
    assert rendered.exit_code == 0, rendered.output
    assert str(tmp_path / "pages" / "demand.md") in rendered.stdout
    page = (tmp_path / "pages" / "demand.md").read_text()
    assert "| 100 rows | 2SLS | 2 |" in page
    assert "Seeds 100-101" in page

    # The paper has no numbers for 100 rows.
    compared = bench("compare", "demand", "--records", folder)
    assert compared.exit_code == 1
    assert "Error: Expected records of 'demand' that the paper has numbers for" in compared.stderr


def test_compare_shows_ratios(folder: Path) -> None:
    arguments = ("--methods", "kiv", "--sizes", "1000", "--seeds", "100", "--records", folder)
    assert bench("run", "demand", *arguments).exit_code == 0
    record = RecordStore(folder / "demand.jsonl").read()[0]
    result = bench("compare", "demand", "--records", folder)
    assert result.exit_code == 0, result.output
    assert f"{record.metrics['grid_mse'] / 0.27:.2f}" in result.stdout
    assert "0.27" in result.stdout


def test_failures_are_told_and_can_be_retried(folder: Path, tmp_path: Path) -> None:
    options = ("demand", "--methods", "2sls", "--sizes", "2,100", "--seeds", "100", "--records", folder)
    first = bench("run", *options)
    assert first.exit_code == 0
    assert "2 trials run, 1 of them failed" in first.stdout
    assert "--retry-failed" in first.stdout
    assert "failed: InputError: Expected" in first.stderr
    assert "0 trials run" in bench("run", *options).stdout
    assert "1 trials run, 1 of them failed" in bench("run", *options, "--retry-failed").stdout
    bench("render", "demand", "--records", folder, "--output", tmp_path)
    assert "1 of 1 failed" in (tmp_path / "demand.md").read_text()


def test_a_budget_of_nothing_runs_nothing(folder: Path) -> None:
    options = ("--methods", "2sls", "--seeds", "100", "--budget", "0", "--records", folder)
    result = bench("run", "demand", *options)
    assert result.exit_code == 0
    assert "0 trials run" in result.stdout
    assert "4 remain" in result.stdout
    assert "The time budget is used up" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "demnad"), "did you mean 'demand'"),
        (("run", "demand", "--methods", "ols"), "Expected methods of 'demand', got 'ols'"),
        (("run", "demand", "--methods", "dml-iv"), "got 'dml-iv', which is archived"),
        (("run", "parts"), "all are archived"),
        (("run", "demand", "--seeds", "a"), "Expected seeds such as 0-4 or 0,3,7, got 'a'"),
        (("run", "demand", "--backend", "mpi"), "Expected backend 'loky', 'dask' or 'ray'"),
        (("render", "trees"), "run: dmliv bench run trees"),
    ],
)
def test_mistakes_are_one_clear_line(arguments: tuple[str, ...], message: str, folder: Path) -> None:
    result = bench(*arguments, "--records", folder)
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not folder.exists()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-4", [0, 1, 2, 3, 4]), ("0,3,7", [0, 3, 7]), ("0-2, 10,1", [0, 1, 2, 10]), ("5", [5])],
)
def test_numbers_are_read_as_written(text: str, numbers: list[int]) -> None:
    assert read_numbers(text, "seeds") == numbers


@pytest.mark.parametrize("text", ["", "-1", "1-", "1.5", "4-0", "1;2", "x"])
def test_other_texts_are_no_numbers(text: str) -> None:
    with pytest.raises(InputError, match="Expected seeds"):
        read_numbers(text, "seeds")


def test_ctrl_c_keeps_finished_trials(folder: Path) -> None:
    arguments = ["bench", "run", "demand", "--methods", "kiv", "--sizes", "1000", "--seeds", "100-140"]
    program = "from dmliv.cli import app; app()"
    command = [sys.executable, "-c", program, *arguments, "--records", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        store = RecordStore(folder / "demand.jsonl")
        while not store.read():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130
    assert "the same command continues" in stderr
    assert "Traceback" not in stderr
    assert 1 <= len(store.read()) < 41
