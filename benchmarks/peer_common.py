"""What both comparisons with other libraries need: learners, columns, and how missing fits are run.

Nothing here imports the other libraries, so that pages can be written where they are not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from dmliv.benchmark.live import LiveTable
from dmliv.benchmark.measure import measure
from dmliv.benchmark.runner import missing, run
from dmliv.benchmark.store import Record, RecordStore
from dmliv.benchmark.trials import Method, Task, Trial
from dmliv.data import FloatArray

BOOSTED = "boosted means (60 rounds, 8 leaves, rate 0.1)"
WARM_UP_ROWS = 300


@dataclass(frozen=True)
class Contender(Method):
    """A method, and its settings in words."""

    settings: str = ""


# ------------------------------------------------------------------------------------------------- learners


def nuisance() -> Any:
    """Return the boosting all conditional means are fitted with; larger ones did worse."""
    return HistGradientBoostingRegressor(
        max_iter=60, learning_rate=0.1, max_leaf_nodes=8, min_samples_leaf=20
    )


def chance() -> Any:
    """Return the same boosting for means of columns of 0 and 1."""
    return HistGradientBoostingClassifier(
        max_iter=60, learning_rate=0.1, max_leaf_nodes=8, min_samples_leaf=20
    )


def cautious() -> Any:
    """Return boosting for effects, which are much noisier than means."""
    return HistGradientBoostingRegressor(
        max_iter=30, learning_rate=0.1, max_leaf_nodes=4, min_samples_leaf=50
    )


# -------------------------------------------------------------------------------------------------- columns


def with_ones(columns: FloatArray) -> FloatArray:
    """Return the columns behind a column of ones."""
    return np.column_stack([np.ones(len(columns)), columns])


def products(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return all products of a column of the first (n, p) and one of the second (n, q), shape (n, p q)."""
    return (first[:, :, None] * second[:, None, :]).reshape(len(first), -1)


# ----------------------------------------------------------------------------------------------------- runs


def measure_with(packages: Sequence[str], trial: Trial) -> Record:
    """Run a trial; its record also names the versions of these packages."""
    record = measure(trial)
    return replace(record, versions={**record.versions, **{name: version(name) for name in packages}})


def warm_up(trials: Sequence[Trial], task: Task | None = None) -> None:
    """Fit every method once on few rows: the first fit of a process also pays for imports.

    Parameters
    ----------
    trials : sequence of Trial
    task : Task, optional
        What to fit; default: the task of each method's last trial.
    """
    last = {trial.method: trial for trial in trials}
    for trial in track(list(last.values()), description="warm-up"):
        measure(replace(trial, task=task or trial.task, rows=WARM_UP_ROWS))


def run_missing(
    trials: Sequence[Trial], store: RecordStore, packages: Sequence[str], task: Task | None = None
) -> None:
    """Run the trials that have no record, one after the other, and show how far they are."""
    warm_up(missing(trials, store.read(), retry_failed=False), task)
    with LiveTable(Console(stderr=True), jobs=1) as live:
        run(trials, store, observer=live, run_trial=partial(measure_with, packages))
