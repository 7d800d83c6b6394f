"""The look of all figures: colours that colour-blind readers can tell apart, quiet axes, readable text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

# Okabe and Ito's palette. Line styles differ as well, so that figures survive a grey printer.
TRUTH_COLOUR: Final = "#1a1a1a"
DMLIV_COLOUR: Final = "#0072B2"
ORDINARY_COLOUR: Final = "#D55E00"
SUPPORT_COLOUR: Final = "#ececec"
OPTIMUM_COLOUR: Final = "#a8a8a8"
RUG_COLOUR: Final = "#888888"
QUIET_TEXT: Final = "#555555"

# 10 inches at 140 dots: 1400 pixels, readable when a page shows it at half that width.
WIDTH_INCHES: Final = 10.0
DOTS_PER_INCH: Final = 140

# Keys are Any because the stubs of matplotlib spell out every name as a literal, and differ by version.
_SETTINGS: Final[dict[Any, Any]] = {
    "font.size": 11,
    "axes.titlesize": 11.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 11,
    "axes.labelcolor": QUIET_TEXT,
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#d5d5d5",
    "grid.linewidth": 0.6,
    "xtick.color": QUIET_TEXT,
    "ytick.color": QUIET_TEXT,
    "figure.titlesize": 14,
    "figure.titleweight": "bold",
    "figure.facecolor": "white",
    "figure.dpi": DOTS_PER_INCH,
    "savefig.dpi": "figure",
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in the house style inside the block; the caller's matplotlib settings come back afterwards."""
    with mpl.rc_context(_SETTINGS):
        yield


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    # Matplotlib writes its version into the file by default; without it equal figures are equal files.
    figure.savefig(path, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
