"""Rivals stay unless held-out rows speak against them; with a weak instrument nothing is decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dmliv import DMLIV
from dmliv.errors import InputError
from dmliv.learners import ImageColumns, Learners, neural
from dmliv.problems import TicketDemand
from dmliv.second_stage.judging import not_clearly_worse
from dmliv.second_stage.rivals import MeanModel, RivalStructural


def smooth(n: int, seed: int) -> tuple[dict[str, Any], Any]:
    """A parabola in the action and a wave in the context, a strong instrument, few rows: a kernel's home."""
    rng = np.random.default_rng(seed)
    X, Z, hidden = rng.uniform(-1, 1, (n, 3)), rng.standard_normal(n), rng.standard_normal(n)
    T = Z + X[:, 0] + 0.3 * hidden

    def truth(T: Any, X: Any) -> Any:
        return T**2 - T * X[:, 1] + np.sin(2.0 * X[:, 2])

    return {"Y": truth(T, X) + hidden, "T": T, "Z": Z, "X": X}, truth


def rivals_of(learners: Learners) -> RivalStructural:
    assert isinstance(learners.structural, RivalStructural)
    return learners.structural


def fitted_mean(learners: Learners, data: dict[str, Any], **settings: Any) -> tuple[DMLIV, MeanModel]:
    estimator = DMLIV(learners, pilot=None, random_state=0, **settings).fit(**data)
    assert isinstance(estimator.structural_model_, MeanModel)
    return estimator, estimator.structural_model_


def demand(n: int, seed: int, strength: float = 1.0) -> dict[str, Any]:
    data = TicketDemand(instrument_strength=strength).sample(n, seed=seed)
    return {"Y": data.Y, "T": data.T, "Z": data.Z, "X": data.X}


def test_a_smooth_bend_is_left_to_the_kernel() -> None:
    data, truth = smooth(300, seed=0)
    fitted, model = fitted_mean(neural(), data, n_folds=3)
    assert "lines" not in model.models
    assert "kernel" in model.models
    assert model.judged_losses["kernel"] < model.judged_losses["lines"]
    fresh, _ = smooth(500, seed=1)
    networks = replace(neural(), structural=rivals_of(neural()).networks)
    other = DMLIV(networks, n_folds=3, pilot=None, random_state=0).fit(**data)
    wanted = truth(fresh["T"], fresh["X"])
    errors = [np.mean((each.predict(fresh["T"], fresh["X"]) - wanted) ** 2) for each in (fitted, other)]
    assert errors[0] < 0.7 * errors[1]


def test_straight_effects_with_a_spike_in_time_keep_the_lines() -> None:
    _, model = fitted_mean(neural(), demand(1000, seed=200))
    assert "lines" in model.models
    assert "kernel" not in model.models
    assert model.judged_losses["kernel"] > model.judged_losses["lines"]


def test_a_weak_instrument_leaves_the_choice_open() -> None:
    _, model = fitted_mean(neural(), demand(600, seed=200, strength=0.01), n_folds=2)
    assert set(model.models) == set(model.judged_losses) == {"networks", "lines"}


def test_the_model_is_the_mean_of_its_parts() -> None:
    data, _ = smooth(200, seed=2)
    learners = replace(neural(), structural=replace(rivals_of(neural()), margin=100.0, correction=None))
    estimator, model = fitted_mean(learners, data, n_folds=2)
    assert set(model.models) == {"networks", "lines", "kernel"}
    fitted = estimator.counterfactual_
    context, action = fitted.read_context(data["X"]), fitted.read_action(data["T"])
    parts = list(model.models.values())
    np.testing.assert_allclose(
        model.predict(context, action), np.mean([part.predict(context, action) for part in parts], axis=0)
    )
    grid = model.predict_grid(context, action[:3])
    np.testing.assert_allclose(
        grid[:, 1], model.predict(context, np.tile(action[1], (len(context), 1))), atol=1e-5
    )
    step = 1e-2
    slopes = (model.predict(context, action + step) - model.predict(context, action - step)) / (2 * step)
    # The networks are piecewise linear in single precision: slopes agree but at their kinks.
    gaps = np.abs(model.gradient(context, action)[:, 0] - slopes)
    assert np.median(gaps) < 1e-2


def test_a_bend_is_corrected_and_straight_effects_are_left_alone() -> None:
    data, _ = smooth(400, seed=4)
    estimator, model = fitted_mean(neural(), data, n_folds=3)
    assert "lines" not in model.models
    assert model.correction is not None
    fresh, _ = smooth(500, seed=5)
    fitted = estimator.counterfactual_
    context, action = fitted.read_context(fresh["X"]), fitted.read_action(fresh["T"])
    without = replace(model, correction=None)
    for name in ("predict", "gradient"):
        added = getattr(model, name)(context, action) - getattr(without, name)(context, action)
        np.testing.assert_allclose(added, getattr(model.correction, name)(context, action), atol=1e-9)
    assert set(model.describe()["correction"]["choice_losses"]) == {"0", "0.2", "0.4"}  # type: ignore[index]
    _, straight = fitted_mean(neural(), demand(400, seed=200), n_folds=2)
    assert "lines" in straight.models
    assert straight.correction is None


def test_weights_of_zero_never_count() -> None:
    data, _ = smooth(240, seed=3)
    weight = np.where(np.arange(240) < 200, 1.0, 0.0)
    spoiled = data | {"Y": np.where(weight > 0, data["Y"], 1e3)}
    fits = [
        DMLIV(n_folds=2, pilot=None, random_state=0)
        .fit(**each, sample_weight=weight)
        .predict(data["T"], data["X"])
        for each in (data, spoiled)
    ]
    np.testing.assert_allclose(fits[0], fits[1], atol=1e-6)


@pytest.mark.parametrize(
    ("excess", "margin", "stays"),
    [(0.5, 2.0, False), (0.15, 1.0, False), (0.15, 2.0, True), (0.01, 1.0, True), (0.01, 0.0, False)],
)
def test_not_clearly_worse(excess: float, margin: float, stays: bool) -> None:
    """The noise has a standard error of 0.1."""
    noise = np.tile([-1.0, 1.0], 50)
    judged = {"other": 2.0 + excess + noise, "best": np.full(100, 2.0)}
    assert not_clearly_worse(judged, margin) == (("other", "best") if stays else ("best",))


@pytest.mark.parametrize("name", ["margin", "least_strength"])
def test_numbers_that_cannot_work(name: str) -> None:
    with pytest.raises(InputError, match=f"a {name} of at least 0"):
        replace(rivals_of(neural()), **{name: -1.0})


def test_convolutions_have_no_kernel_among_their_rivals() -> None:
    image = ImageColumns(28, 28, first=1, features="convolution")
    assert rivals_of(neural(image=image)).kernel is None
    assert rivals_of(neural(image=replace(image, features="gradients"))).kernel is not None


def test_effort() -> None:
    fast, best = rivals_of(neural(effort="fast")), rivals_of(neural(effort="best"))
    assert fast.kernel is None
    assert best.networks.n_members > rivals_of(neural()).networks.n_members > fast.networks.n_members
    assert rivals_of(neural(effort="fast", n_members=7)).lines.n_members == 4
    with pytest.raises(InputError, match="Expected effort among"):
        neural(effort="quick")  # type: ignore[arg-type]
