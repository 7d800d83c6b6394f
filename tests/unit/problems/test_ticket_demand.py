from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from dmliv.errors import InputError
from dmliv.problems import Problem, TicketDemand
from dmliv.problems.ticket_demand import DEMAND_SD, PRICE_MEAN, PRICE_SD, psi

N_LARGE = 400_000


@pytest.fixture(scope="module")
def large():
    problem = TicketDemand()
    return problem, problem.sample(N_LARGE, seed=3)


def one_hot(time, kind):
    return np.column_stack([time, np.eye(7)[np.asarray(kind) - 1]])


# ---------------------------------------------------------------------------------------------- formulas


def test_psi_at_hand_computed_points():
    np.testing.assert_allclose(psi(5.0), -1.0)
    np.testing.assert_allclose(psi(10.0), 0.083, atol=5e-4)
    assert psi(np.zeros((3, 2))).shape == (3, 2)


def test_counterfactual_by_hand():
    # psi(5) = -1, so with type 3 and price 20 raw demand is 30 * 3 * (-1) - 40 = -130.
    X = one_hot([5.0], [3])
    value = TicketDemand().counterfactual(X, [(20.0 - 17.779) / 3.7])
    np.testing.assert_allclose(value, [(-130.0 + 292.1) / 158.0])


def test_sample_follows_the_documented_order_of_draws():
    n, strength, confounding = 50, 0.4, 0.5
    rng = np.random.default_rng(11)
    t = rng.uniform(0, 10, n)
    s = rng.integers(1, 8, n)
    z, omega, own = rng.standard_normal(n), rng.standard_normal(n), rng.standard_normal(n)
    price = 25 + (strength * z + 3) * psi(t) + omega
    demand = (10 + price) * s * psi(t) - 2 * price
    outcome = (demand + 292.1) / 158 + confounding * omega + np.sqrt(1 - confounding**2) * own

    data = TicketDemand(strength, confounding).sample(n, seed=11)
    np.testing.assert_allclose(data.T, (price - 17.779) / 3.7)
    np.testing.assert_allclose(data.Y, outcome)
    np.testing.assert_array_equal(data.Z, z[:, None])
    np.testing.assert_array_equal(data.X, one_hot(t, s))


# ------------------------------------------------------------------------------------ shapes and encodings


@pytest.mark.parametrize(("customer_type", "width"), [("one-hot", 8), ("scalar", 2)])
def test_shapes(customer_type, width):
    problem = TicketDemand(customer_type=customer_type)
    data = problem.sample(30)
    assert data.Y.shape == data.T.shape == (30,)
    assert data.Z.shape == (30, 1)
    assert data.X.shape == (30, width)
    assert all(type(a) is np.ndarray and a.dtype == np.float64 for a in (data.Y, data.T, data.Z, data.X))
    assert problem.contexts(9).shape == (9, width)
    for (X, T, truth), n in [(problem.test_set(), 2800), (problem.iid_test_set(40), 40)]:
        assert X.shape == (n, width)
        assert T.shape == truth.shape == (n,)
        np.testing.assert_allclose(problem.counterfactual(X, T), truth)


def test_encodings_describe_the_same_problem():
    wide, narrow = TicketDemand(), TicketDemand(customer_type="scalar")
    a, b = wide.sample(100, seed=5), narrow.sample(100, seed=5)
    np.testing.assert_array_equal(a.Y, b.Y)
    np.testing.assert_array_equal(a.X[:, 1:] @ np.arange(1, 8), b.X[:, 1])
    np.testing.assert_array_equal(wide.test_set()[2], narrow.test_set()[2])
    np.testing.assert_allclose(wide.counterfactual(a.X, a.T), narrow.counterfactual(b.X, b.T))


def test_action_may_be_a_column_or_a_scalar():
    problem = TicketDemand()
    X = problem.contexts(6)
    expected = problem.counterfactual(X, np.full(6, 0.5))
    np.testing.assert_array_equal(problem.counterfactual(X, 0.5), expected)
    np.testing.assert_array_equal(problem.counterfactual(X, np.full((6, 1), 0.5)), expected)
    np.testing.assert_array_equal(problem.reward(X, 0.5), expected)


def test_float32_and_nested_list_contexts_are_accepted():
    problem = TicketDemand()
    X = problem.contexts(6)
    expected = problem.counterfactual(X, 0.0)
    np.testing.assert_allclose(problem.counterfactual(X.astype(np.float32), 0.0), expected, rtol=1e-4)
    np.testing.assert_array_equal(problem.counterfactual(X.tolist(), 0.0), expected)


def test_satisfies_the_protocol_and_is_frozen():
    problem = TicketDemand()
    assert isinstance(problem, Problem)
    assert problem == TicketDemand(1.0, 0.9, "one-hot")
    with pytest.raises(FrozenInstanceError):
        problem.confounding = 0.1


# -------------------------------------------------------------------------------------------------- seeds


def test_seeds_reproduce_and_differ():
    problem = TicketDemand()
    first, again, other = problem.sample(20, seed=1), problem.sample(20, seed=1), problem.sample(20, seed=2)
    for name in ("Y", "T", "Z", "X"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
        assert not np.array_equal(getattr(first, name), getattr(other, name))
    np.testing.assert_array_equal(problem.contexts(20), problem.contexts(20, seed=1))
    assert not np.array_equal(problem.contexts(20), problem.contexts(20, seed=2))


def test_strengths_share_the_draws_of_a_seed():
    strong, weak = TicketDemand(1.0).sample(20, seed=4), TicketDemand(0.01).sample(20, seed=4)
    np.testing.assert_array_equal(strong.X, weak.X)
    np.testing.assert_array_equal(strong.Z, weak.Z)
    assert not np.array_equal(strong.T, weak.T)


def test_shift_moves_the_time_only():
    problem = TicketDemand()
    plain, moved = problem.contexts(1000, seed=7), problem.contexts(1000, seed=7, shift=1.0)
    np.testing.assert_allclose(moved[:, 0], plain[:, 0] + 1.0)
    np.testing.assert_array_equal(moved[:, 1:], plain[:, 1:])
    assert plain[:, 0].min() >= 0
    assert plain[:, 0].max() <= 10


# --------------------------------------------------------------------------------- facts about the design


def test_distribution_of_price_and_outcome(large):
    problem, data = large
    price = PRICE_MEAN + PRICE_SD * data.T
    signal = problem.counterfactual(data.X, data.T)
    noise = data.Y - signal
    assert price.mean() == pytest.approx(17.78, abs=0.03)
    assert price.std() == pytest.approx(3.73, abs=0.02)
    assert noise.mean() == pytest.approx(0.0, abs=0.01)
    assert noise.var() == pytest.approx(1.0, abs=0.01)
    assert signal.var() == pytest.approx(1.0, abs=0.02)
    assert data.Y.var() == pytest.approx(1.87, abs=0.02)
    assert np.corrcoef(price, noise)[0, 1] == pytest.approx(0.24, abs=0.01)
    np.testing.assert_allclose(data.X[:, 1:].mean(axis=0), 1 / 7, atol=0.005)


def test_weak_instrument_shrinks_the_price_spread():
    data = TicketDemand(instrument_strength=0.01).sample(N_LARGE, seed=3)
    assert PRICE_SD * data.T.std() == pytest.approx(2.72, abs=0.02)


def test_no_confounding_leaves_price_and_noise_uncorrelated():
    problem = TicketDemand(confounding=0.0)
    data = problem.sample(N_LARGE, seed=3)
    noise = data.Y - problem.counterfactual(data.X, data.T)
    assert np.corrcoef(data.T, noise)[0, 1] == pytest.approx(0.0, abs=0.01)


def test_grid():
    X, T, truth = TicketDemand().test_set()
    assert np.mean(truth**2) == pytest.approx(1.3077, abs=5e-5)
    assert T.min() == pytest.approx(-2.10, abs=0.01)
    assert T.max() == pytest.approx(1.95, abs=0.01)
    assert len(np.unique(np.column_stack([X, T]), axis=0)) == 2800


def test_instrument_is_exogenous_given_the_context(large):
    problem, data = large
    noise = data.Y - problem.counterfactual(data.X, data.T)
    for q in (data.Z[:, 0], data.Z[:, 0] * data.X[:, 0], data.X[:, 0], data.Z[:, 0] ** 2):
        assert abs(np.mean(noise * q)) < 5 * q.std() / np.sqrt(N_LARGE) + 0.01


# --------------------------------------------------------------------------------- exact conditional means


def test_outcome_mean_matches_monte_carlo_at_fixed_points():
    problem = TicketDemand(instrument_strength=0.8)
    rng = np.random.default_rng(0)
    X = one_hot([0.5, 3.0, 5.0, 7.5, 9.8], [1, 4, 7, 2, 6])
    Z = np.array([-1.5, 0.3, 1.0, 2.0, -0.4])
    draws = 200_000
    for row in range(5):
        context = np.repeat(X[row : row + 1], draws, axis=0)
        omega, own = rng.standard_normal(draws), rng.standard_normal(draws)
        price = 25 + (0.8 * Z[row] + 3) * psi(X[row, 0]) + omega
        action = (price - 17.779) / 3.7
        outcome = problem.counterfactual(context, action) + 0.9 * omega + np.sqrt(0.19) * own
        mean, sd = problem.exact_action_distribution(X[row : row + 1], Z[row])
        assert mean[0] == pytest.approx(action.mean(), abs=0.004)
        assert sd == pytest.approx(action.std(), rel=0.01)
        exact = problem.exact_outcome_mean(X[row : row + 1], Z[row : row + 1])
        assert exact[0] == pytest.approx(outcome.mean(), abs=0.015)


def test_outcome_mean_leaves_pure_noise_in_samples(large):
    problem, data = large
    residual = data.Y - problem.exact_outcome_mean(data.X, data.Z)
    # Given (X, Z) only the hidden event and the own noise vary: the slope in price adds to the confounding.
    kind = data.X[:, 1:] @ np.arange(1, 8)
    slope = (kind * psi(data.X[:, 0]) - 2) / DEMAND_SD
    assert residual.var() == pytest.approx(np.mean((slope + 0.9) ** 2 + 1 - 0.9**2), abs=0.01)
    for z_bin in (data.Z[:, 0] < -1, np.abs(data.Z[:, 0]) < 0.3, data.Z[:, 0] > 1):
        for t_bin in (data.X[:, 0] < 3, data.X[:, 0] > 7):
            cell = residual[z_bin & t_bin]
            assert abs(cell.mean()) < 4 * cell.std() / np.sqrt(cell.size)


def test_action_distribution_matches_samples(large):
    problem, data = large
    mean, sd = problem.exact_action_distribution(data.X, data.Z)
    standard = (data.T - mean) / sd
    assert standard.mean() == pytest.approx(0.0, abs=0.01)
    assert standard.std() == pytest.approx(1.0, abs=0.01)
    assert np.corrcoef(standard, mean)[0, 1] == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(
    ("strength", "floor"),
    [(1.0, 0.0049), (0.8, 0.0084), (0.6, 0.0166), (0.4, 0.0378), (0.2, 0.0961), (0.01, 0.1639)],
)
def test_limit_of_the_single_draw_rule_on_the_grid(strength, floor):
    # One draw in the projection leads to E[s0(c, Z) | c, A = a]. Price and instrument are jointly Gaussian
    # given the context, so this is s0 at the instrument's posterior mean.
    problem = TicketDemand(instrument_strength=strength)
    X, T, truth = problem.test_set()
    gain = strength * psi(X[:, 0])
    price = PRICE_MEAN + PRICE_SD * T
    posterior_z = gain * (price - 25 - 3 * psi(X[:, 0])) / (gain**2 + 1)
    limit = problem.exact_outcome_mean(X, posterior_z)
    assert np.mean((limit - truth) ** 2) == pytest.approx(floor, abs=5.1e-5)

    # The same limit in the closed form h0(c, m + k (p - m)).
    m = 25 + 3 * psi(X[:, 0])
    k = gain**2 / (gain**2 + 1)
    shrunk = problem.counterfactual(X, (m + k * (price - m) - PRICE_MEAN) / PRICE_SD)
    np.testing.assert_allclose(shrunk, limit)


# ----------------------------------------------------------------------------------------------- policies


@pytest.mark.parametrize(
    ("shift", "bound", "optimum", "random", "worst"),
    [
        (0.0, 3.0, 0.748, -0.068, -0.885),
        (0.0, 5.0, 1.293, -0.068, -1.429),
        (1.0, 3.0, 0.948, 0.192, -0.564),
        (1.0, 5.0, 1.452, 0.192, -1.068),
    ],
)
def test_reference_rewards(shift, bound, optimum, random, worst):
    problem = TicketDemand()
    X = problem.contexts(N_LARGE, shift=shift)
    assert problem.optimal_value(X, -bound, bound) == pytest.approx(optimum, abs=0.008)
    assert problem.random_value(X, -bound, bound) == pytest.approx(random, abs=0.008)
    assert problem.worst_value(X, -bound, bound) == pytest.approx(worst, abs=0.008)


def test_best_policy_is_the_lowest_price_inside_the_training_distribution():
    problem = TicketDemand()
    assert (problem.optimal_action(problem.contexts(10_000)) == -5.0).all()
    shifted = problem.optimal_action(problem.contexts(10_000, shift=1.0), low=-3.0, high=3.0)
    assert set(np.unique(shifted)) == {-3.0, 3.0}


def test_constant_lowest_price_out_of_distribution():
    problem = TicketDemand()
    X = problem.contexts(N_LARGE, shift=1.0)
    assert problem.reward(X, -5.0).mean() == pytest.approx(1.379, abs=0.008)
    assert problem.reward(X, 5.0).mean() == pytest.approx(-1.0, abs=0.008)


def test_reference_values_agree_with_a_search_over_actions():
    problem = TicketDemand()
    X = problem.contexts(200, shift=1.0)
    rewards = np.stack([problem.reward(X, a) for a in np.linspace(-4.0, 2.0, 61)])
    assert problem.optimal_value(X, -4.0, 2.0) == pytest.approx(rewards.max(axis=0).mean())
    assert problem.random_value(X, -4.0, 2.0) == pytest.approx(rewards.mean())
    assert problem.worst_value(X, -4.0, 2.0) == pytest.approx(rewards.min(axis=0).mean())


# ------------------------------------------------------------------------------------------- bad arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"instrument_strength": -0.1}, "instrument_strength"),
        ({"instrument_strength": np.nan}, "instrument_strength"),
        ({"instrument_strength": "strong"}, "instrument_strength"),
        ({"confounding": 1.1}, "confounding"),
        ({"confounding": -1.1}, "confounding"),
        ({"confounding": None}, "confounding"),
        ({"customer_type": "onehot"}, "customer_type.*one-hot.*scalar.*onehot"),
    ],
)
def test_bad_parameters(arguments, message):
    with pytest.raises(InputError, match=message):
        TicketDemand(**arguments)


@pytest.mark.parametrize("n", [0, -5, 2.5, "10", True])
def test_bad_row_counts(n):
    with pytest.raises(InputError, match="positive integer"):
        TicketDemand().sample(n)
    with pytest.raises(InputError, match="positive integer"):
        TicketDemand().contexts(n)


def test_bad_contexts_and_actions():
    wide, narrow = TicketDemand(), TicketDemand(customer_type="scalar")
    X = wide.contexts(4)
    with pytest.raises(InputError, match=r"\(n, 8\).*\(4, 2\)"):
        wide.counterfactual(narrow.contexts(4), 0.0)
    with pytest.raises(InputError, match=r"\(n, 2\).*\(4, 8\)"):
        narrow.counterfactual(X, 0.0)
    with pytest.raises(InputError, match="one-hot"):
        wide.counterfactual(np.full((4, 8), 0.5), 0.0)
    with pytest.raises(InputError, match="types 1 to 7"):
        narrow.counterfactual([[1.0, 8.0]], 0.0)
    with pytest.raises(InputError, match="one value per row"):
        wide.counterfactual(X, np.zeros(3))
    with pytest.raises(InputError, match="one value per row"):
        wide.exact_outcome_mean(X, np.zeros((4, 2)))


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, -2.0), (-np.inf, 0.0)])
def test_bad_bounds(low, high):
    problem = TicketDemand()
    X = problem.contexts(3)
    for method in (problem.optimal_action, problem.optimal_value, problem.random_value, problem.worst_value):
        with pytest.raises(InputError, match="low < high"):
            method(X, low, high)


def test_bad_shift():
    with pytest.raises(InputError, match="shift"):
        TicketDemand().contexts(3, shift=np.nan)
