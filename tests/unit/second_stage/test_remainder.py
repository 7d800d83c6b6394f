"""Estimators with a pilot: what is learned beside it, when, and what users may ask for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from dmliv import CEDMLIV, DMLIV, DeepIV, InputError, load
from dmliv.data import Table, TrainingData, prepare
from dmliv.first_stage import crossfit
from dmliv.first_stage.crossfit import LEAST_EVIDENCE
from dmliv.inference import Bootstrap
from dmliv.kernels.process import ProcessSettings
from dmliv.learners import Learners, kernel, neural, paper_forest, paper_neural
from dmliv.nets.images import ImageColumns
from dmliv.nets.settings import NetworkSettings
from dmliv.second_stage.linear import LinearStructural
from dmliv.second_stage.network import NeuralStructural
from dmliv.second_stage.pilot import ControlFunction
from dmliv.second_stage.pilot_model import PilotedModel, PilotModel
from dmliv.second_stage.remainder import read_pilot

PILOT = ControlFunction(ProcessSettings(60, 200, 30))
N = 250


def tiny() -> Learners:
    """A small network for h; the nuisances of these rows are linear."""
    settings = NetworkSettings(hidden=(12,), epochs=4, batch_size=50, dropout=0.0, learning_rate=1e-2)
    return Learners(LinearRegression(), LinearRegression(), NeuralStructural(settings))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def holding() -> dict[str, Any]:
    """Rows with an effect of 2 for which the control function holds."""
    rng = np.random.default_rng(0)
    X, (Z, hidden, noise) = rng.standard_normal((N, 2)), rng.standard_normal((3, N))
    T = Z + 0.5 * X[:, 0] + hidden
    return {"Y": 2.0 * T + X[:, 1] - 3.0 * hidden + noise, "T": T, "Z": Z, "X": X}


def piloted(**options: Any) -> DMLIV:
    return DMLIV(tiny(), **{"n_folds": 3, "pilot": PILOT, "random_state": 0} | options)


@pytest.fixture(scope="module")
def standing(holding: dict[str, Any]) -> Any:
    return piloted().fit(**holding)


@pytest.fixture(scope="module")
def corrected(holding: dict[str, Any]) -> Any:
    """A fit that learns a remainder, whatever the moments say of the pilot."""
    with pytest.MonkeyPatch.context() as patch:
        doubt(patch)
        return piloted().fit(**holding)


def doubt(patch: pytest.MonkeyPatch) -> None:
    """Let the weakest evidence count against a pilot."""
    patch.setattr(crossfit, "LEAST_EVIDENCE", -np.inf)


class TestRemainder:
    def test_a_pilot_that_the_moments_leave_alone_is_h(self, standing: Any, holding: dict[str, Any]) -> None:
        model, stage = standing.structural_model_, standing.first_stage_
        assert isinstance(model, PilotedModel)
        assert isinstance(model.pilot, PilotModel)
        assert model.remainder is None
        assert stage.pilot_stands
        assert stage.outcome_model is None
        assert model.describe()["remainder_size"] == 0.0
        assert standing.ate(holding["X"], T0=0.0, T1=1.0) == pytest.approx(2.0, abs=0.6)

    def test_a_remainder_tells_of_itself(self, corrected: Any) -> None:
        model = corrected.structural_model_
        assert model.remainder is not None
        assert corrected.first_stage_.outcome_model is not None
        details = model.describe()
        assert details["remainder_size"] > 0.0
        assert details["remainder"] == model.remainder.describe()

    def test_is_learned_where_the_moments_ask_for_it(self) -> None:
        """What the hidden cause does swings with the instrument."""
        rng = np.random.default_rng(0)
        X, Z, hidden, noise = rng.standard_normal((4, 2000))
        T = Z + hidden
        Y = T - 3.0 * np.cos(2.0 * Z) * hidden + 0.3 * noise
        estimator = piloted().fit(Y, T, Z=Z, X=X)
        model: Any = estimator.structural_model_
        assert model.remainder is not None
        assert not estimator.first_stage_.pilot_stands
        assert max(model.describe()["evidence_against_pilot"].values()) > LEAST_EVIDENCE

    def test_is_added(self, corrected: Any, holding: dict[str, Any]) -> None:
        model = corrected.structural_model_
        table, action = Table(holding["X"], np.empty((N, 0), dtype=np.int64)), holding["T"][:, None]
        parts = (model.pilot, model.remainder)
        for found, expected in (
            (model.predict(table, action), [each.predict(table, action) for each in parts]),
            (model.gradient(table, action), [each.gradient(table, action) for each in parts]),
            (model.predict_grid(table, action[:3]), [each.predict_grid(table, action[:3]) for each in parts]),
        ):
            np.testing.assert_allclose(found, np.sum(expected, axis=0))
            assert np.abs(expected[1]).max() > 1e-3

    @pytest.mark.parametrize("fit", ["standing", "corrected"])
    def test_first_stage(self, fit: str, request: pytest.FixtureRequest, holding: dict[str, Any]) -> None:
        """Target and projected pilot together are the mean outcome given context and instrument."""
        estimator = request.getfixturevalue(fit)
        stage, outcome = estimator.first_stage_, prepare(**holding).outcome
        np.testing.assert_allclose(stage.outcome_mean, stage.target + stage.pilot_mean)
        r_squared = 1.0 - np.mean((outcome - stage.outcome_mean) ** 2)
        # Context and instrument explain three fifths of the outcome.
        assert 0.4 < r_squared < 0.8
        assert estimator.diagnostics().to_frame().shape[0] > 0

    def test_what_the_pilot_leaves(self, holding: dict[str, Any]) -> None:
        data = prepare(**holding)
        stage = piloted().fit(**holding).first_stage_
        left = stage.residual_rows(data)
        np.testing.assert_allclose(left.outcome, data.outcome - stage.pilot.values)
        np.testing.assert_array_equal(left.action, data.action)

    @pytest.mark.parametrize("estimator", [CEDMLIV, DeepIV])
    def test_other_estimators(self, estimator: Any, holding: dict[str, Any]) -> None:
        fitted = estimator(tiny(), pilot=PILOT, random_state=0).fit(**holding)
        assert isinstance(fitted.structural_model_, PilotedModel)
        assert fitted.ate(holding["X"], T0=0.0, T1=1.0) == pytest.approx(2.0, abs=0.6)


@dataclass(frozen=True)
class LineModel:
    """A line in the first action column."""

    slope: float

    def predict(self, context: Table, action: np.ndarray) -> np.ndarray:
        del context
        return self.slope * action[:, 0]

    def predict_grid(self, context: Table, actions: np.ndarray) -> np.ndarray:
        return np.tile(self.slope * actions[:, 0], (len(context), 1))

    def gradient(self, context: Table, action: np.ndarray) -> np.ndarray:
        del context
        return np.full(action.shape, self.slope)

    def describe(self) -> dict[str, object]:
        return {"slope": self.slope}


@dataclass(frozen=True, eq=False)
class FittedLine:
    model: LineModel

    def at(self, data: TrainingData) -> np.ndarray:
        return self.model.predict(data.context, data.action_spec.vectors(data.action))

    def evidence_against(self, data: TrainingData, distribution: Any, *, seed: int) -> dict[str, float]:
        """Return nothing: what this pilot leaves is learned in any case."""
        del data, distribution, seed
        return {}

    def project(self, context: Table, distribution: Any) -> np.ndarray:
        return self.model.predict(context, distribution.mean().double().numpy())


@dataclass(frozen=True)
class LinePilot:
    """A pilot learner of a user: always the same line."""

    slope: float

    def fit(
        self, data: TrainingData, distribution: Any, fold: np.ndarray, *, seed: int, runtime: Any
    ) -> FittedLine:
        del data, distribution, fold, seed, runtime
        return FittedLine(LineModel(self.slope))


class LinearWithPilot(LinearStructural):
    takes_pilot = True


class TestIdentities:
    """E[outcome - p(C, A) | C, Z] is the projection of h - p, whatever the pilot p is."""

    def test_a_pilot_of_zero_changes_nothing(self, holding: dict[str, Any]) -> None:
        fits = [piloted(pilot=pilot).fit(**holding) for pilot in (None, LinePilot(0.0))]
        assert isinstance(fits[1].structural_model_, PilotedModel)
        one, other = (fit.predict(holding["T"], holding["X"]) for fit in fits)
        np.testing.assert_allclose(one, other, rtol=1e-6)

    @pytest.mark.parametrize("slope", [-1.0, 3.0])
    def test_linear_learners_take_back_what_a_pilot_adds(self, slope: float, holding: dict[str, Any]) -> None:
        learners = Learners(LinearRegression(), LinearRegression(), LinearWithPilot())  # type: ignore[arg-type]
        one, other = (
            DMLIV(learners, n_folds=3, pilot=pilot, random_state=0).fit(**holding)
            for pilot in (None, LinePilot(slope))
        )
        np.testing.assert_allclose(
            one.predict(holding["T"], holding["X"]), other.predict(holding["T"], holding["X"]), atol=1e-3
        )
        assert other.structural_model_.describe()["pilot"] == {"slope": slope}


class TestParameter:
    @pytest.mark.parametrize(
        "pilot",
        ["control function", "", 3, True, object(), ControlFunction, LogisticRegression()],
        ids=lambda given: type(given).__name__,
    )
    def test_nonsense(self, pilot: Any, holding: dict[str, Any]) -> None:
        with pytest.raises(
            InputError,
            match=r"Expected pilot='control-function', None, a scikit-learn regressor or a learner",
        ):
            piloted(pilot=pilot).fit(**holding)

    def test_none(self, holding: dict[str, Any]) -> None:
        estimator = piloted(pilot=None).fit(**holding)
        assert not isinstance(estimator.structural_model_, PilotedModel)
        assert estimator.first_stage_.pilot is None
        assert not estimator.first_stage_.pilot_stands
        np.testing.assert_array_equal(estimator.first_stage_.outcome_mean, estimator.first_stage_.target)

    @pytest.mark.parametrize("estimator", [DMLIV, CEDMLIV, DeepIV])
    def test_is_the_default(self, estimator: Any) -> None:
        assert estimator().get_params()["pilot"] == "control-function"
        assert isinstance(read_pilot("control-function", neural()), ControlFunction)
        assert isinstance(read_pilot("control-function", kernel()), ControlFunction)

    @pytest.mark.parametrize("learners", [paper_neural(), paper_forest()], ids=["networks", "trees"])
    def test_the_presets_of_the_paper_have_none(self, learners: Learners) -> None:
        assert read_pilot("control-function", learners) is None
        assert read_pilot(PILOT, learners) is None

    def test_a_line_stays_a_line(self) -> None:
        learners = Learners(LinearRegression(), LinearRegression(), LinearStructural())  # type: ignore[arg-type]
        assert read_pilot(PILOT, learners) is None

    def test_paper_fit(self, holding: dict[str, Any]) -> None:
        estimator = DMLIV(replace(tiny(), with_pilot=False), n_folds=2, random_state=0).fit(**holding)
        assert not isinstance(estimator.structural_model_, PilotedModel)

    def test_images_are_passed_on(self) -> None:
        """As fixed features, also where the networks train convolutions."""
        image = ImageColumns(8, 8, first=0)
        for features in ("gradients", "convolution"):
            found = read_pilot(PILOT, neural(image=replace(image, features=features)))
            assert found == replace(PILOT, image=replace(image, features="gradients"))


class TestFits:
    @pytest.mark.parametrize("fit", ["standing", "corrected"])
    def test_saved_and_loaded(
        self, fit: str, request: pytest.FixtureRequest, holding: dict[str, Any], tmp_path: Path
    ) -> None:
        estimator = request.getfixturevalue(fit)
        estimator.save(tmp_path / "model.dmliv")
        loaded: Any = load(tmp_path / "model.dmliv")
        T, X = holding["T"], holding["X"]
        np.testing.assert_array_equal(loaded.predict(T, X), estimator.predict(T, X))
        np.testing.assert_array_equal(loaded.marginal_effect(T, X), estimator.marginal_effect(T, X))
        assert loaded.structural_model_.describe() == estimator.structural_model_.describe()
        assert loaded.score(**holding) == pytest.approx(estimator.score(**holding), rel=1e-9)
        np.testing.assert_array_equal(loaded.first_stage_.outcome_mean, estimator.first_stage_.outcome_mean)

    @pytest.mark.parametrize("fit", ["standing", "corrected"])
    def test_same_seed(
        self,
        fit: str,
        request: pytest.FixtureRequest,
        holding: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        T, X = holding["T"], holding["X"]
        expected = request.getfixturevalue(fit).predict(T, X)
        if fit == "corrected":
            doubt(monkeypatch)
        np.testing.assert_array_equal(piloted().fit(**holding).predict(T, X), expected)
        other = piloted(random_state=1).fit(**holding).predict(T, X)
        assert np.abs(other - expected).max() > 1e-6

    def test_bootstrap_of_a_pilot_alone(self, holding: dict[str, Any]) -> None:
        """Replicates keep parameters and choices."""
        estimator = piloted().fit(**holding, inference=Bootstrap(20))
        models = estimator.counterfactual_.uncertainty.models
        assert len(models) == 20
        assert all(isinstance(model, PilotModel) for model in models)
        lower, upper = estimator.ate_interval(holding["X"], T0=0.0, T1=1.0)
        assert lower < estimator.ate(holding["X"], T0=0.0, T1=1.0) < upper
        assert 0.1 < upper - lower < 2.0

    def test_bootstrap_with_a_remainder(
        self, holding: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        doubt(monkeypatch)
        estimator = piloted().fit(**holding, inference=Bootstrap(2))
        models = estimator.counterfactual_.uncertainty.models
        assert len(models) == 2
        assert all(isinstance(model, PilotedModel) for model in models)
        lower, upper = estimator.effect_interval(holding["X"][:5], T0=0.0, T1=1.0)
        assert (lower < upper).all()

    def test_weights(self, holding: dict[str, Any]) -> None:
        """Rows without weight may hold anything."""
        weight = np.where(np.arange(N) % 5 == 0, 0.0, 1.0)
        damaged = holding | {"Y": np.where(weight > 0.0, holding["Y"], 1e3)}
        one, other = (piloted().fit(**roles, sample_weight=weight) for roles in (holding, damaged))
        assert one.structural_model_.remainder is None
        np.testing.assert_allclose(
            one.effect(holding["X"], T0=0.0, T1=1.0), other.effect(holding["X"], T0=0.0, T1=1.0), rtol=1e-4
        )
