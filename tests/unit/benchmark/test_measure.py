"""A trial is measured against the truth, with what it took."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator

from dmliv.benchmark.grids import grid
from dmliv.benchmark.measure import measure
from dmliv.benchmark.tasks import BanditTask, DemandTask, RealTask
from dmliv.benchmark.trials import Cell, Grid, Method, build_trial, plan
from dmliv.data import IVData
from dmliv.problems import TicketDemand
from dmliv.problems.equations import equations
from dmliv.problems.replication import Replication, draw_replication


class Oracle(BaseEstimator):
    """Knows the truth of ticket demand; ``offset`` is added to it."""

    def __init__(self, offset: float = 0.0, failure: str | None = None) -> None:
        self.offset = offset
        self.failure = failure

    def fit(self, Y: Any, T: Any, *, Z: Any, X: Any) -> "Oracle":
        if self.failure is not None:
            raise RuntimeError(self.failure)
        return self

    def predict(self, T: Any, X: Any) -> Any:
        return TicketDemand().counterfactual(X, T) + self.offset

    def policy(self, candidates: Any) -> "OraclePolicy":
        return OraclePolicy(candidates)


class OraclePolicy:
    def __init__(self, candidates: Any) -> None:
        self.candidates = candidates

    def predict(self, X: Any) -> Any:
        return TicketDemand().optimal_action(X, self.candidates.min(), self.candidates.max())


def oracle_method(**settings: Any) -> Method:
    return Method("oracle", "Oracle", lambda: Oracle(**settings))


def test_the_truth_has_no_error_and_the_best_reward(tiny: Grid) -> None:
    record = measure(build_trial(tiny.cells[0], oracle_method(offset=0.5), 100))
    assert record.error is None
    metrics = record.metrics
    assert metrics["grid_mse"] == pytest.approx(0.25)
    assert metrics["iid_mse"] == pytest.approx(0.25)
    for distribution in ("", "shifted_"):
        for suffix in ("", "_narrow"):
            assert metrics[f"{distribution}reward{suffix}"] == pytest.approx(
                metrics[f"{distribution}optimum{suffix}"]
            )
    assert metrics["optimum_narrow"] < metrics["optimum"]


def test_optima_are_those_of_the_specification() -> None:
    task = DemandTask(TicketDemand(), n_contexts=20_000, n_fresh=10)
    data = task.sample(10, 100)
    metrics = task.evaluate(Oracle(), data, 100)
    known = {"optimum": 1.293, "optimum_narrow": 0.748, "shifted_optimum": 1.452}
    for name, value in known.items():
        assert metrics[name] == pytest.approx(value, abs=0.03)


def test_a_failure_is_recorded_with_its_reason(tiny: Grid) -> None:
    record = measure(build_trial(tiny.cells[0], oracle_method(failure="no luck"), 100))
    assert record.failed
    assert record.error == "RuntimeError: no luck"
    assert record.metrics == {}


def test_a_metric_that_is_not_finite_is_a_failure(tiny: Grid) -> None:
    record = measure(build_trial(tiny.cells[0], oracle_method(offset=float("nan")), 100))
    assert record.error is not None
    assert record.error.startswith("NotFiniteError")
    assert "grid_mse" in record.error
    assert record.metrics == {}


def test_missing_data_are_no_failure_of_the_method(tiny: Grid) -> None:
    @dataclass(frozen=True)
    class WithoutData(DemandTask):
        def sample(self, rows: int, seed: int) -> IVData:
            raise FileNotFoundError("no such file")

    with pytest.raises(FileNotFoundError):
        measure(build_trial(Cell(WithoutData(TicketDemand()), 100), oracle_method(), 100))


def test_records_say_what_a_trial_took(tiny: Grid) -> None:
    trial = plan(tiny, methods=["2sls"], sizes=[100], seeds=[100])[0]
    record = measure(trial)
    assert record.digest == trial.digest
    assert record.seconds > 0.0
    assert record.peak_memory_mb > 50.0
    assert set(record.versions) == {"dmliv", "python", "torch", "numpy", "sklearn"}
    assert set(record.machine) == {"cores", "cpu"}
    assert not hasattr(trial.estimator, "counterfactual_")


def test_the_peak_memory_is_that_of_the_trial(tiny: Grid) -> None:
    class Hungry(Oracle):
        def fit(self, Y: Any, T: Any, *, Z: Any, X: Any) -> "Hungry":
            np.ones(40_000_000).sum()
            return self

    big = measure(build_trial(tiny.cells[0], Method("h", "H", Hungry), 100))
    small = measure(build_trial(tiny.cells[0], oracle_method(), 100))
    if small.peak_memory_of == "trial":
        assert big.peak_memory_mb > small.peak_memory_mb + 200.0


def test_the_same_trial_gives_the_same_numbers(tiny: Grid) -> None:
    trial = plan(tiny, methods=["kiv"], sizes=[100], seeds=[100])[0]
    assert measure(trial).metrics == measure(trial).metrics


class MadeReplications:
    """Replications drawn around made-up contexts, so that no file is needed."""

    def replication(self, number: int) -> Replication:
        contexts = np.random.default_rng(0).standard_normal((200, 6))
        return draw_replication(contexts, equations("code", 5), 2023, number)


def test_real_world_errors_and_rewards_are_those_of_a_replication() -> None:
    task = RealTask(MadeReplications(), n_actions=9)  # type: ignore[arg-type]
    data = task.sample(100, 3)
    replication = MadeReplications().replication(3)
    np.testing.assert_array_equal(data.Y, replication.sample(100).Y)

    class Constant(Oracle):
        def predict(self, T: Any, X: Any) -> Any:
            return replication.counterfactual(X, T) - 1.0

        def policy(self, candidates: Any) -> Any:
            assert (len(candidates), candidates.min(), candidates.max()) == (9, -3.0, 5.0)

            class Lowest:
                def predict(self, X: Any) -> Any:
                    return np.full(len(X), candidates.min())

            return Lowest()

    metrics = task.evaluate(Constant(), data, 3)
    for part, (X, _, _) in {
        "validation": replication.validation_set(),
        "test": replication.test_set(),
    }.items():
        assert metrics[f"{part}_mse"] == pytest.approx(1.0)
        assert metrics[f"{part}_reward"] == pytest.approx(replication.counterfactual(X, -3.0).mean())
        assert metrics[f"{part}_optimum"] == pytest.approx(replication.optimal_value(X))


def test_bandits_choose_within_each_range() -> None:
    chosen = grid("offline-bandits")
    task = BanditTask(TicketDemand(), n_contexts=500)
    for name in ("lin-lcb", "random"):
        record = measure(build_trial(Cell(task, 200), chosen.method(name), 100))
        assert record.error is None
        metrics = record.metrics
        for suffix in ("", "_narrow"):
            assert metrics[f"reward{suffix}"] <= metrics[f"optimum{suffix}"]
    assert metrics["reward"] == pytest.approx(metrics["random"], abs=0.15)


def test_a_model_is_a_bandit_too() -> None:
    task = BanditTask(TicketDemand(), n_contexts=300)
    metrics = measure(build_trial(Cell(task, 100), oracle_method(), 100)).metrics
    assert metrics["reward"] == pytest.approx(metrics["optimum"])
    assert metrics["reward_narrow"] == pytest.approx(metrics["optimum_narrow"])


def test_changing_how_a_task_evaluates_makes_another_trial(tiny: Grid) -> None:
    task = tiny.cells[0].task
    assert isinstance(task, DemandTask)
    other = Cell(replace(task, n_actions=task.n_actions + 1), 100)
    digests = {build_trial(cell, oracle_method(), 100).digest for cell in (tiny.cells[0], other)}
    assert len(digests) == 2
