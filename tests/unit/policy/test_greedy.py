"""The greedy policy picks the best candidate, and says what it is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from dmliv.data import ActionSpec, FloatArray, OutcomeSpec, Table, TableSchema
from dmliv.errors import InputError
from dmliv.inference.counterfactual import Counterfactual
from dmliv.policy import GreedyPolicy

OUTCOME = OutcomeSpec(mean=100.0, scale=10.0)


@dataclass(frozen=True)
class Bowl:
    """An h with a known best action: the context itself, in model units; or level (context % 3)."""

    discrete: bool = False

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        wanted = context.numeric[:, 0] if context.numeric.shape[1] else np.zeros(len(context))
        if self.discrete:
            levels = np.arange(action.shape[1])
            return np.asarray(-((action @ levels - wanted % 3) ** 2))
        return np.asarray(-((action - wanted[:, None]) ** 2).sum(axis=1))

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        columns = [self.predict(context, np.tile(action, (len(context), 1))) for action in actions]
        return np.stack(columns, axis=1)

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        return np.asarray(-2.0 * (action - context.numeric[:, :1]))

    def describe(self) -> dict[str, object]:
        return {}


def counterfactual(action: Any, X: Any = ((0.0,), (1.0,)), discrete: bool = False) -> Counterfactual:
    spec = ActionSpec.learn(action, "discrete" if discrete else "continuous")
    return Counterfactual(Bowl(discrete), OUTCOME, spec, TableSchema.learn(X, "context"))


# Mean 5, standard deviation 2: the model's unit is two of the user's.
PRICES = np.array([3.0, 7.0, 3.0, 7.0])


class TestContinuous:
    def test_the_best_candidate_of_each_context(self) -> None:
        policy = GreedyPolicy(counterfactual(PRICES), [1.0, 5.0, 9.0, 13.0])
        X = np.array([[-2.0], [0.1], [2.2], [40.0]])
        np.testing.assert_array_equal(policy.predict(X), [1.0, 5.0, 9.0, 13.0])

    def test_the_value_is_in_the_units_of_the_outcome(self) -> None:
        policy = GreedyPolicy(counterfactual(PRICES), [5.0, 7.0])
        # At context 0 the candidate 5 is exactly right, at context 2 the candidate 7 misses by one unit.
        assert policy.value(np.array([[0.0]])) == pytest.approx(100.0)
        assert policy.value(np.array([[2.0]])) == pytest.approx(90.0)
        assert policy.value(np.array([[0.0], [2.0]])) == pytest.approx(95.0)

    @pytest.mark.parametrize(
        "container", [np.array, list, pd.Series, pl.Series], ids=["array", "list", "pandas", "polars"]
    )
    def test_recommends_the_very_numbers_that_were_offered(self, container: Any) -> None:
        """Candidates pass through the model's units and must come back without rounding."""
        action = np.random.default_rng(0).normal(0.3, 1.7, 100)
        candidates = np.linspace(-5.0, 5.0, 201)
        policy = GreedyPolicy(counterfactual(action), container(candidates))
        np.testing.assert_array_equal(policy.candidates, candidates)
        chosen = policy.predict(np.linspace(-3, 3, 50)[:, None])
        assert np.isin(chosen, candidates).all()
        assert len(np.unique(chosen)) > 10

    def test_two_columns(self) -> None:
        pairs = np.column_stack([PRICES, PRICES[[1, 0, 0, 1]]])
        offered = np.array([[5.0, 5.0], [7.0, 7.0], [9.0, 1.0]])
        policy = GreedyPolicy(counterfactual(pairs), offered)
        chosen = policy.predict(np.array([[0.0], [1.0], [0.2]]))
        np.testing.assert_array_equal(chosen, offered[[0, 1, 0]])

    def test_ties_go_to_the_first(self) -> None:
        policy = GreedyPolicy(counterfactual(PRICES), [3.0, 7.0])
        np.testing.assert_array_equal(policy.predict(np.array([[0.0]])), [3.0])

    def test_without_context_there_is_one_decision(self) -> None:
        policy = GreedyPolicy(counterfactual(PRICES, X=None), [1.0, 5.0, 9.0])
        np.testing.assert_array_equal(policy.predict(), [5.0])
        assert policy.value() == pytest.approx(100.0)

    def test_many_contexts_and_candidates(self) -> None:
        """More entries than are held at once."""
        candidates = np.linspace(-20.0, 30.0, 2001)
        policy = GreedyPolicy(counterfactual(PRICES), candidates)
        X = np.linspace(-3.0, 3.0, 2500)[:, None]
        chosen = policy.predict(X)
        assert chosen.shape == (2500,)
        np.testing.assert_allclose(chosen, 5.0 + 2.0 * X[:, 0], atol=0.02)
        assert policy.value(X) == pytest.approx(100.0, abs=0.01)

    def test_no_contexts_no_decisions(self) -> None:
        policy = GreedyPolicy(counterfactual(PRICES), [1.0, 5.0])
        assert policy.predict(np.empty((0, 1))).shape == (0,)
        with pytest.raises(InputError, match="at least one context"):
            policy.value(np.empty((0, 1)))

    @pytest.mark.parametrize(
        ("candidates", "message"),
        [
            (None, "Expected candidate actions for a continuous action, got none"),
            (3.0, r"array of candidate actions, got the single value 3\.0"),
            ([], "at least one candidate action"),
            ([[1.0, 2.0]], "1 columns, got 2"),
            ([np.inf], "infinite values"),
            (["cheap"], "Expected numbers in action column"),
        ],
    )
    def test_candidates_that_cannot_work(self, candidates: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            GreedyPolicy(counterfactual(PRICES), candidates)


class TestDiscrete:
    levels = ("bus", "plane", "train")

    def test_all_levels_by_default(self) -> None:
        policy = GreedyPolicy(counterfactual(list(self.levels), discrete=True))
        assert policy.candidates.tolist() == list(self.levels)
        chosen = policy.predict(np.array([[0.0], [1.0], [2.0], [3.0]]))
        assert chosen.tolist() == ["bus", "plane", "train", "bus"]

    def test_some_levels(self) -> None:
        policy = GreedyPolicy(counterfactual(list(self.levels), discrete=True), ["train", "bus"])
        assert policy.predict(np.array([[0.0], [2.0]])).tolist() == ["bus", "train"]
        # The best level is not on offer: the loss shows in the value.
        assert policy.value(np.array([[1.0]])) == pytest.approx(90.0)

    def test_numbers_keep_their_type(self) -> None:
        policy = GreedyPolicy(counterfactual([10, 20, 30], discrete=True))
        chosen = policy.predict(np.array([[2.0], [0.0]]))
        assert chosen.tolist() == [30, 10]
        assert chosen.dtype.kind == "i"

    def test_booleans_keep_their_type(self) -> None:
        policy = GreedyPolicy(counterfactual([True, False], discrete=True))
        chosen = policy.predict(np.array([[1.0], [0.0]]))
        assert chosen.tolist() == [True, False]
        assert chosen.dtype == bool
