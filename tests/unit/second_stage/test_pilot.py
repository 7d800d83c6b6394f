"""The pilot: a control-function regression, cross-fitted, with what it says of itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from dmliv.data import TrainingData, prepare
from dmliv.errors import InputError
from dmliv.first_stage.crossfit import LEAST_EVIDENCE
from dmliv.first_stage.distributions import (
    ActionDistribution,
    CategoricalDistribution,
    MixtureDistribution,
    ResidualDistribution,
)
from dmliv.kernels.process import ProcessSettings
from dmliv.nets.images import ImageColumns
from dmliv.parallel.runtime import Runtime
from dmliv.progress import SilentProgress
from dmliv.second_stage.pilot import ControlFunction, Pilot

RUNTIME = Runtime(torch.device("cpu"), SilentProgress(), 1)
SMALL = ControlFunction(ProcessSettings(60, 200, 30))
N_FOLDS = 4


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows and their true action distributions."""

    data: TrainingData
    distribution: ActionDistribution

    @property
    def fold(self) -> np.ndarray:
        return np.arange(len(self.data)) % N_FOLDS

    @property
    def action(self) -> np.ndarray:
        return self.data.action_spec.vectors(self.data.action)

    def fit(self, learner: ControlFunction = SMALL, seed: int = 0, like: Pilot | None = None) -> Pilot:
        rows = self.data, self.distribution, self.fold
        if like is not None:
            return learner.fit_again(*rows, like, seed=seed, runtime=RUNTIME)
        return learner.fit(*rows, seed=seed, runtime=RUNTIME)

    def effect(self, pilot: Pilot) -> np.ndarray:
        """Return what one unit more of the action does, in the user's units."""
        spec = self.data.action_spec
        slope = pilot.model.gradient(self.data.context, self.action)[:, 0]
        return np.asarray(slope * self.data.outcome_spec.scale / spec.scale[0])


def gaussian_rows(
    outcome: np.ndarray,
    action: np.ndarray,
    mean: np.ndarray,
    spread: np.ndarray,
    *,
    Z: Any,
    X: Any = None,
    sample_weight: Any = None,
) -> Rows:
    """Return rows whose action is Gaussian with known mean and spread, both (n, d)."""
    data = prepare(outcome, action, Z=Z, X=X, sample_weight=sample_weight)
    spec = data.action_spec
    means = torch.from_numpy((mean.reshape(len(data), 1, -1) - spec.mean) / spec.scale).float()
    factors = torch.diag_embed(torch.from_numpy(spread.reshape(len(data), 1, -1) / spec.scale).float())
    return Rows(data, MixtureDistribution(torch.ones(len(data), 1), means, factors))


def linear_rows(n: int = 400, strength: float = 1.0, seed: int = 0) -> Rows:
    """Return a linear triangular model: the effect is 2, least squares finds about 0.5 at full strength."""
    rng = np.random.default_rng(seed)
    x, z, hidden, noise = rng.standard_normal((4, n))
    mean = strength * z + 0.5 * x
    action = mean + hidden
    outcome = 2.0 * action + x - 3.0 * hidden + noise
    return gaussian_rows(outcome, action, mean, np.ones(n), Z=z, X=x)


@cache
def rows_of(kind: str) -> Rows:
    """Return curved and confounded rows with each kind of action and context."""
    rng = np.random.default_rng(1)
    n = 240
    z, hidden = rng.standard_normal((n, 2)), rng.standard_normal(n)
    x = np.empty((n, 2), dtype=object)
    x[:, 0], x[:, 1] = rng.standard_normal(n), np.array(["u", "v", "w"])[rng.integers(0, 3, n)]
    mean = z + 0.3 * x[:, :1].astype(float) * np.array([1.0, -1.0])
    action = mean + hidden[:, None] * np.array([0.8, 0.5]) + 0.5 * rng.standard_normal((n, 2))
    spread = np.tile(np.sqrt(np.array([0.8, 0.5]) ** 2 + 0.25), (n, 1))
    bent = np.sin(1.5 * action[:, 0]) + 0.5 * action[:, 1] * (x[:, 1] == "u")
    outcome = bent + hidden + 0.2 * rng.standard_normal(n)
    if kind == "two columns":
        return gaussian_rows(outcome, action, mean, spread, Z=z, X=x)
    if kind == "discrete":
        code = np.digitize(action[:, 0], [-0.7, 0.7])
        effect = np.array([0.0, 2.0, 1.0])[code] * np.where(x[:, 1] == "u", 2.0, 1.0)
        level = np.array(["a", "b", "c"])[code]
        data = prepare(effect + hidden + 0.2 * rng.standard_normal(n), level, Z=z, X=x)
        cut = torch.distributions.Normal(torch.from_numpy(mean[:, 0]), float(spread[0, 0]))
        low, high = cut.cdf(torch.tensor(-0.7)), 1.0 - cut.cdf(torch.tensor(0.7))
        return Rows(data, CategoricalDistribution(torch.stack([low, 1.0 - low - high, high], dim=1).float()))
    context = {"one column": x, "no context": None}[kind]
    shown = mean[:, 0] if context is not None else z[:, 0]
    return gaussian_rows(outcome, action[:, 0], shown, spread[:, 0], Z=z, X=context)


@cache
def pilot_of(kind: str) -> Pilot:
    return rows_of(kind).fit()


kinds = pytest.mark.parametrize("kind", ["one column", "two columns", "discrete", "no context"])


class TestModel:
    @kinds
    def test_there_is_something_to_test(self, kind: str) -> None:
        """The facts below would hold for a constant too."""
        details = pilot_of(kind).model.describe()
        assert details["control_variable"] == "residual"
        rows = rows_of(kind)
        assert pilot_of(kind).model.gradient(rows.data.context, rows.action).std(axis=0).max() > 0.1

    @kinds
    def test_grid(self, kind: str) -> None:
        rows, model = rows_of(kind), pilot_of(kind).model
        actions = rows.action[:5]
        grid = model.predict_grid(rows.data.context, actions)
        assert grid.shape == (len(rows.data), 5)
        for position, action in enumerate(actions):
            expected = model.predict(rows.data.context, np.tile(action, (len(rows.data), 1)))
            np.testing.assert_allclose(grid[:, position], expected, atol=1e-9)

    @kinds
    def test_gradient(self, kind: str) -> None:
        rows, model = rows_of(kind), pilot_of(kind).model
        found = model.gradient(rows.data.context, rows.action)
        for column in range(rows.action.shape[1]):
            step = 1e-5 * np.eye(rows.action.shape[1])[column]
            ahead, behind = (model.predict(rows.data.context, rows.action + s * step) for s in (1.0, -1.0))
            np.testing.assert_allclose(found[:, column], (ahead - behind) / 2e-5, atol=1e-6)

    @kinds
    def test_projection_is_the_mean_over_the_distribution(self, kind: str) -> None:
        rows, model = rows_of(kind), pilot_of(kind).model
        n = len(rows.data)
        nodes = rows.distribution.nodes(torch.arange(n), 20)
        actions, weights = nodes.actions.double().numpy(), nodes.weights.double().numpy()
        context = rows.data.context.take(np.repeat(np.arange(n), actions.shape[1]))
        values = model.predict(context, actions.reshape(-1, actions.shape[2])).reshape(n, -1)
        np.testing.assert_allclose(
            model.project(rows.data.context, rows.distribution), np.sum(weights * values, axis=1), atol=1e-4
        )

    def test_projection_over_residuals(self) -> None:
        """A distribution without a closed form: a few nodes come close to all residuals."""
        rows, model = rows_of("one column"), pilot_of("one column").model
        n, spread = len(rows.data), 0.6
        pool = torch.from_numpy(spread * np.random.default_rng(0).standard_normal((1, 100, 1))).float()
        distribution = ResidualDistribution(rows.distribution.mean(), pool, torch.zeros(n, dtype=torch.long))
        actions = (distribution.location[:, None] + pool).double().numpy()
        context = rows.data.context.take(np.repeat(np.arange(n), 100))
        expected = model.predict(context, actions.reshape(-1, 1)).reshape(n, 100).mean(axis=1)
        assert np.sqrt(np.mean((model.project(rows.data.context, distribution) - expected) ** 2)) < 0.05

    @kinds
    def test_one_row_and_none(self, kind: str) -> None:
        rows, model = rows_of(kind), pilot_of(kind).model
        whole = model.predict(rows.data.context, rows.action)
        one = model.predict(rows.data.context.take(np.array([3])), rows.action[[3]])
        np.testing.assert_allclose(one, whole[[3]], atol=1e-9)
        none = rows.data.context.take(np.empty(0, dtype=np.int64))
        assert model.predict(none, rows.action[:0]).shape == (0,)
        assert model.predict_grid(none, rows.action[:2]).shape == (0, 2)


class TestCrossFitting:
    @kinds
    def test_outcomes_of_a_fold_do_not_reach_its_values(self, kind: str) -> None:
        rows, pilot = rows_of(kind), pilot_of(kind)
        inside = rows.fold == 2
        shift = np.random.default_rng(2).standard_normal(len(rows.data))
        moved = replace(
            rows.data, outcome=np.where(inside, rows.data.outcome + shift + 1.0, rows.data.outcome)
        )
        found = replace(rows, data=moved).fit(like=pilot)
        before = rows.fit(like=pilot)
        change = np.abs(found.values - before.values)
        # But for the slope of the control variable, which is one number for all folds.
        assert change[inside].mean() < 0.3 * change[~inside].mean()
        assert change[~inside].mean() > 0.05

    @kinds
    def test_values_are_near_the_model_of_all_rows(self, kind: str) -> None:
        rows, pilot = rows_of(kind), pilot_of(kind)
        whole = pilot.model.predict(rows.data.context, rows.action)
        assert np.corrcoef(pilot.values, whole)[0, 1] > 0.9
        assert not np.allclose(pilot.values, whole)

    def test_one_fold(self) -> None:
        rows = rows_of("one column")
        one = np.zeros(len(rows.data), dtype=np.int64)
        pilot = SMALL.fit(rows.data, rows.distribution, one, seed=0, runtime=RUNTIME)
        whole = pilot.model.predict(rows.data.context, rows.action)
        np.testing.assert_allclose(pilot.values, whole, atol=1e-9)

    @kinds
    def test_parameters_of_another_pilot(self, kind: str) -> None:
        """The same rows and parameters are the same pilot; and such a pilot can be a model in turn."""
        rows, pilot = rows_of(kind), pilot_of(kind)
        again = rows.fit(like=pilot)
        assert again.regression.searched.kernel is pilot.regression.searched.kernel
        once_more = rows.fit(like=again)
        np.testing.assert_array_equal(again.values, once_more.values)
        # Other landmarks, as the search drew rows in between.
        spread = pilot.values.std()
        assert np.sqrt(np.mean((again.values - pilot.values) ** 2)) < 0.3 * spread

    def test_seeds(self) -> None:
        rows = rows_of("one column")
        same, other = rows.fit(seed=0), rows.fit(seed=1)
        np.testing.assert_array_equal(same.values, pilot_of("one column").values)
        assert np.abs(same.values - other.values).max() > 1e-6

    def test_rows_of_no_weight_teach_nothing(self) -> None:
        rows = linear_rows(200)
        weight = np.where(np.arange(200) % 5 == 0, 0.0, 1.25)
        damaged = np.where(weight > 0.0, rows.data.outcome, 50.0)
        pilots = [
            replace(rows, data=replace(rows.data, weight=weight, outcome=outcome)).fit()
            for outcome in (rows.data.outcome, damaged)
        ]
        np.testing.assert_allclose(pilots[0].values, pilots[1].values, atol=1e-8)


class TestTruth:
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_linear_model(self, seed: int) -> None:
        rows = linear_rows(seed=seed)
        design = np.column_stack([np.ones(400), rows.action, rows.data.context.numeric])
        regression = np.linalg.lstsq(design, rows.data.outcome, rcond=None)[0][1]
        regression *= rows.data.outcome_spec.scale / rows.data.action_spec.scale[0]
        assert regression < 0.8
        assert rows.effect(rows.fit()).mean() == pytest.approx(2.0, abs=0.45)

    def test_curve(self) -> None:
        rng = np.random.default_rng(0)
        n = 500
        x, z, hidden, noise = rng.standard_normal((4, n))
        mean = 1.2 * z
        action = mean + hidden
        truth = np.sin(1.3 * action) + 0.5 * x
        rows = gaussian_rows(truth + 1.5 * hidden + 0.3 * noise, action, mean, np.ones(n), Z=z, X=x)
        found = rows.data.outcome_spec.to_user(rows.fit().values)
        outcome = rows.data.outcome_spec.to_user(rows.data.outcome)
        regression = 0.5 * x + np.polyval(np.polyfit(action, outcome - 0.5 * x, 9), action)
        inside = np.abs(action) < 2.5
        assert np.mean((found - truth)[inside] ** 2) < 0.1
        assert np.mean((regression - truth)[inside] ** 2) > 0.4

    def test_confounding_that_depends_on_the_context(self) -> None:
        rng = np.random.default_rng(0)
        n = 500
        x, z, hidden, noise = rng.standard_normal((4, n))
        action = z + hidden
        outcome = action + 2.0 * x * hidden + 0.3 * noise
        rows = gaussian_rows(outcome, action, z, np.ones(n), Z=z, X=x)
        effect = rows.effect(rows.fit())
        # Least squares in a context finds 1 + x.
        assert np.mean((effect - 1.0) ** 2) < 0.15

    def test_effect_that_depends_on_the_context(self) -> None:
        rng = np.random.default_rng(0)
        n = 500
        x, z, hidden, noise = rng.standard_normal((4, n))
        action = z + hidden
        rows = gaussian_rows((1.0 + x) * action - 2.0 * hidden + 0.3 * noise, action, z, np.ones(n), Z=z, X=x)
        assert np.mean((rows.effect(rows.fit()) - 1.0 - x) ** 2) < 0.15

    def test_uneven_spread_takes_ranks(self) -> None:
        """The hidden cause is the action's rank; its residual is the more of it the wider the spread."""
        rng = np.random.default_rng(0)
        n = 500
        x, z, hidden, noise = rng.standard_normal((4, n))
        spread = np.exp(0.6 * z)
        action = 1.5 * z + spread * hidden
        outcome = action - 2.0 * hidden + 0.3 * noise
        rows = gaussian_rows(outcome, action, 1.5 * z, spread, Z=z, X=x)
        pilot = rows.fit()
        details: Any = pilot.model.describe()
        assert details["control_variable"] == "rank"
        assert details["evidence"]["rank"] > details["evidence"]["residual"] + 10.0
        assert rows.effect(pilot).mean() == pytest.approx(1.0, abs=0.25)
        again = rows.fit(like=pilot)
        np.testing.assert_array_equal(again.first.control.columns, pilot.first.control.columns)

    def test_even_spread_takes_residuals(self, recwarn: pytest.WarningsRecorder) -> None:
        details: Any = linear_rows().fit().model.describe()
        assert set(details["evidence"]) == {"residual"}
        assert not recwarn.list


class TestStrength:
    def test_an_instrument_that_does_nothing(self) -> None:
        """The effect of the action is left to the moments: h is the mean outcome in a context."""
        rows = linear_rows(strength=0.0)
        pilot = rows.fit()
        details: Any = pilot.model.describe()
        assert details["control_variable"] == "none"
        assert details["instrument_evidence"] < 3.0
        context = rows.data.context
        np.testing.assert_array_equal(pilot.model.gradient(context, rows.action), 0.0)
        moved = pilot.model.predict(context, rows.action + 5.0)
        np.testing.assert_allclose(moved, pilot.model.predict(context, rows.action), atol=1e-12)
        np.testing.assert_allclose(pilot.project(context, rows.distribution), moved, atol=1e-12)
        np.testing.assert_allclose(pilot.model.predict_grid(context, rows.action[:1])[:, 0], moved)
        again = rows.fit(like=pilot)
        assert again.model.describe()["control_variable"] == "none"

    def test_grows_with_the_instrument(self) -> None:
        details = [linear_rows(strength=each).fit().model.describe() for each in (0.3, 1.0)]
        found: Any = [each["instrument_evidence"] for each in details]
        # Half the rows, times the variance that the instrument explains, over what it leaves.
        np.testing.assert_allclose(found, [200 * 0.09, 200.0], rtol=0.5)

    def test_threshold(self) -> None:
        rows = linear_rows(200)
        details = rows.fit(replace(SMALL, least_evidence=1e6)).model.describe()
        assert details["control_variable"] == "none"

    @pytest.mark.parametrize("value", [np.nan, "20", None])
    def test_threshold_is_checked(self, value: Any) -> None:
        with pytest.raises(InputError, match="Expected a number for least_evidence"):
            ControlFunction(least_evidence=value)

    def test_contexts_do_not_pass_for_instruments(self) -> None:
        """The action follows a wave over the context, which moves the outcome as well.

        With an instrument that does almost nothing a regression may take what differs between contexts for
        the effect of the action: here it would find 2, where the truth is 0.
        """
        rng = np.random.default_rng(3)
        n = 1500
        x, (z, hidden, noise) = rng.uniform(-1.0, 1.0, n), rng.standard_normal((3, n))
        wave = np.sin(9.0 * x)
        mean = 0.05 * z + 2.0 * wave
        action = mean + hidden
        outcome = 4.0 * wave + hidden + 0.3 * noise
        rows = gaussian_rows(outcome, action, mean, np.ones(n), Z=z, X=x)
        pilot = rows.fit(ControlFunction(ProcessSettings(150, 600, 60), least_evidence=-np.inf))
        assert np.abs(np.median(rows.effect(pilot))) < 0.5


class TestSample:
    """Of a large table a sample is enough."""

    def test_values_of_all_rows(self) -> None:
        rows = linear_rows(600)
        pilot = rows.fit(replace(SMALL, most_rows=200))
        assert pilot.sample is not None
        assert len(pilot.sample) == len(pilot.values) == 200
        values = pilot.at(rows.data)
        np.testing.assert_array_equal(values[pilot.sample], pilot.values)
        others = np.setdiff1d(np.arange(600), pilot.sample)
        expected = pilot.model.predict(rows.data.context.take(others), rows.action[others])
        np.testing.assert_allclose(values[others], expected, atol=1e-12)
        assert rows.effect(pilot).mean() == pytest.approx(2.0, abs=0.5)
        evidence = pilot.evidence_against(rows.data, rows.distribution, seed=0)
        assert max(evidence.values()) < LEAST_EVIDENCE

    def test_other_rows_do_not_matter(self) -> None:
        rows = linear_rows(300)
        learner = replace(SMALL, most_rows=150)
        pilot = rows.fit(learner)
        assert pilot.sample is not None
        outcome = rows.data.outcome.copy()
        outcome[np.setdiff1d(np.arange(300), pilot.sample)] += 100.0
        other = replace(rows, data=replace(rows.data, outcome=outcome)).fit(learner)
        np.testing.assert_array_equal(pilot.values, other.values)

    def test_small_tables_are_used_whole(self) -> None:
        assert pilot_of("one column").sample is None

    @pytest.mark.parametrize("value", [0, -1, 2.5, "all"])
    def test_the_number_is_checked(self, value: Any) -> None:
        with pytest.raises(InputError, match="positive whole number for most_rows"):
            ControlFunction(most_rows=value)


class TestEvidence:
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_is_small_where_the_control_function_holds(self, seed: int) -> None:
        rows = linear_rows(seed=seed)
        evidence = rows.fit().evidence_against(rows.data, rows.distribution, seed=0)
        assert max(evidence.values()) < LEAST_EVIDENCE

    @kinds
    def test_every_kind_of_action(self, kind: str) -> None:
        rows = rows_of(kind)
        evidence = pilot_of(kind).evidence_against(rows.data, rows.distribution, seed=0)
        assert np.isfinite(list(evidence.values())).all()
        assert evidence == pilot_of(kind).evidence_against(rows.data, rows.distribution, seed=0)

    def test_is_large_where_it_does_not(self) -> None:
        """What the hidden cause does swings with the instrument: only the moments hold."""
        rng = np.random.default_rng(0)
        n = 2000
        x, z, hidden, noise = rng.standard_normal((4, n))
        action = z + hidden
        outcome = action - 3.0 * np.cos(2.0 * z) * hidden + 0.3 * noise
        rows = gaussian_rows(outcome, action, z, np.ones(n), Z=z, X=x)
        evidence = rows.fit().evidence_against(rows.data, rows.distribution, seed=0)
        assert max(evidence.values()) > 2.0 * LEAST_EVIDENCE

    def test_is_large_against_a_pilot_that_was_moved(self) -> None:
        """A pilot with a slope of its own choice."""
        rows = linear_rows()
        pilot = rows.fit()
        moved = replace(pilot, values=pilot.values - 0.5 * rows.action[:, 0])
        evidence = moved.evidence_against(rows.data, rows.distribution, seed=0)
        assert max(evidence.values()) > 2.0 * LEAST_EVIDENCE


class TestContexts:
    def test_many_columns(self) -> None:
        """More than get a length scale of their own; those that matter are not the first."""
        rng = np.random.default_rng(0)
        n = 250
        x, (z, hidden, noise) = rng.standard_normal((n, 30)), rng.standard_normal((3, n))
        mean = z + 0.5 * x[:, 29]
        action = mean + hidden
        outcome = 2.0 * action + 3.0 * x[:, 28] - 2.0 * hidden + noise
        rows = gaussian_rows(outcome, action, mean, np.ones(n), Z=z, X=x)
        pilot = rows.fit()
        space = pilot.model.space
        assert sorted(space.columns.order) == list(range(30))
        assert set(space.columns.order[:2].tolist()) == {28, 29}
        # One more for the mean of the action.
        assert len(space.kernel.blocks) == 24 + 1
        assert rows.effect(pilot).mean() == pytest.approx(2.0, abs=0.6)
        grid = pilot.model.predict_grid(rows.data.context, rows.action[:1])[:, 0]
        expected = pilot.model.predict(rows.data.context, np.tile(rows.action[:1], (n, 1)))
        np.testing.assert_allclose(grid, expected, atol=1e-9)

    def test_images(self) -> None:
        rng = np.random.default_rng(0)
        n = 100
        z, hidden, pixels = rng.standard_normal(n), rng.standard_normal(n), rng.uniform(size=(n, 64))
        action = z + hidden
        rows = gaussian_rows(action + hidden, action, z, np.ones(n), Z=z, X=pixels)
        image = ImageColumns(8, 8, first=0)
        pilot = rows.fit(replace(SMALL, image=image))
        assert np.isfinite(pilot.model.predict(rows.data.context, rows.action)).all()
        # Pixels that do nothing leave no columns.
        assert pilot.model.space.columns.image == ()
        with pytest.raises(InputError, match="features='gradients'"):
            rows.fit(replace(SMALL, image=replace(image, features="convolution")))

    def test_an_image_that_decides_the_effect(self) -> None:
        rng = np.random.default_rng(0)
        n, size = 500, 12
        bars = rng.integers(0, 2, n)
        pixels = 0.1 * rng.uniform(size=(n, size, size))
        # A bar that stands doubles the effect; one that lies turns it round.
        pixels[bars == 0, :, 5:7] = 1.0
        pixels[bars == 1, 5:7, :] = 1.0
        z, hidden = rng.standard_normal(n), rng.standard_normal(n)
        action = z + hidden
        effect = np.where(bars == 0, 2.0, -1.0)
        outcome = effect * action + hidden + 0.3 * rng.standard_normal(n)
        rows = gaussian_rows(outcome, action, z, np.ones(n), Z=z, X=pixels.reshape(n, -1))
        pilot = rows.fit(replace(SMALL, image=ImageColumns(size, size, first=0)))
        (index,) = pilot.model.space.columns.image
        assert pilot.first.context.shape == (n, index.weights.shape[1] + 1)
        slope = rows.effect(pilot)
        assert slope[bars == 0].mean() == pytest.approx(2.0, abs=0.25)
        assert slope[bars == 1].mean() == pytest.approx(-1.0, abs=0.25)
        # Its parameters and columns are kept where only weights differ.
        again = rows.fit(replace(SMALL, image=ImageColumns(size, size, first=0)), like=pilot)
        np.testing.assert_allclose(again.values, pilot.values, atol=1e-8)
