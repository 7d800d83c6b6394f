"""From records to numbers: which records belong to a grid's cells and methods, and their statistics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from dmliv.benchmark.describe import canonical
from dmliv.benchmark.published import PUBLISHED, Published
from dmliv.benchmark.store import Record
from dmliv.benchmark.trials import Cell, Grid, Method, Metric, build_trial
from dmliv.data import FloatArray

# With fewer values quartiles say less than the extremes.
_FEWEST_FOR_QUARTILES: Final = 10


@dataclass(frozen=True)
class Group:
    """All records of a method in a cell.

    Attributes
    ----------
    cell : Cell
    method : Method
    records : tuple of Record
        Sorted by seed, failures included.
    """

    cell: Cell
    method: Method
    records: tuple[Record, ...]

    @property
    def failures(self) -> tuple[Record, ...]:
        """The trials that failed."""
        return tuple(record for record in self.records if record.failed)

    def values(self, metric: str) -> FloatArray:
        """Return the metric of every trial that did not fail, shape (n,)."""
        return np.array([r.metrics[metric] for r in self.records if metric in r.metrics], dtype=np.float64)


@dataclass(frozen=True)
class Contents:
    """The records of a grid in their places.

    Attributes
    ----------
    grid : Grid
    groups : tuple of Group
        In the order of cells and methods; none is empty.
    n_stale : int
        Records left out because the grid's settings have changed since.
    """

    grid: Grid
    groups: tuple[Group, ...]
    n_stale: int

    @property
    def records(self) -> list[Record]:
        """All records that are shown."""
        return [record for group in self.groups for record in group.records]


@dataclass(frozen=True)
class Statistics:
    """Statistics of a metric in a group, with the published number if there is one.

    Attributes
    ----------
    group : Group
    n : int
        Trials that did not fail.
    median, low, high, mean, sd : float
        ``low`` and ``high`` are quartiles or extremes, see ``has_quartiles``; the standard deviation of one
        value is 0.
    has_quartiles : bool
    published : Published or None
    """

    group: Group
    n: int
    median: float
    low: float
    high: float
    mean: float
    sd: float
    has_quartiles: bool
    published: Published | None

    @property
    def root_mean_square(self) -> float:
        """Root of the mean square: of signed errors the root mean squared error."""
        return float(np.sqrt(self.mean**2 + self.sd**2 * (self.n - 1) / self.n)) if self.n else float("nan")

    @property
    def ours(self) -> float:
        """The statistic of ours that compares with the published one: the median if there is none."""
        is_mean = self.published is not None and self.published.statistic == "mean"
        return self.mean if is_mean else self.median

    @property
    def ratio(self) -> float | None:
        """Ours over the published number; None where that says nothing."""
        # Some published rewards are below zero: a ratio of such numbers would not say which is better.
        if self.published is None or self.n == 0 or self.published.value <= 0.0:
            return None
        return self.ours / self.published.value


def arrange(grid: Grid, records: Sequence[Record], *, include_stale: bool = False) -> Contents:
    """Put records into the grid's cells and methods.

    Records of an archived method are taken by problem, rows and name, whatever their settings were.

    Parameters
    ----------
    grid : Grid
    records : sequence of Record
    include_stale : bool
        Also take records of the right problem and method whose settings are no longer those of the grid.
    """
    tasks = {(task.name, canonical(task.problem)): task for task in grid.tasks}
    methods = {method.name: method for method in grid.methods}
    found: dict[tuple[Cell, Method], list[Record]] = defaultdict(list)
    n_stale = 0
    for record in records:
        task = tasks.get((record.problem, canonical(record.parameters)))
        method = methods.get(record.method)
        if task is None or method is None:
            n_stale += 1
            continue
        cell = Cell(task, record.rows)
        # What made the records of an archived method can no longer be described.
        known = include_stale or method.archived
        if not known and build_trial(cell, method, record.seed).digest != record.digest:
            n_stale += 1
            continue
        found[cell, method].append(record)
    cells = sorted({cell for cell, _ in found}, key=lambda c: (grid.tasks.index(c.task), c.rows))
    groups = tuple(
        Group(*place, tuple(sorted(found[place], key=lambda record: record.seed)))
        for place in product(cells, grid.methods)
        if place in found
    )
    return Contents(grid, groups, n_stale)


def statistics(contents: Contents, metric: Metric) -> list[Statistics]:
    """Return the statistics of a metric for every group, groups in which every trial failed included.

    Tasks of a grid may have different metrics: cells whose trials have other metrics than this are left out.
    """
    evaluated = {group.cell for group in contents.groups if any(r.metrics for r in group.records)}
    measured = {group.cell for group in contents.groups if len(group.values(metric.name))}
    groups = [group for group in contents.groups if group.cell not in evaluated - measured]
    counts = [len(group.values(metric.name)) for group in groups]
    has_quartiles = min((n for n in counts if n), default=0) >= _FEWEST_FOR_QUARTILES
    return [_of_group(contents.grid.name, group, metric, has_quartiles) for group in groups]


def relative_times(contents: Contents) -> list[tuple[Group, FloatArray]]:
    """Return the seconds of every group over those of the method it is timed against, seed by seed.

    Failures have no time, and neither have seeds that only one of both methods was run with.
    """
    seconds = {
        (group.cell, group.method.name): {r.seed: r.seconds for r in group.records if not r.failed}
        for group in contents.groups
    }
    found = []
    for group in contents.groups:
        own = seconds[group.cell, group.method.name]
        other = seconds.get((group.cell, str(contents.grid.timed_against)), {})
        ratios = [own[seed] / other[seed] for seed in own if other.get(seed, 0.0) > 0.0]
        found.append((group, np.array(ratios, dtype=np.float64)))
    return found


def fitted_rate(rows: Sequence[float], errors: Sequence[float]) -> float | None:
    """Return the slope of log error against log rows, or None for fewer than two sizes."""
    if len(set(rows)) < 2:
        return None
    return float(np.polyfit(np.log(rows), np.log(errors), 1)[0])


def cell_label(grid: Grid, cell: Cell) -> str:
    """Return what sets a cell apart within its grid."""
    rows = f"{cell.rows} rows"
    return f"{cell.task.label}, {rows}" if len(grid.tasks) > 1 else rows


def _of_group(grid: str, group: Group, metric: Metric, has_quartiles: bool) -> Statistics:
    values = group.values(metric.name)
    published = None
    if group.method.published is not None:
        key = (grid, group.cell.task.label, group.cell.rows, group.method.published, metric.name)
        published = PUBLISHED.get(key)
    if not len(values):
        nothing = float("nan")
        return Statistics(group, 0, nothing, nothing, nothing, nothing, nothing, has_quartiles, published)
    low, high = np.quantile(values, (0.25, 0.75) if has_quartiles else (0.0, 1.0)).tolist()
    sd = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    median, mean = float(np.median(values)), float(values.mean())
    return Statistics(group, len(values), median, low, high, mean, sd, has_quartiles, published)
