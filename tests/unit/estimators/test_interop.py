"""Estimators inside scikit-learn, and frames of pandas and polars alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from dmliv import DMLIV, InputError, KernelIV, NotFittedError, TwoStageLeastSquares
from dmliv.estimators.interop import as_sklearn
from dmliv.learners import Learners
from dmliv.second_stage.linear import LinearStructural

ROWS = 200
ROLES: dict[str, Any] = {"action": "price", "instrument": ["fuel"], "context": ["time", "kind"]}


def linear(ridge: float = 0.0) -> Learners:
    return Learners(LinearRegression(), LinearRegression(), LinearStructural(ridge))  # type: ignore[arg-type]


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(100)
    time, fuel, hidden = rng.standard_normal((3, ROWS))
    kind = rng.choice(["day", "night"], ROWS)
    price = 20 + 3 * fuel + time + hidden
    return pd.DataFrame({"time": time, "kind": kind, "fuel": fuel, "price": price, "hidden": hidden})


@pytest.fixture
def sales(frame: pd.DataFrame) -> Any:
    return 100 - 2 * frame["price"] + frame["time"] + 3 * (frame["kind"] == "day") - 3 * frame["hidden"]


def test_it_is_the_estimator_on_columns_of_one_table(frame: pd.DataFrame, sales: Any) -> None:
    direct = DMLIV(linear(), n_folds=2, random_state=0)
    X = frame[["time", "kind"]]
    direct.fit(sales, frame["price"], Z=frame[["fuel"]], X=X)
    table = as_sklearn(DMLIV(linear(), n_folds=2, random_state=0), **ROLES).fit(frame, sales)
    np.testing.assert_array_equal(table.predict(frame), direct.predict(frame["price"], X))
    expected = direct.score(sales, Z=frame[["fuel"]], X=X)
    assert table.score(frame, sales) == expected
    np.testing.assert_array_equal(table.estimator_.effect(X, T0=10, T1=20), direct.effect(X, T0=10, T1=20))


def test_polars_gives_the_same_numbers(frame: pd.DataFrame, sales: Any) -> None:
    table = as_sklearn(DMLIV(linear(), n_folds=2, random_state=0), **ROLES)
    here = clone(table).fit(frame, sales)
    there = clone(table).fit(pl.from_pandas(frame), pl.from_pandas(sales))
    np.testing.assert_array_equal(there.predict(pl.from_pandas(frame)), here.predict(frame))
    contexts = frame[["time", "kind"]]
    policies = [each.estimator_.policy([10.0, 20.0, 30.0]) for each in (here, there)]
    chosen = [policy.predict(rows) for policy in policies for rows in (contexts, pl.from_pandas(contexts))]
    for other in chosen[1:]:
        np.testing.assert_array_equal(other, chosen[0])


def test_a_search_finds_the_better_learner(frame: pd.DataFrame, sales: Any) -> None:
    """A penalty that leaves a constant explains nothing of the outcome."""
    table = as_sklearn(DMLIV(n_folds=2, random_state=0), **ROLES)
    learners = [linear(1e9), linear()]
    search = GridSearchCV(table, {"estimator__learners": learners, "estimator__n_folds": [2, 3]}, cv=2)
    search.fit(frame, sales)
    assert search.best_params_["estimator__learners"].structural.ridge == 0.0
    means = search.cv_results_["mean_test_score"]
    assert means[:2].max() < 0.1 < means[2:].min()
    # Two slopes of a price: -2 without the confounder, about -2.3 with it.
    effect = search.best_estimator_.estimator_.ate(frame[["time", "kind"]], T0=0.0, T1=1.0)
    assert effect == pytest.approx(-2.0, abs=0.2)


def test_cross_validation_of_polars_and_arrays(frame: pd.DataFrame, sales: Any) -> None:
    table = as_sklearn(DMLIV(linear(), n_folds=2, random_state=0), **ROLES)
    scores = cross_val_score(table, frame, sales, cv=2)
    again = cross_val_score(table, pl.from_pandas(frame), sales.to_numpy(), cv=2)
    np.testing.assert_array_equal(again, scores)
    numbers = frame[["time", "fuel", "price"]].to_numpy()
    by_position = as_sklearn(DMLIV(linear(), n_folds=2, random_state=0), action=2, instrument=1, context=[0])
    assert np.all(cross_val_score(by_position, numbers, sales, cv=2) > 0.3)


def test_a_pipeline_in_front(frame: pd.DataFrame, sales: Any) -> None:
    columns = ColumnTransformer(
        [
            ("scaled", StandardScaler(), ["time"]),
            ("levels", OneHotEncoder(drop="first", sparse_output=False), ["kind"]),
            ("as_they_are", "passthrough", ["fuel", "price"]),
        ],
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    roles = {**ROLES, "context": ["time", "kind_night"]}
    pipeline = Pipeline([("columns", columns), ("iv", as_sklearn(TwoStageLeastSquares(), **roles))])
    pipeline.fit(frame, sales)
    plain = as_sklearn(TwoStageLeastSquares(), **ROLES).fit(frame, sales)
    # Two-stage least squares does not care for the units of its columns.
    np.testing.assert_allclose(pipeline.predict(frame), plain.predict(frame))
    assert pipeline.get_params()["iv__estimator__degree"] == 1


def test_controls(frame: pd.DataFrame, sales: Any) -> None:
    roles = {**ROLES, "context": "time", "controls": ["kind"]}
    table = as_sklearn(DMLIV(linear(), n_folds=2, random_state=0), **roles).fit(frame, sales)
    assert table.score(frame, sales) > 0.3
    assert table.predict(frame.drop(columns="kind")).shape == (ROWS,)


def test_what_cannot_be(frame: pd.DataFrame, sales: Any) -> None:
    with pytest.raises(NotFittedError):
        as_sklearn(TwoStageLeastSquares(), **ROLES).predict(frame)
    with pytest.raises(InputError, match=r"'prise' \(did you mean 'price'"):
        as_sklearn(TwoStageLeastSquares(), **{**ROLES, "action": "prise"}).fit(frame, sales)
    with pytest.raises(InputError, match=r"positions of columns for an array, got the name 'price'"):
        as_sklearn(TwoStageLeastSquares(), **ROLES).fit(frame.to_numpy(), sales)
    fitted = as_sklearn(KernelIV(random_state=0), **ROLES).fit(frame, sales)
    with pytest.raises(InputError, match="got KernelIV; use DMLIV"):
        fitted.score(frame, sales)


def test_fitting_leaves_the_given_estimator_alone(frame: pd.DataFrame, sales: Any) -> None:
    given = TwoStageLeastSquares()
    as_sklearn(given, **ROLES).fit(frame, sales)
    assert not hasattr(given, "counterfactual_")
