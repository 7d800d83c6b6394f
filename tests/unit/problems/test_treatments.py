"""The decision problems are what they claim: confounded, with instruments that act through actions alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dmliv.errors import InputError
from dmliv.problems import PriceAndAdvertising, Problem, TreatmentChoice

PROBLEMS = [TreatmentChoice(), PriceAndAdvertising()]
every_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)


@every_problem
class TestBoth:
    def test_keep_the_protocol(self, problem: Any) -> None:
        assert isinstance(problem, Problem)
        X, T, truth = problem.test_set()
        assert len(X) == len(T) == len(truth)
        np.testing.assert_array_equal(problem.counterfactual(X, T), truth)
        assert problem.contexts(7).shape == (7, X.shape[1])

    def test_a_seed_is_a_sample(self, problem: Any) -> None:
        one, again, other = problem.sample(50, seed=3), problem.sample(50, seed=3), problem.sample(50, seed=4)
        np.testing.assert_array_equal(one.Y, again.Y)
        np.testing.assert_array_equal(one.T, again.T)
        assert not np.array_equal(one.Y, other.Y)

    def test_shift_moves_the_contexts(self, problem: Any) -> None:
        moved = problem.contexts(10, shift=0.5) - problem.contexts(10)
        np.testing.assert_allclose(moved[:, 0], 0.5)

    def test_bad_counts(self, problem: Any) -> None:
        for n in (0, -1, 2.5):
            with pytest.raises(InputError, match="positive integer"):
                problem.sample(n)


def test_noise_of_treatments_is_independent_of_the_clinic_but_not_of_the_treatment() -> None:
    problem = TreatmentChoice()
    data = problem.sample(60_000, seed=0)
    noise = data.Y - problem.counterfactual(data.X, data.T)
    by_clinic = [noise[data.Z[:, 0] == label].mean() for label in problem.treatments]
    by_treatment = [noise[label == data.T].mean() for label in problem.treatments]
    assert np.ptp(by_clinic) < 0.05
    # The ill get surgery: without care for illness it looks worse than nothing by more than it helps.
    assert by_treatment[2] - by_treatment[0] < -1.0
    favoured = [(label == data.T)[data.Z[:, 0] == label].mean() for label in problem.treatments]
    assert min(favoured) > 0.4


def test_noise_of_prices_is_independent_of_the_shifters_but_not_of_the_actions() -> None:
    problem = PriceAndAdvertising()
    data = problem.sample(60_000, seed=0)
    noise = data.Y - problem.counterfactual(data.X, data.T)
    assert np.abs(np.corrcoef(np.column_stack([noise, data.Z, data.X]).T)[0, 1:]).max() < 0.02
    assert np.corrcoef(np.column_stack([noise, data.T]).T)[0, 1:].min() > 0.35


def test_actions_that_do_not_exist() -> None:
    with pytest.raises(InputError, match="treatments among"):
        TreatmentChoice().counterfactual(np.zeros((2, 2)), "prayer")
    with pytest.raises(InputError, match="price and advertising"):
        PriceAndAdvertising().counterfactual(np.zeros((2, 1)), np.zeros((2, 3)))
