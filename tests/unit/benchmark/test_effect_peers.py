"""Other libraries on mean effects: trials, tables and least squares, with none of these but linearmodels."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmliv.benchmark.instrument_grids import mean_effects
from dmliv.benchmark.store import Record
from dmliv.benchmark.summary import Contents, arrange
from dmliv.problems import CardWages

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def _scripts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield


@pytest.fixture
def script() -> Any:
    return importlib.import_module("effect_peers")


@pytest.fixture
def estimators() -> Any:
    return importlib.import_module("effect_peer_estimators")


@pytest.fixture
def records(script: Any, made_up: Callable[..., list[Record]]) -> list[Record]:
    return [record for grid in script.peer_grids() for record in made_up(grid, seeds=range(40, 43))]


@pytest.fixture
def no_records() -> Contents:
    return arrange(mean_effects(), [])


def test_trials_have_the_tasks_and_seeds_of_ours(script: Any) -> None:
    ours = mean_effects()
    trials = script.plan_all(None, None)
    assert {(trial.task, trial.rows) for trial in trials} == {(cell.task, cell.rows) for cell in ours.cells}
    assert [trial.seed for trial in trials] == sorted(trial.seed for trial in trials)
    assert {trial.seed for trial in trials} == set(ours.seeds)


def test_some_methods_and_seeds_can_be_chosen(script: Any) -> None:
    trials = script.plan_all(["doubleml-iivm"], [40])
    assert [(trial.method, trial.task.name) for trial in trials] == [("doubleml-iivm", "encouragement")] * 3


def test_every_record_has_its_place(script: Any, records: list[Record]) -> None:
    contents = script.arrange_all(records)
    assert sorted(record.digest for record in contents.records) == sorted(r.digest for r in records)
    assert contents.n_stale == 0
    changed = [replace(records[0], digest="0" * 16), *records[1:]]
    assert script.arrange_all(changed).n_stale == 1


def test_a_row_has_rmse_bias_and_spread(script: Any, records: list[Record]) -> None:
    wrong = (0.3, -0.1, 0.4)
    key = (records[0].method, records[0].parameters)
    same = [record for record in records if (record.method, record.parameters) == key]
    some = [
        replace(record, metrics={"ate_error": error, "effect_rmse": abs(error)}, seconds=2.0)
        for record, error in zip(same, wrong, strict=True)
    ]
    rmse, line = script.row(script.arrange_all(some).groups[0], "a method")
    assert rmse == pytest.approx(np.sqrt(np.mean(np.square(wrong))))
    assert line == (
        f"| a method | 3 | {rmse:.4f} | 0.2000 ({np.std(wrong, ddof=1):.4f}) | "
        f"0.2667 ({np.std(np.abs(wrong), ddof=1):.4f}) | 2.00 |"
    )


def test_a_mean_alone_has_no_effects(script: Any, records: list[Record], no_records: Contents) -> None:
    lines = script.page(script.arrange_all(records), no_records).splitlines()
    assert all(line.split("|")[5] == " - " for line in lines if line.startswith("| DoubleML IIVM"))
    assert sum(line.startswith("| DoubleML IIVM") for line in lines) == 3


def test_failures_are_counted_and_named(script: Any, records: list[Record], no_records: Contents) -> None:
    method = records[0].method
    failing = [
        replace(r, metrics={}, error="ValueError: no\nluck") if r.method == method else r for r in records
    ]
    text = script.page(script.arrange_all(failing), no_records)
    assert text.count(", 3 of 3 failed | 0 | - | - | - | - |") == 3
    assert text.count("3 times: ValueError: no luck") == 3
    assert "## Failures" not in script.page(script.arrange_all(records), no_records)


def test_ours_stand_beside_when_there_are_records(
    script: Any, records: list[Record], no_records: Contents, made_up: Callable[..., list[Record]]
) -> None:
    peers = script.arrange_all(records)
    assert "ours: DML-IV" not in script.page(peers, no_records)
    ours = arrange(mean_effects(), made_up(mean_effects(), seeds=range(40, 42)))
    assert script.page(peers, ours).count("| ours: DML-IV |") == len(mean_effects().cells)


@pytest.mark.parametrize("interactions", [False, True])
def test_least_squares_by_hand(estimators: Any, interactions: bool) -> None:
    data = CardWages(3.0).sample(500, seed=100)
    peer = estimators.LinearModelsPeer("linearmodels.iv.IV2SLS", interactions=interactions)
    peer.fit(data.Y, data.T, Z=data.Z, X=data.X)
    controls = np.column_stack([np.ones(500), data.X])
    excluded = data.Z * controls if interactions else data.Z
    instruments = np.column_stack([controls, excluded])
    fitted = instruments @ np.linalg.lstsq(instruments, data.T, rcond=None)[0]
    slope = np.linalg.lstsq(np.column_stack([controls, fitted]), data.Y, rcond=None)[0][-1]
    actions = np.array([0.0, 1.0, 12.0])
    np.testing.assert_allclose(peer.predict(actions, data.X[:3]), slope * actions, rtol=1e-6)
    assert not peer.predict(np.zeros(3), data.X[:3]).any()


def test_with_one_instrument_liml_is_least_squares(estimators: Any) -> None:
    data = CardWages(1.0).sample(500, seed=100)
    slopes = []
    for name in ("IV2SLS", "IVLIML"):
        peer = estimators.LinearModelsPeer(f"linearmodels.iv.{name}")
        slopes.append(peer.fit(data.Y, data.T, Z=data.Z, X=data.X).coefficient_)
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-6)
