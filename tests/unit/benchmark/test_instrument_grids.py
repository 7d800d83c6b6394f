"""The grids about ordinary instruments, control functions that are wrong, and mean effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dmliv import TwoStageLeastSquares
from dmliv.benchmark.charts import draw
from dmliv.benchmark.grids import grid
from dmliv.benchmark.measure import measure
from dmliv.benchmark.store import Record
from dmliv.benchmark.summary import arrange, cell_label, statistics
from dmliv.benchmark.tables import markdown, table_cells
from dmliv.benchmark.tasks import (
    EffectTask,
    OrdinaryTask,
    card_tasks,
    encouragement_tasks,
    ordinary_tasks,
    violation_tasks,
)
from dmliv.benchmark.trials import Cell, Grid, build_trial
from dmliv.problems import (
    ORDINARY_REPORTED_ONLY,
    ORDINARY_SHARES,
    ORDINARY_TUNED_ON,
    VIOLATIONS,
    CardWages,
    Encouragement,
    instrument_share,
)

NAMES = ("ordinary", "assumption", "mean-effects")
EFFECT_TASKS = (*card_tasks(), *encouragement_tasks())
MakeRecords = Callable[..., list[Record]]


# --------------------------------------------------------------------------------------------- the grids


def test_ordinary_has_every_problem_share_and_size() -> None:
    chosen = grid("ordinary")
    found = {(cell.task.problem.name, cell.task.share, cell.rows) for cell in chosen.cells}  # type: ignore[attr-defined]
    problems = (*ORDINARY_TUNED_ON, *ORDINARY_REPORTED_ONLY)
    assert found == {(p.name, s, n) for p in problems for s in ORDINARY_SHARES for n in (1000, 5000)}
    assert len(chosen.cells) == len(found) == 48
    assert chosen.seeds == tuple(range(40, 45))
    assert [metric.name for metric in chosen.metrics] == ["relative_mse", "reward"]
    labels = [cell_label(chosen, cell) for cell in chosen.cells]
    assert labels[0] == "saturating-dose, 1 %, 1000 rows"
    assert len(set(labels)) == 48
    tuned, reported = (
        chosen.remark.split("Settings may be chosen on ")[1].split("chose nothing")[0].split(";")
    )
    assert all(problem.name in tuned for problem in ORDINARY_TUNED_ON)
    assert all(problem.name in reported for problem in ORDINARY_REPORTED_ONLY)


@pytest.mark.parametrize("task", ordinary_tasks()[::5], ids=lambda task: task.label)
def test_labels_tell_the_share(task: OrdinaryTask) -> None:
    assert f"{100 * instrument_share(task.problem):.0f} %" in task.label


def test_assumption_has_every_violation() -> None:
    chosen = grid("assumption")
    assert [cell.task.name for cell in chosen.cells] == list(VIOLATIONS)
    assert {cell.rows for cell in chosen.cells} == {2000}
    assert chosen.seeds == tuple(range(40, 45))
    for problem in VIOLATIONS.values():
        assert f"{problem.name} {100 * instrument_share(problem):.0f} %" in chosen.remark


def test_mean_effects_has_three_strengths_and_three_shapes() -> None:
    chosen = grid("mean-effects")
    assert [(cell.task.problem, cell.rows) for cell in chosen.cells] == [
        *((CardWages(strength), 3010) for strength in (0.35, 1.0, 3.0)),
        *((Encouragement(shape), 2000) for shape in ("constant", "linear", "curved")),  # type: ignore[arg-type]
    ]
    assert chosen.seeds == tuple(range(40, 80))
    assert [(m.name, m.better) for m in chosen.metrics] == [("ate_error", "zero"), ("effect_rmse", "lower")]


@pytest.mark.parametrize("name", NAMES)
def test_methods(name: str) -> None:
    chosen = grid(name)
    assert [method.name for method in chosen.methods] == [
        "dml-iv",
        "dml-iv-no-pilot",
        "ce-dml-iv",
        "kiv",
        "deepgmm",
        "2sls",
        "2sls-interactions",
        "regression",
        "oracle",
    ]
    flexible = chosen.method("2sls-interactions").build()
    assert isinstance(flexible, TwoStageLeastSquares)
    # A binary instrument, as in the problems of mean effects, identifies no square.
    assert (flexible.degree, flexible.interactions) == (1 if name == "mean-effects" else 2, True)
    archived = [method.name for method in chosen.methods if method.archived]
    assert archived == ["dml-iv-no-pilot", "regression", "oracle"]
    for method in ("dml-iv", "ce-dml-iv"):
        assert chosen.method(method).build().pilot is not None


# ----------------------------------------------------------------------------------------------- the tasks


@pytest.mark.parametrize("method", ["2sls", "2sls-interactions"])
@pytest.mark.parametrize("name", NAMES)
def test_every_problem_can_be_evaluated(name: str, method: str) -> None:
    chosen = grid(name)
    for task in chosen.tasks[:: 4 if name == "ordinary" else 1]:
        cell = Cell(replace(task, n_contexts=50), 600)  # type: ignore[type-var]
        record = measure(build_trial(cell, chosen.method(method), 100))
        assert record.error is None
        assert {metric.name for metric in chosen.metrics} <= record.metrics.keys()


class Shifted:
    """An estimator that needs no data, and is wrong by a known effect in two groups."""

    def __init__(self, problem: Any, low: float, high: float) -> None:
        self.problem, self.low, self.high = problem, low, high

    def fit(self, *_: Any, **__: Any) -> None:
        """Learn nothing."""

    def predict(self, T: Any, X: Any = None) -> np.ndarray:
        half = np.arange(len(X)) % 2 == 0
        return self.problem.counterfactual(X, T) + np.where(half, self.low, self.high) * T


@pytest.mark.parametrize("task", EFFECT_TASKS, ids=lambda task: task.label)
def test_errors_of_effects_are_signed_and_per_unit(task: EffectTask) -> None:
    task = replace(task, n_contexts=100)
    data = task.sample(50, 100)
    truth = task.evaluate(Shifted(task.problem, 0.0, 0.0), data, 100)
    assert truth == pytest.approx({"ate_error": 0.0, "effect_mse": 0.0, "effect_rmse": 0.0}, abs=1e-7)
    wrong = task.evaluate(Shifted(task.problem, 0.1, -0.3), data, 100)
    assert wrong == pytest.approx({"ate_error": -0.1, "effect_mse": 0.05, "effect_rmse": np.sqrt(0.05)})


def test_tasks_have_names_of_their_own() -> None:
    for tasks in (ordinary_tasks(), violation_tasks(), EFFECT_TASKS):
        assert len({task.label for task in tasks}) == len(tasks)
        trials = [build_trial(Cell(task, 100), grid("suite").method("2sls"), 40) for task in tasks]
        assert len({trial.digest for trial in trials}) == len(tasks)


# ------------------------------------------------------------------------------------------------ the tables


@pytest.fixture
def signed(made_up: MakeRecords) -> tuple[Grid, list[Record]]:
    """Records of one cell and two methods whose errors have either sign."""
    chosen = grid("mean-effects")
    few = replace(chosen, cells=chosen.cells[:1], methods=(chosen.method("2sls"), chosen.method("kiv")))
    records = []
    for record in made_up(few):
        sign = -1.0 if record.seed % 3 else 1.0
        records.append(
            replace(record, metrics={**record.metrics, "ate_error": sign * record.metrics["ate_error"]})
        )
    return few, records


def test_signed_errors_have_a_root_mean_square_and_a_bias(signed: tuple[Grid, list[Record]]) -> None:
    few, records = signed
    contents = arrange(few, records)
    header, rows = table_cells(contents, few.metrics[0])
    assert header[4:6] == ["root mean squared error", "bias (sd)"]
    for line, row in zip(rows, statistics(contents, few.metrics[0]), strict=True):
        values = row.group.values("ate_error")
        assert values.min() < 0.0 < values.max()
        assert row.root_mean_square == pytest.approx(np.sqrt(np.mean(values**2)))
        assert line[4] == f"{np.sqrt(np.mean(values**2)):.4f}"
        assert line[5] == f"{values.mean():.4f} ({values.std(ddof=1):.4f})"
    page = markdown(contents)
    assert page.count("root mean squared error") == 1
    assert page.count("median (quartiles)") == 1


def test_signed_errors_stand_on_both_sides_of_zero(signed: tuple[Grid, list[Record]]) -> None:
    few, records = signed
    figure = draw(arrange(few, records), few.metrics[0])
    axis = figure.axes[0]
    assert axis.get_xscale() == "linear"
    low, high = axis.get_xlim()
    assert low < 0.0 < high
    assert any(list(line.get_xdata()) == [0.0, 0.0] for line in axis.lines)


def test_methods_that_always_fail_have_no_root_mean_square(signed: tuple[Grid, list[Record]]) -> None:
    few, records = signed
    broken = [replace(r, metrics={}, error="diverged") if r.method == "kiv" else r for r in records]
    _, rows = table_cells(arrange(few, broken), few.metrics[0])
    assert rows[1][2:6] == ["0", "12 of 12 failed", "-", "-"]
