"""h as boosted trees on the projected loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import GradientBoostingRegressor

from dmliv import DMLIV
from dmliv.data import TrainingData, prepare
from dmliv.errors import InputError
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.distributions import CategoricalDistribution, MixtureDistribution
from dmliv.learners import Learners
from dmliv.parallel.runtime import Runtime
from dmliv.problems import TicketDemand
from dmliv.second_stage.boosting import ProjectedBoosting
from dmliv.second_stage.regressor import RegressorStructural, RegressorStructuralModel
from dmliv.second_stage.structural import StructuralModel

MakeFirstStage = Callable[[TrainingData], FirstStage]

SMALL = ProjectedBoosting(n_rounds=25, min_samples_leaf=5, patience=25)
FIXED = replace(SMALL, validation_fraction=0.0)


@pytest.fixture
def first_stage(data: TrainingData, make_first_stage: MakeFirstStage) -> FirstStage:
    """Return a first stage with something to learn: its target follows context and action distribution."""
    stage = make_first_stage(data)
    noise = 0.3 * np.random.default_rng(4).standard_normal(len(data))
    mean = stage.distribution.mean()[:, 0].double().numpy()
    return replace(stage, target=3.0 * mean + data.context.numeric[:, 0] + noise)


def only(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("data", [kind], indirect=True)


def weighted(data: TrainingData) -> TrainingData:
    weight = np.random.default_rng(3).uniform(0.0, 2.0, len(data))
    return replace(data, weight=weight / weight.mean())


def losses(model: StructuralModel, which: str) -> np.ndarray:
    values = model.describe()[f"{which}_losses"]
    assert isinstance(values, list)
    return np.array(values)


class TestTrainingLoss:
    @pytest.mark.parametrize("learning_rate", [0.1, 0.5, 1.0])
    def test_never_rises(
        self, data: TrainingData, first_stage: FirstStage, runtime: Runtime, learning_rate: float
    ) -> None:
        # With the best step alpha along q, a share nu of it lowers the loss by nu (2 - nu) alpha^2 <q, q>.
        learner = replace(FIXED, learning_rate=learning_rate, n_rounds=60)
        model = learner.fit(weighted(data), first_stage, seed=0, runtime=runtime)
        curve = losses(model, "training")
        assert len(curve) == 61
        assert np.all(np.diff(curve) <= 1e-12)
        assert curve[-1] < 0.9 * curve[0]

    def test_starts_at_the_weighted_mean(
        self, data: TrainingData, first_stage: FirstStage, runtime: Runtime
    ) -> None:
        heavy = weighted(data)
        model = SMALL.fit(heavy, first_stage, seed=0, runtime=runtime)
        mean = np.average(first_stage.target, weights=heavy.weight)
        variance = np.average((first_stage.target - mean) ** 2, weights=heavy.weight)
        np.testing.assert_allclose(model.regressor.start, mean)
        np.testing.assert_allclose(losses(model, "training")[0], variance)

    @only("discrete")
    def test_is_the_loss_of_the_model_where_sums_are_exact(
        self, data: TrainingData, first_stage: FirstStage, runtime: Runtime
    ) -> None:
        heavy = weighted(data)
        assert isinstance(first_stage.distribution, CategoricalDistribution)
        model = SMALL.fit(heavy, first_stage, seed=0, runtime=runtime)
        values = model.predict_grid(data.context, np.eye(data.action_spec.width))
        projected = (first_stage.distribution.probabilities.double().numpy() * values).sum(axis=1)
        loss = np.average((first_stage.target - projected) ** 2, weights=heavy.weight)
        np.testing.assert_allclose(losses(model, "training")[-1], loss)

    def test_best_steps_are_at_least_one(
        self, data: TrainingData, first_stage: FirstStage, runtime: Runtime
    ) -> None:
        # <rho, q> is the squared length of the tree over all points, and projecting never lengthens it.
        # Weights of nodes come in single precision.
        learner = replace(FIXED, learning_rate=1.0)
        model = learner.fit(data, first_stage, seed=0, runtime=runtime)
        assert min(model.regressor.steps) >= 1.0 - 1e-6

    @only("one column")
    def test_ends_when_nothing_can_be_split(
        self, data: TrainingData, first_stage: FirstStage, runtime: Runtime
    ) -> None:
        flat = replace(first_stage, target=np.ones(len(data)))
        model = SMALL.fit(data, flat, seed=0, runtime=runtime)
        action = data.action_spec.vectors(data.action)
        np.testing.assert_allclose(model.predict(data.context, action), 1.0)


class TestRounds:
    def test_the_best_held_out_round_is_refitted_on_all_rows(
        self, data: TrainingData, first_stage: FirstStage, runtime: Runtime
    ) -> None:
        model = SMALL.fit(data, first_stage, seed=0, runtime=runtime)
        chosen = int(np.argmin(losses(model, "held_out")))
        assert model.describe()["n_rounds"] == chosen == len(model.regressor.trees)
        assert chosen > 5
        on_all_rows = replace(FIXED, n_rounds=chosen).fit(data, first_stage, seed=0, runtime=runtime)
        np.testing.assert_array_equal(losses(model, "training"), losses(on_all_rows, "training"))

    @only("one column")
    def test_patience_ends_the_search(
        self, data: TrainingData, first_stage: FirstStage, runtime: Runtime
    ) -> None:
        # A target of pure noise is best left at its mean.
        noise = replace(first_stage, target=np.random.default_rng(5).standard_normal(len(data)))
        learner = replace(SMALL, n_rounds=1000, learning_rate=1.0, patience=4)
        held_out = losses(learner.fit(data, noise, seed=0, runtime=runtime), "held_out")
        assert len(held_out) == int(np.argmin(held_out)) + 1 + 4

    @only("one column")
    def test_nothing_held_out(self, data: TrainingData, first_stage: FirstStage, runtime: Runtime) -> None:
        model = FIXED.fit(data, first_stage, seed=0, runtime=runtime)
        assert model.describe()["n_rounds"] == SMALL.n_rounds
        assert losses(model, "held_out").size == 0

    @only("one column")
    def test_progress_is_shown(self, data: TrainingData, first_stage: FirstStage) -> None:
        steps: dict[str, int] = {}

        class Counting:
            @contextmanager
            def stage(self, name: str, total: int) -> Iterator[Callable[[], None]]:
                del total
                steps[name] = 0

                def advance() -> None:
                    steps[name] += 1

                yield advance

        counting = Runtime(torch.device("cpu"), Counting(), 1)
        model = SMALL.fit(data, first_stage, seed=0, runtime=counting)
        assert steps == {
            "structural model: rounds": len(losses(model, "held_out")) - 1,
            "structural model": model.describe()["n_rounds"],
        }


class TestModel:
    def test_same_seed_same_model(
        self, data: TrainingData, first_stage: FirstStage, runtime: Runtime
    ) -> None:
        action = data.action_spec.vectors(data.action)
        before = torch.get_rng_state()
        one, same, other = (
            FIXED.fit(data, first_stage, seed=seed, runtime=runtime).predict(data.context, action)
            for seed in (0, 0, 1)
        )
        assert torch.equal(before, torch.get_rng_state())
        np.testing.assert_array_equal(one, same)
        if data.action_spec.kind == "continuous":
            # A discrete action is summed over: nothing is drawn.
            assert np.abs(one - other).max() > 1e-3

    @only("discrete")
    def test_rows_without_weight_do_not_matter(
        self, data: TrainingData, first_stage: FirstStage, runtime: Runtime
    ) -> None:
        weight = np.where(np.arange(len(data)) % 3 == 0, 0.0, 1.5)
        spoilt = replace(first_stage, target=np.where(weight == 0.0, 1e3, first_stage.target))
        action = data.action_spec.vectors(data.action)
        clean, spoilt_values = (
            FIXED.fit(replace(data, weight=weight), stage, seed=0, runtime=runtime).predict(
                data.context, action
            )
            for stage in (first_stage, spoilt)
        )
        np.testing.assert_allclose(clean, spoilt_values)

    def test_grid_equals_rows(self, data: TrainingData, first_stage: FirstStage, runtime: Runtime) -> None:
        model = FIXED.fit(data, first_stage, seed=0, runtime=runtime)
        actions = data.action_spec.vectors(data.action)[:7]
        context = data.context.take(np.arange(11))
        grid = model.predict_grid(context, actions)
        assert grid.shape == (11, 7)
        for column, action in enumerate(actions):
            np.testing.assert_array_equal(grid[:, column], model.predict(context, np.tile(action, (11, 1))))
        assert model.gradient(context, np.tile(actions[0], (11, 1))).shape == (11, actions.shape[1])


def exact_stage(problem: TicketDemand, n: int) -> tuple[TrainingData, FirstStage, np.ndarray]:
    """Return rows of a problem with its true nuisances in model units, and the contexts."""
    rows = problem.sample(n, seed=0)
    data = prepare(rows.Y, rows.T, Z=rows.Z, X=rows.X)
    mean, sd = problem.exact_action_distribution(rows.X, rows.Z)
    target = problem.exact_outcome_mean(rows.X, rows.Z)
    means = torch.from_numpy((mean - data.action_spec.mean) / data.action_spec.scale).float()
    factor = torch.full((n, 1, 1, 1), float(sd / data.action_spec.scale[0]))
    stage = FirstStage(
        target=(target - data.outcome_spec.mean) / data.outcome_spec.scale,
        distribution=MixtureDistribution(torch.ones(n, 1), means.reshape(n, 1, 1), factor),
        fold=np.zeros(n, dtype=np.int64),
        splits=(),
        outcome_model=None,
        action_model=None,  # type: ignore[arg-type]
        fold_members=(0,),
        n_members=1,
    )
    return data, stage, np.asarray(rows.X)


def test_recovers_the_slope_that_single_draws_flatten(runtime: Runtime) -> None:
    # With strength 0.4 the action distribution is about as wide as what the instrument moves. Same trees,
    # same number.
    problem = TicketDemand(instrument_strength=0.4)
    data, stage, contexts = exact_stage(problem, 1000)
    centre = problem.exact_action_distribution(contexts, np.zeros(len(contexts)))[0]
    half = 0.2

    def recovered(learner: Any) -> float:
        model = learner.fit(data, stage, seed=0, runtime=runtime)
        assert isinstance(model, RegressorStructuralModel)

        def at(action: np.ndarray) -> np.ndarray:
            units = (action - data.action_spec.mean) / data.action_spec.scale
            return model.predict(data.context, units[:, None]) * data.outcome_spec.scale

        true = problem.counterfactual(contexts, centre + half) - problem.counterfactual(
            contexts, centre - half
        )
        rise = at(centre + half) - at(centre - half)
        return float(np.sum(rise * true) / np.sum(true**2))

    trees = {"max_depth": 3, "min_samples_leaf": 10}
    direct = recovered(RegressorStructural(GradientBoostingRegressor(n_estimators=200, **trees), n_draws=5))
    projected = recovered(ProjectedBoosting(n_rounds=200, validation_fraction=0.0, **trees))
    assert direct + 0.1 < projected < 1.1


def test_learns_ticket_demand_after_learned_nuisances() -> None:
    problem = TicketDemand()
    data = problem.sample(1000, seed=0)
    trees = GradientBoostingRegressor(n_estimators=60, min_samples_leaf=20)
    learners = Learners(trees, trees, ProjectedBoosting(n_rounds=100))
    estimator = DMLIV(learners, n_folds=2, random_state=0).fit(data.Y, data.T, Z=data.Z, X=data.X)
    X, T, truth = problem.test_set()
    assert np.mean((estimator.predict(T, X) - truth) ** 2) < 0.5


class TestArguments:
    def test_needs_no_judging(self) -> None:
        assert not ProjectedBoosting().needs_validation

    @pytest.mark.parametrize("name", ["n_rounds", "max_depth", "min_samples_leaf", "n_draws", "patience"])
    @pytest.mark.parametrize("value", [0, 2.5])
    def test_counts(self, name: str, value: Any) -> None:
        with pytest.raises(InputError, match=f"positive whole number for {name}, got {value}"):
            ProjectedBoosting(**{name: value})

    @pytest.mark.parametrize(
        ("name", "value"), [("learning_rate", 0.0), ("learning_rate", 1.5), ("validation_fraction", 1.0)]
    )
    def test_shares(self, name: str, value: float) -> None:
        with pytest.raises(InputError, match=rf"Expected a finite number .* for {name}, got {value}"):
            ProjectedBoosting(**{name: value})  # type: ignore[arg-type]
