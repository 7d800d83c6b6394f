"""``dmliv fit`` on a folder of Parquet files."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from dmliv import load
from dmliv.cli import app
from dmliv.errors import InputError

from .conftest import rows_of, write

ROLES = ["--outcome", "sales", "--action", "price", "--instrument", "fuel", "--context", "day"]


def test_a_folder_is_fitted_and_saved(tmp_path: Path) -> None:
    folder, model = write(tmp_path / "rows", rows_of(300, seed=108)), tmp_path / "model.dmliv"
    arguments = ["fit", str(folder), *ROLES, "--method", "ce-dml-iv", "-o", str(model)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    assert "300 rows in 3 files" in result.output
    assert load(model).predict(0.0, [[0.1], [0.2]]).shape == (2,)
    assert len(list((folder / "_nuisances").glob("*.parquet"))) == 3


def test_methods_that_need_all_rows_say_so(tmp_path: Path) -> None:
    folder = write(tmp_path / "rows", rows_of(300, seed=109))
    result = CliRunner().invoke(
        app, ["fit", str(folder), *ROLES, "--method", "2sls", "-o", str(tmp_path / "m")]
    )
    assert isinstance(result.exception, (SystemExit, InputError))
    assert "Expected DMLIV, CEDMLIV or DeepIV" in f"{result.output} {result.exception}".replace("\n", " ")
    assert not (tmp_path / "m").exists()
