"""The grids hold the paper's evaluation, with the published numbers in their places."""

from dataclasses import replace

import numpy as np
import pytest

from dmliv.benchmark.grids import GRID_NAMES, grid
from dmliv.benchmark.published import PUBLISHED
from dmliv.benchmark.trials import Cell, Grid, plan
from dmliv.errors import InputError


@pytest.mark.parametrize("name", GRID_NAMES)
def test_every_grid_can_be_planned(name: str) -> None:
    chosen = grid(name)
    runnable = [method for method in chosen.methods if not method.archived]
    if not runnable:
        assert name in ("ablation", "effort", "parts")
        return
    trials = plan(chosen, seeds=[100])
    assert len(trials) == len(chosen.cells) * len(runnable)
    assert len({trial.digest for trial in trials}) == len(trials)


def test_a_plan_goes_seed_by_seed_and_takes_choices(tiny: Grid) -> None:
    trials = plan(tiny, methods=["kiv"], sizes=[50, 60], seeds=[7, 8])
    assert [(t.seed, t.rows, t.method) for t in trials] == [
        (7, 50, "kiv"),
        (7, 60, "kiv"),
        (8, 50, "kiv"),
        (8, 60, "kiv"),
    ]


def test_samples_depend_on_problem_rows_and_seed_only(tiny: Grid) -> None:
    trials = plan(tiny, sizes=[50], seeds=[100])
    first, second = (trial.task.sample(trial.rows, trial.seed) for trial in trials)
    assert trials[0].method != trials[1].method
    np.testing.assert_array_equal(first.Y, second.Y)
    other = tiny.cells[0].task.sample(50, 101)
    assert not np.array_equal(first.Y, other.Y)


def test_unknown_methods_and_grids_list_what_there_is(tiny: Grid) -> None:
    with pytest.raises(InputError, match="got 'dmliv'; there are '2sls', 'kiv'"):
        plan(tiny, methods=["dmliv"])
    with pytest.raises(InputError, match="did you mean 'demand'"):
        grid("demnad")


def test_the_same_size_twice_is_refused(tiny: Grid) -> None:
    with pytest.raises(InputError, match="Expected trials that differ"):
        plan(tiny, sizes=[50, 50])


def test_every_published_number_belongs_to_a_cell_and_a_method() -> None:
    grids = {name: grid(name) for name in GRID_NAMES}
    for name, task, rows, method, metric in PUBLISHED:
        chosen = grids[name]
        assert any(cell.task.label == task and cell.rows == rows for cell in chosen.cells)
        assert any(each.published == method for each in chosen.methods), method
        assert any(each.name == metric for each in chosen.metrics)


def test_published_numbers_of_the_paper() -> None:
    assert len(PUBLISHED) == 5 * 4 * 6 + 4 * 6 + 6 * 6 + 6 * 3 + 16 * 2 + 11 * 2
    assert PUBLISHED["demand", "strength 1", 5000, "DML-IV", "grid_mse"].value == 0.062
    assert PUBLISHED["weak-instrument", "strength 0.01", 5000, "KIV", "grid_mse"].value == 1.226
    boosted = PUBLISHED["trees", "strength 1", 5000, "CE-DML-IV, gradient boosting", "grid_mse"]
    assert (boosted.value, boosted.sd, boosted.statistic) == (0.0699, 0.0069, "mean")
    words = "DML-IV, weight decay 0.005, dropout 0.05"
    assert PUBLISHED["sensitivity", "strength 1", 5000, words, "grid_mse"].value == 0.0672


def test_sensitivity_changes_what_it_says() -> None:
    chosen = grid("sensitivity")
    learners = chosen.method("dml-iv-dropout-0.2-width-256").build().learners
    assert learners.outcome.settings.hidden == (256, 128, 64)
    assert learners.action.settings.dropout == 0.2
    assert learners.structural.settings.dropout == 0.0
    assert learners.outcome.settings.learning_rate == 2e-4
    rate = grid("image-sensitivity").method("ce-dml-iv-learning-rate-0.005").build().learners
    settings = rate.structural.settings
    assert (settings.learning_rate, settings.weight_decay, settings.dropout) == (0.005, 0.05, 0.2)


def test_ablation_covers_all_combinations() -> None:
    names = {method.name for method in grid("ablation").methods}
    assert len(names) == 3 * 2 * 2 * 3
    assert {"1-orthogonal-single-standardised", "10-plug-in-unbiased-chosen"} <= names


def archive(chosen: Grid, *names: str) -> Grid:
    methods = tuple(replace(m, build=None) if m.name in names else m for m in chosen.methods)
    return replace(chosen, methods=methods)


def test_a_plan_leaves_archived_methods_out(tiny: Grid) -> None:
    assert {trial.method for trial in plan(archive(tiny, "kiv"))} == {"2sls"}


def test_archived_methods_cannot_be_run(tiny: Grid) -> None:
    with pytest.raises(InputError, match=r"got 'kiv', which is archived.*leave it out"):
        plan(archive(tiny, "kiv"), methods=["kiv"])
    with pytest.raises(InputError, match=r"all are archived.*dmliv bench render demand"):
        plan(archive(tiny, "kiv", "2sls"))


def test_tasks_with_other_rows_are_other_cells(tiny: Grid) -> None:
    task = tiny.cells[0].task
    assert tiny.tasks == (task,)
    assert Cell(task, 100) in tiny.cells
