"""Running the missing trials of a grid: a short loop that appends every result as it comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace

from dmliv.benchmark.environment import commit
from dmliv.benchmark.measure import measure
from dmliv.benchmark.store import Record, RecordStore
from dmliv.benchmark.trials import Trial
from dmliv.parallel.backends import BackendError, Workers

# How often in a row workers may die before any of them finishes a trial.
_MOST_DEATHS = 2


class Observer:
    """Hears how far a run has come; this one does nothing about it."""

    def started(self, pending: Sequence[Trial], known: Sequence[Record]) -> None:
        """Hear what is left to run, and what was known before."""

    def finished(self, record: Record) -> None:
        """Hear of a trial whose record is on the disk."""


@dataclass(frozen=True)
class RunSummary:
    """What a run did.

    Attributes
    ----------
    known : int
        Trials that had records before.
    finished, failed : int
        Trials that ran now, and how many of these failed.
    left : int
        Trials that the budget left undone.
    """

    known: int
    finished: int
    failed: int
    left: int


def missing(trials: Iterable[Trial], records: Iterable[Record], *, retry_failed: bool) -> list[Trial]:
    """Return the trials that have no record yet, or a failed one that is to be tried again."""
    done = {record.digest for record in records if not (retry_failed and record.failed)}
    return [trial for trial in trials if trial.digest not in done]


def run(
    trials: Sequence[Trial],
    store: RecordStore,
    *,
    workers: Workers | None = None,
    budget_seconds: float | None = None,
    retry_failed: bool = False,
    observer: Observer | None = None,
    run_trial: Callable[[Trial], Record] = measure,
) -> RunSummary:
    """Run the trials that are missing from the store.

    Parameters
    ----------
    trials : sequence of Trial
    store : RecordStore
        Every record is on the disk before the next result is looked at: stop the run at any time.
    workers : Workers, optional
        Default: this process, one trial after the other.
    budget_seconds : float, optional
        Start no trial after this time; those that run are finished.
    retry_failed : bool
        Also run trials whose record is a failure.
    observer : Observer, optional
        Hears of every finished trial.
    run_trial : callable
        What a worker does with a trial.

    Raises
    ------
    BackendError
        If workers keep dying.
    """
    workers = workers or Workers()
    observer = observer or Observer()
    known = store.read()
    pending = missing(trials, known, retry_failed=retry_failed)
    observer.started(pending, known)
    where = commit()
    end = None if budget_seconds is None else time.monotonic() + budget_seconds
    left = {trial.digest: trial for trial in pending}
    failed = 0
    deaths = 0
    while left:
        try:
            for record in workers.results(run_trial, _before(end, list(left.values()))):
                store.append(replace(record, commit=where))
                del left[record.digest]
                failed += record.failed
                deaths = 0
                observer.finished(record)
            break
        except BrokenProcessPool as error:
            # A killed worker takes the pool with it. All that was finished is on the disk: start a new pool.
            deaths += 1
            if deaths > _MOST_DEATHS:
                raise BackendError(
                    f"Expected workers that live, got a pool that broke {deaths} times in a row ({error}), "
                    "most likely for want of memory; run fewer jobs at a time."
                ) from error
    done = len(pending) - len(left)
    return RunSummary(len(trials) - len(pending), done, failed, len(left))


def _before(end: float | None, trials: Iterable[Trial]) -> Iterator[Trial]:
    for trial in trials:
        if end is not None and time.monotonic() >= end:
            return
        yield trial
