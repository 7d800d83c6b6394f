"""A run of slow trials, as a program that tests can kill: ``slow_run.py RECORDS STARTED SECONDS``.

Every trial leaves its seed in the file STARTED when it begins.
"""

import sys
import time
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator

from dmliv import DMLIV
from dmliv.benchmark.describe import digest
from dmliv.benchmark.runner import run
from dmliv.benchmark.store import RecordStore
from dmliv.benchmark.tasks import DemandTask
from dmliv.benchmark.trials import Cell, Method, build_trial
from dmliv.learners import neural
from dmliv.problems import TicketDemand


class Slow(BaseEstimator):
    """Sleeps, and knows nothing. Where it writes and how long it sleeps are no part of the trial."""

    started = Path()
    seconds = 0.0

    def __init__(self, random_state: int | None = None) -> None:
        self.random_state = random_state

    def fit(self, Y: Any, T: Any, *, Z: Any, X: Any) -> "Slow":
        with self.started.open("a") as file:
            file.write(f"{self.random_state}\n")
        time.sleep(self.seconds)
        return self

    def predict(self, T: Any, X: Any) -> Any:
        return 0.0 * T

    def policy(self, candidates: Any) -> "Slow":
        return self


class Task(DemandTask):
    def evaluate(self, estimator: Any, data: Any, seed: int) -> dict[str, float]:
        estimator.fit(data.Y, data.T, Z=data.Z, X=data.X)
        return {"grid_mse": float(data.Y.sum())}


if __name__ == "__main__":
    Slow.started, Slow.seconds = Path(sys.argv[2]), float(sys.argv[3])
    cell = Cell(Task(TicketDemand()), 50)
    trials = [build_trial(cell, Method("slow", "Slow", Slow), seed) for seed in range(100, 106)]
    print(digest(DMLIV(neural(), random_state=100)))
    print(run(trials, RecordStore(Path(sys.argv[1]))))
