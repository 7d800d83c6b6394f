"""Strength of instruments against regression packages, known shares, and problems of known strength."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linearmodels.datasets import card
from linearmodels.iv import IV2SLS
from scipy.stats import ncx2

from dmliv.data import prepare
from dmliv.diagnostics.strength import instrument_strength, predict_action, projected_f
from dmliv.problems import TicketDemand


def _rows(n: int = 2000, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((4, n))


def test_effective_f_of_one_instrument_is_the_robust_f() -> None:
    frame = card.load().dropna(subset=["lwage", "educ", "nearc4", "exper", "black", "south"])
    X = frame[["exper", "black", "south"]]
    found = instrument_strength(prepare(frame["lwage"], frame["educ"], Z=frame[["nearc4"]], X=X))
    reference = IV2SLS(frame["lwage"], X.assign(one=1.0), frame[["educ"]], frame[["nearc4"]])
    expected = reference.fit(cov_type="robust").first_stage.diagnostics.loc["educ", "f.stat"]
    assert found.effective_f == pytest.approx(expected, rel=1e-6)
    # The published critical value for one instrument, a bias of a tenth and a level of 5 %.
    assert found.critical_f == pytest.approx(23.1, abs=0.05)


def test_critical_value_of_equal_instruments() -> None:
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((4000, 4))
    noise, outcome = rng.standard_normal((2, 4000))
    found = instrument_strength(prepare(outcome, Z.sum(axis=1) + noise, Z=Z))
    # With equal variances the effective degrees of freedom are the number of instruments.
    assert found.critical_f == pytest.approx(ncx2.ppf(0.95, 4, 40) / 4, rel=0.02)
    assert found.effective_f == pytest.approx(4000 / 4 * 4, rel=0.1)


def test_curves_are_seen_that_lines_do_not_see() -> None:
    X, Z, U, _ = _rows()
    found = instrument_strength(prepare(U, X + Z**2 + 0.5 * U, Z=Z, X=X))
    assert found.projected_f > 500.0
    assert found.effective_f < found.critical_f
    assert not found.is_weak


def test_a_context_that_models_see_differently_is_no_strength() -> None:
    # The action follows a bent context; the instrument does nothing.
    weak = 0
    for seed in range(8):
        X, Z, U, _ = _rows(600, seed)
        found = instrument_strength(prepare(U, np.sin(3.0 * X) + 0.3 * U, Z=Z, X=X), seed=seed)
        weak += found.is_weak
    assert weak >= 7


def test_strengths_of_ticket_demand_are_told_apart() -> None:
    found = {
        strength: [
            instrument_strength(prepare(data.Y, data.T, Z=data.Z, X=data.X), seed=seed)
            for seed in (100, 101)
            for data in [TicketDemand(instrument_strength=strength).sample(1000, seed=seed)]
        ]
        for strength in (1.0, 0.4, 0.01)
    }
    f = {strength: [each.projected_f for each in values] for strength, values in found.items()}
    assert min(f[1.0]) > 2.0 * max(f[0.4])
    assert min(f[0.4]) > 100.0
    assert max(f[0.01]) < 10.0


def test_two_actions_moved_alike_are_weak_together() -> None:
    rng = np.random.default_rng(3)
    Z, U = rng.standard_normal((1500, 2)), rng.standard_normal((1500, 2))
    apart = np.column_stack([Z[:, 0], Z[:, 1]]) + U
    alike = np.column_stack([Z[:, 0], Z[:, 0]]) + U
    outcome = U[:, 0] + rng.standard_normal(1500)
    assert not instrument_strength(prepare(outcome, apart, Z=Z)).is_weak
    assert instrument_strength(prepare(outcome, alike, Z=Z)).is_weak


def test_many_rows_are_scaled_up() -> None:
    rng = np.random.default_rng(4)
    Z, U = rng.standard_normal((2, 12_000))
    few = instrument_strength(prepare(U, 0.3 * Z + U, Z=Z))
    assert few.n_rows == 12_000
    # The F of one linear instrument grows with the rows: 12,000 times 0.09.
    assert few.effective_f == pytest.approx(1080.0, rel=0.15)


def test_rows_without_weight_do_not_count() -> None:
    X, Z, U, V = _rows(900)
    T = X + 0.5 * Z + U
    weight = (np.arange(900) % 3 > 0).astype(float)
    kept = weight > 0
    whole = predict_action(prepare(V, T, Z=Z, X=X, sample_weight=weight), seed=0)
    assert whole.n_rows == 600
    assert set(whole.rows) == set(np.flatnonzero(kept))


def test_predictions_that_point_the_wrong_way_are_no_strength() -> None:
    X, Z, U, V = _rows(300)
    moved = predict_action(prepare(V, X + U, Z=Z, X=X), seed=0)
    object.__setattr__(moved, "prediction", -moved.residual)
    assert projected_f(moved, np.arange(300)) == 0.0
