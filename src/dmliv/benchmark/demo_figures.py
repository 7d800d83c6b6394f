"""Figures: arrays in, matplotlib figures out. Nothing here fits a model, reads a file or needs a display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator

from dmliv.benchmark.charts import panels as subplots
from dmliv.data import FloatArray
from dmliv.diagnostics.house_style import (
    DMLIV_COLOUR,
    OPTIMUM_COLOUR,
    ORDINARY_COLOUR,
    RUG_COLOUR,
    SUPPORT_COLOUR,
    TRUTH_COLOUR,
    house_style,
)

PRICE_LABEL: Final = "price (euros)"
SALES_LABEL: Final = "expected sales (standardised)"
TIME_LABEL: Final = "time of the year (0 to 10)"

_SUPPORT: Final = (0.01, 0.99)
# Below the grid, so that its lines stay visible.
_BAND: Final[dict[str, Any]] = {
    "color": SUPPORT_COLOUR,
    "lw": 0,
    "zorder": 0,
    "label": "98 % of the prices observed at that time",
}


@dataclass(frozen=True)
class Panel:
    """Two methods and what they are compared with, over one axis.

    Attributes
    ----------
    title : str
        Which context, or which type of customer.
    x : ndarray, shape (m,)
        Prices in euros, or times.
    best, ordinary, dmliv : ndarray, shape (m,)
        The truth or the best price, ordinary regression and DML-IV.
    """

    title: str
    x: FloatArray
    best: FloatArray
    ordinary: FloatArray
    dmliv: FloatArray


@dataclass(frozen=True)
class DoseResponse(Panel):
    """Expected sales against price in one context, with the prices (k,) observed in rows like it."""

    observed: FloatArray


@dataclass(frozen=True)
class Recommendation(Panel):
    """Recommended price in euros against time, with 1 and 99 % quantiles (2, m) of the prices around it."""

    observed: FloatArray


@dataclass(frozen=True)
class LearningCurve:
    """Training loss of one model.

    Attributes
    ----------
    model : str
        Which model; the title of the panel.
    loss : str
        What the loss is; the label of the axis.
    values : ndarray, shape (epochs,)
        Loss of every epoch.
    """

    model: str
    loss: str
    values: FloatArray


def draw_dose_response(panels: Sequence[DoseResponse], title: str) -> Figure:
    """Draw expected sales against price, one panel per context with a shared sales axis."""
    with house_style():
        figure, axes = subplots(len(panels), title, 3.8)
        for axis, panel in zip(axes, panels, strict=True):
            low, high = panel.x.min(), panel.x.max()
            _plot(axis, panel, color=TRUTH_COLOUR, ls=(0, (1, 1.2)), lw=2.6, label="truth")
            axis.axvspan(*np.quantile(panel.observed, _SUPPORT), **_BAND)
            # The rug stands at the foot of the panel, in units of the axis, apart from the curves.
            inside = panel.observed[(panel.observed >= low) & (panel.observed <= high)]
            axis.vlines(inside, 0.0, 0.03, transform=axis.get_xaxis_transform(), color=RUG_COLOUR, lw=0.6)
            axis.set(title=panel.title, xlabel=PRICE_LABEL, xlim=(low, high))
            axis.xaxis.set_major_locator(MultipleLocator(5))
        # Room between the lowest curve and the rug.
        bottom, top = axes[0].get_ylim()
        axes[0].set(ylabel=SALES_LABEL, ylim=(bottom - 0.04 * (top - bottom), top))
        _legend_below(figure, axes[0])
    return figure


def draw_learning_curves(curves: Sequence[LearningCurve], title: str) -> Figure:
    """Draw training loss against epoch, one panel per model; the losses differ in kind and share no axis."""
    with house_style():
        figure, axes = subplots(len(curves), title, 3.1, share_y=False)
        for axis, curve in zip(axes, curves, strict=True):
            epochs = np.arange(1, len(curve.values) + 1)
            axis.plot(epochs, curve.values, color=DMLIV_COLOUR, marker="o", markersize=3.5)
            axis.set(title=curve.model, xlabel="epoch", ylabel=curve.loss)
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


def draw_recommendations(panels: Sequence[Recommendation], title: str) -> Figure:
    """Draw recommended price against time, one panel per type of customer with a shared price axis."""
    with house_style():
        figure, axes = subplots(len(panels), title, 3.8)
        for axis, panel in zip(axes, panels, strict=True):
            # The best price lies under DML-IV wherever they agree: wide below narrow keeps both visible.
            _plot(axis, panel, color=OPTIMUM_COLOUR, lw=6.5, label="best price")
            axis.fill_between(panel.x, *panel.observed, **_BAND)
            axis.set(title=panel.title, xlabel=TIME_LABEL, xlim=(panel.x.min(), panel.x.max()))
        axes[0].set_ylabel(f"recommended {PRICE_LABEL}")
        _legend_below(figure, axes[0])
    return figure


def _plot(axis: Axes, panel: Panel, **best_style: Any) -> None:
    axis.plot(panel.x, panel.best, **best_style)
    axis.plot(panel.x, panel.dmliv, color=DMLIV_COLOUR, label="DML-IV")
    axis.plot(panel.x, panel.ordinary, color=ORDINARY_COLOUR, ls="--", label="ordinary regression")


def _legend_below(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
