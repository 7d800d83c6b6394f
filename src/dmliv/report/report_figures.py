"""The figures of a report, small enough to stand side by side."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dmliv.data import FloatArray, IntArray
from dmliv.diagnostics.house_style import (
    DMLIV_COLOUR,
    OPTIMUM_COLOUR,
    ORDINARY_COLOUR,
    QUIET_TEXT,
    RUG_COLOUR,
    SUPPORT_COLOUR,
    house_style,
)
from dmliv.report.contents import (
    ActionAxis,
    ActionSection,
    ContextColumn,
    Curve,
    Groups,
    PolicySummary,
    grouped,
)

_Number = TypeVar("_Number", bound=np.generic)

_PLACES = re.compile(rb' (?:d|x|y)="[^"]*"')
_DIGITS = re.compile(rb"(\.\d\d)\d+")
_SIZE = (4.6, 3.2)
_MOST_POINTS = 250
# How far bands may stretch a picture on each side, in heights of all curves.
_BAND_ROOM = 0.5
_MOST_LEVELS = 8
_LONGEST_LABEL = 18
_LONGEST_NAME = 40


@contextmanager
def report_style() -> Iterator[None]:
    """Draw in the house style; a dollar sign in the name of a column starts no formula."""
    with (
        house_style(),
        mpl.rc_context({"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "dmliv"}),
    ):
        yield


def image_source(figure: Figure, *, crop: bool = False) -> str:
    """Return a figure as the source of an image, an SVG inside the page; the same for the same figure.

    With ``crop`` empty margins are cut off.
    """
    buffer = io.BytesIO()
    with report_style(), warnings.catch_warnings():
        # Text stays text: the reader's fonts draw what matplotlib's lack.
        warnings.filterwarnings("ignore", message="Glyph")
        extent = "tight" if crop else None
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches=extent)
    # Characters that XML has no place for would make the picture unreadable.
    drawn = re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]", b" ", buffer.getvalue())
    # Hundredths of a point are more than a screen shows.
    drawn = _PLACES.sub(lambda place: _DIGITS.sub(rb"\1", place[0]), drawn)
    return "data:image/svg+xml;base64," + base64.b64encode(drawn).decode("ascii")


def draw_curve(axis: ActionAxis, curve: Curve, limits: tuple[float, float], outcome_name: str) -> Figure:
    """Draw the expected outcome against the action, with a grey background where actions were observed.

    Parameters
    ----------
    axis : ActionAxis
    curve : Curve
        Its band is drawn where it has one.
    limits : tuple of float
        Of the outcome, the same for all curves that are compared.
    outcome_name : str
    """
    with report_style():
        figure, plot = _figure()
        banded = curve.lower is not None and curve.upper is not None
        if axis.labels:
            if banded:
                plot.vlines(axis.grid, curve.lower, curve.upper, color=DMLIV_COLOUR, alpha=0.4, lw=5)  # type: ignore[arg-type]
            plot.plot(axis.grid, curve.outcome, "o", color=DMLIV_COLOUR, markersize=8)
            _label_levels(plot, axis.labels)
        else:
            plot.axvspan(axis.low, axis.high, color=SUPPORT_COLOUR, lw=0)
            if banded:
                plot.fill_between(axis.grid, curve.lower, curve.upper, color=DMLIV_COLOUR, alpha=0.2, lw=0)  # type: ignore[arg-type]
            plot.plot(axis.grid, curve.outcome, color=DMLIV_COLOUR)
            # One line with gaps: a line for every row would be most of the file.
            rug = _some(axis.observed).repeat(3)
            feet = np.tile([0.0, 0.03, np.nan], len(rug) // 3)
            plot.plot(rug, feet, transform=plot.get_xaxis_transform(), color=RUG_COLOUR, lw=0.5)
            plot.set_xlim(axis.grid[0], axis.grid[-1])
        best = int(np.where(axis.allowed, curve.outcome, -np.inf).argmax())
        plot.plot(axis.grid[best], curve.outcome[best], "D", color=ORDINARY_COLOUR, markersize=7, zorder=4)
        plot.set(xlabel=_short(axis.name, _LONGEST_NAME), ylabel=_short(outcome_name, 30), ylim=limits)
    return figure


def curve_limits(curves: tuple[Curve, ...]) -> tuple[float, float]:
    """Return limits of the outcome that hold all curves, and their bands unless these are far wider."""
    low, high = (end(end(curve.outcome) for curve in curves) for end in (min, max))
    # A very wide band would make all curves look flat, so it is cut off.
    least, most = low - _BAND_ROOM * (high - low), high + _BAND_ROOM * (high - low)
    for curve in curves:
        if curve.lower is not None and curve.upper is not None:
            low, high = min(low, float(curve.lower.min())), max(high, float(curve.upper.max()))
    low, high = (max(low, least), min(high, most)) if most > least else (low, high)
    room = 0.06 * (high - low) or 1.0
    return float(low - room), float(high + room)


def draw_effects(section: ActionSection, outcome_name: str) -> Figure:
    """Draw the distribution of the effect over rows."""
    with report_style():
        figure, plot = _figure()
        plot.hist(section.effects, bins=min(40, max(10, len(section.effects) // 15)), color=DMLIV_COLOUR)
        plot.axvline(float(section.effects.mean()), color=ORDINARY_COLOUR, ls="--", lw=1.8)
        if section.effects.min() < 0.0 < section.effects.max():
            plot.axvline(0.0, color=QUIET_TEXT, lw=1.0)
        plot.set(xlabel=f"effect on {_short(outcome_name, 30)}", ylabel="rows")
    return figure


def draw_along(column: ContextColumn, numbers: FloatArray, label: str) -> Figure:
    """Draw a number of every row against a column: dots, and the mean of groups of rows."""
    with report_style():
        figure, plot = _figure()
        groups = grouped(column.column, column.values)
        rows = _some(np.arange(len(numbers)))
        if column.column.kind == "categorical":
            kept = _frequent(groups)
            place = np.full(len(groups.centres), -1)
            place[kept] = np.arange(len(kept))
            shown = rows[place[groups.member[rows]] >= 0]
            # Spread out by their order, not by chance: the same rows give the same picture.
            jitter = (np.arange(len(shown)) * 0.618034) % 1.0 * 0.5 - 0.25
            plot.plot(place[groups.member[shown]] + jitter, numbers[shown], ".", color=OPTIMUM_COLOUR, ms=3.5)
            plot.plot(
                np.arange(len(kept)), groups.means(numbers)[kept], "_", color=DMLIV_COLOUR, ms=30, mew=3
            )
            _label_levels(plot, [column.column.levels[int(groups.centres[each])] for each in kept])
        else:
            plot.plot(column.values[rows], numbers[rows], ".", color=OPTIMUM_COLOUR, ms=3.5)
            plot.plot(groups.centres, groups.means(numbers), color=DMLIV_COLOUR, marker="o", ms=4)
        plot.set(xlabel=_short(column.column.name, _LONGEST_NAME), ylabel=_short(label, 34))
    return figure


def draw_choices(column: ContextColumn, chosen: FloatArray, labels: tuple[str, ...]) -> Figure:
    """Draw the share of rows for which each label is recommended, in groups of a column."""
    with report_style():
        figure, plot = _figure()
        groups = grouped(column.column, column.values)
        kept = _frequent(groups) if column.column.kind == "categorical" else np.arange(len(groups.centres))
        places, floor = np.arange(len(kept)), np.zeros(len(kept))
        colours = mpl.colormaps["cividis"](np.linspace(0.0, 0.95, len(labels)))
        for number, name in enumerate(labels):
            share = groups.means((chosen == number).astype(np.float64))[kept]
            plot.bar(places, share, bottom=floor, color=colours[number], label=_short(name))
            floor += share
        words = (
            [column.column.levels[int(each)] for each in groups.centres[kept]]
            if column.column.kind == "categorical"
            else [f"{each:.3g}" for each in groups.centres[kept]]
        )
        _label_levels(plot, words)
        plot.set(xlabel=_short(column.column.name, _LONGEST_NAME), ylabel="share of rows", ylim=(0.0, 1.0))
        figure.legend(loc="outside upper center", ncols=min(4, len(labels)), fontsize=9)
    return figure


def draw_values(policy: PolicySummary) -> Figure:
    """Draw the estimated outcome of the recommendations beside that of simpler choices."""
    with report_style():
        figure, plot = _figure(height=2.4)
        values = [policy.value, policy.constant_value, policy.average_value, policy.today_value]
        names = [
            "recommended actions",
            "best single action",
            f"{policy.average_name} for all",
            "actions in the data",
        ]
        places = np.arange(len(values))[::-1]
        plot.hlines(places, min(values), values, color="#d5d5d5", lw=2.0)
        plot.scatter(values, places, s=60, color=[DMLIV_COLOUR, *[RUG_COLOUR] * 3], zorder=3)
        for value, place in zip(values, places, strict=True):
            plot.annotate(
                f"{value:.4g}", (value, place), (0, 7), textcoords="offset points", ha="center", fontsize=9
            )
        plot.set(yticks=places, yticklabels=names, xlabel="estimated mean outcome", ylim=(-0.6, 3.7))
        plot.margins(x=0.12)
        plot.grid(False)
    return figure


def draw_support(support: FloatArray) -> Figure:
    """Draw the probability of the recommended actions in their contexts."""
    with report_style():
        figure, plot = _figure(height=2.4)
        plot.hist(100.0 * support, bins=30, color=DMLIV_COLOUR)
        plot.set(xlabel="probability of the action in the data, %", ylabel="rows")
        plot.set_xlim(left=0.0)
    return figure


def _figure(height: float = _SIZE[1]) -> tuple[Figure, Axes]:
    # A Figure of its own, without pyplot: no window system, no global list of open figures.
    figure = Figure(figsize=(_SIZE[0], height), layout="constrained")
    return figure, figure.subplots()


def _frequent(groups: Groups) -> IntArray:
    """Return the groups with most rows, in their order."""
    return np.sort(np.argsort(-np.bincount(groups.member), kind="stable")[:_MOST_LEVELS])


def _some(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
    """Return evenly spaced values, few enough to draw."""
    if len(values) <= _MOST_POINTS:
        return values
    return values[np.linspace(0, len(values) - 1, _MOST_POINTS).astype(np.int64)]


def _label_levels(plot: Axes, labels: list[str] | tuple[str, ...]) -> None:
    crowded = len(labels) > 4 or max(len(each) for each in labels) > 10
    plot.set_xticks(np.arange(len(labels)), [_short(each) for each in labels])
    plot.tick_params(axis="x", rotation=30 if crowded else 0)
    plot.set_xlim(-0.6, len(labels) - 0.4)


def _short(text: str, most: int = _LONGEST_LABEL) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
