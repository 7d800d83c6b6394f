"""Intervals hold the truth about as often as they say; long version: benchmarks/interval_coverage.py."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from dmliv import DMLIV
from dmliv.inference import Debiased
from dmliv.learners import Learners
from dmliv.problems.suite import SUITE

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "docs" / "results" / "simulations" / "coverage.jsonl"


def test_a_line_through_a_curve_is_corrected() -> None:
    problem, n_sets = SUITE["saturating-dose"], 20
    held = naive = 0
    for seed in range(300, 300 + n_sets):
        data = problem.sample(400, seed=seed)
        actions = np.asarray(data.T).ravel()
        learners = Learners(LinearRegression(), LinearRegression(), LinearRegression())
        est = DMLIV(learners, n_folds=4, pilot=None, random_state=seed)
        est.fit(data.Y, data.T, Z=data.Z, X=data.X, inference=Debiased(n_landmarks=60))
        moved = actions + 0.5
        true = np.mean(problem.counterfactual(data.X, moved) - problem.counterfactual(data.X, actions))
        lower, upper = est.shift_effect_interval(actions, data.X, delta=0.5)
        held += lower <= true <= upper
        plain = est.effect(data.X, T0=actions, T1=moved)
        naive += abs(plain.mean() - true) <= 1.96 * plain.std(ddof=1) / np.sqrt(len(plain))
    # With 95 % coverage fewer than 16 of 20 have a chance of 3 in 1000.
    assert held >= 16
    assert naive <= 4


@pytest.fixture(scope="module")
def script() -> Any:
    return runpy.run_path(str(ROOT / "benchmarks" / "interval_coverage.py"))


def test_the_page_is_that_of_its_records(script: Any) -> None:
    page = (ROOT / "docs" / "results" / "coverage.md").read_text()
    assert page.split(script["BEGIN"])[1].split(script["END"])[0].strip() == script["table"](
        script["read"](RECORDS)
    )


def test_no_data_set_counts_twice() -> None:
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    assert len({(each["case"], each["seed"]) for each in records}) == len(records)
