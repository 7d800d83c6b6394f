"""A pilot by a regressor of scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler

from dmliv import CEDMLIV, DMLIV, InputError, load
from dmliv.data import prepare
from dmliv.first_stage.distributions import MixtureDistribution
from dmliv.inference import Bootstrap
from dmliv.kernels.process import ProcessSettings
from dmliv.learners import Learners
from dmliv.parallel.runtime import Runtime
from dmliv.progress import SilentProgress
from dmliv.second_stage.pilot_model import PilotedModel
from dmliv.second_stage.regressor import RegressorStructuralModel
from dmliv.second_stage.regressor_pilot import FittedRegressorPilot, RegressorPilot

N, N_FOLDS = 400, 4
SMALL = ProcessSettings(60, 200, 30)
RUNTIME = Runtime(torch.device("cpu"), SilentProgress(), 1)
NUISANCES = Learners(LinearRegression(), LinearRegression(), Ridge(1e-3))  # type: ignore[arg-type]


def roles(curved: bool = False, seed: int = 0) -> dict[str, Any]:
    """Return confounded rows with an effect of 2, or a wave of the action."""
    rng = np.random.default_rng(seed)
    X, (Z, hidden, noise) = rng.standard_normal((N, 2)), rng.standard_normal((3, N))
    T = Z + 0.5 * X[:, 0] + hidden
    h = 2.0 * np.sin(T) if curved else 2.0 * T
    return {"Y": h + X[:, 1] - 3.0 * hidden + 0.5 * noise, "T": T, "Z": Z, "X": X}


def fitted(regressor: Any, given: dict[str, Any], **options: Any) -> FittedRegressorPilot:
    data = prepare(**given)
    spec = data.action_spec
    mean = (given["Z"] + 0.5 * given["X"][:, 0] - spec.mean[0]) / spec.scale[0]
    factor = torch.full((N, 1, 1, 1), 1.0 / float(spec.scale[0]))
    distribution = MixtureDistribution(
        torch.ones(N, 1), torch.from_numpy(mean.reshape(N, 1, 1)).float(), factor
    )
    learner = RegressorPilot(regressor, settings=SMALL, **options)
    return learner.fit(data, distribution, np.arange(N) % N_FOLDS, seed=0, runtime=RUNTIME)


class TestTruth:
    def test_line(self) -> None:
        given = roles()
        data = prepare(**given)
        pilot = fitted(LinearRegression(), given)
        slope = pilot.model.regressor.coef_[-1] * data.outcome_spec.scale / data.action_spec.scale[0]
        least_squares = np.linalg.lstsq(
            np.column_stack([np.ones(N), given["X"], given["T"]]), given["Y"], rcond=None
        )[0][-1]
        assert least_squares < 1.0
        assert slope == pytest.approx(2.0, abs=0.3)

    def test_curve(self) -> None:
        given = roles(curved=True)
        smooth = make_pipeline(SplineTransformer(6), Ridge(0.1))
        data, truth = prepare(**given), 2.0 * np.sin(given["T"]) + given["X"][:, 1]
        inside = np.abs(given["T"]) < 2.5
        found = data.outcome_spec.to_user(fitted(smooth, given).values)
        inputs = np.column_stack([given["X"], given["T"]])
        confounded = smooth.fit(inputs, given["Y"]).predict(inputs)
        assert np.mean((found - truth)[inside] ** 2) < 0.3
        assert np.mean((confounded - truth)[inside] ** 2) > 1.0


class TestFolds:
    def test_values_come_from_other_folds(self) -> None:
        """The nearest neighbour repeats what it has seen, and cannot see a row's own fold."""
        given = roles()
        pilot, data = fitted(KNeighborsRegressor(1), given, n_rounds=1), prepare(**given)
        inputs = np.hstack([pilot.model.encoder.context.standardised(data.context), data.action])
        target = pilot.model.predict(data.context, data.action)
        fold = np.arange(N) % N_FOLDS
        for row in range(0, N, 50):
            others = np.flatnonzero(fold != fold[row])
            nearest = others[np.argmin(np.sum((inputs[others] - inputs[row]) ** 2, axis=1))]
            assert pilot.values[row] == pytest.approx(target[nearest])

    def test_projection_is_the_mean_over_the_distribution(self) -> None:
        given = roles()
        pilot, data = fitted(LinearRegression(), given), prepare(**given)
        distribution = MixtureDistribution(
            torch.ones(N, 1), torch.zeros(N, 1, 1), 0.7 * torch.ones(N, 1, 1, 1)
        )
        # Of a line it is the line at the mean.
        np.testing.assert_allclose(
            pilot.project(data.context, distribution),
            pilot.model.predict(data.context, np.zeros((N, 1))),
            atol=1e-6,
        )

    def test_no_answer_from_the_moments(self) -> None:
        given = roles()
        distribution = MixtureDistribution(torch.ones(N, 1), torch.zeros(N, 1, 1), torch.ones(N, 1, 1, 1))
        assert (
            fitted(LinearRegression(), given).evidence_against(prepare(**given), distribution, seed=0) == {}
        )


class TestEstimators:
    @pytest.mark.parametrize("estimator", [DMLIV, CEDMLIV])
    def test_a_regressor_as_pilot(self, estimator: Any, tmp_path: Path) -> None:
        given = roles()
        fit = estimator(NUISANCES, pilot=LinearRegression(), random_state=0).fit(**given)
        model: Any = fit.structural_model_
        assert isinstance(model, PilotedModel)
        assert isinstance(model.pilot, RegressorStructuralModel)
        # What it leaves is learned in any case.
        assert model.remainder is not None
        assert fit.ate(given["X"], T0=0.0, T1=1.0) == pytest.approx(2.0, abs=0.5)
        fit.save(tmp_path / "model.dmliv")
        again: Any = load(tmp_path / "model.dmliv")
        np.testing.assert_allclose(again.predict(given["T"], given["X"]), fit.predict(given["T"], given["X"]))

    def test_discrete_action(self) -> None:
        given = roles()
        given["T"] = np.where(given["T"] > 0.0, "on", "off")
        pilot = HistGradientBoostingRegressor(max_iter=30)
        learners = Learners(Ridge(), HistGradientBoostingClassifier(max_iter=20), Ridge())  # type: ignore[arg-type]
        fit = DMLIV(learners, n_folds=2, pilot=pilot, random_state=0).fit(**given)
        assert np.isfinite(fit.effect(given["X"], T0="off", T1="on")).all()

    def test_bootstrap(self) -> None:
        given = roles()
        fit = DMLIV(NUISANCES, n_folds=2, pilot=LinearRegression(), random_state=0)
        lower, upper = fit.fit(**given, inference=Bootstrap(4)).ate_interval(given["X"], T0=0.0, T1=1.0)
        assert lower < upper

    @pytest.mark.parametrize(
        "pilot", [HistGradientBoostingClassifier(), StandardScaler(), LinearRegression], ids=str
    )
    def test_what_is_no_regressor(self, pilot: Any) -> None:
        with pytest.raises(InputError, match="scikit-learn regressor"):
            DMLIV(NUISANCES, n_folds=2, pilot=pilot).fit(**roles())

    @pytest.mark.parametrize("n_rounds", [0, -1, 1.5, "two"])
    def test_rounds_are_checked(self, n_rounds: Any) -> None:
        with pytest.raises(InputError, match="positive whole number for n_rounds"):
            RegressorPilot(LinearRegression(), n_rounds=n_rounds)
