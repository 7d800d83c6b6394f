"""Every estimator with small learners, and one small data set for every kind of input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression

from dmliv import CEDMLIV, DMLIV, DeepIV
from dmliv.estimators.base import CounterfactualEstimator
from dmliv.estimators.deep_gmm import DeepGMM
from dmliv.estimators.dfiv import DFIV
from dmliv.estimators.kernel_iv import KernelIV
from dmliv.estimators.least_squares import TwoStageLeastSquares
from dmliv.estimators.two_stage import TwoStageIV
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.first_stage.regressors import RegressorAction, RegressorOutcome
from dmliv.learners import Learners
from dmliv.nets.images import ImageColumns
from dmliv.nets.settings import NetworkSettings
from dmliv.second_stage.linear import LinearStructural
from dmliv.second_stage.network import NeuralStructural
from dmliv.second_stage.regressor import RegressorStructural

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
    return tiny(encodings=("standardised", "piecewise"))


@pytest.fixture
def convolution_learners() -> Learners:
    """Small networks with convolutions for contexts that are images of 28 x 28 pixels."""
    return tiny(image=ImageColumns(28, 28, first=0, features="convolution"))


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


def trees(regressor: Any, classifier: Any) -> Learners:
    """Trees in every role, with few residual folds because every fold is a fit."""
    return Learners(
        RegressorOutcome(regressor),
        RegressorAction(regressor, n_residual_folds=2, classifier=classifier),
        RegressorStructural(regressor, n_draws=2),
    )


def _boosting() -> Learners:
    settings = {"max_iter": 4, "max_leaf_nodes": 4, "min_samples_leaf": 5, "early_stopping": False}
    return trees(HistGradientBoostingRegressor(**settings), HistGradientBoostingClassifier(**settings))


def _forest() -> Learners:
    settings = {"n_estimators": 3, "min_samples_leaf": 5}
    return trees(RandomForestRegressor(**settings), RandomForestClassifier(**settings))


def _linear_structural() -> Learners:
    action = RegressorAction(LinearRegression(), n_residual_folds=2, classifier=LogisticRegression())
    return Learners(RegressorOutcome(LinearRegression()), action, LinearStructural())


@dataclass(frozen=True)
class Method:
    """An estimator with a small budget, and what is particular about it.

    Parameters
    ----------
    name : str
    make : callable
        Returns a new estimator; keyword arguments overrule its parameters.
    fewest_rows : int
        Rows of the plain case below which it refuses to fit.
    too_few_rows : str
        What the refusal says.
    seeded : bool
        Whether chance plays a part, so that there is a ``random_state``.
    scores : bool
        Whether it has ``score``.
    drops_weightless_rows : bool
        Whether rows of weight zero are as good as absent. Networks and trees still see their contexts:
        in batches, in bins and in the sizes of leaves.
    """

    name: str
    make: Callable[..., CounterfactualEstimator]
    fewest_rows: int = 10
    too_few_rows: str = "Expected at least {fewest} rows, got {given}"
    seeded: bool = True
    scores: bool = True
    drops_weightless_rows: bool = False

    def fitted(self, case: Case) -> Any:
        """Return the estimator fitted on a case: one for all tests, which ask and change nothing."""
        return _fit_once(self.name, case.name)


# A new estimator joins every contract by its line here.
METHODS = {
    method.name: method
    for method in (
        Method("DMLIV", partial(DMLIV, tiny(), n_folds=3, random_state=0)),
        Method("CEDMLIV", partial(CEDMLIV, tiny(), random_state=0)),
        Method("DeepIV", partial(DeepIV, tiny(), random_state=0)),
        Method("cross-fitted DeepIV", partial(DeepIV, tiny(), n_folds=3, random_state=0)),
        Method(
            "DMLIV with a linear h",
            partial(DMLIV, _linear_structural(), n_folds=2, random_state=0),
            drops_weightless_rows=True,
        ),
        Method("DMLIV with boosting", partial(DMLIV, _boosting(), n_folds=2, random_state=0)),
        Method("DMLIV with forests", partial(DMLIV, _forest(), n_folds=2, random_state=0)),
        Method(
            "TwoStageLeastSquares",
            TwoStageLeastSquares,
            fewest_rows=5,
            too_few_rows="Expected more rows than columns, got {given} rows",
            seeded=False,
            scores=False,
            drops_weightless_rows=True,
        ),
        Method(
            "KernelIV",
            partial(KernelIV, random_state=0),
            fewest_rows=20,
            scores=False,
            drops_weightless_rows=True,
        ),
        Method(
            "DFIV",
            partial(DFIV, n_epochs=2, steps=(2, 2, 1), random_state=0),
            fewest_rows=20,
            scores=False,
            drops_weightless_rows=True,
        ),
        Method(
            "DeepGMM",
            partial(
                DeepGMM,
                (16,),
                learning_rates=(1e-3, 2e-3),
                epochs=4,
                evaluate_every=1,
                burn_in=1,
                random_state=0,
            ),
            fewest_rows=20,
            scores=False,
            drops_weightless_rows=True,
        ),
    )
}


@cache
def _fit_once(method: str, case: str) -> Any:
    return METHODS[method].make().fit(**CASES[case].roles)  # type: ignore[attr-defined]


def _one_by_one(methods: list[Method]) -> Any:
    return pytest.fixture(params=methods, ids=[method.name for method in methods])


@_one_by_one(list(METHODS.values()))
def method(request: pytest.FixtureRequest) -> Method:
    """One estimator after the other."""
    return request.param  # type: ignore[no-any-return]


@_one_by_one([method for method in METHODS.values() if method.scores])
def scoring(request: pytest.FixtureRequest) -> Method:
    """One after the other of those that have a score."""
    return request.param  # type: ignore[no-any-return]


@_one_by_one([method for method in METHODS.values() if method.seeded])
def seeded(request: pytest.FixtureRequest) -> Method:
    """One after the other of those in which chance plays a part."""
    return request.param  # type: ignore[no-any-return]


@_one_by_one([method for method in METHODS.values() if method.drops_weightless_rows])
def dropping(request: pytest.FixtureRequest) -> Method:
    """One after the other of those for which a row of weight zero is absent."""
    return request.param  # type: ignore[no-any-return]


# Contracts about learners, for the estimators that take them.
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
            Case("labels", Y, labels, several, X, "low", "high", ["high", "none"], 3, True),
            Case("zero and one", Y, (T > 0).astype(int), Z, X, 0, 1, [0, 1], 2, True),
            Case("no context", Y, T, Z, None, -0.5, 1.0, grid, 1),
            Case("no context, labels", Y, labels, several, None, "low", "high", None, 3, True),
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
