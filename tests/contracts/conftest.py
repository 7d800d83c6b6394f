"""Every estimator with small learners, and one small data set for every kind of input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

from dmliv import CEDMLIV, DMLIV, DeepIV
from dmliv.estimators.two_stage import TwoStageIV
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.learners import Learners
from dmliv.nets.settings import NetworkSettings
from dmliv.second_stage.linear import LinearStructural
from dmliv.second_stage.network import NeuralStructural

N_ROWS = 100

Make = Callable[..., TwoStageIV]


def tiny(**changes: Any) -> Learners:
    settings = NetworkSettings(hidden=(16,), epochs=3, batch_size=50, dropout=0.1, learning_rate=5e-3)
    settings = replace(settings, **changes)
    return Learners(
        NeuralOutcome(settings),
        NeuralAction(settings, n_components=3),
        NeuralStructural(settings, n_members=2),
    )


def linear(**changes: Any) -> Learners:
    return Learners(LinearRegression(), LinearRegression(), LinearStructural(**changes))  # type: ignore[arg-type]


@pytest.fixture
def tiny_learners() -> Learners:
    return tiny()


@pytest.fixture
def choosing_learners() -> Learners:
    """Small networks with something to choose in every role."""
    choosing = tiny(encodings=("standardised", "piecewise"))
    assert isinstance(choosing.structural, NeuralStructural)
    return replace(choosing, structural=replace(choosing.structural, variance_weight=(0.0, 1.0)))


@pytest.fixture
def linear_learners() -> Learners:
    return linear()


@pytest.fixture
def constant_learners() -> Learners:
    """Linear learners that are penalised until nothing but a constant is left."""
    return linear(ridge=1e9)


@pytest.fixture
def diverging_learners() -> Learners:
    return tiny(learning_rate=1e12)


_MAKERS: dict[str, Make] = {
    "DMLIV": lambda learners, **options: DMLIV(learners, **{"n_folds": 3, "random_state": 0} | options),
    "CEDMLIV": lambda learners, **options: CEDMLIV(learners, **{"random_state": 0} | options),
    "DeepIV": lambda learners, **options: DeepIV(learners, **{"random_state": 0} | options),
    "cross-fitted DeepIV": lambda learners, **options: DeepIV(
        learners, **{"n_folds": 3, "random_state": 0} | options
    ),
}


@pytest.fixture(params=_MAKERS.values(), ids=_MAKERS)
def make(request: pytest.FixtureRequest) -> Make:
    """Return a maker of one of the estimators, from learners and options."""
    maker: Make = request.param
    return maker


@dataclass(frozen=True)
class Case:
    """A data set, two actions to compare, candidates of a policy, and the width of the action."""

    name: str
    Y: Any
    T: Any
    Z: Any
    X: Any
    T0: Any
    T1: Any
    candidates: Any
    width: int
    discrete: bool = False

    @property
    def roles(self) -> dict[str, Any]:
        return {"Y": self.Y, "T": self.T, "Z": self.Z, "X": self.X}

    def some_X(self, n: int) -> Any:
        return None if self.X is None else self.X[:n]


def _cases() -> dict[str, Case]:
    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((N_ROWS, 2)), rng.standard_normal(N_ROWS)
    hidden = rng.standard_normal(N_ROWS)
    T = Z + 0.5 * X[:, 0] + hidden
    Y = 2.0 * T + X[:, 1] + hidden
    several = np.column_stack([Z, rng.standard_normal(N_ROWS), rng.standard_normal(N_ROWS)])
    pair = np.column_stack([T, several[:, 1] + 0.5 * hidden])
    labels = np.array(["high", "low", "none"])[np.digitize(T, [-0.7, 0.7])]
    categories = pd.DataFrame(
        {
            "kind": rng.choice(["a", "b", "c"], N_ROWS),
            "time": X[:, 0],
            "open": rng.integers(0, 2, N_ROWS) == 1,
        }
    )
    grid = np.linspace(-1.0, 1.0, 5)
    pairs = np.array([[-1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    return {
        case.name: case
        for case in (
            Case("one column", Y, T, Z, X, -0.5, 1.0, grid, 1),
            Case("one column in two dimensions", Y[:, None], T[:, None], Z[:, None], X, -0.5, 1.0, grid, 1),
            Case("two columns", Y, pair, several, X, [0.0, 1.0], [1.0, 0.0], pairs, 2),
            Case("labels", Y, labels, Z, X, "low", "high", ["high", "none"], 3, True),
            Case("zero and one", Y, (T > 0).astype(int), Z, X, 0, 1, [0, 1], 2, True),
            Case("no context", Y, T, Z, None, -0.5, 1.0, grid, 1),
            Case("no context, labels", Y, labels, Z, None, "low", "high", None, 3, True),
            Case("several instruments", Y, T, several, X, -0.5, 1.0, grid, 1),
            Case("categories", Y, T, Z, categories, -0.5, 1.0, grid, 1),
            Case(
                "frames",
                pd.Series(Y, name="y"),
                pd.Series(T, name="t"),
                pd.DataFrame({"z": Z}),
                categories,
                0,
                1,
                grid,
                1,
            ),
        )
    }


CASES = _cases()


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    """One data set after the other."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def plain() -> Case:
    """One continuous action column with numeric contexts."""
    return CASES["one column"]


@pytest.fixture
def labels() -> Case:
    """A discrete action."""
    return CASES["labels"]


@pytest.fixture
def two_columns() -> Case:
    """An action of two columns."""
    return CASES["two columns"]


@pytest.fixture
def categories() -> Case:
    """Contexts with categories, as a frame."""
    return CASES["categories"]
