"""The kernel takes the place of the networks where held-out rows say so, and only there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dmliv import DMLIV
from dmliv.errors import InputError
from dmliv.learners import Learners, neural
from dmliv.problems import TicketDemand
from dmliv.second_stage.ensemble import NeuralStructuralModel
from dmliv.second_stage.kernel import KernelModel, KernelStructural
from dmliv.second_stage.rivals import RivalStructural, clearly_lower


def smooth(n: int, seed: int) -> tuple[dict[str, Any], Any]:
    """A parabola in the action and a wave in the context, a strong instrument, 200 rows: a kernel's home."""
    rng = np.random.default_rng(seed)
    X, Z, hidden = rng.uniform(-1, 1, (n, 3)), rng.standard_normal(n), rng.standard_normal(n)
    T = Z + X[:, 0] + 0.3 * hidden

    def truth(T: Any, X: Any) -> Any:
        return T**2 - T * X[:, 1] + np.sin(2.0 * X[:, 2])

    return {"Y": truth(T, X) + hidden, "T": T, "Z": Z, "X": X}, truth


def test_a_smooth_truth_is_left_to_the_kernel() -> None:
    data, truth = smooth(300, seed=0)
    fitted = DMLIV(n_folds=3, random_state=0).fit(**data)
    assert isinstance(fitted.structural_model_, KernelModel)
    losses = fitted.structural_model_.describe()["choice_losses"]
    assert isinstance(losses, dict)
    assert losses["kernel"] == min(losses.values())
    fresh, _ = smooth(500, seed=1)
    networks = replace(neural(), structural=neural().structural.networks)  # type: ignore[attr-defined]
    other = DMLIV(networks, n_folds=3, random_state=0).fit(**data)
    wanted = truth(fresh["T"], fresh["X"])
    errors = [np.mean((each.predict(fresh["T"], fresh["X"]) - wanted) ** 2) for each in (fitted, other)]
    assert errors[0] < 0.7 * errors[1]


def test_a_spike_in_time_and_seven_slopes_stay_with_the_networks() -> None:
    data = TicketDemand().sample(1000, seed=200)
    fitted = DMLIV(random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X)
    assert isinstance(fitted.structural_model_, NeuralStructuralModel)
    losses = fitted.structural_model_.choice_losses
    assert losses["kernel"] > min(losses.values())


def test_the_winner_is_the_learner_itself() -> None:
    """Fitted alone with the same bandwidths and seed, the kernel gives the very same h."""
    data, _ = smooth(200, seed=2)
    learners = neural()
    assert isinstance(learners.structural, RivalStructural)
    one = DMLIV(learners, n_folds=2, random_state=0).fit(**data)
    again = DMLIV(learners, n_folds=2, random_state=0).fit(**data)
    np.testing.assert_array_equal(one.predict(data["T"], data["X"]), again.predict(data["T"], data["X"]))


def test_weights_of_zero_never_count() -> None:
    data, _ = smooth(240, seed=3)
    weight = np.where(np.arange(240) < 200, 1.0, 0.0)
    spoiled = data | {"Y": np.where(weight > 0, data["Y"], 1e3)}
    fits = [
        DMLIV(n_folds=2, random_state=0).fit(**each, sample_weight=weight).predict(data["T"], data["X"])
        for each in (data, spoiled)
    ]
    np.testing.assert_allclose(fits[0], fits[1], atol=1e-6)


@pytest.mark.parametrize(
    ("gain", "margin", "expected"),
    [(0.5, 2.0, True), (0.15, 1.0, True), (0.15, 2.0, False), (0.01, 1.0, False), (-0.5, 0.0, False)],
)
def test_clearly_lower(gain: float, margin: float, expected: bool) -> None:
    """The noise has a standard error of 0.1."""
    noise = np.tile([-1.0, 1.0], 50)
    assert clearly_lower(np.full(100, 2.0), 2.0 + gain + noise, margin) is expected


def test_a_margin_that_cannot_work() -> None:
    rivals = neural().structural
    assert isinstance(rivals, RivalStructural)
    with pytest.raises(InputError, match="a margin of at least 0"):
        replace(rivals, margin=-1.0)


def test_convolutions_have_no_rival() -> None:
    from dmliv.learners import ImageColumns  # noqa: PLC0415

    plain = neural(image=ImageColumns(28, 28, first=1, features="convolution"))
    assert not isinstance(plain.structural, RivalStructural)
    assert isinstance(neural(image=ImageColumns(28, 28, first=1)).structural, RivalStructural)
    assert isinstance(Learners(*vars(plain).values()).structural, type(plain.structural))
    assert KernelStructural().needs_judging is False
