"""A benchmark problem of a user's own: estimators run on it, and so do the contracts and the benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from dmliv import DMLIV, load
from dmliv.benchmark.methods import least_squares
from dmliv.benchmark.render import render
from dmliv.benchmark.runner import run
from dmliv.benchmark.store import RecordStore
from dmliv.benchmark.summary import arrange
from dmliv.benchmark.tasks import SuiteTask
from dmliv.benchmark.trials import Grid, Method, Metric, cells_of, plan
from dmliv.data import FloatArray
from dmliv.learners import kernel
from dmliv.problems import Problem, SuiteProblem


@dataclass(frozen=True)
class FishMarket(SuiteProblem):
    """Demand for fish falls with its price; storms at sea move the price."""

    name: ClassVar[str] = "fish-market"

    elasticity: float = 1.5

    def structural(self, X: FloatArray, T: FloatArray) -> FloatArray:
        """Return demand: lower at high prices, and more so early in the week."""
        return -self.elasticity * T * (1.0 + 0.3 * X[:, 0])

    def act(self, X: FloatArray, Z: FloatArray, hidden: FloatArray, rng: np.random.Generator) -> FloatArray:
        """Return the price."""
        return self.instrument_strength * Z[:, 0] + 0.5 * X[:, 0] + 0.8 * hidden


def test_estimators_learn_it_and_are_saved(tmp_path: Path) -> None:
    problem = FishMarket()
    assert isinstance(problem, Problem)
    rows = problem.sample(600, seed=100)
    est = DMLIV(kernel(), n_folds=2, random_state=0).fit(rows.Y, rows.T, Z=rows.Z, X=rows.X)
    X, T, truth = problem.test_set()
    assert np.mean((est.predict(T, X) - truth) ** 2) < 0.1 * truth.var()
    est.save(tmp_path / "model.dmliv")
    np.testing.assert_array_equal(load(tmp_path / "model.dmliv").predict(T, X), est.predict(T, X))


def test_a_grid_of_it_runs_resumes_and_is_rendered(tmp_path: Path) -> None:
    grid = Grid(
        "fish",
        "Demand for fish",
        cells_of([SuiteTask(FishMarket()), SuiteTask(FishMarket(elasticity=3.0))], [200, 300]),
        (Method("kernel", "kernel DML-IV", lambda: DMLIV(kernel(), n_folds=2)), least_squares()),
        (0,),
        (Metric("relative_mse", "relative error"),),
    )
    store = RecordStore(tmp_path / "fish.jsonl")
    trials = plan(grid)
    assert len(trials) == 2 * 2 * 2
    assert run(trials[:3], store).finished == 3
    rest = run(trials, store)
    assert (rest.known, rest.finished, rest.failed) == (3, len(trials) - 3, 0)
    assert {record.problem for record in store.read()} == {"fish-market"}
    contents = arrange(grid, store.read())
    page = next(path for path in render(contents, tmp_path / "pages") if path.suffix == ".md")
    text = page.read_text(encoding="utf-8")
    assert "Demand for fish" in text
    assert "kernel DML-IV" in text


def test_its_truth_is_the_mean_outcome_under_an_intervention() -> None:
    problem = FishMarket()
    X, outcome = problem.sample_intervention(20_000, 1.3, seed=100)
    assert np.mean(outcome - problem.counterfactual(X, 1.3)) == pytest.approx(0.0, abs=0.03)


def test_its_parameters_are_checked() -> None:
    with pytest.raises(ValueError, match="confounding"):
        FishMarket(confounding=2.0)
