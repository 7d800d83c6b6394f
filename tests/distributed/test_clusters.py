"""Fits on a cluster: the numbers of a fit on this machine to the last bit, and a dead worker is replaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from joblib import delayed
from sklearn.linear_model import Ridge

from dmliv import DeepIV, IVData
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.first_stage.nuisances import FloatArray, IntArray
from dmliv.inference import Bootstrap
from dmliv.learners import Learners
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.workers import on_cluster, spread, together, worker_count
from dmliv.problems.suite import SaturatingDose
from dmliv.second_stage.network import NeuralStructural

from .conftest import Cluster

PROBLEM = SaturatingDose()
DATA = PROBLEM.sample(240, seed=100)
# Enough for arrays that Ray's workers fetch by name.
LARGE = PROBLEM.sample(14_000, seed=101)


def small_networks() -> Learners:
    """Stacks that are trained in two sides: everything that can be spread."""
    tiny = NetworkSettings(
        hidden=(8,), epochs=2, batch_size=40, dropout=0.0, encodings=("standardised", "piecewise")
    )
    return Learners(NeuralOutcome(tiny), NeuralAction(tiny, n_components=2), NeuralStructural(tiny))


def fitted(learners: Learners, data: IVData = DATA) -> DeepIV:
    # One nuisance is enough: with Ray every call starts workers of its own, which takes seconds.
    estimator = DeepIV(learners, n_folds=2, random_state=0)
    return estimator.fit(data.Y, data.T, Z=data.Z, X=data.X)


def row_sums(values: FloatArray, tensor: torch.Tensor, rows: IntArray) -> tuple[FloatArray, torch.Tensor]:
    """Read what was sent."""
    return values[rows].sum(axis=1), tensor[rows].sum()


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
        "mortal": fitted(with_ridge(DiesOnce()), LARGE).predict(T, X),
    }
    with cluster():
        assert on_cluster()
        assert worker_count(None) == 2
        # What runs inside a task runs in one piece.
        assert together([delayed(worker_count)(None)] * 2, None) == [1, 1]
        spread_out = {"networks": fitted(small_networks()).predict(T, X)}
        spread_out["mortal"] = fitted(with_ridge(DiesOnce(str(marker))), LARGE).predict(T, X)
    # Somebody did die, and it was not this process.
    assert marker.exists()
    for name, expected in local.items():
        np.testing.assert_array_equal(spread_out[name], expected, err_msg=name)


def test_bootstrap_replicates_on_two_workers_have_the_same_bits(cluster: Cluster) -> None:
    def bounds() -> FloatArray:
        estimator = DeepIV(small_networks(), n_folds=2, random_state=0)
        estimator.fit(DATA.Y, DATA.T, Z=DATA.Z, X=DATA.X, inference=Bootstrap(n_replicates=2))
        return np.asarray(estimator.effect_interval(DATA.X[:5], T0=0.0, T1=1.0))

    expected = bounds()
    assert np.all(expected[0] <= expected[1])
    with cluster():
        np.testing.assert_array_equal(bounds(), expected)


@pytest.mark.parametrize("cluster", ["ray"], indirect=True)
def test_ray_is_sent_an_array_once(cluster: Cluster) -> None:
    generator = np.random.default_rng(0)
    values, tensor = generator.normal(size=(20_000, 4)), torch.from_numpy(generator.normal(size=50_000))
    rows = [np.arange(start, 20_000) for start in range(4)]
    tasks = [delayed(row_sums)(values, tensor, each) for each in rows]
    with cluster():
        from ray import cloudpickle  # noqa: PLC0415

        from dmliv.parallel.shipping import shipped  # noqa: PLC0415

        packed = shipped(tasks)
        # Two megabytes are shared; a call names them, and so does the same call later.
        assert max(len(cloudpickle.dumps(task)) for task in packed) < 5_000
        names = [arguments[1] for _, arguments, _ in packed]
        assert len({name for call in names for name in call}) == 2 + len(rows)
        assert [arguments[1] for _, arguments, _ in shipped(tasks)] == names
        # What is written into an array afterwards is seen.
        values[0] += 1.0
        assert shipped(tasks)[0][1][1][0] != names[0][0]
        results = together(tasks, None)
    for (sums, total), task in zip(results, tasks, strict=True):
        expected_sums, expected_total = row_sums(*task[1])
        np.testing.assert_array_equal(sums, expected_sums)
        assert torch.equal(total, expected_total)
