"""The shell commands, run as a user runs them."""

import re
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner, Result

import dmliv
from dmliv.cli import app
from dmliv.errors import DMLIVError

FIGURES = ("dose-response.png", "learning-curves.png", "recommended-price.png")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    # A folder below a missing one: the command makes both.
    folder = tmp_path_factory.mktemp("demo") / "new" / "figures"
    return run("demo", "--rows", "300", "--seed", "0", "--output", str(folder)), folder


def table_row(output: str, label: str) -> list[float]:
    line = next(line for line in output.splitlines() if label in line)
    return [float(number) for number in re.findall(r"-?\d+\.\d+", line)]


def test_demo_succeeds_and_explains_itself(demo_run: tuple[Result, Path]) -> None:
    result, _ = demo_run
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    for phrase in (
        "300 rows",
        "instrument",
        "Hidden demand shocks",
        "the best policy is a constant",
        "support",
    ):
        assert phrase in text


def test_demo_shows_progress_on_standard_error_only(demo_run: tuple[Result, Path]) -> None:
    result, _ = demo_run
    assert "action model" in result.stderr
    assert "choice of" not in result.stdout


def test_demo_table_puts_dmliv_ahead(demo_run: tuple[Result, Path]) -> None:
    output = demo_run[0].stdout
    dmliv, ordinary = table_row(output, "Counterfactual error")
    assert dmliv < 0.5 * ordinary
    dmliv, ordinary, best, random = table_row(output, "Mean sales")
    assert ordinary <= best
    assert random < dmliv <= best
    assert 0.0 < table_row(output, "Outcome model, R2")[0] < 1.0
    assert 0.0 < table_row(output, "Action model, R2")[0] < 1.0


@pytest.mark.parametrize("name", FIGURES)
def test_demo_writes_figures_with_content(demo_run: tuple[Result, Path], name: str) -> None:
    result, folder = demo_run
    assert str(folder / name) in result.stdout
    pixels = imread(folder / name)
    assert pixels.shape[1] == 1400
    assert pixels[..., :3].std() > 0.05


def test_demo_leaves_matplotlib_settings_alone(demo_run: tuple[Result, Path]) -> None:
    assert demo_run[0].exit_code == 0
    assert mpl.rcParams["font.size"] == mpl.rcParamsDefault["font.size"]


def test_too_few_rows_are_one_clear_line(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    result = run("demo", "--rows", "3", "--output", str(folder))
    assert result.exit_code == 1
    assert result.stderr == "Error: Expected at least 100 rows for the demo, got 3; ask for more.\n"
    assert not folder.exists()


def test_folder_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("demo", "--output", str(tmp_path / "file" / "out"))
    assert result.exit_code == 1
    assert "Expected a folder to write to" in result.stderr


@pytest.mark.parametrize("arguments", [("--seed", "-1"), ("--rows", "many"), ("--rwos", "200")])
def test_bad_options_are_usage_errors(arguments: tuple[str, str]) -> None:
    result = run("demo", *arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_errors_of_the_package_become_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise DMLIVError("Expected [this],\n  got that.")

    monkeypatch.setattr("dmliv.benchmark.demo.run_demo", fail)
    result = run("demo")
    assert result.exit_code == 1
    assert result.stderr == "Error: Expected [this], got that.\n"


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("dmliv.benchmark.demo.run_demo", fail)
    assert isinstance(run("demo").exception, ZeroDivisionError)


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"dmliv {dmliv.__version__}\n"


def test_help_lists_the_demo() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "demo" in result.stdout
