"""The commands about data files, run as a user runs them."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dmliv.cli import app
from dmliv.cli.datasets import data_app
from dmliv.errors import InputError
from dmliv.problems import assets

IHDP = "ihdp/ihdp_npci_1.csv"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(data_app, list(arguments))


def test_list_says_what_is_missing(cache: Path) -> None:
    result = run("list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 8
    assert all(line.endswith("missing") for line in lines[:7])
    assert "9.9 MB" in lines[0]
    assert str(cache) in lines[-1]


def test_list_says_where_files_are(small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_option = run("list", "--data-dir", str(small_data))
    assert str(small_data / IHDP) in by_option.stdout
    assert "missing" not in by_option.stdout
    monkeypatch.setenv("DMLIV_DATA", str(small_data))
    assert run("list").stdout == by_option.stdout


def test_check_passes_intact_and_missing_files(small_data: Path) -> None:
    result = run("check", "--data-dir", str(small_data))
    assert result.exit_code == 0
    assert result.stdout.count("ok ") == 7
    nothing = run("check")
    assert nothing.exit_code == 0
    assert nothing.stdout.count("missing") == 7


@pytest.mark.parametrize("change", [lambda b: b[:-5], lambda b: b[::-1]])
def test_check_finds_damage(change, small_data: Path, cache: Path) -> None:
    (cache / "ihdp").mkdir(parents=True)
    (cache / IHDP).write_bytes(change((small_data / IHDP).read_bytes()))
    result = run("check", "--data-dir", str(small_data))
    assert result.exit_code == 1
    assert f"damaged  {cache / IHDP}" in result.stdout
    assert result.stdout.count("ok ") == 7
    assert "fetch" in result.stderr


def test_list_marks_a_file_of_the_wrong_size(cache: Path) -> None:
    (cache / "ihdp").mkdir(parents=True)
    (cache / IHDP).write_bytes(b"half a file")
    assert "(damaged: wrong size)" in run("list").stdout


def test_fetch_uses_what_is_there(small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "download", lambda _: pytest.fail("downloaded"))
    result = run("fetch", "all", "--data-dir", str(small_data))
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 7


def test_fetch_downloads_what_is_missing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(assets, "download", lambda asset: asked.append(asset.name) or cache / asset.name)
    assert run("fetch", "pmcmr").exit_code == 0
    assert asked == ["pmcmr/County_RAW_variables.csv", "pmcmr/County_annual_PM25_CMR.csv"]


def test_fetch_of_an_unknown_name(cache: Path) -> None:
    error = run("fetch", "cifar").exception
    assert isinstance(error, InputError)
    assert "got 'cifar'" in str(error)
    result = CliRunner().invoke(app, ["data", "fetch", "cifar"])
    assert result.exit_code == 1
    assert result.stderr == f"Error: {error}\n"
