"""Diagnostics of a user's own: they appear wherever those of the package do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmliv import DMLIV, load
from dmliv.diagnostics import DiagnosedFit, Finding, diagnostic
from dmliv.diagnostics.registry import _REGISTERED
from dmliv.errors import InputError
from dmliv.learners import kernel
from dmliv.report import write_report

NAME = "Largest weight over the mean weight"


def heaviest(fit: DiagnosedFit) -> Finding:
    """Say how much the heaviest row weighs."""
    value = float(fit.data.weight.max() / fit.data.weight.mean())
    verdict: Any = "warning" if value > 3.0 else "fine"
    return Finding("heaviest", NAME, value, 3.0, verdict, "Large if few rows decide.", "Trim the weights.")


@pytest.fixture(autouse=True)
def own() -> Iterator[None]:
    before = dict(_REGISTERED)
    assert diagnostic(heaviest) is heaviest
    yield
    _REGISTERED.clear()
    _REGISTERED.update(before)


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    generator = np.random.default_rng(100)
    Z, X, hidden = generator.standard_normal((3, 300))
    T = Z + X + hidden
    weight = np.where(np.arange(300) < 3, 20.0, 1.0)
    return {"Y": T + X + hidden, "T": T, "Z": Z, "X": X, "sample_weight": weight}


def test_it_is_shown_saved_and_part_of_the_report(rows: dict[str, Any], tmp_path: Path) -> None:
    est = DMLIV(kernel(), n_folds=2, random_state=0).fit(**rows)
    found = est.diagnostics()
    assert found["heaviest"].value == pytest.approx(20.0 / (1.0 + 3.0 * 19.0 / 300.0))
    assert [finding.key for finding in found.findings][-1] == "heaviest"
    assert found.warnings[-1] == f"{NAME} is 16.8 (threshold 3). Trim the weights."
    assert NAME in str(found)
    assert NAME in set(found.to_frame()["name"])
    est.save(tmp_path / "model.dmliv")
    assert load(tmp_path / "model.dmliv").diagnostics()["heaviest"] == found["heaviest"]
    # The file is opened where nobody knows the function: its finding is a finding like any other.
    code = "import sys, dmliv; print(dmliv.load(sys.argv[1]).diagnostics()['heaviest'].value)"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.dmliv")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(ran.stdout) == found["heaviest"].value
    report = _report(est, rows, tmp_path)
    assert NAME in report
    assert "Trim the weights." in report


def test_functions_of_one_name_replace_each_other_and_findings_of_one_key_are_refused(
    rows: dict[str, Any],
) -> None:
    def light(fit: DiagnosedFit) -> list[Finding]:
        return [
            Finding("light", "Light rows", float(np.sum(fit.data.weight < 1.0)), np.nan, "note", "Count.")
        ]

    diagnostic(light)
    diagnostic(light)
    est = DMLIV(kernel(), n_folds=2, random_state=0).fit(**rows)
    assert [finding.key for finding in est.diagnostics().findings][-2:] == ["heaviest", "light"]
    est.fit(**rows)

    @diagnostic
    def again(fit: DiagnosedFit) -> Finding:
        return heaviest(fit)

    with pytest.raises(InputError, match="one finding for each key, got several for 'heaviest'"):
        est.diagnostics()


def _report(est: DMLIV, rows: dict[str, Any], folder: Path) -> str:
    write_report(est, folder / "report.html", **rows)
    return (folder / "report.html").read_text(encoding="utf-8")
