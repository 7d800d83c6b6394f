"""Runs resume, record failures, keep to a budget, and lose nothing to a kill."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dmliv import DMLIV
from dmliv.benchmark import runner
from dmliv.benchmark.describe import digest
from dmliv.benchmark.measure import measure
from dmliv.benchmark.runner import RunSummary, run
from dmliv.benchmark.store import Record, RecordStore
from dmliv.benchmark.trials import Grid, Trial, plan
from dmliv.errors import InputError
from dmliv.learners import neural
from dmliv.parallel.backends import BackendError, Workers

SLOW_RUN = Path(__file__).with_name("slow_run.py")


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    return RecordStore(tmp_path / "tiny.jsonl")


class Diary:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.pending: list[Trial] = []
        self.records: list[Record] = []

    def started(self, pending: Sequence[Trial], known: Sequence[Record]) -> None:
        self.pending = list(pending)

    def finished(self, record: Record) -> None:
        self.records.append(record)


def test_only_what_is_missing_runs(tiny: Grid, store: RecordStore) -> None:
    trials = plan(tiny, methods=["2sls"])
    assert run(trials[:1], store) == RunSummary(known=0, finished=1, failed=0, left=0)
    diary = Diary()
    assert run(trials, store, observer=diary) == RunSummary(known=1, finished=3, failed=0, left=0)
    assert [trial.digest for trial in diary.pending] == [trial.digest for trial in trials[1:]]
    assert [record.digest for record in diary.records] == [trial.digest for trial in trials[1:]]
    assert run(trials, store) == RunSummary(known=4, finished=0, failed=0, left=0)
    assert [record.digest for record in store.read()] == [trial.digest for trial in trials]


def test_records_name_the_commit(tiny: Grid, store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "commit", lambda: "abc+")
    run(plan(tiny, methods=["2sls"])[:1], store)
    assert store.read()[0].commit == "abc+"


def test_failures_are_kept_until_they_are_retried(tiny: Grid, store: RecordStore) -> None:
    # Two-stage least squares cannot be computed from three rows.
    trials = plan(tiny, methods=["2sls"], sizes=[3, 100], seeds=[100])
    assert run(trials, store) == RunSummary(known=0, finished=2, failed=1, left=0)
    failed, fine = store.read()
    assert failed.error is not None
    assert "InputError: Expected" in failed.error
    assert fine.error is None
    assert run(trials, store).finished == 0
    assert run(trials, store, retry_failed=True) == RunSummary(known=1, finished=1, failed=1, left=0)

    def repaired(trial: Trial) -> Record:
        return Record(trial.digest, **trial.keys(), metrics={"grid_mse": 1.0})  # type: ignore[arg-type]

    run(trials, store, retry_failed=True, run_trial=repaired)
    assert [record.error for record in store.read()] == [None, None]


def test_a_spent_budget_starts_nothing(tiny: Grid, store: RecordStore) -> None:
    trials = plan(tiny, methods=["2sls"])
    assert run(trials, store, budget_seconds=0.0) == RunSummary(known=0, finished=0, failed=0, left=4)
    assert store.read() == []


def test_a_budget_finishes_the_trial_it_runs_out_in(tiny: Grid, store: RecordStore) -> None:
    def slow(trial: Trial) -> Record:
        time.sleep(0.3)
        return measure(trial)

    trials = plan(tiny, methods=["2sls"])
    summary = run(trials, store, budget_seconds=0.2, run_trial=slow)
    assert (summary.finished, summary.left) == (1, 3)
    assert run(trials, store).finished == 3


def test_an_interrupt_keeps_what_is_finished(tiny: Grid, store: RecordStore) -> None:
    trials = plan(tiny, methods=["2sls"])

    def interrupted(trial: Trial) -> Record:
        if trial is trials[2]:
            raise KeyboardInterrupt
        return measure(trial)

    with pytest.raises(KeyboardInterrupt):
        run(trials, store, run_trial=interrupted)
    assert len(store.read()) == 2
    assert run(trials, store).finished == 2


def start_slow_run(folder: Path, seconds: float) -> subprocess.Popen[str]:
    arguments = [folder / "records.jsonl", folder / "started", seconds]
    command = [sys.executable, str(SLOW_RUN), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, "the run ended early"
        time.sleep(0.02)


def started(folder: Path) -> list[str]:
    path = folder / "started"
    return path.read_text().split() if path.exists() else []


def seeds_on_disk(folder: Path) -> list[int]:
    return [record.seed for record in RecordStore(folder / "records.jsonl").read()]


def test_a_killed_run_loses_only_the_trial_it_was_in(tmp_path: Path) -> None:
    process = start_slow_run(tmp_path, seconds=1.0)
    try:
        # In the middle of the third trial.
        wait_for(lambda: len(started(tmp_path)) == 3, process)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    assert seeds_on_disk(tmp_path) == [100, 101]
    before = (tmp_path / "records.jsonl").read_bytes()

    resumed = start_slow_run(tmp_path, seconds=0.0)
    output, _ = resumed.communicate()
    assert resumed.returncode == 0
    assert "known=2, finished=4" in output
    # The other process names trials as this one does.
    assert digest(DMLIV(neural(), random_state=100)) in output
    after = (tmp_path / "records.jsonl").read_bytes()
    assert after.startswith(before)
    assert seeds_on_disk(tmp_path) == list(range(100, 106))
    assert len(after.splitlines()) == 6
    # Only the trial that was killed began twice.
    runs = Counter(started(tmp_path))
    assert runs == Counter({"100": 1, "101": 1, "102": 2, "103": 1, "104": 1, "105": 1})


class BreakingWorkers(Workers):
    """Workers whose pool breaks, after the first result or before it."""

    def results(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        for item in islice(items, self.jobs - 1):
            yield function(item)
        raise BrokenProcessPool("killed")


def test_a_killed_worker_does_not_end_the_run(tiny: Grid, store: RecordStore) -> None:
    trials = plan(tiny, methods=["2sls"])
    summary = run(trials, store, workers=BreakingWorkers(2))
    assert summary == RunSummary(known=0, finished=4, failed=0, left=0)
    assert [record.digest for record in store.read()] == [trial.digest for trial in trials]


def test_workers_that_keep_dying_end_the_run(tiny: Grid, store: RecordStore) -> None:
    with pytest.raises(BackendError, match=r"3 times in a row \(killed\).*run fewer jobs at a time"):
        run(plan(tiny, methods=["2sls"]), store, workers=BreakingWorkers(1))
    assert store.read() == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"jobs": 0}, "Expected at least one job"),
        ({"backend": "threads"}, "Expected backend 'loky', 'dask' or 'ray', got 'threads'"),
        ({"address": "tcp://x"}, "got one for 'loky'"),
    ],
)
def test_bad_workers_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Workers(**settings)  # type: ignore[arg-type]


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmliv.parallel.backends.find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"pip install 'dmliv\[distributed\]'"):
        Workers(2, "ray")
