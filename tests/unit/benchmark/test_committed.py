"""The records in the documentation can be read and rendered again."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dmliv.benchmark.grids import GRID_NAMES
from dmliv.benchmark.store import RecordStore
from dmliv.cli import app

RESULTS = Path(__file__).parents[3] / "docs" / "results"
FILES = sorted((RESULTS / "records").glob("*.jsonl"))


def test_there_are_records() -> None:
    assert FILES
    assert {path.stem for path in FILES} <= set(GRID_NAMES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_records_are_whole_and_unique(path: Path) -> None:
    lines = path.read_text().splitlines()
    records = RecordStore(path).read()
    assert len(records) == len(lines)
    assert len({record.digest for record in records}) == len(records)
    assert (RESULTS / f"{path.stem}.md").exists()


def test_a_page_can_be_rendered_again(tmp_path: Path) -> None:
    """Pages made with the settings of today are the same again, to the letter."""
    result = CliRunner().invoke(
        app,
        ["bench", "render", "trees", "--records", str(RESULTS / "records"), "--output", str(tmp_path)],
    )
    assert result.exit_code == 0, result.output
    for name in ("trees.md", "trees.tex"):
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text()
