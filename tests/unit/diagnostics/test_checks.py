"""Checks turn numbers into verdicts and complete sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dmliv.data import prepare
from dmliv.diagnostics import WEAK_F, InstrumentStrength
from dmliv.diagnostics.checks import (
    far_action_finding,
    judge,
    loss_findings,
    sample_findings,
    strength_findings,
)
from dmliv.diagnostics.findings import warnings_of


def _strength(f: float, effective: float = 50.0) -> InstrumentStrength:
    return InstrumentStrength(0.25, 0.5, effective, 23.1, f, 1000)


@pytest.mark.parametrize(
    ("key", "fine", "crossed"),
    [
        ("projected_f", WEAK_F, WEAK_F - 0.1),
        ("outcome_r2", 0.01, 0.0),
        ("unsupported", 0.1, 0.11),
        ("at_edge", 0.5, 0.51),
        ("gain", 0.1, 0.0),
        ("n_rows", 200, 199),
    ],
)
def test_a_warning_starts_at_its_threshold(key: str, fine: float, crossed: float) -> None:
    assert judge(key, fine, where="out of fold").verdict == "fine"
    found = judge(key, crossed, where="out of fold")
    assert found.verdict == "warning"
    assert found.warning.startswith(f"{found.name} is ")
    shown = f"{100.0 * found.threshold:g} %" if found.name.startswith("Share") else f"{found.threshold:g}"
    assert f"(threshold {shown})" in found.warning
    assert found.warning.endswith(found.advice)
    assert judge(key, float("nan"), where="out of fold").verdict == "not testable"


def test_a_note_is_no_warning() -> None:
    assert judge("balance", 0.5).verdict == "note"
    findings = strength_findings(_strength(100.0, effective=5.0))
    assert [finding.verdict for finding in findings] == ["fine", "note", "fine", "fine"]
    assert findings[1].threshold == 23.1
    assert warnings_of(findings) == []
    assert findings[2].value == pytest.approx(1.0 / 3.0)
    assert "0.250 given the context, 0.500 given context and instrument" in findings[3].meaning
    (warning,) = warnings_of(strength_findings(_strength(2.0)))
    assert "F statistic is 2 (threshold 10)" in warning


def test_losses_come_in_one_order_and_say_on_which_rows() -> None:
    findings = loss_findings({"outcome_r2": -0.1, "action_nll": 1.0, "action_r2": 0.5}, cross_fitted=True)
    assert [finding.key for finding in findings] == ["action_r2", "action_nll", "outcome_r2"]
    assert all("out of fold" in finding.meaning for finding in findings)
    assert len(warnings_of(findings)) == 1
    (alone,) = loss_findings({"outcome_r2": 0.1}, cross_fitted=False)
    assert "in sample" in alone.meaning


def _spec_and_action(T: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    data = prepare(rng.standard_normal(len(T)), T, Z=rng.standard_normal(len(T)))
    return data.action_spec, data.action


def test_rare_levels_are_named() -> None:
    spec, action = _spec_and_action(np.array(["often"] * 250 + ["{rare}"] * 3))
    rows, rarest = sample_findings(spec, action)
    assert rows.verdict == "fine"
    assert rarest.value == 3.0
    assert "Estimates for '{rare}' rest on too few rows." in rarest.warning
    numbers = sample_findings(*_spec_and_action(np.arange(50.0)))
    assert [finding.verdict for finding in numbers] == ["warning"]


def test_far_actions_are_measured_in_standard_deviations() -> None:
    T = np.column_stack([np.arange(300.0), 10.0 * np.arange(300.0)])
    spec, _ = _spec_and_action(T)
    assert far_action_finding(spec, T.mean(axis=0)).value == 0.0
    far = far_action_finding(spec, T.mean(axis=0) + np.array([0.0, 4.0 * T[:, 1].std()]))
    assert far.value == pytest.approx(4.0)
    assert "149.5, " in far.warning
