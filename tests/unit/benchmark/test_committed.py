"""The records in the documentation can be read and rendered again."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dmliv.benchmark.grids import GRID_NAMES, grid
from dmliv.benchmark.store import RecordStore
from dmliv.benchmark.summary import arrange, statistics
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


@pytest.mark.parametrize("name", [path.stem for path in FILES])
def test_a_page_can_be_rendered_again(name: str, tmp_path: Path) -> None:
    """The same records give the same pages, to the letter."""
    result = CliRunner().invoke(
        app, ["bench", "render", name, "--records", str(RESULTS / "records"), "--output", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    for page in (f"{name}.md", f"{name}.tex"):
        assert (tmp_path / page).read_text() == (RESULTS / page).read_text()


def test_a_cell_without_a_metric_is_left_out() -> None:
    """Tasks of one grid may be evaluated differently."""
    contents = arrange(grid("parts"), RecordStore(RESULTS / "records" / "parts.jsonl").read())
    for metric in contents.grid.metrics:
        rows = statistics(contents, metric)
        assert rows
        assert all(row.n for row in rows)
