"""Linear learners without folds are two-stage least squares, number by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from linearmodels.iv import IV2SLS

from dmliv import CEDMLIV, DMLIV, DeepIV
from dmliv.learners import Learners

# Action distributions are in single precision, so coefficients agree to six digits and not to sixteen.
TOLERANCE = {"rtol": 2e-6, "atol": 2e-6}

DESIGNS: dict[str, dict[str, Any]] = {
    "one instrument": {"action": ["price"], "instrument": ["fuel"], "context": []},
    "contexts": {"action": ["price"], "instrument": ["fuel"], "context": ["time", "age"]},
    "several instruments": {
        "action": ["price"],
        "instrument": ["fuel", "strike"],
        "context": ["time", "age"],
    },
    "categories": {"action": ["price"], "instrument": ["fuel", "strike"], "context": ["kind", "age"]},
    "two actions": {
        "action": ["price", "ads"],
        "instrument": ["fuel", "strike"],
        "context": ["time", "kind"],
    },
}
designs = pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
weighted = pytest.mark.parametrize("weighted", [False, True], ids=["equal weights", "weights"])
ESTIMATORS = {
    "DMLIV": lambda learners: DMLIV(learners, n_folds=1, random_state=0),
    "CEDMLIV": lambda learners: CEDMLIV(learners, random_state=0),
    "DeepIV": lambda learners: DeepIV(learners, random_state=0),
}
estimators = pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)


def dummies(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.get_dummies(frame, drop_first=True, dtype=float).astype(float) if len(frame.columns) else frame


def reference(frame: pd.DataFrame, design: dict[str, Any], weight: Any) -> Any:
    exogenous = dummies(frame[design["context"]]).assign(constant=1.0)
    return IV2SLS(
        frame["sales"],
        exogenous,
        frame[design["action"]],
        dummies(frame[design["instrument"]]),
        weights=weight,
    ).fit()


def roles(frame: pd.DataFrame, design: dict[str, Any], weight: Any) -> dict[str, Any]:
    return {
        "Y": frame["sales"],
        "T": frame[design["action"]],
        "Z": frame[design["instrument"]],
        "X": frame[design["context"]] if design["context"] else None,
        "sample_weight": weight,
    }


@estimators
@designs
@weighted
def test_slopes(
    frame: pd.DataFrame, linear_learners: Learners, make: Any, design: dict[str, Any], weighted: bool
) -> None:
    weight = frame["weight"] if weighted else None
    expected = reference(frame, design, weight).params[design["action"]].to_numpy()
    given = roles(frame, design, weight)
    estimator = make(linear_learners).fit(**given)
    slopes = estimator.marginal_effect(given["T"][:3], None if given["X"] is None else given["X"][:3])
    np.testing.assert_allclose(slopes, np.tile(expected, (3, 1)), **TOLERANCE)


@estimators
@designs
@weighted
def test_predictions(
    frame: pd.DataFrame, linear_learners: Learners, make: Any, design: dict[str, Any], weighted: bool
) -> None:
    """All coefficients at once, the intercept and those of the contexts included."""
    weight = frame["weight"] if weighted else None
    fitted = reference(frame, design, weight)
    given = roles(frame, design, weight)
    estimator = make(linear_learners).fit(**given)
    exogenous = dummies(frame[design["context"]]).assign(constant=1.0)
    expected = fitted.predict(exog=exogenous, endog=frame[design["action"]])["predictions"]
    np.testing.assert_allclose(estimator.predict(given["T"], given["X"]), expected, rtol=1e-5, atol=1e-5)


@designs
def test_orthogonal_and_plug_in_targets_agree(
    frame: pd.DataFrame, linear_learners: Learners, design: dict[str, Any]
) -> None:
    """What a linear projection takes from the outcome is orthogonal to the second stage."""
    given = roles(frame, design, None)
    first, second = (
        estimator(linear_learners, random_state=0).fit(**given).predict(given["T"], given["X"])
        for estimator in (CEDMLIV, DeepIV)
    )
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)


def test_the_confounded_regression_is_elsewhere(frame: pd.DataFrame, linear_learners: Learners) -> None:
    """The data are confounded enough that ordinary least squares does not pass for the answer."""
    design = DESIGNS["contexts"]
    ordinary = IV2SLS(
        frame["sales"],
        frame[["price", "time", "age"]].assign(constant=1.0),
        None,
        None,
    ).fit()
    given = roles(frame, design, None)
    slope = (
        CEDMLIV(linear_learners, random_state=0)
        .fit(**given)
        .marginal_effect(given["T"][:1], given["X"][:1])[0, 0]
    )
    assert abs(ordinary.params["price"] - slope) > 1.0


def test_cross_fitting_stays_close(frame: pd.DataFrame, linear_learners: Learners) -> None:
    design = DESIGNS["contexts"]
    fitted = reference(frame, design, None)
    given = roles(frame, design, None)
    estimator = DMLIV(linear_learners, n_folds=5, random_state=0).fit(**given)
    slope = estimator.marginal_effect(given["T"][:1], given["X"][:1])[0, 0]
    assert abs(slope - fitted.params["price"]) < 2.0 * fitted.std_errors["price"]
    assert slope != pytest.approx(fitted.params["price"], abs=1e-6)
