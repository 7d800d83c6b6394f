"""EconML's validation and policy trees on effects of these estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from econml.policy import PolicyTree
from econml.validate import DRTester
from sklearn.linear_model import LinearRegression, LogisticRegression

from dmliv import DMLIV, TwoStageLeastSquares
from dmliv.learners import kernel

ROWS = 600


def sample(seed: int, *, randomised: bool) -> tuple[Any, ...]:
    """Return Y, T, Z, X of a treatment that helps where x > 0 and is confounded unless randomised."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (ROWS, 2))
    Z, hidden = rng.integers(0, 2, ROWS), rng.standard_normal(ROWS)
    wish = 2.0 * Z - 1.0 + (0.0 if randomised else 1.0) * hidden
    T = (rng.random(ROWS) < 0.5).astype(int) if randomised else (wish > 0).astype(int)
    Y = 2.0 * X[:, 0] * T + 0.5 * X[:, 1] + hidden
    return Y, T, Z, X


@pytest.fixture(scope="module", params=["TwoStageLeastSquares", "DMLIV"])
def estimator(request: pytest.FixtureRequest) -> Any:
    Y, T, Z, X = sample(100, randomised=False)
    if request.param == "DMLIV":
        return DMLIV(kernel(n_landmarks=60), n_folds=2, random_state=0).fit(Y, T, Z=Z, X=X)
    return TwoStageLeastSquares(interactions=True).fit(Y, T, Z=Z, X=X)


def test_an_experiment_confirms_the_effects(estimator: Any) -> None:
    """The doubly robust tester regresses effects in a randomised sample on those that were estimated."""
    Y, T, _, X = sample(101, randomised=True)
    Y_train, T_train, _, X_train = sample(103, randomised=True)
    tester = DRTester(
        model_regression=LinearRegression(), model_propensity=LogisticRegression(), cate=estimator
    )
    tester.fit_nuisance(X, T, Y, X_train, T_train, Y_train)
    found = tester.evaluate_blp(X)
    # One says that differences are as large as estimated; more, that the estimate is too cautious.
    assert 0.6 < found.params[0] < 2.0
    assert found.pvals[0] < 0.001
    assert tester.evaluate_cal(X, X_train).cal_r_squared[0] > 0.5


def test_a_policy_tree_finds_the_rule(estimator: Any) -> None:
    X = sample(102, randomised=True)[3]
    rewards = np.column_stack([estimator.predict(level, X) for level in (0, 1)])
    tree = PolicyTree(max_depth=1, min_samples_leaf=20, random_state=0).fit(X, rewards)
    treated = tree.predict(X) == 1
    assert np.mean(treated == (X[:, 0] > 0)) > 0.85
    own = estimator.policy()
    assert np.mean(treated == (own.predict(X) == 1)) > 0.8
    # A tree of one question cannot do better than the best action row by row.
    followed = rewards[np.arange(ROWS), treated.astype(int)].mean()
    assert followed <= own.value(X) + 1e-9
