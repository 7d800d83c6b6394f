"""The moment test keeps its level, sees direct effects, and says when there is nothing to test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dmliv.diagnostics.moment_test as tested
from dmliv.diagnostics.moment_test import overidentification


def _columns(n: int = 500, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, 9])
    Z, hidden = rng.standard_normal((n, 3)), rng.standard_normal(n)
    action = Z.sum(axis=1) + hidden
    residual = 0.7 * action + hidden + rng.standard_normal(n)
    return residual, np.ones((n, 1)), action[:, None], Z, np.ones(n)


def test_an_error_along_a_move_of_h_changes_nothing() -> None:
    residual, ones, action, Z, weight = _columns()
    plain = overidentification(residual, ones, action, [Z], weight)
    moved = overidentification(residual - 3.0 * action[:, 0] + 5.0, ones, action, [Z], weight)
    assert plain.freedom == 2
    assert moved.statistic == pytest.approx(plain.statistic, rel=1e-6)


def test_level_with_a_confounded_action() -> None:
    values = [overidentification(r, o, a, [Z], w).p_value for r, o, a, Z, w in map(_seeded, range(400))]
    # 20 of 400 are expected below 5 %; the bounds have a chance of about 1 in 1000 each.
    assert 7 <= sum(value < 0.05 for value in values) <= 35


def _seeded(seed: int) -> Any:
    return _columns(seed=1000 + seed)


def test_an_error_along_a_move_that_the_moments_hardly_show_is_forgiven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rejected() -> int:
        count = 0
        for seed in range(200):
            rng = np.random.default_rng([seed, 10])
            Z, n = rng.standard_normal((500, 3)), 500
            action = Z[:, 0] + rng.standard_normal(n)
            # The instruments move it with an F of about 4: too little to say what h should be along it.
            hardly_moved = 0.15 * Z[:, 1] + rng.standard_normal(n)
            residual = 0.2 * rng.standard_normal(n) + 0.1 * hardly_moved
            endogenous = np.column_stack([action, hardly_moved])
            found = overidentification(residual, np.ones((n, 1)), endogenous, [Z], np.ones(n))
            count += found.p_value < 0.05
        return count

    # 5 % would be 10 of 200.
    assert rejected() <= 20
    monkeypatch.setattr(tested, "_UNIDENTIFIED_ERROR", 0.0)
    assert rejected() >= 30


def test_as_many_instruments_as_moves_leave_nothing_to_test() -> None:
    residual, ones, action, Z, weight = _columns()
    found = overidentification(residual, ones, action, [Z[:, :1]], weight)
    assert found.freedom == 0
    assert np.isnan(found.p_value)


def test_weights_are_repeated_rows() -> None:
    residual, ones, action, Z, _ = _columns(n=200)
    twice = np.repeat(np.arange(200), 2)
    once = overidentification(residual, ones, action, [Z], np.ones(200))
    doubled = overidentification(residual, ones, action, [Z], np.full(200, 2.0))
    assert doubled.statistic == pytest.approx(once.statistic, rel=1e-8)
    repeated = overidentification(residual[twice], ones[twice], action[twice], [Z[twice]], np.ones(400))
    # Twice the rows, independent or not, carry twice the evidence.
    assert repeated.statistic == pytest.approx(2.0 * once.statistic, rel=1e-6)


def test_a_direct_effect_is_seen_and_a_valid_instrument_passes(diagnosed: Any, two_instruments: Any) -> None:
    warned = {0.0: 0, 0.4: 0}
    for direct in warned:
        for seed in range(4):
            Y, T, Z, X = two_instruments(1000, 200 + seed, direct=direct)
            found = diagnosed(Y, T, Z=Z, X=X, seed=seed)[0]["moment_test"]
            assert found.verdict in ("fine", "warning")
            warned[direct] += found.verdict == "warning"
    assert warned[0.0] <= 1
    assert warned[0.4] >= 3


def test_one_two_valued_instrument_for_one_two_valued_action_cannot_be_tested(diagnosed: Any) -> None:
    rng = np.random.default_rng(3)
    Z, hidden = rng.integers(0, 2, 600), rng.standard_normal(600)
    T = np.where(Z + hidden > 0.5, "yes", "no")
    Y = (T == "yes") + 2.0 * Z + hidden
    found, _, _ = diagnosed(Y, T, Z=Z)
    assert found["moment_test"].verdict == "not testable"
    assert np.isnan(found["moment_test"].value)
    assert not any("Moment" in warning for warning in found.warnings)


def test_units_of_the_instrument_do_not_matter(diagnosed: Any, two_instruments: Any) -> None:
    Y, T, Z, X = two_instruments(600, 300)
    plain = diagnosed(Y, T, Z=Z, X=X)[0]["moment_test"].value
    cubed = diagnosed(Y, T, Z=1e3 * Z, X=X)[0]["moment_test"].value
    assert cubed == pytest.approx(plain, rel=1e-3)
