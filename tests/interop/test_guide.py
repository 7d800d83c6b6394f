"""The guide to other packages runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "ecosystem.md"


def test_the_guide_to_the_ecosystem() -> None:
    names: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL):
        exec(snippet, names)
    refutation = names["refutation"]
    assert abs(refutation.new_effect) < 0.3 * abs(refutation.estimated_effect)
    assert set(names["tree"].predict(names["X"])) == {0, 1}
