"""Ours beside the published numbers, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from dmliv.benchmark.summary import Contents, Statistics, cell_label, statistics
from dmliv.benchmark.tables import failed_text
from dmliv.benchmark.trials import Metric
from dmliv.errors import InputError


def comparison_tables(contents: Contents) -> Iterator[Table]:
    """Yield a table for every metric the paper reports.

    Raises
    ------
    InputError
        If none of the records has a published counterpart.
    """
    found = False
    for metric in contents.grid.metrics:
        rows = [row for row in statistics(contents, metric) if row.published is not None]
        if rows:
            found = True
            yield _table(contents, metric, rows)
    if not found:
        raise InputError(
            f"Expected records of {contents.grid.name!r} that the paper has numbers for, got none; run the "
            f"benchmark with its own sizes: dmliv bench run {contents.grid.name}"
        )


def is_ahead(metric: Metric, row: Statistics) -> bool:
    """Return whether ours is at least as good as the published number."""
    if row.published is None or row.n == 0:
        return False
    published = row.published.value
    return row.ours <= published if metric.better == "lower" else row.ours >= published


def _table(contents: Contents, metric: Metric, rows: list[Statistics]) -> Table:
    ahead = sum(is_ahead(metric, row) for row in rows)
    table = Table(title=metric.label, caption=f"ours is at least as good in {ahead} of {len(rows)} rows")
    for column in ("", "method", "statistic"):
        table.add_column(column)
    for column in ("ours", "published", "ours / published", "seeds", ""):
        table.add_column(column, justify="right")
    for row in rows:
        published, ratio = row.published, row.ratio
        if published is None:
            continue
        table.add_row(
            cell_label(contents.grid, row.group.cell),
            row.group.method.label,
            published.statistic,
            f"{row.ours:.4f}" if row.n else "-",
            f"{published.value:.4g}",
            "" if ratio is None else f"{ratio:.2f}",
            str(row.n),
            failed_text(row),
        )
    return table
