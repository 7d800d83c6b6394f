"""Offline bandits: one lower-confidence rule over four kinds of features, and the random policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.stats import chisquare
from sklearn.base import clone
from torch.optim.adam import adam

from dmliv.bandits.gradient_networks import BanditNetwork, GradientFactors
from dmliv.bandits.neural import NeuraLCB, NeuralLinGreedy, NeuralLinLCB
from dmliv.bandits.rule import KernLCB, LinLCB, OfflineBandit, RandomPolicy
from dmliv.errors import DMLIVError, InputError, NotFittedError, TrainingDivergedError

Array = npt.NDArray[np.float64]

MAKERS: dict[str, Callable[..., OfflineBandit]] = {
    "linear": LinLCB,
    "kernel": KernLCB,
    "network": lambda **p: NeuraLCB(**{"n_steps": 5, "random_state": 0} | p),
    "random features": lambda **p: NeuralLinLCB(**{"random_state": 0} | p),
    "greedy": lambda **p: NeuralLinGreedy(**{"random_state": 0} | p),
    "random": lambda **p: RandomPolicy(**{"random_state": 0} | p),
}
every_bandit = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
every_learner = pytest.mark.parametrize("make", list(MAKERS.values())[:-1], ids=list(MAKERS)[:-1])


def small_data(n: int = 60, seed: int = 0) -> dict[str, Any]:
    """Two standardised inputs and three labelled actions."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((n, 2))
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    codes = rng.integers(3, size=n)
    codes[:3] = [0, 1, 2]
    outcome = 5.0 + 2.0 * rng.standard_normal(n) + codes * inputs[:, 0]
    return {"Y": outcome, "T": np.array(["a", "b", "c"])[codes], "Z": inputs[:, 1], "X": inputs[:, :1]}


def parts(data: dict[str, Any]) -> tuple[Array, npt.NDArray[np.int64], Array]:
    """Return inputs, action codes and standardised outcome as the bandits should see them."""
    outcome = (data["Y"] - data["Y"].mean()) / data["Y"].std()
    return (
        np.column_stack([data["X"], data["Z"]]),
        np.searchsorted(["a", "b", "c"], data["T"]),
        outcome,
    )


def disjoint(inputs: Array, codes: npt.NDArray[np.int64], n_actions: int = 3) -> Array:
    return np.stack([np.kron(np.eye(n_actions)[code], x) for x, code in zip(inputs, codes, strict=True)])


def grid_encoding(inputs: Array, n_actions: int = 3) -> Array:
    """Encode every input with every action, shape (n * K, K * d)."""
    return disjoint(
        np.repeat(inputs, n_actions, axis=0), np.tile(np.arange(n_actions), len(inputs)), n_actions
    )


def to_user(scores: Array, outcome: Array) -> Array:
    return scores * outcome.std() + outcome.mean()


class TestLinear:
    @pytest.mark.parametrize(("beta", "ridge"), [(0.1, 0.1), (2.0, 3.0), (0.0, 0.1)])
    def test_is_ridge_regression_on_the_disjoint_encoding(self, beta: float, ridge: float) -> None:
        data = small_data()
        inputs, codes, outcome = parts(data)
        encoded, new = disjoint(inputs, codes), np.random.default_rng(1).standard_normal((7, 2))
        covariance = np.linalg.inv(ridge * np.eye(6) + encoded.T @ encoded)
        at = grid_encoding(new)
        widths = np.sqrt(np.einsum("ij,jk,ik->i", at, covariance, at))
        expected = (at @ covariance @ encoded.T @ outcome - beta * widths).reshape(7, 3)
        bandit = LinLCB(beta, ridge=ridge, intercept=False).fit(**data)
        np.testing.assert_allclose(bandit.scores(new[:, :1], new[:, 1]), to_user(expected, data["Y"]))
        best = np.array(["a", "b", "c"])[expected.argmax(axis=1)]
        np.testing.assert_array_equal(bandit.predict(new[:, :1], new[:, 1]), best)

    def test_caution_prefers_the_action_that_was_seen_often(self) -> None:
        """Action "new" pays a little more, but was tried five times only."""
        rng = np.random.default_rng(0)
        action = np.array(["new"] * 5 + ["old"] * 500)
        outcome = np.where(action == "new", 0.5, 0.0) + 0.01 * rng.standard_normal(505)
        X = np.ones(505)
        chosen = [LinLCB(beta).fit(outcome, action, X=X).predict(np.ones(1))[0] for beta in (0.0, 0.1, 50.0)]
        assert chosen == ["new", "new", "old"]


class TestKernel:
    @pytest.mark.parametrize(("beta", "length_scale", "noise"), [(0.1, 1.0, 1e-6), (1.5, 0.5, 0.1)])
    def test_is_the_posterior_of_a_gaussian_process(
        self, beta: float, length_scale: float, noise: float
    ) -> None:
        data = small_data()
        inputs, codes, outcome = parts(data)
        encoded, new = disjoint(inputs, codes), np.random.default_rng(1).standard_normal((7, 2))

        def kernel(left: Array, right: Array) -> Array:
            distance = ((left[:, None] - right) ** 2).sum(axis=2)
            return np.asarray(np.exp(-distance / (2.0 * length_scale**2)))

        at = grid_encoding(new)
        inverse = np.linalg.inv(kernel(encoded, encoded) + noise * np.eye(60))
        cross = kernel(at, encoded)
        deviation = np.sqrt(1.0 - np.einsum("ij,jk,ik->i", cross, inverse, cross))
        expected = (cross @ inverse @ outcome - beta * deviation).reshape(7, 3)
        bandit = KernLCB(beta, length_scale=length_scale, noise=noise, intercept=False).fit(**data)
        got = bandit.scores(new[:, :1], new[:, 1])
        np.testing.assert_allclose(got, to_user(expected, data["Y"]), rtol=1e-5, atol=1e-5)

    def test_far_from_the_data_nothing_is_known(self) -> None:
        data = small_data()
        scores = KernLCB(0.7).fit(**data).scores(np.full((2, 1), 1e3), np.full(2, -1e3))
        np.testing.assert_allclose(scores, data["Y"].mean() - 0.7 * data["Y"].std())

    def test_only_the_first_rows_count(self) -> None:
        data = small_data()

        def scores(order: npt.NDArray[np.int64]) -> Array:
            shuffled = {role: values[order] for role, values in data.items()}
            return KernLCB(max_rows=40, noise=0.1).fit(**shuffled).scores(data["X"], data["Z"])

        last = np.concatenate([np.arange(40), np.arange(59, 39, -1)])
        np.testing.assert_allclose(scores(last), scores(np.arange(60)), atol=1e-10)
        assert np.abs(scores(np.arange(60)[::-1]) - scores(np.arange(60))).max() > 0.1

    def test_repeated_rows_without_noise(self) -> None:
        data = {role: np.concatenate([values, values]) for role, values in small_data().items()}
        assert np.isfinite(KernLCB(noise=0.0).fit(**data).scores(data["X"], data["Z"])).all()


def random_network(seed: int = 0) -> BanditNetwork:
    """Return a network without a parameter at a special value: three actions, inputs of width two."""
    rng = np.random.default_rng(seed)
    network = BanditNetwork.draw(2, 3, (5, 4), rng)
    for matrix in network.parameters:
        matrix[:] += 0.3 * rng.standard_normal(matrix.shape)
    return network


def torch_output(parameters: list[torch.Tensor], encoded: Array) -> torch.Tensor:
    """Return the network's output on encoded rows, written with torch's own layers."""
    first, second, rest = parameters
    w1, w2 = first.shape[1], second.shape[1]
    scale1, offset1, scale2, offset2, weights, offset = rest[0].split([w1, w1, w2, w2, w2, 1])
    layer_norm = torch.nn.functional.layer_norm
    hidden = torch.as_tensor(encoded) @ first[:-1] + first[-1]
    hidden = torch.relu(layer_norm(hidden, (w1,), scale1, offset1))
    hidden = hidden @ second[:-1] + second[-1]
    return torch.relu(layer_norm(hidden, (w2,), scale2, offset2)) @ weights + offset


def written_out(factors: GradientFactors) -> Array:
    """Return the gradients as rows of all parameters."""
    outer = [np.einsum("ni,nj->nij", left, right).reshape(len(left), -1) for left, right in factors.pairs]
    return np.hstack(outer)


def flat(matrices: Any) -> Array:
    return np.concatenate([np.ravel(matrix) for matrix in matrices])


class TestNetworkGradients:
    @pytest.mark.parametrize("action", [0, 2])
    def test_equal_automatic_differentiation(self, action: int) -> None:
        network, inputs = random_network(), np.random.default_rng(1).standard_normal((6, 2))
        parameters = [torch.tensor(matrix, requires_grad=True) for matrix in network.parameters]
        factors = network.factors_of(inputs, action)
        encoded = disjoint(inputs, np.full(6, action))
        output = torch_output(parameters, encoded)
        np.testing.assert_allclose(factors.output, output.detach().numpy())
        for row in range(6):
            first, second, rest = torch.autograd.grad(output[row], parameters, retain_graph=True)
            used = [2 * action, 2 * action + 1, 6]
            expected = flat([first[used], second, rest])
            np.testing.assert_allclose(written_out(factors)[row], expected, rtol=1e-8, atol=1e-12)
        # (d + 1) w1 + (w1 + 1) w2 + (w2 + 1) + 2 (w1 + w2) with d = 2 and widths 5 and 4.
        assert written_out(factors).shape == (6, 3 * 5 + 6 * 4 + 5 + 2 * 9)
        whole = network.factors_on_blocks(encoded).weighted_sum(np.arange(6.0))
        gradients = torch.autograd.grad((output * torch.arange(6.0)).sum(), parameters)
        np.testing.assert_allclose(flat(whole), flat(gradients), rtol=1e-8, atol=1e-12)

    def test_sums_over_parameters_need_no_written_gradients(self) -> None:
        network, rng = random_network(), np.random.default_rng(1)
        factors = network.factors_of(rng.standard_normal((6, 2)), 1)
        weight = rng.standard_normal(6)
        total = factors.weighted_sum(weight)
        np.testing.assert_allclose(flat(total), weight @ written_out(factors))
        np.testing.assert_allclose(factors.dot(total), written_out(factors) @ flat(total))
        np.testing.assert_allclose(factors.squared().dot(total), written_out(factors) ** 2 @ flat(total))

    def test_initial_weights(self) -> None:
        network = BanditNetwork.draw(9, 20, (100, 50), np.random.default_rng(0))
        bound = np.sqrt(3.0 / 180)
        assert 0.99 * bound < np.abs(network.first[:-1]).max() <= bound
        assert np.abs(network.second[:-1]).max() <= np.sqrt(3.0 / 100)
        assert not network.first[-1].any()
        assert not network.second[-1].any()
        assert network.smaller_width == 50


class TestRandomFeatures:
    @pytest.mark.parametrize("beta", [0.1, 3.0])
    def test_is_diagonal_ridge_regression_on_the_gradients(self, beta: float) -> None:
        data = small_data()
        inputs, codes, outcome = parts(data)
        bandit = NeuralLinLCB(beta, widths=(6, 4), ridge=0.3, intercept=False, random_state=3).fit(**data)
        network: BanditNetwork = bandit.reward_model_.network  # type: ignore[attr-defined]

        def features(x: Array, code: int) -> Array:
            return written_out(network.factors_of(x[None], code))[0] / np.sqrt(4)

        seen = np.stack([features(x, code) for x, code in zip(inputs, codes, strict=True)])
        precision = 0.3 + (seen**2).sum(axis=0)
        new = np.random.default_rng(1).standard_normal((4, 2))
        at = np.stack([[features(x, code) for code in range(3)] for x in new])
        expected = at @ (outcome @ seen / precision) - beta * np.sqrt((at**2 / precision).sum(axis=2))
        np.testing.assert_allclose(bandit.scores(new[:, :1], new[:, 1]), to_user(expected, data["Y"]))

    def test_greedy_is_the_same_without_caution(self) -> None:
        data = small_data()
        greedy = NeuralLinGreedy(random_state=3).fit(**data)
        bold = NeuralLinLCB(0.0, random_state=3).fit(**data)
        cautious = NeuralLinLCB(5.0, random_state=3).fit(**data)
        at = data["X"], data["Z"]
        np.testing.assert_array_equal(greedy.scores(*at), bold.scores(*at))
        assert (cautious.scores(*at) < bold.scores(*at)).all()


class TestNetwork:
    def test_streaming_is_adam_row_by_row(self) -> None:
        """The published stream rule, and the precision summed along the way, against torch."""
        data = small_data(25)
        inputs, codes, outcome = parts(data)
        bandit = NeuraLCB(
            0.5,
            mode="stream",
            learning_rate=0.01,
            widths=(6, 4),
            ridge=0.2,
            intercept=False,
            random_state=3,
        )
        # With no visible step the drawn network can be seen: the same seed draws the same one.
        start = clone(bandit).set_params(learning_rate=1e-300).fit(**data).reward_model_
        drawn: BanditNetwork = start.network  # type: ignore[attr-defined]
        parameters = [torch.tensor(matrix, requires_grad=True) for matrix in drawn.parameters]
        means, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
        steps = [torch.zeros(()) for _ in parameters]
        precision = np.full((3, 71), 0.2)
        for row in range(25):
            encoded = disjoint(inputs[row : row + 1], codes[row : row + 1])
            weights = [parameters[0][:-1], parameters[1][:-1], parameters[2][0, -5:-1]]
            penalty = sum((weight**2).sum() for weight in weights)
            error = torch_output(parameters, encoded)[0] - outcome[row]
            gradients = list(torch.autograd.grad(0.5 * error**2 + 0.5e-4 * penalty, parameters))
            with torch.no_grad():
                adam(
                    parameters, gradients, means, squares, [], steps, amsgrad=False, beta1=0.9, beta2=0.999,
                    lr=0.01, weight_decay=0.0, eps=1e-8, maximize=False,
                )  # fmt: skip
            moved = BanditNetwork(*(p.detach().numpy() for p in parameters), n_inputs=2)
            factors = moved.factors_of(inputs[row : row + 1], int(codes[row]))
            precision[codes[row]] += written_out(factors)[0] ** 2 / 4
        new = np.random.default_rng(1).standard_normal((4, 2))
        expected = np.empty((4, 3))
        for action in range(3):
            factors = moved.factors_of(new, action)
            widths = np.sqrt((written_out(factors) ** 2 / (4 * precision[action])).sum(axis=1))
            expected[:, action] = factors.output - 0.5 * widths
        got = bandit.fit(**data).scores(new[:, :1], new[:, 1])
        np.testing.assert_allclose(got, to_user(expected, data["Y"]), rtol=1e-6)

    def test_one_pass_with_updates_at_every_row_is_the_batch_rule(self) -> None:
        data = small_data(20)
        settings: dict[str, Any] = {"n_steps": 3, "batch_size": 4, "random_state": 0}
        every = NeuraLCB(mode="one-pass", update_every=1, **settings).fit(**data)
        batch = NeuraLCB(mode="batch", update_every=7, **settings).fit(**data)
        at = data["X"], data["Z"]
        np.testing.assert_array_equal(every.scores(*at), batch.scores(*at))

    def test_progress_is_shown_when_asked_for(self, capsys: pytest.CaptureFixture[str]) -> None:
        NeuraLCB(n_steps=1, random_state=0, verbose=True).fit(**small_data())
        assert "bandit network" in capsys.readouterr().err
        NeuraLCB(n_steps=1, random_state=0).fit(**small_data())
        assert not capsys.readouterr().err

    def test_divergence_is_reported_and_changes_nothing(self) -> None:
        data = small_data(20)
        bandit = NeuraLCB(learning_rate=1e200, n_steps=5, random_state=0)
        with pytest.raises(TrainingDivergedError, match="Lower learning_rate"):
            bandit.fit(**data)
        assert not hasattr(bandit, "actions_")


def trial(n: int, seed: int) -> tuple[dict[str, Any], Array]:
    """Return unconfounded rows, actions drawn at random, and the mean outcome of every action, (n, 3)."""
    rng = np.random.default_rng(seed)
    dose, kind = rng.uniform(-2.0, 2.0, n), rng.choice(["p", "q"], n)
    truth = np.column_stack([dose, np.where(kind == "p", 1.5, -0.5), -dose])
    codes = rng.integers(3, size=n)
    outcome = truth[np.arange(n), codes] + 0.3 * rng.standard_normal(n)
    X = pd.DataFrame({"dose": dose, "kind": kind})
    return {"Y": outcome, "T": np.array(["a", "b", "c"])[codes], "X": X}, truth


class TestWithoutConfounding:
    """The bandits are no straw men: they find the best action when nothing is hidden."""

    @pytest.mark.parametrize(
        ("bandit", "share"),
        [
            (LinLCB(), 0.01),
            (KernLCB(), 0.01),
            (NeuraLCB(update_every=200, random_state=0), 0.01),
            # One weight at a time on features that overlap: right about the order, not about the amounts.
            (NeuralLinLCB(random_state=0), 0.15),
            (NeuralLinGreedy(random_state=0), 0.15),
        ],
        ids=["linear", "kernel", "network", "random features", "greedy"],
    )
    def test_the_best_level(self, bandit: OfflineBandit, share: float) -> None:
        """Regret as a share of that of random actions."""
        data, _ = trial(2000, seed=0)
        new, truth = trial(1000, seed=1)
        chosen = np.searchsorted(["a", "b", "c"], clone(bandit).fit(**data).predict(new["X"]))
        regret = truth.max(axis=1) - truth[np.arange(1000), chosen]
        random_regret = (truth.max(axis=1) - truth.mean(axis=1)).mean()
        assert regret.mean() < share * random_regret

    @pytest.mark.parametrize(
        "bandit",
        [LinLCB(), NeuraLCB(update_every=200, random_state=0)],
        ids=["linear", "network"],
    )
    def test_the_best_price(self, bandit: OfflineBandit) -> None:
        """The outcome is best at an action equal to the context."""
        rng = np.random.default_rng(0)
        context, action = rng.uniform(-1.5, 1.5, 4000), rng.uniform(-2.0, 2.0, 4000)
        outcome = -((action - context) ** 2) + 0.3 * rng.standard_normal(4000)
        new = np.linspace(-1.5, 1.5, 31)
        chosen = clone(bandit).set_params(n_actions=9).fit(outcome, action, X=context).predict(new)
        assert np.mean((chosen - new) ** 2) < 0.1


class TestActions:
    @every_bandit
    def test_a_continuous_action_is_rounded_to_equally_spaced_centres(
        self, make: Callable[..., OfflineBandit]
    ) -> None:
        action = np.array([-9.0, -2.0, -1.01, -0.99, 0.4, 0.6, 1.9, 2.0, 30.0])
        X = np.arange(9.0)
        bandit = make(n_actions=5, action_range=(-2.0, 2.0)).fit(X**2, action, X=X)
        np.testing.assert_array_equal(bandit.actions_, [-2.0, -1.0, 0.0, 1.0, 2.0])
        np.testing.assert_array_equal(bandit.action_counts_, [2, 2, 1, 1, 3])
        assert np.isin(bandit.predict(X), bandit.actions_).all()

    def test_the_default_range_is_that_of_the_data(self) -> None:
        data = small_data() | {"T": np.linspace(3.0, 7.5, 60)}
        bandit = LinLCB().fit(**data)
        np.testing.assert_allclose(bandit.actions_, np.linspace(3.0, 7.5, 20))
        assert bandit.scores(data["X"], data["Z"]).shape == (60, 20)

    @every_bandit
    def test_levels_come_back_as_they_were(self, make: Callable[..., OfflineBandit]) -> None:
        data = small_data()
        words = make().fit(**data)
        assert set(words.predict(data["X"], data["Z"])) <= {"a", "b", "c"}
        data["T"] = np.tile([10, 20, 40], 20)
        numbers = make(action_kind="discrete").fit(**data)
        assert set(numbers.predict(data["X"], data["Z"])) <= {10, 20, 40}
        assert numbers.predict(data["X"], data["Z"]).dtype == np.int64
        data["T"] = np.arange(60) % 2 == 0
        assert make().fit(**data).predict(data["X"], data["Z"]).dtype == np.bool_


class TestInput:
    @every_learner
    def test_context_and_instrument_are_one_input(self, make: Callable[..., OfflineBandit]) -> None:
        data = small_data()
        joined = np.column_stack([data["X"], data["Z"]])
        apart = make().fit(**data).scores(data["X"], data["Z"])
        np.testing.assert_allclose(
            make().fit(data["Y"], data["T"], X=joined).scores(joined), apart, rtol=1e-6
        )
        np.testing.assert_allclose(
            make().fit(data["Y"], data["T"], Z=joined).scores(Z=joined), apart, rtol=1e-6
        )

    @every_learner
    def test_units_do_not_matter(self, make: Callable[..., OfflineBandit]) -> None:
        data = small_data()
        other = data | {"Y": 1000.0 * data["Y"] - 7.0, "X": 50.0 + 0.01 * data["X"]}
        first, second = make().fit(**data), make().fit(**other)
        scores = first.scores(data["X"], data["Z"])
        np.testing.assert_allclose(
            second.scores(other["X"], other["Z"]), 1000.0 * scores - 7.0, rtol=1e-4, atol=0.1
        )

    @pytest.mark.parametrize("make", [LinLCB, MAKERS["random features"]], ids=["linear", "random features"])
    def test_the_order_of_rows_does_not_matter(self, make: Callable[..., OfflineBandit]) -> None:
        data = small_data()
        order = np.random.default_rng(1).permutation(60)
        shuffled = {role: values[order] for role, values in data.items()}
        at = data["X"], data["Z"]
        np.testing.assert_allclose(make().fit(**shuffled).scores(*at), make().fit(**data).scores(*at))

    @pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
    def test_frames_are_matched_by_name(self, frame: Any) -> None:
        data = small_data()
        columns = {"x": data["X"][:, 0], "z": data["Z"], "kind": ["u", "v"] * 30}
        bandit = LinLCB().fit(data["Y"], data["T"], X=frame(columns))
        swapped = {name: columns[name] for name in ("kind", "z", "x")}
        np.testing.assert_array_equal(bandit.scores(frame(swapped)), bandit.scores(frame(columns)))

    def test_a_constant_input_decides_once_for_all(self) -> None:
        action = np.array([0, 1] * 50)
        bandit = LinLCB().fit(action + np.tile([0.0, 0.0, 0.1, 0.1], 25), action)
        np.testing.assert_array_equal(bandit.predict(), [1])

    @every_bandit
    def test_no_rows(self, make: Callable[..., OfflineBandit]) -> None:
        bandit = make().fit(**small_data())
        assert bandit.predict(np.empty((0, 1)), np.empty(0)).shape == (0,)
        assert bandit.scores(np.empty((0, 1)), np.empty(0)).shape == (0, 3)

    @every_bandit
    def test_many_rows_in_pieces(self, make: Callable[..., OfflineBandit]) -> None:
        bandit = make().fit(**small_data())
        new = small_data(5000, seed=1)
        chosen = bandit.predict(new["X"], new["Z"])
        best = bandit.scores(new["X"], new["Z"]).argmax(axis=1)
        np.testing.assert_array_equal(chosen, bandit.actions_[best])


class TestSeeds:
    @pytest.mark.parametrize("name", ["network", "random features", "greedy", "random"])
    def test_same_seed_same_numbers(self, name: str) -> None:
        data, make = small_data(), MAKERS[name]
        at = data["X"], data["Z"]
        scores = make(random_state=5).fit(**data).scores(*at)
        np.testing.assert_array_equal(make(random_state=5).fit(**data).scores(*at), scores)
        assert (make(random_state=6).fit(**data).scores(*at) != scores).any()

    @every_bandit
    def test_clones_have_the_same_parameters(self, make: Callable[..., OfflineBandit]) -> None:
        bandit = make(n_actions=7, action_range=(0.0, 1.0))
        assert clone(bandit).get_params() == bandit.get_params()
        assert bandit.get_params()["n_actions"] == 7


class TestRandomPolicy:
    def test_every_action_has_the_same_chance(self) -> None:
        data = small_data(10_000)
        chosen = RandomPolicy(random_state=0).fit(**data).predict(data["X"], data["Z"])
        counts = np.unique(chosen, return_counts=True)[1]
        assert len(counts) == 3
        assert chisquare(counts).pvalue > 1e-3
        # Pieces of the rows must not repeat one another.
        halves = chosen[:4096], chosen[4096:8192]
        assert 0.25 < np.mean(halves[0] == halves[1]) < 0.42

    def test_calls_repeat(self) -> None:
        data = small_data()
        policy = RandomPolicy().fit(**data)
        first = policy.predict(data["X"], data["Z"])
        np.testing.assert_array_equal(policy.predict(data["X"], data["Z"]), first)

    def test_needs_no_input(self) -> None:
        data = small_data()
        assert RandomPolicy(random_state=0).fit(data["Y"], data["T"]).predict().shape == (1,)


def spoiled(values: Any) -> Array:
    array = np.array(values, dtype=float)
    array.reshape(-1)[3] = np.nan
    return array


class TestRefusals:
    @every_bandit
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"Y": spoiled(np.ones(60))}, "outcome column.*missing values.*row 3"),
            ({"Z": spoiled(np.arange(60))}, "instrument column.*missing values"),
            ({"X": spoiled(np.arange(60))}, "context column.*missing values"),
            ({"Z": None, "X": spoiled(np.arange(60))}, "context column.*missing values"),
            ({"Z": None, "X": np.ones(59)}, "same number of rows.*59 in context"),
            ({"Z": np.ones(60)}, "vary in instrument column"),
            ({"T": np.ones(60)}, "vary in action column"),
            ({"Z": None, "T": np.ones(60)}, "vary in action column"),
            ({"T": np.random.default_rng(0).standard_normal((60, 2))}, "one action column, got 2"),
            ({"Y": np.ones(1), "T": ["a"], "Z": None, "X": np.ones(1)}, "at least 2 rows, got 1"),
        ],
    )
    def test_damaged_data_is_refused_and_changes_nothing(
        self, make: Callable[..., OfflineBandit], change: dict[str, Any], message: str
    ) -> None:
        data = small_data()
        bandit = make().fit(**data)
        before = bandit.scores(data["X"], data["Z"])
        with pytest.raises(InputError, match=message):
            bandit.fit(**(data | change))
        np.testing.assert_array_equal(bandit.scores(data["X"], data["Z"]), before)

    @every_bandit
    def test_unfitted(self, make: Callable[..., OfflineBandit]) -> None:
        for verb in (make().predict, make().scores):
            with pytest.raises(NotFittedError, match="call fit first"):
                verb(np.ones((2, 1)), np.ones(2))

    @every_bandit
    @pytest.mark.parametrize(
        ("X", "Z", "message"),
        [
            (np.ones((2, 1)), None, "Expected instrument columns.*pass them as Z"),
            (None, np.ones(2), "Expected context columns.*pass them as X"),
            (np.ones((2, 1)), np.ones(3), "instrument with 2 rows, got 3"),
            (np.ones((2, 2)), np.ones(2), "context with 1 columns, got 2"),
        ],
    )
    def test_rows_that_do_not_fit(
        self, make: Callable[..., OfflineBandit], X: Any, Z: Any, message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            make().fit(**small_data()).predict(X, Z)

    @every_learner
    def test_nothing_to_learn_from(self, make: Callable[..., OfflineBandit]) -> None:
        data = small_data()
        with pytest.raises(InputError, match="a context or an instrument"):
            make(intercept=False).fit(data["Y"], data["T"])

    @pytest.mark.parametrize(
        ("bandit", "message"),
        [
            (LinLCB(-0.1), "a finite number of at least 0 for beta, got -0.1"),
            (LinLCB(np.nan), "beta"),
            (LinLCB(ridge=0.0), "a finite number above 0 for ridge"),
            (LinLCB(n_actions=1), "a whole number of at least 2 for n_actions, got 1"),
            (LinLCB(n_actions=2.5), "a whole number of at least 2 for n_actions"),  # type: ignore[arg-type]
            (LinLCB(action_kind="many"), "action_kind"),  # type: ignore[arg-type]
            (LinLCB(action_range=(0.0, 1.0)), "action_range=None for a discrete action"),
            (KernLCB(length_scale=-1.0), "length_scale"),
            (KernLCB(noise="no"), "noise"),  # type: ignore[arg-type]
            (KernLCB(max_rows=0), "max_rows"),
            (NeuraLCB(mode="slow"), "one of .*one-pass.*got 'slow'"),  # type: ignore[arg-type]
            (NeuraLCB(update_every=0), "update_every"),
            (NeuraLCB(learning_rate=0.0), "a finite number above 0 for learning_rate"),
            (NeuraLCB(widths=(20,)), "two whole numbers of hidden units"),  # type: ignore[arg-type]
            (NeuralLinLCB(widths=(20, 0)), "widths"),
            (NeuralLinGreedy(ridge=-1.0), "ridge"),
        ],
    )
    def test_parameters_that_cannot_be_used(self, bandit: OfflineBandit, message: str) -> None:
        with pytest.raises(DMLIVError, match=message):
            bandit.fit(**small_data())

    @pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 1.0), (0.0, np.inf), (1.0,), 5.0, ("low", "high")])
    def test_ranges_that_are_none(self, bounds: Any) -> None:
        data = small_data() | {"T": np.linspace(0.0, 1.0, 60)}
        with pytest.raises(InputError, match="low below high"):
            LinLCB(action_range=bounds).fit(**data)
