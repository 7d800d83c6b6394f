"""The intervals of a report are those the public verbs give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dmliv import DMLIV
from dmliv.diagnostics.findings import warnings_of
from dmliv.inference.bootstrap import ReplicateUncertainty
from dmliv.learners import neural
from dmliv.report.bands import grid_band
from dmliv.report.contents import ReportContents
from dmliv.report.gather import gather
from dmliv.report.page import render
from dmliv.report.panel import random_settings
from dmliv.report.report_figures import curve_limits, draw_curve
from dmliv.report.words import policy_findings


@pytest.fixture(scope="module")
def contents(banded: DMLIV, sample: Any) -> ReportContents:
    return gather(banded, T=sample.T, X=sample.X, Y=sample.Y, outcome_name="profit")


def test_bands_are_those_of_the_verbs(contents: ReportContents, banded: DMLIV, sample: Any) -> None:
    (section,) = contents.sections
    grid = section.axis.grid
    average, low = section.curves[:2]
    row = int(np.abs(section.effects - np.quantile(section.effects, 0.1)).argmin())
    lower, upper = banded.predict_interval(grid, pd.concat([sample.X.iloc[[row]]] * len(grid)))
    np.testing.assert_allclose(low.lower, lower, rtol=1e-4)
    np.testing.assert_allclose(low.upper, upper, rtol=1e-4)
    # A single action for every row is a policy whose value has an interval.
    for point in (3, 20):
        ends = banded.policy([grid[point]]).value_interval(sample.X)
        assert (average.lower[point], average.upper[point]) == pytest.approx(ends, rel=1e-4)  # type: ignore[index]
    start, end = np.quantile(sample.T["price"], [0.25, 0.75])
    assert section.effect_interval == pytest.approx(banded.ate_interval(sample.X, T0=start, T1=end), rel=1e-4)


def test_values_and_gains_have_the_policys_intervals(
    contents: ReportContents, banded: DMLIV, sample: Any
) -> None:
    axis = contents.sections[0].axis
    policy = banded.policy(axis.grid[axis.allowed])
    assert contents.policy.value_interval == pytest.approx(policy.value_interval(sample.X), rel=1e-5)
    gain = policy.value_interval(sample.X, versus=sample.T)
    assert contents.policy.gain_interval == pytest.approx(gain, rel=1e-5)


def test_page_shows_the_intervals(contents: ReportContents, curved: DMLIV, sample: Any) -> None:
    page = render(contents)
    for ends in (
        contents.policy.value_interval,
        contents.policy.gain_interval,
        contents.sections[0].effect_interval,
    ):
        assert ends is not None
        assert f"{ends[0]:.4g} to {ends[1]:.4g}" in page
    assert "need not lie in the middle" in page
    assert "fitted without intervals" not in page
    plain = render(gather(curved, T=sample.T, X=sample.X))
    assert "fitted without intervals" in plain
    # The panel's script has the words for models that have bands.
    assert "confidence" not in plain.split("<script")[0]


@pytest.mark.parametrize(
    ("ends", "doubted"), [((-1.0, 2.0), True), ((-2.0, -1.0), True), ((0.5, 2.0), False), (None, False)]
)
def test_a_gain_that_may_be_none_is_owned_up_to(contents: ReportContents, ends: Any, doubted: bool) -> None:
    found = warnings_of(policy_findings(replace(contents.policy, gain_interval=ends)))
    assert any("no better than the actions in the data" in each for each in found) is doubted


def test_panel_bands_are_close_to_the_models(contents: ReportContents, banded: DMLIV) -> None:
    panel, axis = contents.panel, contents.sections[0].axis
    assert panel is not None
    assert panel.lower is not None
    assert panel.upper is not None
    assert 3 * panel.values[0].size <= 150_000
    middle = tuple(len(column.nodes) // 2 for column in panel.columns)
    chosen = {
        column.name: column.labels[place] if column.labels else column.nodes[place]
        for column, place in zip(panel.columns, middle, strict=True)
    }
    lower, upper = banded.predict_interval(axis.grid, pd.DataFrame([chosen] * len(axis.grid)))
    np.testing.assert_allclose(panel.lower[0][middle], lower, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(panel.upper[0][middle], upper, rtol=1e-4, atol=1e-3)
    settings = random_settings(panel.columns, 50, np.random.default_rng(3))
    widths = replace(panel, values=(panel.upper[0] - panel.lower[0],)).curves(settings)
    assert panel.error.band < 0.1 * widths.mean()


def test_controls_leave_the_panel_without_a_band(sample: Any) -> None:
    estimator = DMLIV(neural(effort="fast"), n_folds=2, random_state=0)
    X, W = sample.X[["kind"]], sample.X[["time"]]
    estimator.fit(sample.Y, sample.T, Z=sample.Z, X=X, W=W, inference="debiased")
    contents = gather(estimator, T=sample.T, X=X, W=W)
    assert contents.panel is not None
    assert contents.panel.lower is None
    assert contents.policy.gain_interval is not None
    assert "The panel shows no band" in render(contents)


def test_a_curve_outside_its_band_is_drawn_and_a_wide_band_is_cut(contents: ReportContents) -> None:
    (section,) = contents.sections
    curve = section.curves[0]
    above = replace(curve, lower=curve.outcome + 1.0, upper=curve.outcome + 2.0)
    names = tuple(f"level {point}" for point in range(len(section.axis.grid)))
    for axis in (section.axis, replace(section.axis, labels=names)):
        assert draw_curve(axis, above, curve_limits((above,)), "profit").axes
    wide = replace(curve, lower=curve.outcome - 1e6, upper=curve.outcome + 1e6)
    low, high = curve_limits((wide,))
    assert high - low < 3.0 * np.ptp(curve.outcome)
    assert low < curve.outcome.min() < curve.outcome.max() < high
    flat = replace(curve, outcome=np.zeros(5), lower=np.full(5, -1.0), upper=np.full(5, 2.0))
    low, high = curve_limits((flat,))
    assert low < -1.0 < 2.0 < high


def test_words_fit_the_kind_of_interval(banded: DMLIV, curved: DMLIV) -> None:
    fitted = banded.counterfactual_
    assert fitted.uncertainty is not None
    assert "correction" in fitted.uncertainty.words
    assert grid_band(curved.counterfactual_, None, np.zeros((1, 1))) == (None, None)  # type: ignore[arg-type]
    spread = replace(fitted, uncertainty=ReplicateUncertainty((fitted.model, fitted.model)))
    assert spread.uncertainty is not None
    assert "2 bootstrap fits" in spread.uncertainty.words
