"""Figures: arrays in, matplotlib figures out. Nothing here fits a model, reads a file or needs a display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, MultipleLocator

from dmliv.data import FloatArray
from dmliv.diagnostics.house_style import (
    DMLIV_COLOUR,
    OPTIMUM_COLOUR,
    ORDINARY_COLOUR,
    RUG_COLOUR,
    SUPPORT_COLOUR,
    TRUTH_COLOUR,
    WIDTH_INCHES,
    house_style,
)

PRICE_LABEL: Final = "price (euros)"
SALES_LABEL: Final = "expected sales (standardised)"
TIME_LABEL: Final = "time of the year (0 to 10)"

_DMLIV: Final = "DML-IV"
_ORDINARY: Final = "ordinary regression"
_SUPPORT: Final = (0.01, 0.99)
# Below the grid, so that its lines stay visible.
_BAND: Final[dict[str, Any]] = {
    "color": SUPPORT_COLOUR,
    "lw": 0,
    "zorder": 0,
    "label": "98 % of the prices observed at that time",
}


@dataclass(frozen=True)
class DoseResponse:
    """Expected sales against price in one context.

    Attributes
    ----------
    context : str
        Which context; the title of the panel.
    price : ndarray, shape (m,)
        Prices in euros.
    truth, ordinary, dmliv : ndarray, shape (m,)
        Expected sales at these prices: the truth, ordinary regression and DML-IV.
    observed : ndarray, shape (k,)
        Prices that were observed in rows like this context.
    """

    context: str
    price: FloatArray
    truth: FloatArray
    ordinary: FloatArray
    dmliv: FloatArray
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


@dataclass(frozen=True)
class Recommendation:
    """Recommended price against time for one type of customer.

    Attributes
    ----------
    customer : str
        Which type; the title of the panel.
    time : ndarray, shape (m,)
    optimum, ordinary, dmliv : ndarray, shape (m,)
        Recommended prices in euros: the best price, ordinary regression and DML-IV.
    observed_low, observed_high : ndarray, shape (m,)
        1 and 99 % quantiles of the prices that were observed around each time, in euros.
    """

    customer: str
    time: FloatArray
    optimum: FloatArray
    ordinary: FloatArray
    dmliv: FloatArray
    observed_low: FloatArray
    observed_high: FloatArray


def draw_dose_response(panels: Sequence[DoseResponse], title: str) -> Figure:
    """Draw expected sales against price, one panel per context with a shared sales axis."""
    with house_style():
        figure, axes = _panels(len(panels), title, height=4.4, share_y=True)
        for axis, panel in zip(axes, panels, strict=True):
            low, high = panel.price.min(), panel.price.max()
            axis.plot(panel.price, panel.truth, color=TRUTH_COLOUR, ls=(0, (1, 1.2)), lw=2.6, label="truth")
            axis.plot(panel.price, panel.dmliv, color=DMLIV_COLOUR, label=_DMLIV)
            axis.plot(panel.price, panel.ordinary, color=ORDINARY_COLOUR, ls="--", label=_ORDINARY)
            axis.axvspan(*np.quantile(panel.observed, _SUPPORT), **_BAND)
            # The rug stands at the foot of the panel, in units of the axis, apart from the curves.
            inside = panel.observed[(panel.observed >= low) & (panel.observed <= high)]
            axis.vlines(inside, 0.0, 0.03, transform=axis.get_xaxis_transform(), color=RUG_COLOUR, lw=0.6)
            axis.set(title=panel.context, xlabel=PRICE_LABEL, xlim=(low, high))
            axis.xaxis.set_major_locator(MultipleLocator(5))
        # Room between the lowest curve and the rug.
        bottom, top = axes[0].get_ylim()
        axes[0].set(ylabel=SALES_LABEL, ylim=(bottom - 0.04 * (top - bottom), top))
        _legend_below(figure, axes[0])
    return figure


def draw_learning_curves(curves: Sequence[LearningCurve], title: str) -> Figure:
    """Draw training loss against epoch, one panel per model; the losses differ in kind and share no axis."""
    with house_style():
        figure, axes = _panels(len(curves), title, height=3.7, share_y=False)
        for axis, curve in zip(axes, curves, strict=True):
            epochs = np.arange(1, len(curve.values) + 1)
            axis.plot(epochs, curve.values, color=DMLIV_COLOUR, marker="o", markersize=3.5)
            axis.set(title=curve.model, xlabel="epoch", ylabel=curve.loss)
            axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


def draw_recommendations(panels: Sequence[Recommendation], title: str) -> Figure:
    """Draw recommended price against time, one panel per type of customer with a shared price axis."""
    with house_style():
        figure, axes = _panels(len(panels), title, height=4.4, share_y=True)
        for axis, panel in zip(axes, panels, strict=True):
            # The best price lies under DML-IV wherever they agree: wide below narrow keeps both visible.
            axis.plot(panel.time, panel.optimum, color=OPTIMUM_COLOUR, lw=6.5, label="best price")
            axis.plot(panel.time, panel.dmliv, color=DMLIV_COLOUR, label=_DMLIV)
            axis.plot(panel.time, panel.ordinary, color=ORDINARY_COLOUR, ls="--", label=_ORDINARY)
            axis.fill_between(panel.time, panel.observed_low, panel.observed_high, **_BAND)
            axis.set(title=panel.customer, xlabel=TIME_LABEL, xlim=(panel.time.min(), panel.time.max()))
        axes[0].set_ylabel(f"recommended {PRICE_LABEL}")
        _legend_below(figure, axes[0])
    return figure


def _panels(count: int, title: str, *, height: float, share_y: bool) -> tuple[Figure, list[Axes]]:
    # A Figure of its own, without pyplot: no window system, no global list of open figures.
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    figure = Figure(figsize=(WIDTH_INCHES, height), layout=layout)
    grid = figure.subplots(1, count, sharey=share_y, squeeze=False)
    figure.suptitle(title, x=0.01, ha="left")
    return figure, list(grid[0])


def _legend_below(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
