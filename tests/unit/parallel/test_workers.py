"""How many calls run at once, and where joblib's configuration is heard."""

from __future__ import annotations

from threading import Barrier
from typing import Any

import numpy as np
import pytest
from joblib import cpu_count, delayed, parallel_config
from sklearn.linear_model import Ridge

from dmliv import DMLIV
from dmliv.errors import InputError
from dmliv.learners import Learners
from dmliv.parallel.workers import in_order, on_cluster, on_ray, worker_count
from dmliv.problems.suite import SaturatingDose

DATA = SaturatingDose().sample(60, seed=100)
MEETING = Barrier(2, timeout=60.0)


class Meets(Ridge):
    """A ridge regression whose fit waits until another one runs at the same time."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Meets:
        MEETING.wait()
        super().fit(X, y, sample_weight)
        return self


class TestWorkerCount:
    def test_one_when_nothing_is_configured(self) -> None:
        assert worker_count(None) == 1
        assert worker_count(-1) == cpu_count()

    @pytest.mark.parametrize("backend", ["threading", "loky", "multiprocessing"])
    def test_none_follows_the_configuration_and_a_number_does_not(self, backend: str) -> None:
        with parallel_config(backend, n_jobs=3):
            assert worker_count(None) == 3
            assert worker_count(2) == 2
            assert worker_count(np.int64(2)) == 2
            assert not on_cluster()
            assert not on_ray()
        assert worker_count(None) == 1

    @pytest.mark.parametrize("n_jobs", [0, True, 1.5, "two"])
    def test_no_number_of_jobs(self, n_jobs: Any) -> None:
        with pytest.raises(InputError, match="n_jobs as a whole number other than 0"):
            worker_count(n_jobs)


def test_an_estimator_without_n_jobs_uses_the_configured_workers() -> None:
    learners = Learners(outcome=Meets(), action=Ridge(), structural=Ridge())
    estimator = DMLIV(learners, n_folds=2, random_state=0)
    with parallel_config("threading", n_jobs=2):
        estimator.fit(DATA.Y, DATA.T, Z=DATA.Z, X=DATA.X)
    alone = DMLIV(Learners(outcome=Ridge(), action=Ridge(), structural=Ridge()), n_folds=2, random_state=0)
    alone.fit(DATA.Y, DATA.T, Z=DATA.Z, X=DATA.X)
    np.testing.assert_array_equal(estimator.predict(DATA.T, DATA.X), alone.predict(DATA.T, DATA.X))


@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
def test_results_come_in_order_whether_or_not_a_backend_can_stream_them(backend: str) -> None:
    with parallel_config(backend, n_jobs=2):
        assert list(in_order((delayed(abs)(-number) for number in range(5)), None)) == [0, 1, 2, 3, 4]
