"""How far a run has come, for people: a table that renews itself, or a line per trial in a log."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dmliv.benchmark.runner import Observer
from dmliv.benchmark.store import Record
from dmliv.benchmark.trials import Trial


class DurationEstimate:
    """How long trials take, from those that are finished."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._seconds: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for record in records:
            self.learn(record)

    def learn(self, record: Record) -> None:
        """Take a finished trial into account; a failure says nothing about the time of a success."""
        if not record.failed:
            for key in ((record.problem, record.method, record.rows), (record.method,), ()):
                self._seconds[key].append(record.seconds)

    def seconds(self, trials: Iterable[Trial]) -> float | None:
        """Return the expected seconds of trials one after the other, or None before anything is known."""
        if not self._seconds:
            return None
        return float(sum(self._of(trial) for trial in trials))

    def _of(self, trial: Trial) -> float:
        # The most similar trials there are: the same cell and method, the same method, or any.
        for key in ((trial.task.name, trial.method, trial.rows), (trial.method,), ()):
            if key in self._seconds:
                return float(np.mean(self._seconds[key]))
        return 0.0


class LiveTable(Observer):
    """An observer that shows finished, failed and remaining trials per method, and the time that is left.

    Parameters
    ----------
    console : Console
        A terminal gets a table that renews itself, anything else a line per finished trial.
    jobs : int
        Trials that run at a time.
    """

    def __init__(self, console: Console, jobs: int) -> None:
        self._console = console
        self._jobs = jobs
        self._left: dict[str, Trial] = {}
        self._estimate = DurationEstimate()
        self._methods: list[str] = []
        self._finished: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def started(self, pending: Sequence[Trial], known: Sequence[Record]) -> None:
        """Show what is left to run."""
        self._left = {trial.digest: trial for trial in pending}
        self._methods = list(dict.fromkeys(trial.method for trial in pending))
        self._estimate = DurationEstimate(known)
        if self._live is None:
            self._console.print(f"{len(pending)} trials to run, {self.time_left()}")
        self._show()

    def finished(self, record: Record) -> None:
        """Count a trial."""
        self._left.pop(record.digest, None)
        self._estimate.learn(record)
        (self._failed if record.failed else self._finished)[record.method] += 1
        if self._live is None or record.failed:
            outcome = f"failed: {record.error}" if record.failed else _main_metric(record)
            self._console.print(
                f"{record.problem}, {record.rows} rows, {record.method}, seed {record.seed}: {outcome} "
                f"({record.seconds:.1f} s); {len(self._left)} left, {self.time_left()}",
                markup=False,
                soft_wrap=True,
            )
        self._show()

    def time_left(self) -> str:
        """Return the expected time of what is left, in words."""
        seconds = self._estimate.seconds(self._left.values())
        return "time unknown" if seconds is None else f"about {_duration(seconds / self._jobs)}"

    def table(self) -> Table:
        """Return the table of the moment."""
        left = Counter(trial.method for trial in self._left.values())
        table = Table(
            caption=f"{len(self._left)} trials left, {self.time_left()}; Ctrl-C stops and keeps all"
        )
        table.add_column("method")
        for column in ("finished", "failed", "left"):
            table.add_column(column, justify="right")
        for method in self._methods:
            counts = (self._finished[method], self._failed[method], left[method])
            table.add_row(method, *map(str, counts))
        return table

    def _show(self) -> None:
        if self._live is not None:
            self._live.update(self.table(), refresh=True)


def _main_metric(record: Record) -> str:
    name, value = next(iter(record.metrics.items()), ("no metrics", float("nan")))
    return f"{name} {value:.4f}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
