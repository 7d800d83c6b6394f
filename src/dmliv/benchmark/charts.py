"""Figures of a grid: boxes with one panel per cell, a table in colours, or error against rows with rates."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from dmliv.benchmark.summary import Contents, Statistics, cell_label, statistics
from dmliv.benchmark.tables import rate_cells
from dmliv.benchmark.trials import Metric
from dmliv.data import FloatArray
from dmliv.diagnostics.house_style import (
    DMLIV_COLOUR,
    OPTIMUM_COLOUR,
    ORDINARY_COLOUR,
    QUIET_TEXT,
    TRUTH_COLOUR,
    WIDTH_INCHES,
    house_style,
)

_MOST_COLUMNS: Final = 3
_ROW_INCHES: Final = 0.26
_LONGEST_LINE: Final = 26
_BOX_HEIGHT: Final = 0.6
# Fewer values are drawn one by one: a box would pretend to know their quartiles.
_FEWEST_FOR_BOX: Final = 5
_HEAT_ROW_INCHES: Final = 0.2
# Medians within this share of the best are as good.
_CLOSE: Final = 0.1
_LINES: Final = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# Ticks within a power of ten, by how many times the lowest value the highest must exceed.
_TICKS: Final = (
    (300.0, (1.0,)),
    (30.0, (1.0, 3.0)),
    (6.0, (1.0, 2.0, 5.0)),
    (2.2, (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)),
    (0.0, (1.0, 1.2, 1.4, 1.6, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)),
)
# More ticks on a linear axis would run into each other.
_MOST_TICKS: Final = 4
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#1a1a1a")


def draw(contents: Contents, metric: Metric) -> Figure:
    """Draw a metric of a grid as the grid says."""
    styles = {"boxes": draw_boxes, "lines": draw_lines, "heat": draw_heat}
    return styles[contents.grid.chart](contents, metric)


def draw_boxes(contents: Contents, metric: Metric) -> Figure:
    """Draw one box per method (median, quartiles, whiskers, single seeds beyond them), one panel per cell.

    Diamonds are published numbers, the grey line is the metric's reference, or zero for signed errors. Other
    errors have a log scale.
    """
    rows = statistics(contents, metric)
    cells = list(dict.fromkeys(row.group.cell for row in rows))
    methods = [m for m in contents.grid.methods if any(row.group.method is m for row in rows)]
    places = {method.name: position for position, method in enumerate(methods)}
    with house_style():
        figure, axes = panels(len(cells), _title(contents, metric), 1.0 + _ROW_INCHES * max(len(methods), 3))
        for axis, cell in zip(axes, cells, strict=True):
            inside = [row for row in rows if row.group.cell == cell]
            _draw_panel(axis, inside, metric, places)
            # Long titles would run into each other.
            title = "\n".join(wrap(cell_label(contents.grid, cell), _LONGEST_LINE))
            axis.set(title=title, xlabel=metric.label)
            axis.set_yticks(range(len(methods)), [method.label for method in methods])
            axis.set_ylim(len(methods) - 0.4, -0.6)
            axis.grid(axis="y", visible=False)
            axis.grid(axis="x", visible=True)
            if metric.better == "lower":
                _log_axis(axis, "x")
            else:
                # What lies on the optimum, the end of the range, would vanish in the frame.
                low, high = axis.get_xlim()
                axis.locator_params(axis="x", nbins=_MOST_TICKS)
                axis.ticklabel_format(axis="x", useOffset=False)
                axis.set_xlim(low - 0.04 * (high - low), high + 0.04 * (high - low))
        words = _legend(rows, metric)
        if words:
            figure.supxlabel(words, x=0.01, ha="left", color=QUIET_TEXT, fontsize=9)
    return figure


def draw_lines(contents: Contents, metric: Metric) -> Figure:
    """Draw median and spread against the rows for every method, both axes logarithmic."""
    rows = [row for row in statistics(contents, metric) if row.n]
    rates = dict(rate_cells(contents, metric))
    labels = list(dict.fromkeys(row.group.method.label for row in rows))
    with house_style():
        figure, (axis,) = panels(1, _title(contents, metric), 4.6)
        for position, label in enumerate(labels):
            points = [row for row in rows if row.group.method.label == label]
            sizes = [row.group.cell.rows for row in points]
            colour = _COLOURS[position % len(_COLOURS)]
            words = f"{label}: N^{rates[label]:.2f}" if label in rates else label
            axis.plot(
                sizes,
                [row.median for row in points],
                color=colour,
                ls=_LINES[position % len(_LINES)],
                marker="o",
                markersize=4,
                label=words,
            )
            low, high = [row.low for row in points], [row.high for row in points]
            axis.fill_between(sizes, low, high, color=colour, alpha=0.12, lw=0)
        axis.set(xlabel="rows", ylabel=metric.label)
        axis.set_xscale("log")
        sizes = sorted({row.group.cell.rows for row in rows})
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.xaxis.set_minor_formatter(NullFormatter())
        _log_axis(axis, "y")
        figure.legend(loc="outside right upper")
    return figure


def draw_heat(contents: Contents, metric: Metric) -> Figure:
    """Draw a table of medians, one line per cell: the darker, the further from the best of its line.

    Colours of errors are logarithms of their ratio to the lowest; of rewards, shares of the way from the
    highest to the lowest. The best and what is within a tenth of it are bold.
    """
    rows = [row for row in statistics(contents, metric) if row.n]
    cells = list(dict.fromkeys(row.group.cell for row in rows))
    methods = [m for m in contents.grid.methods if any(row.group.method is m for row in rows)]
    medians = np.full((len(cells), len(methods)), np.nan)
    for row in rows:
        medians[cells.index(row.group.cell), methods.index(row.group.method)] = row.median
    distance, close = _distance_to_best(medians, metric)
    with house_style():
        height = 1.8 + _HEAT_ROW_INCHES * len(cells)
        figure = Figure(figsize=(WIDTH_INCHES, height), layout=ConstrainedLayoutEngine())
        axis = figure.subplots()
        axis.imshow(distance, cmap="Blues", vmin=0.0, vmax=1.4, aspect="auto")
        for (line, column), value in np.ndenumerate(medians):
            if np.isfinite(value):
                axis.text(
                    column,
                    line,
                    f"{value:.3g}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if distance[line, column] > 0.8 else TRUTH_COLOUR,
                    fontweight="bold" if close[line, column] else "normal",
                )
        axis.set_yticks(range(len(cells)), [cell_label(contents.grid, cell) for cell in cells], fontsize=8)
        axis.set_xticks(range(len(methods)), [_in_lines(method.label) for method in methods], fontsize=8)
        axis.xaxis.tick_top()
        axis.tick_params(length=0)
        axis.grid(visible=False)
        figure.suptitle(_title(contents, metric), x=0.01, ha="left")
        figure.supxlabel(
            "medians; bold: best of its line, or within a tenth; the darker, the further from it",
            x=0.01,
            ha="left",
            color=QUIET_TEXT,
            fontsize=9,
        )
    return figure


def _distance_to_best(medians: FloatArray, metric: Metric) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return how far medians (cells, methods) are from the best of their line, and which are close to it."""
    if metric.better == "higher":
        best, worst = np.nanmax(medians, axis=1, keepdims=True), np.nanmin(medians, axis=1, keepdims=True)
        distance = (best - medians) / np.maximum(best - worst, 1e-12)
        return distance, distance <= _CLOSE
    sizes = np.maximum(np.abs(medians), 1e-12)
    ratio = sizes / np.nanmin(sizes, axis=1, keepdims=True)
    return np.log10(ratio), ratio <= 1.0 + _CLOSE


def _in_lines(label: str) -> str:
    return label.replace(", ", ",\n").replace(" before ", "\nbefore ").replace(" and ", "\nand ")


def _draw_panel(axis: Axes, rows: Sequence[Statistics], metric: Metric, places: dict[str, int]) -> None:
    for row in rows:
        position = places[row.group.method.name]
        values = row.group.values(metric.name)
        if len(values) >= _FEWEST_FOR_BOX:
            _draw_box(axis, values, position)
        elif len(values):
            axis.plot(values, [position] * len(values), "o", color=DMLIV_COLOUR, markersize=4, alpha=0.7)
        if row.published is not None:
            axis.plot(row.published.value, position, "D", color=ORDINARY_COLOUR, markersize=4.5, zorder=4)
    if metric.better == "zero":
        axis.axvline(0.0, color=OPTIMUM_COLOUR, lw=1.5, zorder=1)
    if metric.reference is not None:
        best = [value for row in rows for value in row.group.values(metric.reference)]
        if best:
            axis.axvline(float(np.median(best)), color=OPTIMUM_COLOUR, lw=1.5, zorder=1)


def _draw_box(axis: Axes, values: FloatArray, position: int) -> None:
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
    reach = 1.5 * (high - low)
    near = (values >= low - reach) & (values <= high + reach)
    ends, far = values[near], values[~near]
    # The paper's figures leave such seeds out; a user may draw one.
    axis.plot(far, [position] * len(far), "o", mfc="none", color=DMLIV_COLOUR, markersize=3.5, zorder=2)
    axis.hlines(position, ends.min(), ends.max(), color=DMLIV_COLOUR, lw=1.0, zorder=2)
    axis.barh(
        position,
        high - low,
        left=low,
        height=_BOX_HEIGHT,
        color="#cfe3f1",
        edgecolor=DMLIV_COLOUR,
        lw=1.0,
        zorder=3,
    )
    half = _BOX_HEIGHT / 2.0
    axis.vlines(median, position - half, position + half, color=TRUTH_COLOUR, lw=1.6, zorder=3.5)


def _title(contents: Contents, metric: Metric) -> str:
    return f"{contents.grid.title.split(':', maxsplit=1)[0]}: {metric.label}"


def _legend(rows: Sequence[Statistics], metric: Metric) -> str:
    words = ["diamond: published"] if any(row.published is not None for row in rows) else []
    if any(len(row.group.values(metric.name)) >= _FEWEST_FOR_BOX for row in rows):
        words.append("circle: a seed far from the others")
    if metric.better == "zero":
        words.append("line: no error")
    if metric.reference is not None:
        random = metric.reference.startswith("random")
        words.append(f"line: {'random actions' if random else 'the best there is'}")
    return "; ".join(words)


def _log_axis(axis: Axes, name: str) -> None:
    side = axis.xaxis if name == "x" else axis.yaxis
    (axis.set_xscale if name == "x" else axis.set_yscale)("log")
    low, high = axis.get_xlim() if name == "x" else axis.get_ylim()
    # Errors span one or two powers of ten, where ticks at the powers alone say little.
    subs = next(subs for ratio, subs in _TICKS if high / low > ratio)
    side.set_major_locator(LogLocator(subs=subs))
    side.set_major_formatter(StrMethodFormatter("{x:g}"))
    side.set_minor_formatter(NullFormatter())


def panels(count: int, title: str, height: float, *, share_y: bool = True) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels, side by side; ``height`` is that of a line of them in inches."""
    # Four panels make a square.
    columns = 2 if count == 4 else min(max(count, 1), _MOST_COLUMNS)
    lines = -(-max(count, 1) // columns)
    # A Figure of its own, without pyplot: no window system, no global list of open figures.
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    figure = Figure(figsize=(WIDTH_INCHES, 0.6 + height * lines), layout=layout)
    axes = list(figure.subplots(lines, columns, sharey=share_y, squeeze=False).ravel())
    for axis in axes[count:]:
        axis.set_visible(False)
    figure.suptitle(title, x=0.01, ha="left")
    return figure, axes[: max(count, 1)]
