"""Instruments explain the share of the action that they were asked to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dmliv.errors import InputError
from dmliv.problems import (
    ORDINARY_REPORTED_ONLY,
    ORDINARY_SHARES,
    ORDINARY_TUNED_ON,
    REPORTED_ONLY,
    SUITE,
    TUNED_ON,
    VIOLATIONS,
    RandomCoefficient,
    SaturatingDose,
    SuiteProblem,
    WavyResponse,
    instrument_share,
    strength_for_share,
    with_instrument_share,
)

ORDINARY = (*ORDINARY_TUNED_ON, *ORDINARY_REPORTED_ONLY)
N_CONTEXTS, N_INSTRUMENTS, N_HIDDEN = 600, 20, 10


def measured_share(problem: SuiteProblem) -> float:
    """The share by an analysis of variance: contexts, instruments within them, crossed with hidden causes."""
    shape = (N_CONTEXTS, N_INSTRUMENTS, N_HIDDEN)
    rng = np.random.default_rng(7)
    context, instrument, hidden = np.ogrid[tuple(map(slice, shape))]
    pairs = np.broadcast_to(context * N_INSTRUMENTS + instrument, shape).ravel()
    causes = np.broadcast_to(context * N_HIDDEN + hidden, shape).ravel()
    X = problem.draw_context(rng, N_CONTEXTS)[np.broadcast_to(context, shape).ravel()]
    Z = problem.draw_instrument(rng, N_CONTEXTS * N_INSTRUMENTS)[pairs]
    U = problem.draw_hidden(rng, N_CONTEXTS * N_HIDDEN)[causes]
    A = problem.act(X, Z, U, rng).reshape(shape)
    by_instrument = A.mean(axis=2, keepdims=True)
    interaction = A - by_instrument - A.mean(axis=1, keepdims=True) + A.mean(axis=(1, 2), keepdims=True)
    degrees = N_CONTEXTS * (N_INSTRUMENTS - 1) * (N_HIDDEN - 1)
    noise = (interaction**2).sum() / degrees / N_HIDDEN
    explained = by_instrument.var(axis=1, ddof=1).mean() - noise
    return float(explained / (explained + A.var(axis=2, ddof=1).mean()))


@pytest.mark.parametrize("share", ORDINARY_SHARES)
@pytest.mark.parametrize("problem", ORDINARY, ids=lambda problem: problem.name)
def test_the_wanted_share_is_measured(problem: SuiteProblem, share: float) -> None:
    weaker = with_instrument_share(problem, share)
    assert type(weaker) is type(problem)
    assert measured_share(weaker) == pytest.approx(share, rel=0.1)
    assert instrument_share(weaker) == pytest.approx(share, rel=0.002)


@pytest.mark.parametrize("problem", VIOLATIONS.values(), ids=lambda problem: problem.name)
def test_shares_of_actions_that_are_no_sum(problem: SuiteProblem) -> None:
    share = instrument_share(problem)
    assert 0.1 < share < 0.45
    assert measured_share(problem) == pytest.approx(share, rel=0.1)
    assert measured_share(with_instrument_share(problem, 0.1)) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_a_sum_has_a_closed_form(share: float) -> None:
    odds = share / (1.0 - share)
    # The variances of what the instrument adds, at strength 1, and of what the hidden cause adds.
    for problem, moved, left in ((SaturatingDose(), 1.0, 0.64), (WavyResponse(), 1.44, 0.49)):
        assert strength_for_share(problem, share) == pytest.approx(np.sqrt(odds * left / moved), rel=0.015)


def test_the_strength_depends_on_nothing_but_problem_and_share() -> None:
    wanted = strength_for_share(SaturatingDose(), 0.03)
    assert strength_for_share(SaturatingDose(instrument_strength=5.0), 0.03) == wanted
    assert wanted == float(f"{wanted:.4g}")
    weaker = with_instrument_share(SaturatingDose(noise_sd=0.5), 0.03)
    assert weaker == SaturatingDose(instrument_strength=wanted, noise_sd=0.5)


def test_records_keep_their_strengths() -> None:
    # Strengths are part of the names of records. Another simulation would be another problem.
    found = [strength_for_share(problem, 0.1) for problem in ORDINARY]
    assert found == [0.2672, 0.1953, 0.2816, 0.2678, 0.2937, 0.3432]


def test_ordinary_problems_are_of_both_halves() -> None:
    assert set(ORDINARY_TUNED_ON) <= set(TUNED_ON)
    assert set(ORDINARY_REPORTED_ONLY) <= set(REPORTED_ONLY)
    assert len(ORDINARY_TUNED_ON) == len(ORDINARY_REPORTED_ONLY) == 3
    assert ORDINARY_SHARES == (0.01, 0.03, 0.1, 0.3)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan"), "a lot", True])
def test_impossible_shares(share: object) -> None:
    with pytest.raises(InputError, match="above 0 and below 1"):
        strength_for_share(SaturatingDose(), share)  # type: ignore[arg-type]


def test_shares_out_of_reach() -> None:
    # With a coefficient of mean 1 and variance 0.49 the instrument explains two thirds at most.
    with pytest.raises(InputError, match=r"'random-coefficient' can explain, got 0\.8"):
        with_instrument_share(RandomCoefficient(), 0.8)


def test_an_action_must_be_one_number() -> None:
    for name, words in (("three-clinics", "levels"), ("price-and-promotion", "2 columns")):
        with pytest.raises(InputError, match=words):
            instrument_share(SUITE[name])
        with pytest.raises(InputError, match="one continuous action"):
            strength_for_share(SUITE[name], 0.1)


def test_no_strength_is_no_share() -> None:
    for problem in (*ORDINARY, *VIOLATIONS.values()):
        assert instrument_share(replace(problem, instrument_strength=0.0)) == pytest.approx(0.0, abs=1e-12)
