"""Clusters of two workers on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from joblib import parallel_config

Cluster = Callable[[], AbstractContextManager[None]]


@contextmanager
def dask_cluster() -> Iterator[None]:
    import distributed  # noqa: PLC0415 - slow, and for these tests only

    dask: Any = distributed
    with (
        dask.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        dask.Client(cluster),
        parallel_config("dask"),
    ):
        yield


@contextmanager
def ray_cluster() -> Iterator[None]:
    import ray  # noqa: PLC0415
    from ray.util.joblib import register_ray  # noqa: PLC0415

    register_ray()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    lasting = {"max_restarts": -1, "max_task_retries": -1}
    try:
        with parallel_config("ray", n_jobs=2, ray_remote_args=lasting):
            yield
    finally:
        ray.shutdown()


@pytest.fixture(params=["dask", "ray"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return what starts a cluster whose workers can import the modules beside these tests."""
    here = str(Path(__file__).parent)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setenv("PYTHONPATH", ":".join([here, *filter(None, sys.path)]))
    # Tests report to nobody.
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    return {"dask": dask_cluster, "ray": ray_cluster}[request.param]
