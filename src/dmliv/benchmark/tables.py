"""Tables of a grid, in Markdown and LaTeX, with the words that belong beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from dmliv.benchmark.store import Record
from dmliv.benchmark.summary import Contents, Statistics, cell_label, fitted_rate, relative_times, statistics
from dmliv.benchmark.trials import Grid, Metric

_ESCAPED: Final = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
_ABSENT: Final = "-"
# Errors are texts of any length; a line is enough to recognise one.
_LONGEST_ERROR: Final = 200


def table_cells(contents: Contents, metric: Metric) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table of a metric, as text."""
    rows = statistics(contents, metric)
    signed = metric.better == "zero"
    spread = "quartiles" if rows and rows[0].has_quartiles else "lowest to highest"
    header = [
        "",
        "method",
        "seeds",
        "failed",
        *(("root mean squared error", "bias (sd)") if signed else (f"median ({spread})", "mean (sd)")),
        "published",
        "ours / published",
    ]
    return header, [_row(contents, row, signed=signed) for row in rows]


def rate_cells(contents: Contents, metric: Metric) -> list[tuple[str, float]]:
    """Return every method's fitted rate: the slope of log median error against log rows."""
    medians: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in statistics(contents, metric):
        if row.n:
            medians[row.group.method.label].append((row.group.cell.rows, row.median))
    rates = []
    for label, points in medians.items():
        rate = fitted_rate([rows for rows, _ in points], [median for _, median in points])
        if rate is not None:
            rates.append((label, rate))
    return rates


def time_cells(contents: Contents) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table of times, as multiples of those of one method."""
    grid = contents.grid
    label = grid.method(str(grid.timed_against)).label
    rows = [
        [
            cell_label(grid, group.cell),
            group.method.label,
            str(len(ratios)),
            f"{np.median(ratios):.2f} ({ratios.min():.2f} to {ratios.max():.2f})" if len(ratios) else _ABSENT,
        ]
        for group, ratios in relative_times(contents)
    ]
    return ["", "method", "seeds", f"time over that of: {label}, median (lowest to highest)"], rows


def markdown(contents: Contents, figures: Mapping[str, str] | None = None) -> str:
    """Return the page of a grid.

    Parameters
    ----------
    contents : Contents
    figures : mapping of str to str, optional
        File names of the figures by metric.
    """
    grid = contents.grid
    parts = [f"# {grid.title}", _before_pilot(grid), caption(contents), _notes(contents)]
    for metric in grid.metrics:
        header, rows = table_cells(contents, metric)
        parts.append(f"## {_capitalised(metric.label)}")
        if figures and metric.name in figures:
            parts.append(f"![{metric.label}]({figures[metric.name]})")
        parts.append(_markdown_table(header, rows))
        if grid.chart == "lines":
            rates = [f"{label} N^{rate:.2f}" for label, rate in rate_cells(contents, metric)]
            parts.append(f"Fitted rates of the median: {'; '.join(rates) or 'none'}.")
    if grid.timed_against is not None:
        parts += ["## Time", _markdown_table(*time_cells(contents))]
    failures = _failures(contents)
    if failures:
        parts.append("## Failures\n\n" + "\n".join(f"- {line}" for line in failures))
    return "\n\n".join(part for part in parts if part) + "\n"


def latex(contents: Contents) -> str:
    """Return the tables of a grid as LaTeX floats that need no packages."""
    blocks = []
    for metric in contents.grid.metrics:
        header, rows = table_cells(contents, metric)
        lines = [" & ".join(map(_escape, row)) + r" \\" for row in [header, *rows]]
        blocks.append(
            "\n".join(
                [
                    r"\begin{table}",
                    r"\centering",
                    rf"\begin{{tabular}}{{ll{'r' * (len(header) - 2)}}}",
                    r"\hline",
                    lines[0],
                    r"\hline",
                    *lines[1:],
                    r"\hline",
                    r"\end{tabular}",
                    rf"\caption{{{_escape(contents.grid.title)}. {_escape(_capitalised(metric.label))}. "
                    rf"{_escape(caption(contents))}}}",
                    rf"\label{{tab:{contents.grid.name}-{metric.name.replace('_', '-')}}}",
                    r"\end{table}",
                ]
            )
        )
    return "\n\n".join(blocks) + "\n"


def caption(contents: Contents) -> str:
    """Return seeds, versions, commits, machines and hours in one line."""
    records = contents.records
    if not records:
        return "No records."
    commits = sorted({record.commit for record in records if record.commit}) or ["none"]
    machines = sorted({_machine(record) for record in records})
    versions = sorted({_versions(record) for record in records})
    hours = sum(record.seconds for record in records) / 3600.0
    return (
        f"Seeds {number_ranges([record.seed for record in records])}; {' / '.join(versions)}; "
        f"commit {', '.join(commits)}; {' / '.join(machines)}, one thread a trial; "
        f"{len(records)} trials, {hours:.1f} hours in all."
    )


def number_ranges(numbers: Sequence[int]) -> str:
    """Return numbers as text with runs abbreviated, such as ``"0-4, 7"``."""
    ordered = sorted(set(numbers))
    if not ordered:
        return ""
    runs = [[ordered[0]]]
    for before, number in pairwise(ordered):
        if number == before + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def failed_text(row: Statistics) -> str:
    """Return how many trials of a group failed, or nothing."""
    failed = len(row.group.failures)
    return f"{failed} of {len(row.group.records)} failed" if failed else ""


def _row(contents: Contents, row: Statistics, *, signed: bool) -> list[str]:
    published, ratio = row.published, row.ratio
    sd = "" if published is None or published.sd is None else f" ({published.sd:.4f})"
    if signed:
        centre = f"{row.root_mean_square:.4f}" if row.n else _ABSENT
    else:
        centre = _with_spread(row.n, f"{row.median:.4f}", f"({row.low:.4f} to {row.high:.4f})")
    return [
        cell_label(contents.grid, row.group.cell),
        row.group.method.label,
        str(row.n),
        failed_text(row),
        centre,
        _with_spread(row.n, f"{row.mean:.4f}", f"({row.sd:.4f})"),
        "" if published is None else f"{published.statistic} {published.value:.4g}{sd}",
        "" if ratio is None else f"{ratio:.2f}",
    ]


def _with_spread(n: int, centre: str, spread: str) -> str:
    """Return a number with its spread over n seeds; one seed has none."""
    if n == 0:
        return _ABSENT
    return f"{centre} {spread}" if n > 1 else centre


def _before_pilot(grid: Grid) -> str:
    """Return a note where methods that have a pilot by default are shown without one."""
    if not grid.before_pilot:
        return ""
    return (
        "**This page shows the default before the pilot**: all two-stage methods here have `pilot=None`, "
        "which learns h from the moments of the instrument alone."
    )


def _notes(contents: Contents) -> str:
    sentences = [*dict.fromkeys(task.note() for task in contents.grid.tasks), contents.grid.remark]
    if contents.n_stale:
        sentences.append(
            f"{contents.n_stale} records made with other settings than today's, or not of this grid, are "
            "left out."
        )
    return " ".join(sentence for sentence in sentences if sentence)


def _failures(contents: Contents) -> list[str]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for group in contents.groups:
        for record in group.failures:
            error = " ".join((record.error or "").split())[:_LONGEST_ERROR]
            counts[cell_label(contents.grid, group.cell), group.method.label, error] += 1
    return [f"{method}, {cell}, {count} times: {error}" for (cell, method, error), count in counts.items()]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _escape(text: str) -> str:
    return "".join(_ESCAPED.get(character, character) for character in text)


def _machine(record: Record) -> str:
    return f"{record.machine.get('cpu', 'unknown processor')}, {record.machine.get('cores', '?')} cores"


def _versions(record: Record) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(record.versions.items()))


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]
