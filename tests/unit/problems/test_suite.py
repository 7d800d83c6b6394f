"""The problems of the suite are what they claim: confounded, with valid instruments and a known truth."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest

import dmliv.problems.suite as suite_package
from dmliv.data import IVData, prepare
from dmliv.errors import InputError
from dmliv.problems import (
    REPORTED_ONLY,
    SUITE,
    TUNED_ON,
    VIOLATIONS,
    StoreChain,
    SuiteProblem,
    TicketDemand,
)

N_ROWS = 20_000
every_problem = pytest.mark.parametrize(
    "problem", [*SUITE.values(), *VIOLATIONS.values()], ids=lambda problem: problem.name
)


def numbers(values: np.ndarray) -> np.ndarray:
    """Columns as numbers (n, k); strings become one indicator per level but the first."""
    columns = []
    for column in values.reshape(len(values), -1).T:
        if isinstance(column[0], str):
            columns.extend((column == level).astype(float) for level in np.unique(column)[1:])
        else:
            columns.append(column.astype(float))
    return np.column_stack(columns)


def exogenous(data: IVData) -> np.ndarray:
    """Functions of context and instrument (n, k), the constant first."""
    X, Z = numbers(data.X), numbers(data.Z)
    products = [Z[:, :1] * X[:, :3], X**2, Z**2, np.cos(3.0 * X), Z[:, :1] > 0.3]
    return np.hstack([np.ones((len(X), 1)), X, Z, *products])


def z_scores(residual: np.ndarray, features: np.ndarray) -> np.ndarray:
    """How many standard errors the mean of residual times feature lies from zero, for every feature."""
    products = residual[:, None] * features
    error = products.std(axis=0) / np.sqrt(len(products))
    return products.mean(axis=0) / np.where(error > 0, error, 1.0)


def noise_of(problem: SuiteProblem, data: IVData) -> np.ndarray:
    return data.Y - problem.counterfactual(data.X, data.T)


def share_explained(features: np.ndarray, values: np.ndarray) -> float:
    """R squared of least squares."""
    centred = values - values.mean(axis=0)
    left = centred - features @ np.linalg.lstsq(features, centred, rcond=None)[0]
    return float(1.0 - (left**2).sum() / (centred**2).sum())


# ------------------------------------------------------------------------------------------------- validity


@every_problem
def test_noise_has_mean_zero_given_context_and_instrument(problem: SuiteProblem) -> None:
    data = problem.sample(N_ROWS, seed=100)
    scores = z_scores(noise_of(problem, data), exogenous(data))
    # The largest problems have some 80 functions: 4.5 standard errors are hardly reached by chance.
    assert np.abs(scores).max() < 4.5


@every_problem
def test_actions_know_the_noise(problem: SuiteProblem) -> None:
    data = problem.sample(N_ROWS, seed=100)
    noise = noise_of(problem, data)
    assert 0.5 < noise.var() < 1.15
    # Where the confounding changes with context or instrument, a line shows part of it only.
    least = 0.1 if problem.name in VIOLATIONS else 0.14
    assert share_explained(np.hstack([np.ones((N_ROWS, 1)), numbers(data.T)]), noise) > least


@every_problem
def test_instruments_move_the_action(problem: SuiteProblem) -> None:
    data = problem.sample(N_ROWS, seed=100)
    X, Z, T = numbers(data.X), numbers(data.Z), numbers(data.T)
    constant = np.ones((N_ROWS, 1))
    gain = share_explained(np.hstack([constant, X, Z]), T) - share_explained(np.hstack([constant, X]), T)
    least = 0.1 if problem.name in VIOLATIONS else 0.2
    assert (0.03 < gain < 0.1) if problem.name == "weak-nudge" else gain > least
    without = replace(problem, instrument_strength=0.0).sample(N_ROWS, seed=100)
    moved = numbers(without.T)
    assert share_explained(np.hstack([constant, X, Z]), moved) < 0.01 + share_explained(
        np.hstack([constant, X]), moved
    )


@every_problem
def test_without_confounding_actions_know_nothing(problem: SuiteProblem) -> None:
    observed, fair = problem.sample(N_ROWS, seed=100), problem.sample_unconfounded(N_ROWS, seed=100)
    for role in ("X", "Z", "T"):
        np.testing.assert_array_equal(getattr(observed, role), getattr(fair, role))
    noise = noise_of(problem, fair)
    assert np.abs(z_scores(noise, np.hstack([numbers(fair.T), exogenous(fair)]))).max() < 4.5
    assert noise.var() == pytest.approx(noise_of(problem, observed).var(), rel=0.08)


@every_problem
def test_the_truth_is_the_mean_outcome_of_an_intervention(problem: SuiteProblem) -> None:
    for action in problem.candidates()[[0, -1]]:
        X, Y = problem.sample_intervention(N_ROWS, action, seed=100)
        left = Y - problem.counterfactual(X, action)
        numeric = numbers(X)
        assert np.abs(z_scores(left, np.hstack([np.ones((N_ROWS, 1)), numeric]))).max() < 4.5
        assert left.var() > 0.5


@every_problem
def test_setting_actions_to_what_they_were_changes_nothing(problem: SuiteProblem) -> None:
    data = problem.sample(500, seed=100)
    X, Y = problem.sample_intervention(500, data.T, seed=100)
    np.testing.assert_array_equal(X, data.X)
    np.testing.assert_allclose(Y, data.Y)


# ------------------------------------------------------------------------------------- points and policies


@every_problem
def test_test_points_lie_where_data_are(problem: SuiteProblem) -> None:
    _, T, truth = problem.test_set()
    assert len(truth) == 2000
    assert 0.8 < truth.var() < 1.25
    observed = problem.sample(N_ROWS, seed=100).T
    if problem.levels:
        shares = [np.mean(observed == level) for level in problem.levels]
        assert min(shares) > 0.15
        assert set(T.tolist()) == set(problem.levels)
    else:
        np.testing.assert_allclose(
            problem.action_range, np.quantile(observed, [0.05, 0.95], axis=0), atol=0.1
        )
        low, high = np.asarray(problem.action_range)
        assert np.all((low <= T) & (high >= T))


@every_problem
def test_the_best_candidate_depends_on_nothing_but_the_truth(problem: SuiteProblem) -> None:
    X = problem.contexts(50, seed=100)
    values = np.array([problem.reward(X, action) for action in problem.candidates()])
    assert problem.optimal_value(X) == pytest.approx(values.max(axis=0).mean())
    assert problem.optimal_value(X) > values.mean()


@every_problem
def test_contexts_shift(problem: SuiteProblem) -> None:
    moved, plain = problem.contexts(10, shift=0.5), problem.contexts(10)
    np.testing.assert_allclose((moved[:, 0] - plain[:, 0]).astype(float), 0.5)
    np.testing.assert_array_equal(moved[:, 1:], plain[:, 1:])
    np.testing.assert_array_equal(problem.sample(10, seed=1).X, plain)


@every_problem
def test_rows_can_be_read(problem: SuiteProblem) -> None:
    data = problem.sample(500, seed=100)
    prepared = prepare(data.Y, data.T, Z=data.Z, X=data.X)
    assert prepared.action_spec.kind == ("discrete" if problem.levels else "continuous")
    assert len(prepared.context_schema.columns) == problem.n_contexts
    assert len(prepared.instrument_schema.columns) == problem.n_instruments


def test_stores_are_categories() -> None:
    data = StoreChain().sample(2000, seed=100)
    schema = prepare(data.Y, data.T, Z=data.Z, X=data.X).context_schema
    assert schema.n_levels == (30,)
    assert len(schema.numeric) == 1


# Records name a problem by its class and parameters. Whoever changes an equation makes another problem, which
# needs another name; otherwise old and new records would be mixed.
KNOWN_MEANS = {
    "saturating-dose": (0.057250, -0.019600),
    "stepped-tariff": (-0.425156, -0.495777),
    "wavy-response": (0.038764, -0.006074),
    "twenty-columns": (0.073564, -0.007115),
    "weak-nudge": (0.056362, -0.016452),
    "store-chain": (0.248552, 0.212183),
    "three-clinics": (0.698866, 0.772435),
    "seasonal-sales": (0.015444, 0.014373),
    "u-shaped-load": (0.314307, 0.156468),
    "heavy-tailed-returns": (0.070277, -0.014396),
    "peak-hours": (0.156779, 0.003734),
    "crowded-road": (0.780101, 0.764255),
    "price-and-promotion": (0.119811, 0.005078),
    "encouraged-training": (0.593223, 0.510338),
    "contextual-confounding": (0.036523, 0.003350),
    "spreading-action": (0.223604, 0.350048),
    "folded-action": (-0.051124, 0.164791),
    "random-coefficient": (0.068752, 0.003231),
    "changing-causes": (0.065727, 0.140685),
    "hidden-types": (-0.197355, -0.157689),
}


@every_problem
def test_equations_are_those_of_the_records(problem: SuiteProblem) -> None:
    means = problem.sample(1000, seed=100).Y.mean(), problem.test_set()[2].mean()
    assert means == pytest.approx(KNOWN_MEANS[problem.name], abs=1e-5)


# -------------------------------------------------------------------------------- tuned on, or reported only


def test_tuned_and_reported_problems_are_apart_and_written_down() -> None:
    assert list(SUITE) == [problem.name for problem in (*TUNED_ON, *REPORTED_ONLY)]
    assert len({type(problem) for problem in SUITE.values()}) == len(SUITE) == 14
    assert len(TUNED_ON) == len(REPORTED_ONLY)
    text = suite_package.__doc__ or ""
    first, second = text.split("``REPORTED_ONLY``")
    for half, words in ((TUNED_ON, first), (REPORTED_ONLY, second)):
        for problem in half:
            assert f"\n{problem.name} " in words
            assert type(problem).__name__ in suite_package.__all__


def test_tuned_and_reported_problems_differ_in_kind_within_themselves() -> None:
    for half in (TUNED_ON, REPORTED_ONLY):
        assert any(problem.levels for problem in half)
        assert len({problem.n_contexts for problem in half}) > 3
        assert len({problem.n_instruments for problem in half}) > 2
    assert {problem.n_actions for problem in SUITE.values()} == {1, 2}
    assert {len(problem.levels) for problem in SUITE.values()} == {0, 2, 3}


# --------------------------------------------------------------------------------------------------- input


@every_problem
def test_bad_arguments(problem: SuiteProblem) -> None:
    X = problem.contexts(4)
    for n, verb in itertools.product((0, 1.5, True), (problem.sample, problem.sample_unconfounded)):
        with pytest.raises(InputError, match="positive integer"):
            verb(n)
    with pytest.raises(InputError, match=rf"\(n, {problem.n_contexts}\)"):
        problem.counterfactual(np.hstack([X, X]), problem.candidates()[0])
    with pytest.raises(InputError, match=r"one (value|action) per row"):
        problem.counterfactual(X, problem.candidates()[[0] * 3])
    with pytest.raises(InputError, match="shift"):
        problem.contexts(3, shift=float("nan"))
    for field in fields(problem):
        with pytest.raises(InputError, match=field.name):
            replace(problem, **{field.name: -2.0})


def test_unknown_labels() -> None:
    with pytest.raises(InputError, match="prayer"):
        SUITE["three-clinics"].counterfactual(np.zeros((2, 2)), "prayer")
    with pytest.raises(InputError, match="store-31"):
        StoreChain().counterfactual(np.array([[0.0, "store-31"]], dtype=object), 0.0)
    with pytest.raises(InputError, match="levels"):
        _ = SUITE["encouraged-training"].action_range


# ------------------------------------------------------------------------------------------- ticket demand


def test_ticket_demand_without_confounding() -> None:
    problem = TicketDemand()
    observed, fair = problem.sample(N_ROWS, seed=100), problem.sample_unconfounded(N_ROWS, seed=100)
    for role in ("X", "Z", "T"):
        np.testing.assert_array_equal(getattr(observed, role), getattr(fair, role))
    event = observed.T - problem.exact_action_distribution(observed.X, observed.Z)[0]
    noise = {name: d.Y - problem.counterfactual(d.X, d.T) for name, d in (("o", observed), ("f", fair))}
    assert np.corrcoef(noise["o"], event)[0, 1] == pytest.approx(0.9, abs=0.02)
    assert abs(np.corrcoef(noise["f"], event)[0, 1]) < 0.03
    assert noise["f"].var() == pytest.approx(1.0, abs=0.05)
