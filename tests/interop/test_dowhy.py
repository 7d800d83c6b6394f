"""Estimators inside DoWhy's graph, estimate and refutation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dowhy import CausalModel
from dowhy.causal_estimators.econml import Econml

from dmliv import CEDMLIV, DFIV, DMLIV, DeepGMM, DeepIV, KernelIV, TwoStageLeastSquares
from dmliv.learners import kernel, neural

ROWS = 400
EFFECT = 2.0

ESTIMATORS: dict[str, Callable[[], Any]] = {
    "DMLIV": lambda: DMLIV(neural(effort="fast"), n_folds=2, random_state=0),
    "CEDMLIV": lambda: CEDMLIV(kernel(n_landmarks=50), random_state=0),
    "DeepIV": lambda: DeepIV(kernel(n_landmarks=50), random_state=0),
    "KernelIV": lambda: KernelIV(random_state=0),
    "DFIV": lambda: DFIV(n_epochs=2, steps=(2, 2, 1), random_state=0),
    "DeepGMM": lambda: DeepGMM((16,), epochs=4, evaluate_every=1, burn_in=1, random_state=0),
    "TwoStageLeastSquares": TwoStageLeastSquares,
}


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(100)
    x, w, z, hidden, noise = rng.standard_normal((5, ROWS))
    t = z + 0.5 * x + 0.3 * w + hidden + 0.3 * noise
    return pd.DataFrame({"x": x, "w": w, "z": z, "t": t, "y": EFFECT * t + x + w + 2 * hidden})


@pytest.fixture(scope="module")
def model(frame: pd.DataFrame) -> Any:
    return CausalModel(
        frame,
        treatment="t",
        outcome="y",
        instruments=["z"],
        common_causes=["x", "w"],
        effect_modifiers=["x"],
    )


@pytest.fixture
def estimand(model: Any) -> Any:
    found = model.identify_effect(proceed_when_unidentifiable=True)
    found.set_identifier_method("iv")
    return found


def estimate(estimand: Any, estimator: Any, frame: pd.DataFrame) -> Any:
    wrapped = Econml(estimand, econml_estimator=estimator).fit(frame, effect_modifier_names=["x"])
    return wrapped.estimate_effect(frame, control_value=0.0, treatment_value=1.0, target_units="ate")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_is_an_estimation_method(name: str, estimand: Any, frame: pd.DataFrame) -> None:
    estimator = ESTIMATORS[name]()
    found = estimate(estimand, estimator, frame)
    # DoWhy passes x as effect modifier and again, with w, as common cause.
    assert estimator.counterfactual_.context.input_order == ("x",)
    assert estimator.counterfactual_.model.controls.numeric.shape == (200, 1)
    assert found.value == pytest.approx(estimator.ate(frame[["x"]], T0=0.0, T1=1.0))
    assert found.cate_estimates.shape == (ROWS, 1)


def test_the_effect_is_that_of_the_action(estimand: Any, frame: pd.DataFrame) -> None:
    """Least squares that ignore the instrument say about 3."""
    found = estimate(estimand, TwoStageLeastSquares(), frame)
    assert found.value == pytest.approx(EFFECT, abs=0.3)


@pytest.mark.parametrize("name", ["DMLIV", "TwoStageLeastSquares"])
def test_a_placebo_has_no_effect(name: str, model: Any, estimand: Any, frame: pd.DataFrame) -> None:
    """Action and instrument are permuted together, apart from the outcome; a copy is refitted."""
    estimator = ESTIMATORS[name]()
    found = estimate(estimand, estimator, frame)
    refutation = model.refute_estimate(
        estimand,
        found,
        method_name="placebo_treatment_refuter",
        placebo_type="permute",
        num_simulations=2,
        random_state=7,
    )
    assert abs(refutation.new_effect) < 0.2 * abs(found.value)
    # The refitted one was a copy.
    assert estimator.ate(frame[["x"]], T0=0.0, T1=1.0) == pytest.approx(found.value)


def test_a_subset_of_the_data_tells_the_same(model: Any, estimand: Any, frame: pd.DataFrame) -> None:
    found = estimate(estimand, TwoStageLeastSquares(), frame)
    refutation = model.refute_estimate(
        estimand,
        found,
        method_name="data_subset_refuter",
        subset_fraction=0.8,
        num_simulations=3,
        random_state=7,
    )
    assert refutation.new_effect == pytest.approx(found.value, rel=0.15)
