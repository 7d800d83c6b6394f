"""The guide to serving runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")

GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "serving.md"


def test_the_guide_to_serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL):
        exec(snippet, names)
    assert (tmp_path / "sales.onnx").exists()
    assert names["action"].tolist() == names["policy"].predict(names["pd"].DataFrame(names["rows"])).tolist()
