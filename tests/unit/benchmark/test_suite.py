"""The suite as a benchmark, and its references: a regression and an oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dmliv.benchmark.grids import grid
from dmliv.benchmark.measure import measure
from dmliv.benchmark.methods import references
from dmliv.benchmark.oracle import ObservedAction, Oracle, Regression, rows_for
from dmliv.benchmark.tasks import SuiteTask, demand, suite_tasks
from dmliv.benchmark.trials import Cell, build_trial
from dmliv.data import prepare
from dmliv.first_stage.nuisances import Exogenous
from dmliv.learners import neural
from dmliv.parallel.runtime import Runtime
from dmliv.problems import SUITE, TUNED_ON, SaturatingDose, SuiteProblem, TicketDemand
from dmliv.progress import progress_for
from dmliv.second_stage.linear import LinearStructural

LINEAR = replace(neural(), action=ObservedAction(), structural=LinearStructural())
RUNTIME = Runtime(torch.device("cpu"), progress_for(False), 1)


def least_squares(data: Any, X: np.ndarray, T: np.ndarray) -> np.ndarray:
    """Least squares of outcome on context and action, at other points."""
    design = np.column_stack([np.ones(len(data.Y)), data.X, data.T])
    coefficients = np.linalg.lstsq(design, data.Y, rcond=None)[0]
    return np.column_stack([np.ones(len(X)), X, T]) @ coefficients


# ---------------------------------------------------------------------------------------------- the grid


def test_the_grid_has_all_problems_and_the_references() -> None:
    chosen = grid("suite")
    assert [cell.task.name for cell in chosen.cells] == list(SUITE)
    assert {cell.rows for cell in chosen.cells} == {2000}
    assert chosen.seeds == (10, 11, 12, 13, 14)
    names = [method.name for method in chosen.methods]
    for name in ("dml-iv", "ce-dml-iv", "deepiv", "dml-iv-kernel", "dml-iv-boosting", "dfiv", "deepgmm"):
        assert name in names
    assert names[-4:] == ["kiv", "2sls", "regression", "oracle"]
    assert all(problem.name in chosen.remark for problem in TUNED_ON)
    assert grid("demand").method("oracle").archived


def test_references_can_be_built() -> None:
    regression, oracle = (method.estimator() for method in references())
    assert type(regression) is Regression
    assert type(oracle) is Oracle


def test_trials_of_different_problems_differ() -> None:
    chosen = grid("suite")
    trials = [build_trial(cell, chosen.method("2sls"), 100) for cell in chosen.cells]
    assert len({trial.digest for trial in trials}) == len(trials)
    weaker = SuiteTask(SaturatingDose(instrument_strength=0.5))
    assert build_trial(Cell(weaker, 2000), chosen.method("2sls"), 100).digest != trials[0].digest


# -------------------------------------------------------------------------------------------------- the task


@pytest.mark.parametrize("task", suite_tasks(), ids=lambda task: task.label)
def test_every_problem_can_be_evaluated(task: SuiteTask) -> None:
    cell = Cell(replace(task, n_contexts=50), 600)
    record = measure(build_trial(cell, grid("suite").method("2sls"), 100))
    assert record.error is None
    metrics = record.metrics
    truth = task.problem.test_set()[2]
    assert metrics["relative_mse"] == pytest.approx(metrics["mse"] / truth.var())
    assert metrics["suboptimality"] == pytest.approx(metrics["optimum"] - metrics["reward"])
    assert metrics["suboptimality"] >= 0.0


class KnowsTheTruth:
    """An estimator that needs no data."""

    def __init__(self, problem: SuiteProblem) -> None:
        self.problem = problem

    def fit(self, *_: Any, **__: Any) -> None:
        """Learn nothing."""

    def predict(self, T: Any, X: Any = None) -> np.ndarray:
        return self.problem.counterfactual(X, T)

    def policy(self, candidates: np.ndarray) -> Any:
        problem = self.problem

        class Best:
            def predict(self, X: Any) -> np.ndarray:
                values = np.array([problem.counterfactual(X, action) for action in candidates])
                return candidates[values.argmax(axis=0)]

        return Best()


@pytest.mark.parametrize("task", suite_tasks(), ids=lambda task: task.label)
def test_the_truth_has_no_error(task: SuiteTask) -> None:
    metrics = replace(task, n_contexts=50).evaluate(KnowsTheTruth(task.problem), task.sample(50, 100), 100)
    assert metrics["relative_mse"] == 0.0
    assert metrics["suboptimality"] == pytest.approx(0.0, abs=1e-12)


# -------------------------------------------------------------------------------------------- the references


@pytest.mark.parametrize("name", ["saturating-dose", "price-and-promotion", "three-clinics"])
def test_the_distribution_is_the_observed_action(name: str) -> None:
    sample = SUITE[name].sample(60, seed=100)
    data = prepare(sample.Y, sample.T, Z=sample.Z, X=sample.X)
    rows = np.array([5, 3, 40])
    model = ObservedAction().fit(data, [rows], seed=0, runtime=RUNTIME)
    (distribution,) = model.distributions(Exogenous(data.context, data.instrument), [rows])
    observed = data.action_spec.vectors(data.action)[rows]
    np.testing.assert_allclose(distribution.mean().numpy(), observed, rtol=1e-6)
    everyone = torch.arange(3)
    for nodes in (
        distribution.nodes(everyone, 3),
        distribution.sample(everyone, 4, torch.Generator().manual_seed(0)),
    ):
        used = nodes.actions[nodes.weights > 0].numpy()
        expected = np.repeat(observed, len(used) // 3, axis=0)
        np.testing.assert_allclose(used, expected, rtol=1e-6)
        np.testing.assert_allclose(nodes.weights.sum(-1).numpy(), 1.0)


def test_a_linear_regression_is_least_squares() -> None:
    problem = SaturatingDose()
    data = problem.sample(400, seed=100)
    fitted = Regression(LINEAR, random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X)
    X, T, _ = problem.test_set()
    np.testing.assert_allclose(fitted.predict(T, X), least_squares(data, X, T), atol=1e-5)


@pytest.mark.parametrize("task", [SuiteTask(SaturatingDose(), n_contexts=20), demand()])
def test_the_oracle_learns_from_unconfounded_rows(task: Any) -> None:
    task = replace(task, n_contexts=20)
    data = task.sample(400, 100)
    fair = task.problem.sample_unconfounded(400, seed=100)
    assert rows_for(Regression(LINEAR), task.problem, data, 100) is data
    np.testing.assert_array_equal(rows_for(Oracle(LINEAR), task.problem, data, 100).Y, fair.Y)
    oracle, regression = Oracle(LINEAR, random_state=0), Regression(LINEAR, random_state=0)
    ours = task.evaluate(oracle, data, 100)
    task.evaluate(regression, data, 100)
    X, T, truth = task.problem.test_set()
    regression_on_fair = Regression(LINEAR, random_state=0).fit(fair.Y, fair.T, Z=fair.Z, X=fair.X)
    np.testing.assert_array_equal(oracle.predict(T, X), regression_on_fair.predict(T, X))
    error = np.mean((oracle.predict(T, X) - truth) ** 2)
    assert error == pytest.approx(ours["mse" if "mse" in ours else "grid_mse"])
    assert error < np.mean((regression.predict(T, X) - truth) ** 2)


def test_an_oracle_needs_a_problem_that_knows() -> None:
    data = TicketDemand().sample(20, seed=100)
    with pytest.raises(TypeError, match="unconfounded rows"):
        rows_for(Oracle(LINEAR), object(), data, 100)
