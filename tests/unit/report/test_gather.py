"""The numbers of a report are those the public verbs give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dmliv import DMLIV, TwoStageLeastSquares
from dmliv.data import Column, prepare
from dmliv.diagnostics.strength import instrument_strength
from dmliv.errors import InputError
from dmliv.policy import Box, Interval
from dmliv.report.contents import explained_share, grouped
from dmliv.report.gather import MOST_ROWS, gather


def test_effects_values_and_support_agree_with_the_estimator(curved: DMLIV, sample: Any) -> None:
    contents = gather(curved, T=sample.T, X=sample.X, Y=sample.Y, Z=sample.Z)
    (section,) = contents.sections
    low, high = np.quantile(sample.T["price"], [0.25, 0.75])
    np.testing.assert_allclose(
        section.effects, curved.effect(sample.X, T0=low, T1=high), rtol=1e-4, atol=1e-4
    )
    offered = section.axis.grid[section.axis.allowed]
    bottom, top = np.quantile(sample.T["price"], [0.01, 0.99])
    assert offered.min() == pytest.approx(bottom)
    assert offered.max() == pytest.approx(top)
    policy = curved.policy(offered)
    np.testing.assert_allclose(section.recommended, policy.predict(sample.X))
    summary = contents.policy
    assert summary.value == pytest.approx(policy.value(sample.X), rel=1e-6)
    constants = [curved.predict(action, sample.X).mean() for action in offered]
    assert summary.constant_value == pytest.approx(max(constants), rel=1e-6)
    assert summary.constant_action == f"{offered[int(np.argmax(constants))]:.4g}"
    assert summary.today_value == pytest.approx(curved.predict(sample.T, sample.X).mean(), rel=1e-6)
    average = float(sample.T["price"].mean())
    assert summary.average_value == pytest.approx(curved.predict(average, sample.X).mean(), rel=1e-5)
    assert summary.observed_outcome == pytest.approx(sample.Y.mean())
    assert summary.value >= summary.constant_value >= summary.average_value - 1e-6
    careful = curved.policy(offered, min_support=0.0).decide(sample.X)
    assert summary.support is not None
    np.testing.assert_allclose(summary.support, careful.support)
    assert summary.outside_share == 0.0
    assert summary.edge_share == np.mean(np.isin(section.recommended, [offered.min(), offered.max()]))


def test_curves_belong_to_rows_with_low_and_high_effects(curved: DMLIV, sample: Any) -> None:
    (section,) = gather(curved, T=sample.T, X=sample.X).sections
    average, low, _, high = section.curves
    every = np.mean([curved.predict(action, sample.X) for action in section.axis.grid], axis=1)
    np.testing.assert_allclose(average.outcome, every, rtol=1e-5)
    row = int(np.abs(section.effects - np.quantile(section.effects, 0.1)).argmin())
    X = pd.concat([sample.X.iloc[[row]]] * len(section.axis.grid))
    np.testing.assert_allclose(low.outcome, curved.predict(section.axis.grid, X), rtol=1e-5)
    assert f"kind {sample.X['kind'].iloc[row]}" in low.caption
    assert np.ptp(low.outcome - high.outcome) > 0.0
    assert low.lower is None


def test_strength_is_that_of_the_fit(curved: DMLIV, straight: Any, sample: Any) -> None:
    expected = instrument_strength(prepare(sample.Y, sample.T, Z=sample.Z, X=sample.X))
    for estimator in (curved, straight):
        assert gather(estimator, T=sample.T, X=sample.X, Z=sample.Z).strength == expected
    assert gather(curved, T=sample.T, X=sample.X).strength is None


def test_a_useless_instrument_is_called_weak(straight: Any, sample: Any) -> None:
    noise = np.random.default_rng(5).standard_normal(len(sample.Y))
    contents = gather(straight, T=sample.T, X=sample.X, Z=noise)
    assert any("The instrument is weak" in caution for caution in contents.cautions)


def test_wide_actions_are_owned_up_to(straight: Any, sample: Any) -> None:
    contents = gather(straight, T=sample.T, X=sample.X, actions=Interval(0.0, 100.0))
    # Lines have their best action at an end, far from every row.
    assert contents.policy.outside_share == 1.0
    assert contents.policy.edge_share == 1.0
    assert sum("Share of recommendations" in caution for caution in contents.cautions) == 2
    axis = contents.sections[0].axis
    assert axis.grid[0] <= 0.0
    assert axis.grid[-1] >= 100.0


def test_a_list_of_actions_is_kept_to(curved: DMLIV, sample: Any) -> None:
    contents = gather(curved, T=sample.T, X=sample.X, actions=[15.0, 18.5, 24.0])
    axis = contents.sections[0].axis
    assert axis.grid[axis.allowed].tolist() == [15.0, 18.5, 24.0]
    assert set(contents.sections[0].recommended) <= {15.0, 18.5, 24.0}


def test_discrete_actions(sample: Any) -> None:
    offer = np.where(sample.T["price"] > 22.0, "dear", np.where(sample.T["price"] > 18.0, "fair", "cheap"))
    estimator = TwoStageLeastSquares().fit(
        sample.Y, offer, Z=sample.Z.assign(square=sample.Z["fuel"] ** 2), X=sample.X
    )
    contents = gather(estimator, T=offer, X=sample.X)
    (section,) = contents.sections
    assert section.axis.labels == ("cheap", "dear", "fair")
    start, end = section.axis.start_words, section.axis.end_words
    np.testing.assert_allclose(section.effects, estimator.effect(sample.X, T0=start, T1=end))
    names = np.array(section.axis.labels)[section.recommended.astype(int)]
    assert names.tolist() == estimator.policy().predict(sample.X).tolist()
    assert contents.policy.edge_share is None
    assert contents.policy.average_action == pd.Series(offer).mode()[0]
    assert contents.policy.outside_share == 0.0


def test_several_action_columns() -> None:
    rng = np.random.default_rng(6)
    Z = rng.standard_normal((300, 2))
    T = pd.DataFrame(Z + 0.5 * rng.standard_normal((300, 2)), columns=["price", "advert"])
    X = pd.DataFrame({"time": rng.uniform(size=300)})
    Y = T["price"] - 2.0 * T["advert"] + X["time"]
    estimator = TwoStageLeastSquares().fit(Y, T, Z=Z, X=X)
    contents = gather(estimator, T=T, X=X)
    assert [section.axis.name for section in contents.sections] == ["price", "advert"]
    for section, slope in zip(contents.sections, (1.0, -2.0), strict=True):
        low, high = np.quantile(T[section.axis.name], [0.25, 0.75])
        np.testing.assert_allclose(section.effects, slope * (high - low), rtol=1e-6)
    assert contents.panel is not None
    assert len(contents.panel.values) == 2
    wide = gather(estimator, T=T, X=X, actions=Box((-9.0, -9.0), (9.0, 9.0)))
    assert set(wide.sections[1].recommended.round(6)) == {-9.0}


def test_no_context_no_panel_no_tree() -> None:
    rng = np.random.default_rng(7)
    Z = rng.standard_normal(100)
    T = Z + rng.standard_normal(100)
    contents = gather(TwoStageLeastSquares().fit(2.0 * T, T, Z=Z), T=T)
    assert contents.panel is None
    assert contents.tree is None
    # One decision for all rows, among the actions that are usual in them.
    assert contents.policy.outside_share == 0.0
    assert len(contents.sections[0].curves) == 1
    low, high = np.quantile(T, [0.25, 0.75])
    np.testing.assert_allclose(contents.sections[0].effects, 2.0 * (high - low))


def test_one_row_is_enough_and_none_is_not(straight: Any, sample: Any) -> None:
    contents = gather(straight, T=sample.T.iloc[:1], X=sample.X.iloc[:1])
    assert contents.panel is None
    assert any("Number of rows is 1 (threshold 200)" in caution for caution in contents.cautions)
    with pytest.raises(InputError, match="Expected at least one row"):
        gather(straight, T=sample.T.iloc[:0], X=sample.X.iloc[:0])
    with pytest.raises(InputError, match="Expected context with 300 rows"):
        gather(straight, T=sample.T, X=sample.X.iloc[:9])


def test_many_rows_are_sampled(straight: Any, sample: Any) -> None:
    times = MOST_ROWS // len(sample.Y) + 1
    T, X = pd.concat([sample.T] * times), pd.concat([sample.X] * times)
    contents = gather(straight, T=T, X=X)
    assert contents.n_rows == len(T)
    assert contents.n_used == MOST_ROWS == len(contents.sections[0].effects)


def test_explained_shares_of_known_numbers() -> None:
    column = Column("c", "numeric")
    steps = np.repeat(np.arange(5.0), 20)
    assert explained_share(column, steps, steps**2) == pytest.approx(1.0)
    assert explained_share(column, steps, np.tile([0.0, 1.0], 50)) == pytest.approx(0.0)
    assert explained_share(column, steps, np.ones(100)) == 0.0
    levels = Column("l", "categorical", ("a", "b"))
    codes = np.tile([0, 1], 50)
    assert explained_share(levels, codes, codes.astype(float)) == pytest.approx(1.0)
    smooth = np.linspace(0.0, 1.0, 1000)
    assert explained_share(column, smooth, smooth) == pytest.approx(0.99, abs=0.002)
    assert len(grouped(column, smooth).centres) == 10


def test_weights_count_rows_as_often_as_they_say(straight: TwoStageLeastSquares, sample: Any) -> None:
    weight = np.random.default_rng(0).integers(0, 4, len(sample.Y)).astype(float)
    repeated = np.repeat(np.arange(len(sample.Y)), weight.astype(int))
    weighted = gather(straight, T=sample.T, X=sample.X, Y=sample.Y, Z=sample.Z, sample_weight=weight)
    copies = gather(
        straight,
        T=sample.T.iloc[repeated],
        X=sample.X.iloc[repeated],
        Y=sample.Y[repeated],
        actions=weighted.sections[0].axis.grid[weighted.sections[0].axis.allowed],
    )
    assert weighted.policy.observed_outcome == pytest.approx(copies.policy.observed_outcome)
    assert weighted.policy.today_value == pytest.approx(copies.policy.today_value, rel=1e-3)
    assert weighted.policy.value == pytest.approx(copies.policy.value, rel=1e-3)
    assert weighted.sections[0].effects.mean() == pytest.approx(copies.sections[0].effects.mean(), rel=2e-2)
    assert weighted.weighted
    assert not copies.weighted
    assert weighted.n_used == np.count_nonzero(weight)
    prepared = prepare(sample.Y, sample.T, Z=sample.Z, X=sample.X, sample_weight=weight)
    assert weighted.strength is not None
    assert weighted.strength.partial_r2 == pytest.approx(instrument_strength(prepared).partial_r2, abs=0.02)


def test_controls_are_part_of_what_the_instrument_has_to_beat(sample: Any) -> None:
    # All that the first instrument says of the price, the control says as well.
    W = pd.DataFrame({"cost": sample.Z["fuel"] + 0.01 * np.sin(np.arange(300.0)), "time": sample.X["time"]})
    model = TwoStageLeastSquares().fit(sample.Y, sample.T, Z=sample.Z, X=sample.X)
    alone = gather(model, T=sample.T, X=sample.X, Z=sample.Z).strength
    contents = gather(model, T=sample.T, X=sample.X, Z=sample.Z, W=W)
    assert alone is not None
    assert contents.strength is not None
    assert alone.partial_r2 > 0.5
    assert contents.strength.partial_r2 < 0.1
    # A control that is a context as well counts once.
    assert [row.name for row in contents.roles if row.role == "control"] == ["cost"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"sample_weight": np.zeros(300)}, "Expected some positive weights"),
        ({"W": np.ones(3)}, "same number of rows"),
    ],
)
def test_bad_weights_and_controls_are_refused(
    extra: Any, message: str, straight: TwoStageLeastSquares, sample: Any
) -> None:
    with pytest.raises(InputError, match=message):
        gather(straight, T=sample.T, X=sample.X, **extra)
