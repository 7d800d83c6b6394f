"""Intervals and boxes are searched between the grid points; limits, costs and support hold actions back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dmliv import CEDMLIV, KernelIV
from dmliv.data import FloatArray, Table
from dmliv.errors import InputError
from dmliv.policy import Box, GreedyPolicy, Interval
from dmliv.policy.climb import climb
from dmliv.problems import TicketDemand

X = np.array([[-7.0], [-0.123456], [0.5], [1.987654], [9.0]])


class TestInterval:
    def test_finds_the_best_action_between_grid_points(self, make_bowl: Any) -> None:
        policy = GreedyPolicy(make_bowl(), Interval(-3.0, 3.0, n_points=8))
        np.testing.assert_allclose(policy.predict(X), np.clip(X[:, 0], -3.0, 3.0), atol=1e-4)

    def test_bounds_are_hit_exactly_and_flagged(self, make_bowl: Any) -> None:
        decisions = GreedyPolicy(make_bowl(), Interval(-0.1, 0.3)).decide(X)
        assert decisions.action[0] == -0.1
        assert decisions.action[-1] == 0.3
        np.testing.assert_array_equal(decisions.at_edge, [True, True, True, True, True])
        assert not GreedyPolicy(make_bowl(), Interval(-20.0, 20.0)).decide(X).at_edge.any()

    def test_is_never_worse_than_its_grid(self) -> None:
        """A real network, whose derivative has kinks."""
        data = TicketDemand().sample(300, seed=100)
        fitted = CEDMLIV(random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X)
        contexts = TicketDemand().contexts(200)
        coarse = np.linspace(-2.0, 2.0, 9)
        refined = fitted.policy(Interval(-2.0, 2.0, n_points=9)).decide(contexts)
        assert np.all(refined.value >= fitted.policy(coarse).decide(contexts).value - 1e-6)
        np.testing.assert_allclose(fitted.predict(refined.action, contexts), refined.value, atol=1e-5)

    def test_units(self, make_bowl: Any) -> None:
        policy = GreedyPolicy(make_bowl(), Interval(-3.0, 3.0))
        assert policy.value(X[1:4]) == pytest.approx(10.0, abs=1e-6)
        assert policy.value(X[1:4], actions=0.0) == pytest.approx(10.0 - np.mean(X[1:4] ** 2))

    @pytest.mark.parametrize(
        ("low", "high"), [(1.0, 1.0), (2.0, 1.0), (np.nan, 1.0), (0.0, np.inf), ("a", "b")]
    )
    def test_bounds_that_cannot_work(self, low: Any, high: Any) -> None:
        with pytest.raises(InputError, match="finite bounds with low < high"):
            Interval(low, high)

    @pytest.mark.parametrize("n_points", [1, 0, 2.5])
    def test_points_that_cannot_work(self, n_points: Any) -> None:
        with pytest.raises(InputError, match="whole number of at least 2 for n_points"):
            Interval(0.0, 1.0, n_points)


class TestBox:
    @pytest.mark.parametrize("width", [2, 3, 6])
    def test_finds_the_best_action(self, make_bowl: Any, width: int) -> None:
        policy = GreedyPolicy(make_bowl(width), Box((-1.0,) * width, (2.0,) * width))
        wanted = np.repeat(np.clip(X, -1.0, 2.0), width, axis=1)
        near = X[1:4]
        np.testing.assert_allclose(policy.predict(near), np.repeat(near, width, axis=1), atol=0.2)
        if width < 6:
            np.testing.assert_allclose(policy.predict(X), wanted, atol=1e-3)

    def test_bounds_of_another_width(self, make_bowl: Any) -> None:
        with pytest.raises(InputError, match="bounds for 2 action columns, got 3"):
            GreedyPolicy(make_bowl(2), Box((0.0,) * 3, (1.0,) * 3))
        with pytest.raises(InputError, match="bounds for 2 action columns, got 1"):
            GreedyPolicy(make_bowl(2), Interval(0.0, 1.0))
        with pytest.raises(InputError, match="as many lower as upper"):
            Box((0.0, 1.0), (2.0,))


class TestOutsideTheSpace:
    def test_candidates(self, make_bowl: Any) -> None:
        policy = GreedyPolicy(make_bowl(), [0.0, 0.5])
        assert policy.value(X, actions=0.5) < policy.value(X)
        with pytest.raises(InputError, match=r"inside the candidates.*0\.25.*row 0"):
            policy.value(X, actions=0.25)

    def test_bounds(self, make_bowl: Any) -> None:
        policy = GreedyPolicy(make_bowl(), Interval(-1.0, 1.0))
        with pytest.raises(InputError, match=r"inside the bounds.*row 2.*1 outside"):
            policy.value(X, actions=[0.0, 1.0, 1.1, -1.0, 0.0])


class TestLimits:
    def test_hold_each_row_in_its_own_range(self, make_bowl: Any) -> None:
        today = np.array([1.0, 1.0, 1.0, 1.0, 1.0])
        limits = (0.9 * today, 1.1 * today)
        policy = GreedyPolicy(make_bowl(), Interval(-5.0, 5.0, n_points=4))
        decisions = policy.decide(X, limits=limits)
        np.testing.assert_allclose(decisions.action, np.clip(X[:, 0], 0.9, 1.1), atol=1e-4)
        assert decisions.at_edge.all()

    def test_may_differ_by_row_and_reach_beyond_the_space(self, make_bowl: Any) -> None:
        low, high = np.array([-np.inf, -1.0, 0.0, 0.0, 1.0]), np.array([0.0, 3.0, 0.0, 9.0, np.inf])
        chosen = GreedyPolicy(make_bowl(), Interval(-2.0, 2.0)).predict(X, limits=(low, high))
        np.testing.assert_allclose(chosen, [-2.0, -0.123456, 0.0, 1.987654, 2.0], atol=1e-4)

    def test_with_candidates(self, make_bowl: Any) -> None:
        policy = GreedyPolicy(make_bowl(), [-1.0, 0.0, 1.0])
        np.testing.assert_array_equal(policy.predict(X, limits=(0.0, 1.0)), [0.0, 0.0, 0.0, 1.0, 1.0])

    @pytest.mark.parametrize(
        ("limits", "message"),
        [
            ((1.0, 0.0), r"low <= high.*row 0"),
            ((np.zeros(5), np.array([1.0, 1.0, -1.0, 1.0, 1.0])), r"low <= high.*row 2 \(1 such"),
            ((5.0, 6.0), "an action of the policy inside the limits"),
            ((np.zeros(4), 1.0), "limits of 5 rows"),
            ((np.nan, 1.0), "numbers as limits"),
            (("a", "b"), "numbers as limits"),
            (3.0, "a pair"),
        ],
    )
    def test_that_cannot_work(self, make_bowl: Any, limits: Any, message: str) -> None:
        for space in (Interval(-2.0, 2.0), [-1.0, 0.1, 0.7]):
            with pytest.raises(InputError, match=message):
                GreedyPolicy(make_bowl(), space).predict(X, limits=limits)

    def test_between_two_candidates(self, make_bowl: Any) -> None:
        with pytest.raises(InputError, match=r"inside the limits.*widen"):
            GreedyPolicy(make_bowl(), [-1.0, 1.0]).predict(X, limits=(0.2, 0.8))


class TestCost:
    def test_moves_the_best_action(self, make_bowl: Any) -> None:
        """A cost of 1 per unit: the derivative of -(a - x)^2 - a vanishes at x - 1/2."""
        policy = GreedyPolicy(make_bowl(), Interval(-5.0, 5.0), cost=lambda action: action)
        np.testing.assert_allclose(policy.predict(X[1:4]), X[1:4, 0] - 0.5, atol=1e-4)
        assert policy.value(X[2:3], actions=2.0) == pytest.approx(10.0 - 1.5**2 - 2.0)

    def test_of_candidates(self, make_bowl: Any) -> None:
        free = GreedyPolicy(make_bowl(), [0.0, 1.0])
        dear = GreedyPolicy(make_bowl(), [0.0, 1.0], cost=[0.0, 100.0])
        named = GreedyPolicy(make_bowl(), [0.0, 1.0], cost={0.0: 0.0, 1.0: 100.0})
        assert free.predict([[1.0]]) == 1.0
        assert dear.predict([[1.0]]) == named.predict([[1.0]]) == 0.0
        assert dear.value([[1.0]], actions=1.0) == pytest.approx(-90.0)

    @pytest.mark.parametrize(
        ("space", "cost", "message"),
        [
            ([0.0, 1.0], [1.0], "finite cost for each of 2"),
            ([0.0, 1.0], {0.0: 1.0}, "a cost for every candidate.*1.0"),
            ([0.0, 1.0], lambda a: np.nan * a, "finite cost"),
            (Interval(0.0, 1.0), [1.0] * 200, "a function as the cost"),
        ],
    )
    def test_that_cannot_work(self, make_bowl: Any, space: Any, cost: Any, message: str) -> None:
        with pytest.raises(InputError, match=message):
            GreedyPolicy(make_bowl(), space, cost=cost)


@dataclass(frozen=True)
class Uniform:
    """Actions are uniform on [-1, 1] in every context."""

    def probability(self, context: Table, actions: FloatArray) -> FloatArray:
        shared = np.broadcast_to(actions, (len(context), *actions.shape[-2:]))
        return np.where(np.abs(shared[..., 0]) <= 1.0, 0.25, 0.0)


class TestSupport:
    @pytest.mark.parametrize("space", [np.linspace(-3.0, 3.0, 25), Interval(-3.0, 3.0, n_points=25)])
    def test_forbids_and_says_so(self, make_bowl: Any, space: Any) -> None:
        policy = GreedyPolicy(make_bowl(), space, min_support=0.1, support=Uniform())
        decisions = policy.decide(X)
        np.testing.assert_allclose(decisions.action[[0, 3, 4]], [-1.0, 1.0, 1.0])
        np.testing.assert_array_equal(decisions.support_binds, [True, False, False, True, True])
        assert decisions.support is not None
        assert (decisions.support >= 0.1).all()
        assert "held back from a better action with support below 0.1: 3 of 5 rows" in str(decisions)

    def test_where_nothing_has_support_the_best_supported_is_left(self, make_bowl: Any) -> None:
        policy = GreedyPolicy(make_bowl(), [-3.0, 0.0, 3.0], min_support=0.9, support=Uniform())
        decisions = policy.decide(X)
        np.testing.assert_array_equal(decisions.action, 0.0)
        assert "no action with enough support: 5 of 5 rows" in str(decisions)

    def test_probabilities_of_a_fitted_distribution(self) -> None:
        """The share of actions within the radius, against the exact distribution of ticket demand."""
        problem = TicketDemand()
        data = problem.sample(2000, seed=100)
        fitted = CEDMLIV(random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X)
        support = fitted._action_support()
        table = fitted.counterfactual_.read_context(data.X[:300])
        grid = np.linspace(-4.0, 4.0, 33)
        vectors = fitted.counterfactual_.read_action(grid)
        estimated = support.probability(table, vectors)
        rng = np.random.default_rng(0)
        radius = 0.25 * data.T.std()
        exact = np.empty_like(estimated)
        for row in range(300):
            means, spread = problem.exact_action_distribution(
                np.repeat(data.X[row : row + 1], 400, axis=0), rng.standard_normal(400)
            )
            draws = means + spread * rng.standard_normal(400)
            exact[row] = (np.abs(draws[:, None] - grid) <= radius).mean(axis=0)
        assert np.abs(estimated - exact).mean() < 0.02
        own = support.probability(table, np.repeat(vectors[None], 300, axis=0))
        np.testing.assert_array_equal(own, estimated)

    def test_of_a_discrete_action(self) -> None:
        data = TicketDemand().sample(400, seed=100)
        labels = np.where(data.Z[:, 0] > 0.0, "high", "low")
        fitted = CEDMLIV(random_state=0).fit(data.Y, labels, Z=data.Z, X=data.X)
        chance = fitted._action_support().probability(
            fitted.counterfactual_.read_context(data.X[:50]), np.eye(2)
        )
        np.testing.assert_allclose(chance.sum(axis=1), 1.0, atol=1e-5)
        assert np.abs(chance - 0.5).max() < 0.25

    def test_that_cannot_be_had(self, make_bowl: Any) -> None:
        with pytest.raises(InputError, match="an estimator with an action distribution"):
            GreedyPolicy(make_bowl(), [0.0, 1.0], min_support=0.1)
        with pytest.raises(InputError, match="a probability as min_support"):
            GreedyPolicy(make_bowl(), [0.0, 1.0], min_support=2.0, support=Uniform())
        data = TicketDemand().sample(60, seed=100)
        with pytest.raises(InputError, match="use DMLIV"):
            KernelIV(random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X).policy([0.0], min_support=0.1)


class TestClimb:
    def test_stays_in_its_box_and_never_loses(self) -> None:
        rng = np.random.default_rng(0)
        top = rng.normal(size=(50, 3))
        start, low, high = rng.normal(size=(50, 3)), np.full((50, 3), -1.0), np.full((50, 3), 1.0)
        start = np.clip(start, low, high)

        def value(point: FloatArray) -> FloatArray:
            return np.asarray(-(np.abs(point - top) ** 1.5).sum(axis=1))

        def gradient(point: FloatArray) -> FloatArray:
            return np.asarray(-1.5 * np.sign(point - top) * np.abs(point - top) ** 0.5)

        best, best_value = climb(value, gradient, start, low, high)
        np.testing.assert_allclose(best, np.clip(top, low, high), atol=1e-3)
        np.testing.assert_array_equal(best_value, value(best))
        assert np.all(best_value >= value(start))

    def test_a_misleading_gradient_costs_nothing(self) -> None:
        start = np.zeros((4, 1))
        best, _ = climb(lambda point: -np.abs(point[:, 0]), np.ones_like, start, start - 1, start + 1)
        np.testing.assert_array_equal(best, start)
