"""Anderson-Rubin sets against ivmodels, a regression package, their own definition, and known truths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm  # type: ignore[import-untyped]
from ivmodels.tests import anderson_rubin_test, inverse_anderson_rubin_test  # type: ignore[import-untyped]
from linearmodels.datasets import card
from scipy.stats import chi2

from dmliv import load
from dmliv.errors import InputError, NotFittedError
from dmliv.estimators.anderson_rubin import ConfidenceSet, InstrumentMoments
from dmliv.estimators.least_squares import TwoStageLeastSquares
from dmliv.estimators.linear_rows import InstrumentSpace, LinearRows, LinearSystem

CONTROLS = ["exper", "expersq", "black", "south", "smsa", *(f"reg66{region}" for region in range(1, 9))]


def _card() -> pd.DataFrame:
    frame: pd.DataFrame = card.load()
    return frame.dropna(subset=["lwage", "educ", "nearc2", "nearc4", *CONTROLS])


def _weak(n: int = 300, strength: float = 0.0, seed: int = 0, k: int = 2) -> Any:
    rng = np.random.default_rng([seed, 17])
    Z, X, hidden = rng.standard_normal((n, k)), rng.standard_normal((n, 1)), rng.standard_normal(n)
    T = strength * Z.sum(axis=1) + X[:, 0] + hidden
    Y = 0.5 * T + X[:, 0] + hidden + (0.5 + np.abs(Z[:, 0])) * rng.standard_normal(n)
    return Y, T, Z, X


@pytest.mark.parametrize("instruments", [["nearc4"], ["nearc2", "nearc4"]])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_card_agrees_with_ivmodels(instruments: list[str], alpha: float) -> None:
    frame = _card()
    estimator = TwoStageLeastSquares().fit(
        frame["lwage"], frame["educ"], Z=frame[instruments], X=frame[CONTROLS]
    )
    quadric = inverse_anderson_rubin_test(
        Z=frame[instruments].to_numpy(float),
        X=frame[["educ"]].to_numpy(float),
        y=frame["lwage"].to_numpy(float),
        C=frame[CONTROLS].to_numpy(float),
        alpha=alpha,
        critical_values="f",
    )
    expected = np.sort(np.ravel(quadric._boundary()))
    found = estimator.anderson_rubin_interval(alpha)
    np.testing.assert_allclose(np.ravel(found.intervals), expected, rtol=1e-6)
    assert found.kind == "interval"
    assert estimator.coef_[-1] in found


def test_statistic_is_that_of_ivmodels() -> None:
    frame = _card()
    arrays = {"Z": ["nearc2", "nearc4"], "X": ["educ"], "C": CONTROLS}
    given = {name: frame[columns].to_numpy(float) for name, columns in arrays.items()}
    moments = (
        TwoStageLeastSquares()
        .fit(frame["lwage"], frame["educ"], Z=frame[arrays["Z"]], X=frame[CONTROLS])
        ._moments
    )
    assert moments is not None
    for value in (-1.0, 0.0, 0.13):
        expected, _ = anderson_rubin_test(y=frame["lwage"].to_numpy(float), beta=np.array([value]), **given)
        assert moments.statistic(value, robust=False) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_robust_ends_solve_the_robust_wald_test(weighted: bool) -> None:
    frame = _card()
    weight = np.random.default_rng(3).uniform(0.5, 2.0, len(frame)) if weighted else None
    names = ["nearc2", "nearc4"]
    estimator = TwoStageLeastSquares(covariance="robust").fit(
        frame["lwage"], frame["educ"], Z=frame[names], X=frame[CONTROLS], sample_weight=weight
    )
    found = estimator.anderson_rubin_interval(0.05)
    assert found.kind == "interval"
    design = sm.add_constant(frame[CONTROLS + names])
    for end in found.intervals[0]:
        left = frame["lwage"] - end * frame["educ"]
        fitted = sm.WLS(left, design, weights=1.0 if weight is None else weight).fit(cov_type="HC0")
        wald = fitted.wald_test(np.eye(design.shape[1])[-2:], use_f=False, scalar=True).statistic
        assert wald == pytest.approx(chi2.ppf(0.95, 2), rel=1e-6)


@pytest.mark.parametrize("robust", [False, True])
def test_the_set_is_where_the_test_accepts(robust: bool) -> None:
    kinds = set()
    for seed in range(30):
        Y, T, Z, X = _weak(strength=0.08 * (seed % 3), seed=100 + seed, k=1 + seed % 3)
        estimator = TwoStageLeastSquares(covariance="robust" if robust else "classical").fit(Y, T, Z=Z, X=X)
        found = estimator.anderson_rubin_interval(0.1)
        kinds.add(found.kind)
        moments = estimator._moments
        assert moments is not None
        k = moments.n_instruments
        for value in np.tan(np.linspace(-1.57, 1.57, 201)):
            statistic = moments.statistic(value, robust=robust)
            free = len(Y) - 2 - k
            critical = chi2.ppf(0.9, k) / k if robust else _f_critical(k, free)
            assert (statistic <= critical) == (value in found)
    assert {"interval", "two rays", "whole line"} <= kinds


def _f_critical(k: int, free: int) -> float:
    from scipy.stats import f  # noqa: PLC0415

    return float(f.ppf(0.9, k, free))


@pytest.mark.parametrize("covariance", ["classical", "robust"])
def test_useless_instruments_leave_the_truth_in(covariance: Any) -> None:
    missed, unbounded = 0, 0
    for seed in range(200):
        Y, T, Z, X = _weak(n=200, seed=1000 + seed)
        # Equal variances for the test that assumes them.
        if covariance == "classical":
            Y = 0.5 * T + X[:, 0] + np.random.default_rng(seed).standard_normal(len(T))
        found = TwoStageLeastSquares(covariance=covariance).fit(Y, T, Z=Z, X=X).anderson_rubin_interval()
        missed += 0.5 not in found
        unbounded += not found.is_bounded
    # 5 % of 200 is 10; fewer than 3 or more than 20 have a chance of about 3 in 1000 each.
    assert 2 <= missed <= 20
    assert unbounded >= 160


def test_instruments_that_contradict_each_other_leave_nothing() -> None:
    rng = np.random.default_rng(5)
    Z, hidden = rng.standard_normal((2000, 2)), rng.standard_normal(2000)
    T = Z.sum(axis=1) + hidden
    Y = T + Z[:, 0] + hidden + rng.standard_normal(2000)
    for covariance in ("classical", "robust"):
        found = TwoStageLeastSquares(covariance=covariance).fit(Y, T, Z=Z).anderson_rubin_interval()  # type: ignore[arg-type]
        assert found.kind == "empty"
        assert np.isnan(found.lower)
        assert "empty" in str(found)


def test_units_only_scale_the_set() -> None:
    Y, T, Z, X = _weak(strength=0.5)
    for covariance in ("classical", "robust"):
        plain = TwoStageLeastSquares(covariance=covariance).fit(Y, T, Z=Z, X=X)  # type: ignore[arg-type]
        scaled = TwoStageLeastSquares(covariance=covariance).fit(  # type: ignore[arg-type]
            1e4 * Y - 7.0, 1e-3 * T + 5.0, Z=1e5 * Z, X=X
        )
        np.testing.assert_allclose(
            scaled.anderson_rubin_interval().intervals[0],
            1e7 * np.array(plain.anderson_rubin_interval().intervals[0]),
            rtol=1e-7,
        )


def test_a_set_says_what_it_is(tmp_path: Any) -> None:
    line = ConfidenceSet(((-np.inf, np.inf),), 0.05)
    rays = ConfidenceSet(((-np.inf, 1.0), (2.0, np.inf)), 0.1)
    assert (line.kind, rays.kind) == ("whole line", "two rays")
    assert 1.5 not in rays
    assert 3.0 in rays
    assert str(rays) == "90 % Anderson-Rubin set: (-inf, 1] and [2, inf)"
    Y, T, Z, X = _weak(strength=0.5)
    estimator = TwoStageLeastSquares().fit(Y, T, Z=Z, X=X)
    estimator.save(tmp_path / "line.dmliv")
    loaded: Any = load(tmp_path / "line.dmliv")
    assert loaded.anderson_rubin_interval() == estimator.anderson_rubin_interval()


def test_wrong_questions_are_refused() -> None:
    Y, T, Z, X = _weak(strength=0.5)
    with pytest.raises(NotFittedError, match="call fit first"):
        TwoStageLeastSquares().anderson_rubin_interval()
    with pytest.raises(InputError, match="one endogenous feature"):
        TwoStageLeastSquares(2).fit(Y, T, Z=Z, X=X).anderson_rubin_interval()
    fitted = TwoStageLeastSquares().fit(Y, T, Z=Z, X=X)
    for alpha in (0.0, 1.0, -0.1, "5 %", True, np.nan):
        with pytest.raises(InputError, match="alpha"):
            fitted.anderson_rubin_interval(alpha)  # type: ignore[arg-type]


def test_instruments_that_repeat_each_other_count_once() -> None:
    Y, T, Z, X = _weak(strength=0.5, k=1)
    rows = LinearRows(
        Y, np.column_stack([np.ones(len(Y)), X]), T[:, None], np.hstack([Z, 2.0 * Z, Z + X]), np.ones(len(Y))
    )
    system = LinearSystem.learn(lambda: iter([rows]))
    moments = InstrumentMoments.learn(system, InstrumentSpace.learn(system))
    assert moments.n_instruments == 1
