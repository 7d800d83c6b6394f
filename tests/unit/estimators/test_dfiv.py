"""DFIV: gradients against finite differences, closed forms against NumPy, known truths, kinds of input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import Ridge

from dmliv.errors import InputError, NotFittedError, TrainingDivergedError
from dmliv.estimators.dfiv import DFIV, _cautious_choice
from dmliv.nets.feature_maps import FeatureMap, Layer, outer_rows, ridge, ridge_loss
from dmliv.nets.feature_regression import FeaturePlan, FeatureRegression, FeatureRows
from dmliv.nets.images import ImageColumns

N = 120
CPU = torch.device("cpu")


@pytest.fixture
def roles() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X, Z, hidden = rng.standard_normal((N, 2)), rng.standard_normal(N), rng.standard_normal(N)
    T = Z + 0.5 * hidden + 10.0
    return {"Y": 3.0 * T + X[:, 0] + hidden + 50.0, "T": T, "Z": Z, "X": X}


def _quick(**parameters: Any) -> DFIV:
    return DFIV(**{"n_epochs": 2, "steps": (3, 3, 1), "random_state": 0} | parameters)


def _regression(n_actions: int = 1, seed: int = 0) -> FeatureRegression:
    """Small maps with batch normalisation, in double precision, on unequally weighted rows."""
    generator = np.random.default_rng(seed)

    def rows(n: int) -> FeatureRows:
        draw = lambda *shape: torch.from_numpy(generator.standard_normal(shape))  # noqa: E731
        weight = torch.from_numpy(generator.uniform(0.5, 2.0, n))
        return FeatureRows(draw(n, n_actions), draw(n, 3), draw(n, 2), draw(n, 1), weight)

    def feature_map(n_inputs: int, *layers: Layer) -> FeatureMap:
        return FeatureMap(n_inputs, layers, generator=generator, device=CPU).double()

    return FeatureRegression(
        feature_map(3, Layer(6), Layer(4, normalised=True, rectified=False)),
        feature_map(2, Layer(5, normalised=True), Layer(3)),
        feature_map(n_actions, Layer(6), Layer(2, rectified=False)),
        rows(30),
        rows(25),
        FeaturePlan((0.1, 0.2), (2, 2, 1), (0.0, 0.0, 0.0), None),
        generator,
    )


def _check_gradient(feature_map: FeatureMap, loss: Callable[[], torch.Tensor]) -> None:
    """Compare the gradient with central differences along random directions."""
    parameters = list(feature_map.parameters())
    gradients = torch.autograd.grad(loss(), parameters)
    assert max(float(gradient.abs().max()) for gradient in gradients) > 1e-3
    draws = torch.Generator().manual_seed(1)
    step = 1e-6
    for _ in range(5):
        directions = [torch.randn(p.shape, generator=draws, dtype=torch.float64) for p in parameters]
        expected = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
        values = []
        with torch.no_grad():
            for shift in (step, -2.0 * step):
                for parameter, direction in zip(parameters, directions, strict=True):
                    parameter.add_(direction, alpha=shift)
                values.append(float(loss()))
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=step)
        assert (values[0] - values[1]) / (2.0 * step) == pytest.approx(expected, rel=1e-5, abs=1e-7)


class TestFormulas:
    def test_ridge_is_numpys(self) -> None:
        rng = np.random.default_rng(1)
        features, targets, weight = rng.normal(size=(40, 5)), rng.normal(size=(40, 2)), rng.uniform(size=40)
        found = ridge(*(torch.from_numpy(v) for v in (features, targets, weight)), 0.3).numpy()
        gram = features.T @ (weight[:, None] * features) + 0.3 * weight.sum() * np.eye(5)
        np.testing.assert_allclose(found, np.linalg.solve(gram, features.T @ (weight[:, None] * targets)))
        reference = Ridge(alpha=0.3 * weight.sum(), fit_intercept=False).fit(features, targets, weight)
        np.testing.assert_allclose(found, reference.coef_.T)

    def test_ridge_loss_is_the_minimum(self) -> None:
        rng = np.random.default_rng(2)
        arrays = rng.normal(size=(40, 5)), rng.normal(size=(40, 1)), rng.uniform(size=40)
        features, targets, weight = (torch.from_numpy(values) for values in arrays)
        least, best = ridge_loss(features, targets, weight, 0.3)
        for _ in range(5):
            other = best + 0.1 * torch.from_numpy(rng.normal(size=(5, 1)))
            errors = ((targets - features @ other)[:, 0] ** 2 * weight).sum()
            assert float(errors + 0.3 * weight.sum() * (other**2).sum()) > float(least)

    def test_gradient_in_the_instrument_map(self) -> None:
        regression = _regression()
        with torch.no_grad():
            targets = regression.action_map(regression.first.action)
        regression.instrument_map.train()
        _check_gradient(regression.instrument_map, lambda: regression.first_loss(regression.first, targets))

    def test_gradient_in_the_context_map(self) -> None:
        regression = _regression()
        predicted = torch.randn(25, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        regression.context_map.train()
        _check_gradient(regression.context_map, lambda: regression.context_loss(regression.second, predicted))

    @pytest.mark.parametrize("n_actions", [1, 3])
    def test_gradient_in_the_action_map_passes_both_stages(self, n_actions: int) -> None:
        regression = _regression(n_actions)
        fixed = (
            *regression._instrument_features(),
            regression.context_map.evaluate(regression.second.context),
        )
        _check_gradient(regression.action_map, lambda: regression.action_loss(*fixed)[0])

    def test_solution_is_two_ridge_regressions(self) -> None:
        regression = _regression()
        regression.train_epoch(1e-3)
        first, second = regression.first, regression.second
        phi = [
            np.column_stack([regression.instrument_map.evaluate(rows.exogenous).numpy(), np.ones(len(rows))])
            for rows in (first, second)
        ]
        psi = regression.action_map.evaluate(first.action).numpy()
        xi = np.column_stack([regression.context_map.evaluate(second.context).numpy(), np.ones(25)])
        w1, w2 = first.weight.numpy(), second.weight.numpy()
        V = np.linalg.solve(
            phi[0].T @ (w1[:, None] * phi[0]) + 0.1 * w1.sum() * np.eye(5), phi[0].T @ (w1[:, None] * psi)
        )
        P = np.column_stack([phi[1] @ V, np.ones(25)])
        F = np.stack([np.kron(p, x) for p, x in zip(P, xi, strict=True)])
        u = np.linalg.solve(
            F.T @ (w2[:, None] * F) + 0.2 * w2.sum() * np.eye(F.shape[1]),
            F.T @ (w2 * second.outcome[:, 0].numpy()),
        )
        coefficients, heldout = regression.solve()
        np.testing.assert_allclose(coefficients.numpy(), u.reshape(3, 4), rtol=1e-8, atol=1e-10)

        xi_first = np.column_stack([regression.context_map.evaluate(first.context).numpy(), np.ones(30)])
        P_first = np.column_stack([phi[0] @ V, np.ones(30)])
        projected = np.einsum("np,pq,nq->n", P_first, u.reshape(3, 4), xi_first)
        np.testing.assert_allclose(heldout.numpy(), w1 * (first.outcome[:, 0].numpy() - projected) ** 2)

    def test_products_hold_both_intercepts(self) -> None:
        rows = outer_rows(torch.tensor([[2.0]]), torch.tensor([[3.0, 5.0]]))
        assert rows.tolist() == [[6.0, 10.0, 2.0, 3.0, 5.0, 1.0]]

    def test_only_the_map_in_turn_learns(self) -> None:
        """Batch statistics and weights of the other maps stay as they are."""
        regression = _regression()
        before = {name: value.clone() for name, value in regression.context_map.state_dict().items()}
        regression._train_instrument_map(1e-2)
        regression._train_action_map(1e-2, *regression._instrument_features())
        after = regression.context_map.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        regression._train_context_map(1e-2, *regression._instrument_features())
        assert not torch.equal(before["body.1.running_mean"], after["body.1.running_mean"])
        assert not regression.context_map.training


class TestTruths:
    def test_removes_the_confounding_of_a_curved_effect(self) -> None:
        def truth(action: Any, context: Any) -> Any:
            return 2.0 * np.sin(1.5 * action) + np.abs(action) * context

        rng = np.random.default_rng(7)
        Z, context, hidden, noise = rng.standard_normal((4, 2000))
        T = 1.2 * Z + 0.5 * context + 0.6 * hidden
        Y = truth(T, context) + 4.0 * hidden + 0.3 * noise
        actions, contexts = np.repeat(np.linspace(-2, 2, 21), 9), np.tile(np.linspace(-1.5, 1.5, 9), 21)
        wanted = truth(actions, contexts)
        estimator = DFIV(random_state=0, n_epochs=10).fit(Y, T, Z=Z, X=context[:, None])
        error = np.mean((estimator.predict(actions, contexts[:, None]) - wanted) ** 2)
        # What even a perfect ordinary regression adds: the mean of the hidden part given action and context.
        slope = 4.0 * 0.6 / (1.2**2 + 0.6**2)
        ordinary = np.mean((slope * (actions - 0.5 * contexts)) ** 2)
        assert estimator.structural_model_.fits[0].action_map.width == 8
        assert error < ordinary / 4.0

    def test_effect_of_a_discrete_action(self) -> None:
        rng = np.random.default_rng(8)
        Z, hidden = rng.integers(0, 2, 3000), rng.standard_normal(3000)
        T = np.where(2.0 * Z + hidden + rng.standard_normal(3000) > 1.0, "yes", "no")
        Y = 2.0 * (T == "yes") + 2.0 * hidden
        ordinary = Y[T == "yes"].mean() - Y[T == "no"].mean()
        estimator = DFIV(random_state=0, n_epochs=5, first_penalty=1e-4, second_penalty=1e-4)
        effect = estimator.fit(Y, T, Z=Z).ate(T0="no", T1="yes")
        assert ordinary > 3.0
        assert effect == pytest.approx(2.0, abs=0.3)

    def test_no_units(self, roles: Any) -> None:
        plain = _quick().fit(**roles).predict(roles["T"], roles["X"])
        scaled = {name: 1000.0 * values + 7.0 for name, values in roles.items()}
        found = _quick().fit(**scaled).predict(scaled["T"], scaled["X"])
        np.testing.assert_allclose(found, 1000.0 * plain + 7.0, rtol=1e-3)

    def test_gradient_is_the_slope(self, roles: Any) -> None:
        estimator = _quick().fit(**roles)
        slope = estimator.marginal_effect(roles["T"], roles["X"])[:, 0]
        step = 1e-2
        rise = estimator.predict(roles["T"] + step, roles["X"]) - estimator.predict(
            roles["T"] - step, roles["X"]
        )
        # A few rows have a kink within the step.
        assert np.mean(np.isclose(slope, rise / (2.0 * step), rtol=0.02, atol=0.02)) > 0.9

    def test_grid_is_row_by_row(self, roles: Any) -> None:
        model = _quick().fit(**roles).counterfactual_
        context, actions = model.read_context(roles["X"]), np.linspace(-1.0, 1.0, 4)[:, None]
        grid = model.model.predict_grid(context, actions)
        for column, action in enumerate(actions):
            rows = model.model.predict(context, np.tile(action, (N, 1)))
            np.testing.assert_allclose(grid[:, column], rows, rtol=1e-9)


class TestRandomness:
    def test_same_seed_same_numbers(self, roles: Any) -> None:
        state = torch.random.get_rng_state()
        first, again = (_quick(batch_size=20).fit(**roles).predict(roles["T"], roles["X"]) for _ in range(2))
        other = _quick(batch_size=20, random_state=1).fit(**roles).predict(roles["T"], roles["X"])
        np.testing.assert_array_equal(first, again)
        assert np.abs(first - other).max() > 1e-3
        assert torch.equal(state, torch.random.get_rng_state())

    def test_a_clone_has_its_parameters_and_learns_the_same(self, roles: Any) -> None:
        estimator = _quick(weight_decay=(0.0, 0.1, 0.0), encoding="piecewise").fit(**roles)
        twin = clone(estimator)
        assert twin.get_params() == estimator.get_params()
        with pytest.raises(NotFittedError):
            twin.predict(roles["T"], roles["X"])
        expected = estimator.predict(roles["T"], roles["X"])
        np.testing.assert_array_equal(twin.fit(**roles).predict(roles["T"], roles["X"]), expected)

    def test_h_is_the_mean_over_fits(self, roles: Any) -> None:
        estimator = _quick(n_fits=3).fit(**roles)
        model = estimator.structural_model_
        context = estimator.counterfactual_.read_context(roles["X"])
        action = estimator.counterfactual_.read_action(roles["T"])
        parts = [type(model)(model.reader, (fit,), {}).predict(context, action) for fit in model.fits]
        np.testing.assert_allclose(model.predict(context, action), np.mean(parts, axis=0))
        assert np.ptp(parts, axis=0).max() > 1e-3


class TestChoice:
    def test_few_features_unless_others_are_clearly_better(self) -> None:
        rng = np.random.default_rng(5)
        base = rng.chisquare(1, 400)
        noise = rng.standard_normal(400)
        few, many = (16, 1), (32, 8)
        slightly = {many: base + 0.01 * (noise - noise.mean()) - 0.0003, few: base}
        assert _cautious_choice(slightly)[0] == few
        clearly = {few: base, many: base + 0.01 * (noise - noise.mean()) - 0.005}
        chosen, means = _cautious_choice(clearly)
        assert chosen == many
        assert means == {few: base.mean(), many: clearly[many].mean()}

    def test_a_chosen_candidate_is_what_it_is_alone(self, roles: Any) -> None:
        both = _quick(action_layers=((16, 1), (8, 3))).fit(**roles)
        width = both.structural_model_.fits[0].action_map.width
        alone = _quick(action_layers=(16, 1) if width == 1 else (8, 3)).fit(**roles)
        assert set(both.structural_model_.choice_losses) == {(16, 1), (8, 3)}
        np.testing.assert_array_equal(
            both.predict(roles["T"], roles["X"]), alone.predict(roles["T"], roles["X"])
        )


class TestWeights:
    def test_rows_of_weight_zero_may_be_dropped(self, roles: Any) -> None:
        present = np.arange(N) % 4 != 1
        spoiled = {
            name: np.where(present if v.ndim == 1 else present[:, None], v, 1e3 * v)
            for name, v in roles.items()
        }
        weighted = _quick().fit(**spoiled, sample_weight=present.astype(float))
        dropped = _quick().fit(**{name: values[present] for name, values in roles.items()})
        np.testing.assert_allclose(
            weighted.predict(roles["T"], roles["X"]), dropped.predict(roles["T"], roles["X"]), rtol=1e-5
        )

    def test_weights_change_the_answer(self, roles: Any) -> None:
        weight = np.where(roles["X"][:, 0] > 0.0, 3.0, 0.1)
        equal = _quick().fit(**roles).predict(roles["T"], roles["X"])
        weighted = _quick().fit(**roles, sample_weight=weight).predict(roles["T"], roles["X"])
        assert np.abs(equal - weighted).max() > 1e-2


class TestInputs:
    def test_several_actions_and_instruments_and_categories(self, roles: Any) -> None:
        rng = np.random.default_rng(3)
        frame = pd.DataFrame({"kind": rng.choice(["a", "b", "c"], N), "time": roles["X"][:, 0]})
        T = np.column_stack([roles["T"], rng.standard_normal(N)])
        Z = pd.DataFrame({"z": roles["Z"], "shop": rng.choice(["north", "south"], N)})
        estimator = _quick().fit(roles["Y"], T, Z=Z, X=frame)
        assert estimator.predict(T, frame).shape == (N,)
        assert estimator.marginal_effect(T, frame).shape == (N, 2)

    def test_no_context(self, roles: Any) -> None:
        estimator = _quick().fit(roles["Y"], roles["T"], Z=roles["Z"])
        assert estimator.structural_model_.fits[0].context_map.width == 0
        assert np.isfinite(estimator.predict(roles["T"])).all()

    def test_twenty_rows(self, roles: Any) -> None:
        few = {name: values[:20] for name, values in roles.items()}
        assert np.isfinite(_quick().fit(**few).predict(roles["T"], roles["X"])).all()

    @pytest.mark.parametrize(("features", "size"), [("gradients", 8), ("convolution", 18)])
    def test_images(self, roles: Any, features: Any, size: int) -> None:
        """Two kinds of images that the outcome depends on."""
        rng = np.random.default_rng(4)
        kind = rng.integers(0, 2, N)
        images = 0.1 * rng.standard_normal((N, size, size))
        images[kind == 1, :, : size // 2] += 1.0
        images[kind == 0, : size // 2, :] += 1.0
        X = np.column_stack([roles["X"][:, 0], images.reshape(N, -1)])
        Y = roles["Y"] + 10.0 * kind
        image = ImageColumns(size, size, first=1, features=features)
        estimator = DFIV(
            image,
            n_epochs=2,
            n_fits=1,
            steps=(5, 15, 1),
            batch_size=30,
            action_layers=(16, 1),
            random_state=0,
        )
        found = estimator.fit(Y, roles["T"], Z=roles["Z"], X=X).predict(10.0, X)
        assert found[kind == 1].mean() - found[kind == 0].mean() == pytest.approx(10.0, abs=4.0)
        np.testing.assert_array_equal(
            clone(estimator).fit(Y, roles["T"], Z=roles["Z"], X=X).predict(10.0, X), found
        )


class TestFailures:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"n_fits": 0},
            {"n_epochs": 2.5},
            {"steps": (20, 20)},
            {"batch_size": 1},
            {"first_penalty": 0.0},
            {"second_penalty": "small"},
            {"learning_rate": np.nan},
            {"weight_decay": (0.1, -1.0, 0.0)},
            {"encoding": "fourier"},
            {"schedule": "linear"},
            {"action_layers": ()},
            {"action_layers": ((16, 1), (0,))},
            {"image": "pixels"},
        ],
        ids=lambda wrong: next(iter(wrong)),
    )
    def test_wrong_parameters_are_named(self, roles: Any, wrong: dict[str, Any]) -> None:
        with pytest.raises(InputError, match=next(iter(wrong))):
            _quick(**wrong).fit(**roles)

    def test_a_failed_fit_changes_nothing(self, roles: Any) -> None:
        estimator = _quick().fit(**roles)
        expected, attributes = estimator.predict(roles["T"], roles["X"]), dict(vars(estimator))
        damaged = roles["Y"].copy()
        damaged[3] = np.nan
        with pytest.raises(InputError, match="missing"):
            estimator.fit(**roles | {"Y": damaged})
        with pytest.raises(InputError, match="at least 20 rows"):
            estimator.fit(**{name: values[:19] for name, values in roles.items()})
        with pytest.raises(InputError, match="positive weight"):
            estimator.fit(**roles, sample_weight=(np.arange(N) < 10).astype(float))
        assert vars(estimator) == attributes
        np.testing.assert_array_equal(estimator.predict(roles["T"], roles["X"]), expected)

    def test_divergence_is_an_error(self, roles: Any) -> None:
        estimator = _quick(learning_rate=1e30)
        with pytest.raises(TrainingDivergedError, match="learning_rate"):
            estimator.fit(**roles)
        assert not hasattr(estimator, "counterfactual_")
