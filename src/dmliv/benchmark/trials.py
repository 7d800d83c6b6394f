"""Trials and grids as data: what is to be run, before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, Literal, Protocol

from dmliv.benchmark.describe import Plain, describe, digest
from dmliv.data import IVData
from dmliv.errors import InputError, listed

Metrics = dict[str, float]


class Task(Protocol):
    """A problem together with how estimators are evaluated on it; a frozen dataclass."""

    @property
    def name(self) -> str:
        """Name of the problem in records."""
        ...

    @property
    def label(self) -> str:
        """What sets this task apart from the others of its grid, for people."""
        ...

    @property
    def problem(self) -> Any:
        """The problem with its parameters."""
        ...

    def sample(self, rows: int, seed: int) -> IVData:
        """Draw the training rows; no method can influence them."""
        ...

    def evaluate(self, estimator: Any, data: IVData, seed: int) -> Metrics:
        """Fit the estimator and measure it against the truth."""
        ...

    def note(self) -> str:
        """Return how estimators are evaluated, in one sentence."""
        ...


@dataclass(frozen=True)
class Method:
    """An estimator under a name.

    Parameters
    ----------
    name : str
        Name in records and on the command line.
    label : str
        Name in tables and figures.
    build : callable or None
        Returns a new estimator with all of its settings spelled out. None for an archived method: one of an
        earlier version, whose records are still shown but cannot be made again.
    published : str or None
        The name under which the paper reports this method.
    """

    name: str
    label: str
    build: Callable[[], Any] | None
    published: str | None = None

    @property
    def archived(self) -> bool:
        """Whether there are only records of the method, and no estimator."""
        return self.build is None

    def estimator(self) -> Any:
        """Return a new estimator.

        Raises
        ------
        InputError
            If the method is archived.
        """
        if self.build is None:
            raise InputError(
                f"Expected methods that can be run, got {self.name!r}, which is archived: its records were "
                "made by an earlier version with other learners; leave it out (dmliv bench render shows its "
                "records)."
            )
        return self.build()


@dataclass(frozen=True)
class Cell:
    """A task with a number of training rows."""

    task: Task
    rows: int


def cells_of(tasks: Iterable[Task], sizes: Iterable[int]) -> tuple[Cell, ...]:
    """Return every task with every number of rows."""
    return tuple(Cell(task, rows) for task, rows in product(tasks, sizes))


@dataclass(frozen=True)
class Trial:
    """One fit: task, rows, method and seed. The sample depends on all but the method."""

    task: Task
    rows: int
    method: str
    estimator: Any
    seed: int

    @cached_property
    def digest(self) -> str:
        """The name of the trial's record: 16 hexadecimal digits of everything that decides its numbers."""
        return digest({"task": self.task, "rows": self.rows, "estimator": self.estimator, "seed": self.seed})

    def keys(self) -> dict[str, Plain]:
        """Return what identifies the trial for people."""
        return {
            "problem": self.task.name,
            "parameters": describe(self.task.problem),
            "rows": self.rows,
            "method": self.method,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Metric:
    """A number of a record that a view shows.

    Parameters
    ----------
    name : str
        Its name in records.
    label : str
        Its name in tables and figures.
    better : {"lower", "higher", "zero"}
        Which direction is better; errors ("lower") are drawn on a log scale. Signed errors ("zero") have a
        root mean square and a mean, the bias, in place of median and mean.
    reference : str or None
        A metric that shows the best there is, such as the optimum of a reward.
    """

    name: str
    label: str
    better: Literal["lower", "higher", "zero"] = "lower"
    reference: str | None = None


@dataclass(frozen=True)
class Grid:
    """A table or figure of the evaluation: cells x methods x seeds, and what is shown of them.

    Parameters
    ----------
    name, title : str
    cells : tuple of Cell
    methods : tuple of Method
    seeds : tuple of int
    metrics : tuple of Metric
        One table and one figure each.
    chart : {"boxes", "lines", "heat"}
        Box plots with one panel per cell, lines of the error against the rows with a fitted rate, or a table
        of medians in colours, for many cells.
    remark : str
        What a reader of the tables has to know.
    timed_against : str or None
        The method whose time the page shows those of the others as multiples of.
    before_pilot : bool
        Whether methods that have a pilot by default are shown without one, and none with one.
    """

    name: str
    title: str
    cells: tuple[Cell, ...]
    methods: tuple[Method, ...]
    seeds: tuple[int, ...]
    metrics: tuple[Metric, ...]
    chart: Literal["boxes", "lines", "heat"] = "boxes"
    remark: str = ""
    timed_against: str | None = None
    before_pilot: bool = False

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks of the cells, each once."""
        return tuple(dict.fromkeys(cell.task for cell in self.cells))

    def method(self, name: str) -> Method:
        """Return the method of that name."""
        for method in self.methods:
            if method.name == name:
                return method
        names = [method.name for method in self.methods]
        raise InputError(f"Expected methods of {self.name!r}, got {name!r}; there are {listed(names, 99)}.")


def plan(
    grid: Grid,
    *,
    methods: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
) -> tuple[Trial, ...]:
    """Return the trials of a grid, seed after seed, so that an unfinished run is still a paired comparison.

    By default these are all methods that are not archived; sizes, for all tasks, and seeds replace those of
    the grid.

    Raises
    ------
    InputError
        If a method is unknown or archived, or no method can be run.
    """
    if methods is not None:
        chosen = tuple(grid.method(name) for name in dict.fromkeys(methods))
    else:
        chosen = tuple(method for method in grid.methods if not method.archived)
    if not chosen:
        raise InputError(
            f"Expected methods of {grid.name!r} that can be run, got none: all are archived, their records "
            f"were made by an earlier version; show them with: dmliv bench render {grid.name}"
        )
    cells = grid.cells if sizes is None else cells_of(grid.tasks, sizes)
    trials = tuple(
        build_trial(cell, method, seed)
        for seed, cell, method in product(grid.seeds if seeds is None else seeds, cells, chosen)
    )
    _check_distinct(trials)
    return trials


def build_trial(cell: Cell, method: Method, seed: int) -> Trial:
    """Return a trial with a new estimator whose random state, if it has one, is the seed."""
    estimator = method.estimator()
    if "random_state" in estimator.get_params(deep=False):
        estimator.set_params(random_state=seed)
    return Trial(cell.task, cell.rows, method.name, estimator, seed)


def _check_distinct(trials: Iterable[Trial]) -> None:
    seen: dict[str, Trial] = {}
    for trial in trials:
        other = seen.setdefault(trial.digest, trial)
        if other is not trial:
            raise InputError(
                f"Expected trials that differ, got {other.method!r} and {trial.method!r} with the same "
                f"settings for {trial.rows} rows and seed {trial.seed}; name each size, seed and method once."
            )
