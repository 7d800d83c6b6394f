"""Running one trial: sample, fit, evaluate, and what it took."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, cast

from sklearn.base import clone

from dmliv.benchmark.environment import machine, one_thread, peak_memory_mb, reset_peak_memory, versions
from dmliv.benchmark.store import Record
from dmliv.benchmark.trials import Trial
from dmliv.errors import DMLIVError


class NotFiniteError(DMLIVError, ArithmeticError):
    """A method whose error or reward is no finite number."""


def measure(trial: Trial) -> Record:
    """Run a trial on one thread and return its record; the commit is for the caller to add.

    A method that fails is a result: its error is recorded. Data that cannot be had are none: that error is
    raised.
    """
    keys: dict[str, Any] = trial.keys()
    record = Record(digest=trial.digest, **keys)
    was_reset = reset_peak_memory()
    start = time.perf_counter()
    error = None
    metrics: dict[str, float] = {}
    with one_thread():
        data = trial.task.sample(trial.rows, trial.seed)
        try:
            # A copy is fitted: a trial stays as small as it was.
            metrics = trial.task.evaluate(clone(trial.estimator), data, trial.seed)
            strange = [name for name, value in metrics.items() if not math.isfinite(value)]
            if strange:
                metrics = {}
                raise NotFiniteError(f"Expected finite metrics, got others for {', '.join(strange)}.")
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
    return replace(
        record,
        metrics=metrics,
        seconds=round(time.perf_counter() - start, 3),
        peak_memory_mb=round(peak_memory_mb(), 1),
        peak_memory_of="trial" if was_reset else "process",
        versions=versions(),
        machine=cast(dict[str, Any], machine()),
        error=error,
    )
