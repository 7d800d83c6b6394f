"""The panel's grid: exact where it can be, honest about its error where it cannot."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dmliv import TwoStageLeastSquares
from dmliv.data import Table
from dmliv.report.gather import gather
from dmliv.report.panel import PanelGrid, contexts_at, random_settings


def panel_of(estimator: Any, sample: Any) -> tuple[PanelGrid, Any]:
    contents = gather(estimator, T=sample.T, X=sample.X)
    assert contents.panel is not None
    return contents.panel, contents.sections[0].axis


def frame(panel: PanelGrid, settings: Any) -> pd.DataFrame:
    """Return settings of the panel as a user would write them."""
    return pd.DataFrame(
        {
            column.name: np.array(column.labels)[chosen.astype(int)] if column.labels else chosen
            for column, chosen in zip(panel.columns, settings.T, strict=True)
        }
    )


def test_straight_lines_are_interpolated_exactly_with_two_nodes(straight: Any, sample: Any) -> None:
    # The ends of a band bend even where h does not.
    plain = copy(straight)
    plain.counterfactual_ = replace(straight.counterfactual_, uncertainty=None)
    panel, axis = panel_of(plain, sample)
    assert {column.name: len(column.nodes) for column in panel.columns} == {"time": 2, "kind": 3, "seats": 2}
    settings = random_settings(panel.columns, 20, np.random.default_rng(1))
    for chosen, curve in zip(settings, panel.curves(settings), strict=True):
        X = frame(panel, np.repeat(chosen[None, :], len(axis.grid), axis=0))
        np.testing.assert_allclose(curve, straight.predict(axis.grid, X), rtol=1e-9)
    assert panel.error.largest < 1e-8 * panel.error.spread
    assert panel.error.lost == 0.0


def test_interpolation_of_networks_is_close_and_says_how_close(curved: Any, sample: Any) -> None:
    panel, axis = panel_of(curved, sample)
    settings = random_settings(panel.columns, 150, np.random.default_rng(2))
    X = frame(panel, np.repeat(settings, len(axis.grid), axis=0))
    exact = curved.predict(np.tile(axis.grid, len(settings)), X).reshape(len(settings), -1)
    gaps = np.abs(panel.curves(settings) - exact)
    assert gaps.mean() < 0.01 * panel.error.spread
    # Other random settings tell the same story as those the panel was judged on.
    assert 0.5 < gaps.mean() / panel.error.mean < 2.0
    assert panel.error.spread == pytest.approx(np.ptp(exact), rel=0.1)
    best = panel.curves(settings)[:, axis.allowed].argmax(axis=1)
    lost = exact[:, axis.allowed].max(axis=1) - exact[:, axis.allowed][np.arange(len(best)), best]
    assert lost.mean() < 0.005 * panel.error.spread


def test_grid_is_exact_at_its_nodes_and_small(curved: Any, sample: Any) -> None:
    panel, axis = panel_of(curved, sample)
    assert panel.values[0].size <= 150_000
    middle = np.array([[column.nodes[len(column.nodes) // 2] for column in panel.columns]])
    X = frame(panel, np.repeat(middle, len(axis.grid), axis=0))
    np.testing.assert_allclose(panel.curves(middle)[0], curved.predict(axis.grid, X), rtol=1e-5)


def test_whole_numbers_have_whole_nodes(curved: Any, sample: Any) -> None:
    panel, _ = panel_of(curved, sample)
    seats = next(column for column in panel.columns if column.name == "seats")
    assert seats.whole
    assert set(seats.nodes) <= {1.0, 2.0, 3.0, 4.0, 5.0}


def test_many_columns_and_levels_leave_the_rest_at_typical_values() -> None:
    rng = np.random.default_rng(3)
    n = 400
    X = pd.DataFrame({f"c{number}": rng.standard_normal(n) for number in range(9)})
    X["city"] = rng.choice([f"city {number:02d}" for number in range(40)], n)
    X["always"] = 1.0
    Z = rng.standard_normal(n)
    T = Z + rng.standard_normal(n)
    Y = T + 3.0 * X["c4"] + rng.standard_normal(n)
    estimator = TwoStageLeastSquares().fit(Y, T, Z=Z, X=X.drop(columns="always"))
    contents = gather(estimator, T=T, X=X.drop(columns="always"))
    panel = contents.panel
    assert panel is not None
    assert len(panel.columns) <= 6
    assert "c4" in {column.name for column in panel.columns}
    assert all(len(column.labels) <= 12 for column in panel.columns)
    assert panel.others.count(",") >= 3
    left_out = [
        name for name in X if name not in {column.name for column in panel.columns} and name[0] == "c"
    ]
    assert f"{left_out[0]} {np.median(X[left_out[0]]):.4g}" in panel.others


def test_only_what_is_set_changes() -> None:
    typical = Table(np.array([[1.0, 2.0]]), np.array([[3]]))
    panel_columns = panel_of(
        TwoStageLeastSquares().fit(
            np.arange(20.0),
            np.random.default_rng(0).standard_normal(20),
            Z=np.random.default_rng(1).standard_normal(20),
            X=np.random.default_rng(2).standard_normal((20, 2)),
        ),
        type(
            "Rows",
            (),
            {
                "T": np.random.default_rng(0).standard_normal(20),
                "X": np.random.default_rng(2).standard_normal((20, 2)),
            },
        ),
    )[0].columns
    second = next(column for column in panel_columns if column.place == 1)
    rows = contexts_at(typical, [second], np.array([[7.0], [8.0]]))
    assert rows.numeric.tolist() == [[1.0, 7.0], [1.0, 8.0]]
    assert rows.codes.tolist() == [[3], [3]]
    assert typical.numeric.tolist() == [[1.0, 2.0]]
