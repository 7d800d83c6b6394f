"""Small grids and made-up records for the tests of the benchmark."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dmliv.benchmark.grids import grid
from dmliv.benchmark.store import Record
from dmliv.benchmark.trials import Cell, Grid, Trial, build_trial


@pytest.fixture
def tiny() -> Grid:
    """Ticket demand with 100 and 150 rows, two methods that take no time, two seeds."""
    demand = grid("demand")
    task = replace(demand.tasks[0], n_contexts=20, n_actions=5, n_fresh=50)
    methods = (demand.method("2sls"), demand.method("kiv"))
    return replace(demand, cells=(Cell(task, 100), Cell(task, 150)), methods=methods, seeds=(100, 101))


@pytest.fixture
def made_up() -> Callable[..., list[Record]]:
    """Return a function that makes records of all metrics of a grid without running anything."""

    def make(chosen: Grid, *, seeds: range = range(100, 112), spread: float = 0.3) -> list[Record]:
        generator = np.random.default_rng(0)
        records = []
        for cell in chosen.cells:
            for position, method in enumerate(chosen.methods):
                for seed in seeds:
                    if method.archived:
                        trial = Trial(cell.task, cell.rows, method.name, method.name, seed)
                    else:
                        trial = build_trial(cell, method, seed)
                    level = (1.0 + position) / np.sqrt(cell.rows)
                    metrics = {}
                    for metric in chosen.metrics:
                        metrics[metric.name] = float(level * np.exp(spread * generator.standard_normal()))
                        if metric.reference is not None:
                            metrics[metric.reference] = 1.0
                    keys = trial.keys()
                    records.append(
                        Record(
                            digest=trial.digest,
                            **keys,
                            metrics=metrics,
                            seconds=36.0,
                            versions={"dmliv": "0.1.0"},
                            machine={"cores": 2, "cpu": "a processor"},
                            commit="0123456789ab",
                        )
                    )
        return records

    return make
