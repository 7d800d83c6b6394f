"""Writing the pages of a grid: Markdown, LaTeX and figures, the same bytes for the same records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dmliv.benchmark.charts import draw
from dmliv.benchmark.summary import Contents
from dmliv.benchmark.tables import latex, markdown
from dmliv.diagnostics.house_style import save_figure
from dmliv.errors import InputError


def render(contents: Contents, folder: Path) -> Iterator[Path]:
    """Write the page, the LaTeX tables and one figure per metric; yield each file when it is there.

    Raises
    ------
    InputError
        If there are no records to show, or the folder cannot be written to.
    """
    grid = contents.grid
    if not contents.groups:
        stale = f" ({contents.n_stale} with other settings)" if contents.n_stale else ""
        raise InputError(
            f"Expected records of {grid.name!r}, got none{stale}; run: dmliv bench run {grid.name}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"Expected a folder to write to, got {folder}: {error.strerror}; name another."
        ) from error
    figures: dict[str, str] = {}
    for metric in grid.metrics:
        if not any(len(group.values(metric.name)) for group in contents.groups):
            continue
        name = f"{grid.name}-{metric.name.replace('_', '-')}.png"
        save_figure(draw(contents, metric), folder / name)
        figures[metric.name] = name
        yield folder / name
    for name, text in (
        (f"{grid.name}.md", markdown(contents, figures)),
        (f"{grid.name}.tex", latex(contents)),
    ):
        (folder / name).write_text(text)
        yield folder / name
