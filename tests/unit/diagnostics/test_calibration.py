"""The committed calibration: the page is that of its records, and they hold what the thresholds promise."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmliv.diagnostics import WEAK_F
from dmliv.diagnostics.checks import MOMENT_LEVEL

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "docs" / "results" / "simulations" / "diagnostics.jsonl"


def _values(design: str, key: str, rows: int = 1000) -> Any:
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    found = [each[key] for each in records if each["design"] == design and each["rows"] == rows]
    return np.array([np.nan if value is None else value for value in found])


def test_page_is_that_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    script = runpy.run_path(str(ROOT / "benchmarks" / "diagnostics_calibration.py"))
    assert (ROOT / "docs" / "results" / "diagnostics.md").read_text() == script["render"]()


def test_no_data_set_counts_twice() -> None:
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    assert len({(each["design"], each["rows"], each["seed"]) for each in records}) == len(records)


@pytest.mark.parametrize("rows", [1000, 5000])
def test_strengths_are_told_apart(rows: int) -> None:
    strong, middling, useless = (
        _values(f"ticket demand, strength {strength}", "projected_f", rows)
        for strength in ("1", "0.4", "0.01")
    )
    assert min(len(strong), len(middling), len(useless)) >= 20
    assert strong.min() > middling.max()
    assert middling.min() > 10.0 * WEAK_F
    assert np.mean(useless < WEAK_F) >= 0.9


def test_the_moment_test_keeps_its_level_and_sees_direct_effects() -> None:
    for kind in ("line", "curve"):
        valid = _values(f"two instruments, {kind}", "moment_test") < MOMENT_LEVEL
        assert len(valid) >= 200
        assert 0.03 <= valid.mean() <= 0.08
        broken = _values(f"two instruments, {kind}, direct effect 0.3", "moment_test") < MOMENT_LEVEL
        assert broken.mean() >= 0.8
