"""DeepGMM: the game's gradients, the choice of checkpoints, known truths and every kind of input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from torch import Tensor

from dmliv.errors import InputError, TrainingDivergedError
from dmliv.estimators.deep_gmm import DeepGMM
from dmliv.nets.game import (
    Checkpoints,
    GamePlan,
    Player,
    best_checkpoints,
    checkpoint_scores,
    evaluate_player,
    game_losses,
    play,
)
from dmliv.nets.images import ImageColumns
from dmliv.nets.stacked import StackedMLP
from dmliv.problems import TicketDemand
from dmliv.progress import SilentProgress

N = 240
TINY: dict[str, Any] = {"hidden": (8,), "epochs": 4, "evaluate_every": 1, "burn_in": 1, "random_state": 0}


@pytest.fixture
def roles() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X, Z, hidden = rng.standard_normal((N, 2)), rng.standard_normal(N), rng.standard_normal(N)
    T = Z + 0.5 * hidden + 10.0
    Y = 3.0 * np.sin(T) + X[:, 0] + hidden + 50.0
    return {"Y": Y, "T": T, "Z": Z, "X": X}


def _player(
    inputs: Tensor, n_members: int, seed: int, dropout: float = 0.0, hidden: tuple[int, ...] = (6,)
) -> Player:
    net = StackedMLP(
        n_members,
        (inputs.shape[1], *hidden, 1),
        dropout=[dropout] * len(hidden),
        generator=np.random.Generator(np.random.SFC64(seed)),
        device=torch.device("cpu"),
    )
    return Player(net, lambda rows: net(inputs[rows]).squeeze(-1))


def _game(
    rates: list[float], dropout: float = 0.0, epochs: int = 5, **plan: Any
) -> tuple[Player, Player, Checkpoints]:
    draws = torch.Generator().manual_seed(0)
    inputs, outcome = torch.randn((60, 3), generator=draws), torch.randn(60, generator=draws)
    model, critic = (_player(inputs, len(rates), seed, dropout) for seed in (1, 2))
    for player in (model, critic):
        player.net.start_alike([0] * len(rates))
    settings: dict[str, Any] = {"critic_rate_factor": 5.0, "batch_size": 20, "evaluate_every": 2} | plan
    stored = play(
        model,
        critic,
        outcome,
        GamePlan(rates, epochs=epochs, **settings),
        fit_rows=np.arange(40),
        heldout_rows=np.arange(40, 60),
        generator=np.random.default_rng(3),
        progress=SilentProgress(),
        label="test game",
    )
    return model, critic, stored


class TestGame:
    def test_gradients_are_those_of_finite_differences(self) -> None:
        draws = torch.Generator().manual_seed(0)
        rows = torch.arange(30).expand(2, -1)
        inputs, outcome, weight = (torch.randn(shape, generator=draws) for shape in ((30, 3), (30,), (30,)))
        weight = weight.abs()
        # No hidden layer, so no kinks: values are linear in the weights and losses at most quadratic.
        model, critic = _player(inputs, 2, 1, hidden=()), _player(inputs, 2, 2, hidden=())

        def losses() -> tuple[Tensor, Tensor]:
            residual = outcome[rows] - model.values(rows)
            return game_losses(residual, critic.values(rows), weight[rows])

        torch.stack(losses()).sum().backward()  # type: ignore[no-untyped-call]
        for player, which in ((model, 0), (critic, 1)):
            flat = player.net.flat
            gradient = flat.grad
            assert gradient is not None
            # The difference of a player's own loss is all there is in its gradient.
            for position in range(flat.numel()):
                sides = []
                for step in (0.5, -0.5):
                    with torch.no_grad():
                        flat[position] += step
                        sides.append(float(losses()[which].sum()))
                        flat[position] -= step
                assert sides[0] - sides[1] == pytest.approx(float(gradient[position]), abs=1e-5)

    def test_losses_by_hand(self) -> None:
        residual, critic = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, 0.5]])
        model_loss, critic_loss = game_losses(residual, critic, torch.tensor([[1.0, 1.0]]))
        assert float(model_loss) == pytest.approx((3.0 - 1.0) / 2.0)
        assert float(critic_loss) == pytest.approx(((9.0 / 4.0 - 3.0) + (0.25 * 0.25 * 4.0 + 1.0)) / 2.0)

    def test_configurations_do_not_touch_each_other(self) -> None:
        fast, slow = _game([1e-2, 1e-3])[2], _game([1e-2, 1e-4])[2]
        np.testing.assert_array_equal(fast.residuals[:, 0], slow.residuals[:, 0])
        np.testing.assert_array_equal(fast.critics[:, 0], slow.critics[:, 0])
        assert np.abs(fast.residuals[:, 1] - slow.residuals[:, 1]).min(axis=1).max() > 0.0
        twins = _game([1e-2, 1e-2])[2]
        np.testing.assert_allclose(twins.residuals[:, 0], twins.residuals[:, 1], atol=1e-6)

    def test_checkpoints_come_at_regular_times_and_at_the_end(self) -> None:
        model, critic, stored = _game([1e-3, 1e-2], dropout=0.5)
        np.testing.assert_array_equal(stored.epochs, [2, 4, 5])
        assert GamePlan([1e-3], 5.0, epochs=5, batch_size=20, evaluate_every=2).n_checkpoints == 3
        # The last ones are what the players say now, without dropout.
        torch.testing.assert_close(stored.weights[-1], model.net.flat.detach())
        last = evaluate_player(critic, np.arange(40, 60)).double().numpy()
        np.testing.assert_array_equal(stored.critics[-1], last)

    def test_rates_fall_to_the_final_share(self) -> None:
        plan = GamePlan([1e-3], 5.0, epochs=5, batch_size=20, evaluate_every=2, final_rate=0.2)
        assert [plan.rate_factor(x) for x in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.6, 0.2])
        constant = GamePlan([1e-3], 5.0, epochs=5, batch_size=20, evaluate_every=2)
        assert constant.rate_factor(0.7) == 1.0

    def test_divergence_is_an_error(self) -> None:
        with pytest.raises(TrainingDivergedError, match="test game"):
            _game([1e38])


class TestSelection:
    def test_scores_are_the_formula(self) -> None:
        rng = np.random.default_rng(0)
        residuals, critics = rng.standard_normal((3, 2, 20)), rng.standard_normal((3, 2, 20))
        weight = rng.uniform(0.5, 2.0, 20)
        scores = checkpoint_scores(residuals, critics, weight)
        typical = residuals.mean(axis=(0, 1))
        for place in np.ndindex(3, 2):
            violations = [
                np.average(f * residuals[place] - 0.25 * f**2 * typical**2, weights=weight)
                for f in critics.reshape(-1, 20)
            ]
            assert scores[place] == pytest.approx(-max(violations))

    def test_the_residual_without_pattern_wins(self) -> None:
        rng = np.random.default_rng(0)
        instrument = rng.standard_normal(500)
        residuals = rng.standard_normal((6, 3, 500)) + instrument
        residuals[4, 1] -= instrument
        critics = np.broadcast_to(instrument, (6, 3, 500)) * rng.uniform(0.1, 1.0, (6, 3, 1))
        scores = checkpoint_scores(residuals, critics, np.ones(500))
        assert best_checkpoints(scores, burn_in=2, patience=6) == [(4, 1)]

    def test_the_pool_holds_critics_of_every_configuration(self) -> None:
        """A fault that only one configuration's critic sees counts against all."""
        rng = np.random.default_rng(0)
        fault = rng.standard_normal(400)
        residuals = np.stack([[rng.standard_normal(400) + fault, rng.standard_normal(400)]])
        blind = np.zeros((1, 2, 400))
        for configuration in range(2):
            critics = blind.copy()
            critics[0, configuration] = 0.5 * fault
            assert np.ptp(checkpoint_scores(residuals, blind, np.ones(400))) == 0.0
            scores = checkpoint_scores(residuals, critics, np.ones(400))
            assert scores[0, 1] > scores[0, 0] + 0.2

    def test_configurations_that_are_not_finite_never_win(self) -> None:
        rng = np.random.default_rng(0)
        residuals, critics = rng.standard_normal((4, 2, 30)), rng.standard_normal((4, 2, 30))
        broken = residuals.copy(), critics.copy()
        for part in broken:
            part[1:, 0] = np.nan
        scores = checkpoint_scores(*broken, np.ones(30))
        assert np.isneginf(scores[1:, 0]).all()
        assert np.isfinite(scores[:, 1]).all()
        assert best_checkpoints(scores, burn_in=1, patience=4, n_best=9)[0][1] == 1
        with pytest.raises(TrainingDivergedError):
            best_checkpoints(scores[:, :1], burn_in=1, patience=4)

    def test_burn_in_patience_and_order(self) -> None:
        scores = -np.array(
            [[0.0, 9.0], [5.0, 4.0], [3.0, 6.0], [4.0, 5.0], [6.0, 7.0], [1.0, 3.5], [8.0, 2.0]]
        )
        assert best_checkpoints(scores, burn_in=0, patience=7) == [(0, 0)]
        assert best_checkpoints(scores, burn_in=1, patience=7) == [(5, 0)]
        # Two checkpoints without a better score end the reading before the late best ones.
        assert best_checkpoints(scores, burn_in=1, patience=2) == [(2, 0)]
        assert best_checkpoints(scores, burn_in=1, patience=2, n_best=3) == [(2, 0), (3, 0), (1, 0)]

    def test_kept_networks_are_the_checkpoints(self) -> None:
        model, _, stored = _game([1e-3, 1e-2], epochs=4)
        heldout = np.arange(40, 60)
        values = evaluate_player(model, heldout) + torch.from_numpy(stored.residuals[-1])
        kept = stored.networks(model.net, [(0, 1), (1, 0)])
        inputs = torch.randn((60, 3), generator=torch.Generator().manual_seed(0))[heldout]
        for position, (time, member) in enumerate([(0, 1), (1, 0)]):
            expected = values[0] - torch.from_numpy(stored.residuals[time, member])
            torch.testing.assert_close(
                kept(inputs.unsqueeze(0))[position, :, 0].double(), expected, atol=1e-5, rtol=0.0
            )


class TestTruths:
    def test_ticket_demand(self) -> None:
        """At most a third of the error of the same networks without an instrument."""
        problem = TicketDemand()
        data = problem.sample(2000, seed=100)
        X, T, truth = problem.test_set()
        errors = []
        # With the action as its own instrument every moment is one of ordinary regression.
        for instrument in (data.Z, data.T):
            estimator = DeepGMM(learning_rates=(2e-3,), epochs=40, random_state=0)
            fitted = estimator.fit(data.Y, data.T, Z=instrument, X=data.X)
            errors.append(np.mean((fitted.predict(T, X) - truth) ** 2))
        assert errors[0] < errors[1] / 3.0

    def test_removes_confounding(self) -> None:
        rng = np.random.default_rng(1)
        Z, hidden = rng.standard_normal((2000, 2)), rng.standard_normal(2000)
        T = Z @ [1.0, 0.5] + hidden
        Y = np.abs(T) - 2.0 * hidden + 0.1 * rng.standard_normal(2000)
        grid = np.linspace(-2.0, 2.0, 41)
        fitted = DeepGMM(learning_rates=(2e-3,), epochs=40, random_state=0).fit(Y, T, Z=Z)
        error = np.mean((fitted.predict(grid) - np.abs(grid)) ** 2)
        bins = np.abs(T[:, None] - grid) < 0.1
        ordinary = (Y @ bins) / bins.sum(axis=0)
        # Local means of the outcome are off by the confounding.
        assert error < np.mean((ordinary - np.abs(grid)) ** 2) / 10.0


class TestInputs:
    def test_gradient_and_grid(self, roles: Any) -> None:
        T = np.column_stack([roles["T"], roles["X"][:, 1] + roles["Z"]])
        X, Z = roles["X"], np.column_stack([roles["Z"], roles["Z"] ** 2])
        estimator = DeepGMM(**TINY, n_averaged=2).fit(roles["Y"], T, Z=Z, X=X)
        fitted = estimator.counterfactual_
        grid = fitted.value_grid(fitted.read_context(X), fitted.read_action(T[:3]))
        for position in range(3):
            repeated = np.tile(T[position], (N, 1))
            np.testing.assert_allclose(grid[:, position], estimator.predict(repeated, X), atol=1e-4)
        slopes = estimator.marginal_effect(T, X)
        for column in range(2):
            step = 1e-2 * np.eye(2)[column]
            difference = (estimator.predict(T + step, X) - estimator.predict(T - step, X)) / 2e-2
            # Finite differences step over kinks in some rows.
            assert np.mean(np.abs(slopes[:, column] - difference) < 1e-2) > 0.9

    def test_categories_discrete_action_weights_and_no_context(self, roles: Any) -> None:
        action = np.where(roles["T"] > 10.0, "high", "low")
        instrument = pd.DataFrame({"fuel": roles["Z"], "season": np.where(roles["Z"] > 0, "cold", "warm")})
        context = pd.DataFrame({"type": np.array(["a", "b", "c"])[np.arange(N) % 3]})
        weight = np.linspace(0.0, 1.0, N)
        for X in (context, None):
            estimator = DeepGMM(**TINY).fit(roles["Y"], action, Z=instrument, X=X, sample_weight=weight)
            assert np.isfinite(estimator.effect(X, T0="low", T1="high")).all()
        assert estimator.policy().predict(None).shape == (1,)

    @pytest.mark.parametrize("features", ["gradients", "convolution"])
    def test_images(self, roles: Any, features: Any) -> None:
        rng = np.random.default_rng(0)
        n = 60
        X = np.hstack([roles["X"][:n], rng.uniform(size=(n, 18 * 18))])
        image = ImageColumns(18, 18, first=2, features=features)
        small = TINY | {"epochs": 2, "image": image, "learning_rates": (1e-3,)}
        estimator = DeepGMM(**small).fit(roles["Y"][:n], roles["T"][:n], Z=roles["Z"][:n], X=X)
        fitted = estimator.counterfactual_
        grid = fitted.value_grid(fitted.read_context(X), fitted.read_action([9.0, 11.0]))
        np.testing.assert_allclose(grid[:, 1], estimator.predict(11.0, X), atol=1e-4)
        other = X.copy()
        other[:, 2:] = rng.uniform(size=(n, 18 * 18))
        assert np.abs(estimator.predict(11.0, other) - grid[:, 1]).max() > 1e-6

    def test_weights(self, roles: Any) -> None:
        plain = DeepGMM(**TINY).fit(**roles).predict(10.0, roles["X"])
        same = DeepGMM(**TINY).fit(**roles, sample_weight=np.full(N, 7.0)).predict(10.0, roles["X"])
        np.testing.assert_allclose(same, plain, atol=1e-4)
        other = DeepGMM(**TINY).fit(**roles, sample_weight=1.0 + (roles["Z"] > 0)).predict(10.0, roles["X"])
        assert np.abs(other - plain).max() > 1e-3

    def test_rows_of_weight_zero_are_absent(self, roles: Any) -> None:
        present = np.arange(N) % 4 != 1
        weighted = DeepGMM(**TINY).fit(**roles, sample_weight=present.astype(float))
        dropped = DeepGMM(**TINY).fit(**{role: values[present] for role, values in roles.items()})
        np.testing.assert_allclose(
            weighted.predict(10.0, roles["X"]), dropped.predict(10.0, roles["X"]), rtol=1e-4
        )

    def test_seeds(self, roles: Any) -> None:
        fits = [DeepGMM(**TINY | {"random_state": seed, "dropout": 0.1}).fit(**roles) for seed in (0, 0, 1)]
        predictions = [fit.predict(roles["T"], roles["X"]) for fit in fits]
        np.testing.assert_array_equal(predictions[0], predictions[1])
        assert np.abs(predictions[0] - predictions[2]).max() > 1e-6

    def test_what_was_chosen_is_told(self, roles: Any) -> None:
        estimator = DeepGMM(**TINY, n_averaged=2, learning_rates=(1e-4, 1e-2)).fit(**roles)
        assert estimator.scores_.shape == (4, 2)
        np.testing.assert_array_equal(estimator.checkpoint_epochs_, [1, 2, 3, 4])
        told: Any = estimator.structural_model_.describe()
        assert told["learning_rate"] == estimator.learning_rate_
        assert told["scores"][0] == estimator.scores_[1:].max()
        assert len(told["epochs"]) == estimator.structural_model_.networks.net.n_members == 2

    def test_clone(self) -> None:
        estimator = DeepGMM((5, 4), learning_rates=(1e-3,), image=ImageColumns(4, 4, first=0), random_state=3)
        assert clone(estimator).get_params() == estimator.get_params()


class TestErrors:
    @pytest.mark.parametrize(
        "parameters",
        [
            {"hidden": ()},
            {"critic_hidden": (0,)},
            {"hidden": "wide"},
            {"image": (28, 28)},
            {"centre_action": "yes"},
            {"learning_rates": ()},
            {"learning_rates": (1e-3, 0.0)},
            {"learning_rates": 1e-3},
            {"learning_rates": ("fast",)},
            {"critic_rate_factor": 0.0},
            {"final_rate": 1.5},
            {"epochs": 0},
            {"epochs": 10, "evaluate_every": 2, "burn_in": 5},
            {"batch_size": 2.5},
            {"evaluate_every": 0},
            {"patience": 0},
            {"n_averaged": 0},
            {"dropout": 1.0},
            {"weight_decay": -1.0},
            {"validation_share": 0.0},
            {"validation_share": 1.0},
            {"encoding": "fourier"},
            {"critic_encoding": "fourier"},
            {"device": "abacus"},
        ],
    )
    def test_parameters(self, roles: Any, parameters: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="Expected"):
            DeepGMM(**TINY | parameters).fit(**roles)

    def test_too_few_rows(self, roles: Any) -> None:
        with pytest.raises(InputError, match="at least 20 rows"):
            DeepGMM().fit(**{role: values[:10] for role, values in roles.items()})
        with pytest.raises(InputError, match="positive weight"):
            DeepGMM().fit(**roles, sample_weight=np.arange(N) < 10)

    def test_failed_fits_change_nothing(self, roles: Any) -> None:
        estimator = DeepGMM(**TINY).fit(**roles)
        before = dict(vars(estimator))
        with pytest.raises(InputError):
            estimator.fit(roles["Y"], roles["T"], Z=np.ones(N), X=roles["X"])
        estimator.learning_rates = (1e38,)
        with pytest.raises(TrainingDivergedError):
            estimator.fit(**roles)
        assert vars(estimator) == before | {"learning_rates": (1e38,)}
