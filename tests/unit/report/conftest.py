"""A small table with a known truth, and models of it that take no time to fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dmliv import DMLIV, TwoStageLeastSquares
from dmliv.learners import neural


@dataclass(frozen=True)
class Sample:
    """Rows by role."""

    Y: Any
    T: pd.DataFrame
    Z: pd.DataFrame
    X: pd.DataFrame


@pytest.fixture(scope="session")
def sample() -> Sample:
    rng = np.random.default_rng(100)
    n = 300
    time, fuel, hidden = rng.uniform(0, 10, n), rng.standard_normal(n), rng.standard_normal(n)
    kind = rng.choice(["business", "family", "student"], n)
    price = 20.0 + 3.0 * fuel + 2.0 * hidden
    best = np.select([kind == "family", kind == "business"], [17.0, 25.0], 21.0) + np.sin(time)
    profit = 100.0 - 0.3 * (price - best) ** 2 + 4.0 * hidden
    return Sample(
        profit,
        pd.DataFrame({"price": price}),
        pd.DataFrame({"fuel": fuel}),
        pd.DataFrame({"time": time, "kind": kind, "seats": rng.integers(1, 6, n)}),
    )


@pytest.fixture(scope="session")
def straight(sample: Sample) -> TwoStageLeastSquares:
    """A model in which everything is a straight line."""
    return TwoStageLeastSquares().fit(sample.Y, sample.T, Z=sample.Z, X=sample.X)


@pytest.fixture(scope="session")
def curved(sample: Sample) -> DMLIV:
    """Networks."""
    estimator = DMLIV(neural(effort="fast"), n_folds=2, random_state=0)
    return estimator.fit(sample.Y, sample.T, Z=sample.Z, X=sample.X)


@pytest.fixture(scope="session")
def banded(sample: Sample) -> DMLIV:
    """Networks with intervals."""
    estimator = DMLIV(neural(effort="fast"), n_folds=2, random_state=0)
    return estimator.fit(sample.Y, sample.T, Z=sample.Z, X=sample.X, inference="debiased")
