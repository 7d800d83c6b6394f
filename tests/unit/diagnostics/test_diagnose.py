"""All findings of a fit: what they say, what they warn of, how they are shown and saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dmliv.diagnostics import Diagnostics, diagnose
from dmliv.diagnostics.contexts import strength_by_context, weak_share
from dmliv.diagnostics.strength import predict_action
from dmliv.errors import InputError
from dmliv.persistence.codec import Decoder, Encoder

KEYS = [
    "projected_f",
    "effective_f",
    "partial_r2",
    "weak_contexts",
    "action_r2",
    "action_gain",
    "outcome_r2",
    "outcome_gain",
    "moment_test",
    "unsupported",
    "balance",
    "fold_spread",
]


def test_a_good_fit_has_no_warning_about_its_instrument(good: Any) -> None:
    found: Diagnostics = good[0]
    assert [finding.key for finding in found.findings] == KEYS
    for key in ("projected_f", "weak_contexts", "outcome_r2", "fold_spread"):
        assert found[key].verdict == "fine"
    # Of a variance of 1.64 that the context leaves open, the instruments explain 1.
    assert found["partial_r2"].value == pytest.approx(1.0 / 1.64, abs=0.06)
    assert found["balance"].value < 0.02
    assert found.n_rows == 800


def test_numbers_agree_with_the_fit(good: Any) -> None:
    found, estimator, _ = good
    assert found["action_r2"].value == estimator.nuisance_losses_["action_r2"]
    assert found["outcome_r2"].value == estimator.nuisance_losses_["outcome_r2"]
    sizes = [each.n_rows for each in found.fold_losses]
    assert sizes == [200] * 4
    mean = np.average([each.action for each in found.fold_losses], weights=sizes)
    assert 1.0 - mean == pytest.approx(found["action_r2"].value, abs=1e-6)


def test_the_same_seed_gives_the_same_numbers(good: Any, runtime: Any) -> None:
    found, estimator, data = good
    again = diagnose(data, estimator.first_stage_, estimator.structural_model_, seed=0, runtime=runtime)
    assert again == found
    other = diagnose(data, estimator.first_stage_, estimator.structural_model_, seed=1, runtime=runtime)
    assert other["projected_f"].value != found["projected_f"].value


def test_a_useless_instrument_is_warned_of(diagnosed: Any, two_instruments: Any) -> None:
    Y, T, Z, X = two_instruments(800, 101, strength=0.0)
    found, _, _ = diagnosed(Y, T, Z=Z, X=X)
    assert found["projected_f"].verdict == "warning"
    assert found["effective_f"].verdict == "note"
    assert found["weak_contexts"].value == pytest.approx(1.0)
    assert any("stronger" in warning for warning in found.warnings)


def test_contexts_without_an_instrument_are_named(diagnosed: Any) -> None:
    rng = np.random.default_rng(7)
    n = 1500
    region = np.array(["north", "south", "west"])[np.arange(n) % 3]
    Z, hidden = rng.standard_normal((2, n))
    T = np.where(region == "west", 0.0, 1.0) * Z + hidden
    Y = T + hidden + rng.standard_normal(n)
    found, _, data = diagnosed(Y, T, Z=Z, X=pd.DataFrame({"region": region}))
    assert [cell.group for cell in found.cells if cell.is_weak] == ["= west"]
    assert found["weak_contexts"].value == pytest.approx(1.0 / 3.0)
    assert found["weak_contexts"].verdict == "warning"
    assert "region = west: 33%" in str(found)
    strong = [cell for cell in found.cells if not cell.is_weak]
    # The truth is a half; a simple model on a third fewer rows finds most of it.
    assert all(0.3 < cell.explained < 0.6 for cell in strong)
    cells = strength_by_context(data, predict_action(data, seed=0))
    assert cells == found.cells
    assert weak_share(()) == 0.0


def test_an_instrument_that_follows_the_context_is_noted_not_warned_of(diagnosed: Any) -> None:
    rng = np.random.default_rng(8)
    X, own, hidden = rng.standard_normal((3, 900))
    Z = X + own
    T = Z + hidden
    found, _, _ = diagnosed(T + X + hidden, T, Z=Z, X=X)
    assert found["balance"].value == pytest.approx(0.5, abs=0.08)
    assert found["balance"].verdict == "note"
    assert not any("R2 of the instrument given the context" in warning for warning in found.warnings)


def test_rising_lines_recommend_what_is_hardly_seen(diagnosed: Any) -> None:
    rng = np.random.default_rng(9)
    X, Z, hidden = rng.standard_normal((3, 800))
    # In every context other actions are taken; the best is everywhere the highest of all.
    T = 3.0 * X + Z + 0.5 * hidden
    found, _, _ = diagnosed(T + hidden, T, Z=Z, X=X)
    assert found["unsupported"].value > 0.5
    assert found["unsupported"].verdict == "warning"


def test_a_fold_of_other_rows_stands_out(good: Any, runtime: Any) -> None:
    _, estimator, data = good
    outcome = data.outcome.copy()
    strange = estimator.first_stage_.fold == 2
    outcome[strange] += 3.0 * np.random.default_rng(0).standard_normal(int(strange.sum()))
    found = diagnose(
        replace(data, outcome=outcome),
        estimator.first_stage_,
        estimator.structural_model_,
        seed=0,
        runtime=runtime,
    )
    assert found["fold_spread"].verdict == "warning"
    losses = [each.outcome for each in found.fold_losses]
    assert int(np.argmax(losses)) == 2


@pytest.mark.parametrize("n_folds", [1, 3])
def test_other_kinds_of_data(n_folds: int, diagnosed: Any) -> None:
    rng = np.random.default_rng(10)
    n = 400
    frame = pd.DataFrame({"age": rng.standard_normal(n), "kind": np.array(["a", "b"])[np.arange(n) % 2]})
    Z = pd.DataFrame({"letter": np.array(["x", "y", "z"])[rng.integers(0, 3, n)]})
    hidden = rng.standard_normal(n)
    T = np.where((Z["letter"] == "x") + hidden > 0.5, "treated", "not")
    Y = (T == "treated") + frame["age"] + hidden
    weight = rng.uniform(0.0, 2.0, n) * (np.arange(n) % 10 > 0)
    found, _, _ = diagnosed(Y, T, Z=Z, X=frame, n_folds=n_folds, sample_weight=weight)
    assert found.n_rows == 360
    assert "action_nll" in [finding.key for finding in found.findings]
    assert np.isnan(found["fold_spread"].value) == (n_folds == 1)
    assert found["fold_spread"].verdict == ("not testable" if n_folds == 1 else "fine")
    two = np.column_stack([hidden + (Z["letter"] == "x"), rng.standard_normal(n) + (Z["letter"] == "y")])
    both, _, _ = diagnosed(Y, two, Z=Z, n_folds=n_folds)
    assert both.cells == ()
    assert np.isfinite(both["projected_f"].value)


def test_more_columns_than_rows_and_controls(diagnosed: Any) -> None:
    rng = np.random.default_rng(11)
    pixels, Z, hidden = rng.standard_normal((150, 200)), rng.standard_normal(150), rng.standard_normal(150)
    T = Z + pixels[:, 0] + hidden
    found, _, _ = diagnosed(T + hidden, T, Z=Z, X=pixels, n_folds=2)
    assert np.isfinite(found["projected_f"].value)
    # The context alone explains every row, so no line of the instrument is left.
    assert found["effective_f"].value == 0.0
    controlled, estimator, _ = diagnosed(T + hidden, T, Z=Z, X=pixels[:, :1], W=pixels[:, 1:3], n_folds=2)
    assert {cell.column for cell in controlled.cells} == {"context", "control_0", "control_1"}
    assert estimator.predict(0.0, pixels[:, :1]).shape == (150,)


def test_frames_and_print(good: Any) -> None:
    found: Diagnostics = good[0]
    frame = found.to_frame()
    assert list(frame.columns) == ["key", "name", "value", "threshold", "verdict", "meaning"]
    assert list(frame["key"]) == KEYS
    assert len(found.contexts_frame()) == len(found.cells) == 10
    assert found.contexts_frame()["row_share"].sum() == pytest.approx(2.0)
    assert len(found.folds_frame()) == 4
    shown = str(found)
    for finding in found.findings:
        assert finding.name in shown
    assert max(len(line) for line in shown.splitlines()) <= 100
    bars = found.contexts_figure().axes[0].patches
    assert len(bars) == 10


def test_an_unknown_key_is_refused(good: Any) -> None:
    with pytest.raises(InputError, match="'moment_test'"):
        good[0]["moments"]


def test_saved_diagnostics_are_the_same(good: Any) -> None:
    encoder = Encoder()
    node = encoder.encode(good[0], "attribute diagnostics")
    decoded = Decoder(encoder.arrays, [], encoder.objects, None).decode(node)
    assert decoded == good[0]
