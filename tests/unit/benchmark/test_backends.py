"""Worker processes and clusters give the numbers of a run in one process."""

from pathlib import Path

import pytest

from dmliv.benchmark.runner import RunSummary, run
from dmliv.benchmark.store import RecordStore
from dmliv.benchmark.trials import Grid, plan
from dmliv.parallel.backends import BackendError, Workers


@pytest.mark.parametrize("backend", ["loky", "dask", "ray"])
def test_two_workers_give_the_numbers_of_one(
    backend: str, tiny: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests report to nobody.
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Two rows are too few for two-stage least squares: failures come back from workers, too.
    trials = plan(tiny, methods=["2sls"], sizes=[2, 100])
    alone, together = RecordStore(tmp_path / "alone.jsonl"), RecordStore(tmp_path / "together.jsonl")
    run(trials, alone)
    summary = run(trials, together, workers=Workers(2, backend))  # type: ignore[arg-type]
    assert summary == RunSummary(known=0, finished=4, failed=2, left=0)
    expected = {record.digest: (record.metrics, record.error) for record in alone.read()}
    assert {record.digest: (record.metrics, record.error) for record in together.read()} == expected


def test_a_cluster_that_is_already_there_is_used(tiny: Grid, tmp_path: Path) -> None:
    import distributed  # noqa: PLC0415 - slow, and for this test only

    store = RecordStore(tmp_path / "tiny.jsonl")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        workers = Workers(1, "dask", cluster.scheduler_address)
        assert run(plan(tiny, methods=["2sls"]), store, workers=workers).finished == 4
        # It is not ours to shut down.
        assert len(cluster.workers) == 1
        assert cluster.status.name == "running"


def test_an_address_where_nobody_answers_is_named(tiny: Grid, tmp_path: Path) -> None:
    import dask  # noqa: PLC0415

    workers = Workers(1, "dask", "tcp://127.0.0.1:9")
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(BackendError, match="Expected a Dask scheduler at tcp://127"),
    ):
        run(plan(tiny, methods=["2sls"]), RecordStore(tmp_path / "tiny.jsonl"), workers=workers)
