"""Fits on a cluster: the numbers of a fit on this machine to the last bit, and a dead worker is replaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.linear_model import Ridge

from dmliv import DeepIV
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.first_stage.workers import on_cluster, spread
from dmliv.learners import Learners
from dmliv.nets.settings import NetworkSettings
from dmliv.problems.suite import SaturatingDose
from dmliv.second_stage.coefficients import CoefficientStructural
from dmliv.second_stage.network import NeuralStructural
from dmliv.second_stage.rivals import RivalStructural

from .conftest import Cluster

PROBLEM = SaturatingDose()
DATA = PROBLEM.sample(240, seed=100)


def small_networks() -> Learners:
    """Stacks that are trained in two sides, and rivals for h: everything that can be spread."""
    tiny = NetworkSettings(
        hidden=(8,), epochs=2, batch_size=40, dropout=0.0, encodings=("standardised", "piecewise")
    )
    rivals = RivalStructural(NeuralStructural(tiny), CoefficientStructural(tiny), margin=1e9)
    return Learners(NeuralOutcome(tiny), NeuralAction(tiny, n_components=2), rivals)


def fitted(learners: Learners) -> DeepIV:
    # One nuisance is enough: with Ray every call starts workers of its own, which takes seconds.
    estimator = DeepIV(learners, n_folds=2, random_state=0)
    return estimator.fit(DATA.Y, DATA.T, Z=DATA.Z, X=DATA.X)


def test_without_a_cluster_nothing_is_spread() -> None:
    assert not on_cluster()
    assert spread([lambda: 1, lambda: 2]) == [1, 2]


def test_fits_on_two_workers_have_the_same_bits_and_survive_a_death(cluster: Cluster, tmp_path: Path) -> None:
    from dies_once import DiesOnce  # type: ignore[import-not-found]  # noqa: PLC0415

    X, T, _ = PROBLEM.test_set()
    marker = tmp_path / "died"

    def with_ridge(ridge: Ridge) -> Learners:
        return Learners(outcome=Ridge(), action=ridge, structural=Ridge())

    local = {
        "networks": fitted(small_networks()).predict(T, X),
        "mortal": fitted(with_ridge(DiesOnce())).predict(T, X),
    }
    with cluster():
        assert on_cluster()
        spread_out = {"networks": fitted(small_networks()).predict(T, X)}
        spread_out["mortal"] = fitted(with_ridge(DiesOnce(str(marker)))).predict(T, X)
    # Somebody did die, and it was not this process.
    assert marker.exists()
    for name, expected in local.items():
        np.testing.assert_array_equal(spread_out[name], expected, err_msg=name)
