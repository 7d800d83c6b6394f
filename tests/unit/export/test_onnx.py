"""Exports of what the contracts do not reach: encodings, sieves, controls, costs, and rows of no use."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dmliv import DMLIV, InputError, KernelIV, NotFittedError, TwoStageLeastSquares
from dmliv.export import to_onnx
from dmliv.first_stage import crossfit
from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.kernels.process import ProcessSettings
from dmliv.learners import Learners, kernel, neural
from dmliv.nets.images import ImageColumns
from dmliv.nets.settings import NetworkSettings
from dmliv.policy import Interval
from dmliv.second_stage.network import NeuralStructural
from dmliv.second_stage.pilot import ControlFunction
from dmliv.second_stage.pilot_model import PilotedModel

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

ROWS = 200
SETTINGS = NetworkSettings(hidden=(8,), epochs=2, batch_size=50, learning_rate=5e-3)


def tiny(*encodings: str) -> Learners:
    structural = NetworkSettings(hidden=(8, 4), epochs=2, batch_size=50, encodings=encodings)
    return Learners(
        NeuralOutcome(SETTINGS), NeuralAction(SETTINGS, n_components=2), NeuralStructural(structural)
    )


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(100)
    time, fuel, hidden, size = rng.standard_normal((4, ROWS))
    kind = rng.choice(["lunch", "night", "noon"], ROWS)
    price = 20 + 3 * fuel + time + hidden
    sales = 100 - 2 * price + 5 * np.sin(time) + 4 * (kind == "night") + size - 3 * hidden
    return pd.DataFrame(
        {"time": time, "fuel": fuel, "kind": kind, "size": size, "price": price, "sales": sales}
    )


def fit(estimator: Any, frame: pd.DataFrame, **roles: Any) -> Any:
    roles = {"X": frame[["time", "kind"]], **roles}
    return estimator.fit(frame["sales"], frame["price"], Z=frame[["fuel"]], **roles)


def run(model: Any, folder: Path, **inputs: Any) -> Any:
    to_onnx(model, folder / "model.onnx")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    return session.run(None, {name: columns_as_input(values) for name, values in inputs.items()})


def columns_as_input(values: Any) -> Any:
    array = np.asarray(values)
    return array.astype(np.float64) if array.dtype.kind in "biuf" else array.astype(object)


def agree(estimator: Any, frame: pd.DataFrame, folder: Path) -> None:
    """Compare on new rows, some of them far outside the training data."""
    rng = np.random.default_rng(101)
    X = pd.DataFrame({"time": 3 * rng.standard_normal(50), "kind": rng.choice(frame["kind"], 50)})
    price = rng.uniform(5, 35, 50)
    (found,) = run(estimator, folder, price=price, **X)
    expected = estimator.predict(price, X)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


class TestModels:
    def test_the_default_learners(self, frame: pd.DataFrame, tmp_path: Path) -> None:
        estimator = fit(DMLIV(neural(effort="fast"), n_folds=2, pilot=None, random_state=0), frame)
        agree(estimator, frame, tmp_path)

    @pytest.mark.parametrize("encoding", ["raw", "standardised", "piecewise", "piecewise_action"])
    def test_encodings(self, encoding: str, frame: pd.DataFrame, tmp_path: Path) -> None:
        estimator = DMLIV(tiny(encoding), n_folds=2, pilot=None, random_state=0)
        agree(fit(estimator, frame), frame, tmp_path)

    def test_kernels(self, frame: pd.DataFrame, tmp_path: Path) -> None:
        estimator = DMLIV(kernel(n_landmarks=40), n_folds=2, pilot=None, random_state=0)
        agree(fit(estimator, frame), frame, tmp_path)
        agree(fit(KernelIV(features="random", bandwidth="product", random_state=0), frame), frame, tmp_path)

    def test_sieves(self, frame: pd.DataFrame, tmp_path: Path) -> None:
        agree(fit(TwoStageLeastSquares(3, n_knots=2, interactions=True), frame), frame, tmp_path)

    def test_controls_are_averaged_over(self, frame: pd.DataFrame, tmp_path: Path) -> None:
        roles = {"X": frame[["time"]], "W": frame[["size", "kind"]]}
        estimator = fit(DMLIV(tiny("piecewise"), n_folds=2, random_state=0), frame, **roles)
        X = frame[["time"]][:20]
        (found,) = run(estimator, tmp_path, price=frame["price"][:20], time=X["time"])
        np.testing.assert_allclose(found, estimator.predict(frame["price"][:20], X), rtol=1e-5)
        policy = estimator.policy([15.0, 20.0, 25.0])
        action, outcome = run(policy, tmp_path, time=X["time"])
        np.testing.assert_array_equal(action, policy.predict(X))
        assert outcome.mean() == pytest.approx(policy.value(X), rel=1e-5)


class TestPilots:
    """A pilot alone, and with a remainder: for every kind of action and context."""

    PILOT = ControlFunction(ProcessSettings(40, 150, 20))

    @pytest.fixture(params=[False, True], ids=["alone", "with a remainder"])
    def piloted(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
        least = -np.inf if request.param else np.inf
        monkeypatch.setattr(crossfit, "LEAST_EVIDENCE", least)
        estimator = DMLIV(tiny("piecewise"), n_folds=2, pilot=self.PILOT, random_state=0)
        return estimator, request.param

    def check(self, piloted: Any, folder: Path, price: Any, X: Any, **roles: Any) -> None:
        estimator, has_remainder = piloted
        estimator.fit(T=price, X=X, **roles)
        model = estimator.structural_model_
        assert isinstance(model, PilotedModel)
        assert model.pilot.describe()["control_variable"] == "residual"
        assert (model.remainder is not None) == has_remainder
        rng = np.random.default_rng(101)
        rows, others = rng.permutation(len(price))[:50], rng.permutation(len(price))[:50]
        some = price.iloc[others]
        columns = {} if X is None else dict(X.iloc[rows])
        named = dict(some) if isinstance(some, pd.DataFrame) else {some.name: some}
        (found,) = run(estimator, folder, **columns, **named)
        expected = estimator.predict(some, None if X is None else X.iloc[rows])
        assert expected.std() > 0.0
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())

    def test_one_action_column(self, piloted: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
        X = frame[["time", "size"]]
        self.check(piloted, tmp_path, frame["price"], X, Y=frame["sales"], Z=frame[["fuel"]])

    def test_rows_of_no_use_are_nan(self, piloted: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
        estimator = fit(piloted[0], frame)
        price, time = [20.0, np.nan, 20.0, 20.0], [0.0, 0.0, np.inf, 0.0]
        kind = ["noon", "noon", "noon", "brunch"]
        (found,) = run(estimator, tmp_path, price=price, time=time, kind=kind)
        np.testing.assert_array_equal(np.isnan(found), [False, True, True, True])

    def test_far_outside(self, piloted: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
        agree(fit(piloted[0], frame), frame, tmp_path)

    def test_categories(self, piloted: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
        self.check(piloted, tmp_path, frame["price"], frame[["kind"]], Y=frame["sales"], Z=frame[["fuel"]])

    def test_no_context(self, piloted: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
        self.check(piloted, tmp_path, frame["price"], None, Y=frame["sales"], Z=frame[["fuel"]])

    def test_two_action_columns(self, piloted: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
        rng = np.random.default_rng(102)
        second = rng.standard_normal(ROWS)
        prices = frame[["price"]].assign(fee=second + 0.3 * rng.standard_normal(ROWS))
        Z, Y = frame[["fuel"]].assign(rate=second), frame["sales"] + 3 * np.sin(prices["fee"])
        self.check(piloted, tmp_path, prices, frame[["time", "kind"]], Y=Y, Z=Z)

    def test_discrete_action(self, piloted: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
        level = pd.cut(frame["price"], [-np.inf, 18, 22, np.inf], labels=["cheap", "fair", "dear"])
        price = level.astype(str).rename("price")
        Y = 5.0 * (price == "fair") + frame["sales"] / 10
        self.check(piloted, tmp_path, price, frame[["time", "kind"]], Y=Y, Z=frame[["fuel"]])

    def test_weak_instrument(self, frame: pd.DataFrame, tmp_path: Path) -> None:
        """A pilot without the action, and a policy."""
        pilot = replace(self.PILOT, least_evidence=1e9)
        estimator = fit(DMLIV(tiny("raw"), n_folds=2, pilot=pilot, random_state=0), frame)
        assert estimator.structural_model_.pilot.describe()["control_variable"] == "none"
        agree(estimator, frame, tmp_path)
        policy, X = estimator.policy([10.0, 20.0, 30.0]), frame[["time", "kind"]][:20]
        _, outcome = run(policy, tmp_path, **X)
        np.testing.assert_allclose(outcome, policy.decide(X).value, rtol=1e-5)


@pytest.fixture
def estimator(frame: pd.DataFrame) -> Any:
    return fit(TwoStageLeastSquares(2, interactions=True), frame)


class TestPolicies:
    def test_costs(self, estimator: Any, frame: pd.DataFrame, tmp_path: Path) -> None:
        X, candidates = frame[["time", "kind"]], np.linspace(10, 30, 41)
        free = estimator.policy(candidates)
        dear = estimator.policy(candidates, cost=lambda price: (price - 20.0) ** 2)
        action, outcome = run(dear, tmp_path, **X)
        assert not np.array_equal(action, free.predict(X))
        np.testing.assert_array_equal(action, dear.predict(X))
        np.testing.assert_allclose(outcome, dear.decide(X).value)

    def test_rows_of_no_use_have_no_action(self, estimator: Any, tmp_path: Path) -> None:
        policy = estimator.policy([10.0, 30.0])
        X = pd.DataFrame({"time": [0.0, np.nan, 0.0, 1.0], "kind": ["noon", "noon", "brunch", "night"]})
        action, outcome = run(policy, tmp_path, **X)
        np.testing.assert_array_equal(np.isnan(action), [False, True, True, False])
        np.testing.assert_array_equal(np.isnan(outcome), [False, True, True, False])
        np.testing.assert_array_equal(action[[0, 3]], policy.predict(X.iloc[[0, 3]]))

    def test_labels(self, frame: pd.DataFrame, tmp_path: Path) -> None:
        cheap = np.where(frame["price"] < 20, "cheap", "dear")
        estimator = TwoStageLeastSquares(interactions=True)
        estimator.fit(frame["sales"], cheap, Z=frame[["fuel"]], X=frame[["time"]])
        time = np.append(frame["time"][:20], np.inf)
        action, _ = run(estimator.policy(), tmp_path, time=time)
        assert action[-1] == ""
        np.testing.assert_array_equal(action[:-1], estimator.policy().predict(frame[["time"]][:20]))
        (found,) = run(estimator, tmp_path, time=time[:3], action=["cheap", "dear", "free"])
        np.testing.assert_allclose(found[:2], estimator.predict(["cheap", "dear"], frame[["time"]][:2]))
        assert np.isnan(found[2])

    def test_a_continuum_and_support_are_refused(
        self, estimator: Any, frame: pd.DataFrame, tmp_path: Path
    ) -> None:
        with pytest.raises(InputError, match="over a continuum; pass the candidates as an array"):
            to_onnx(estimator.policy(Interval(10, 30)), tmp_path / "model.onnx")
        lawful = fit(DMLIV(tiny("raw"), n_folds=2, random_state=0), frame)
        with pytest.raises(InputError, match="leave min_support out"):
            to_onnx(lawful.policy([10.0, 20.0], min_support=0.01), tmp_path / "model.onnx")


class TestRowsOfNoUse:
    def test_they_are_nan_and_leave_others_alone(self, frame: pd.DataFrame, tmp_path: Path) -> None:
        """A ReLU or a bin would turn them into numbers that look right."""
        estimator = fit(DMLIV(tiny("piecewise_action"), n_folds=2, pilot=None, random_state=0), frame)
        price, time = [20.0, np.nan, 20.0, 20.0, -np.inf], [0.0, 0.0, np.inf, 0.0, 0.0]
        kind = ["noon", "noon", "noon", "brunch", "noon"]
        (found,) = run(estimator, tmp_path, price=price, time=time, kind=kind)
        np.testing.assert_array_equal(np.isnan(found), [False, True, True, True, True])
        first = pd.DataFrame({"time": [0.0], "kind": ["noon"]})
        np.testing.assert_allclose(found[:1], estimator.predict(20.0, first), rtol=1e-5)


class TestRefusals:
    def test_images(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(100)
        pixels, fuel = rng.random((60, 64)), rng.standard_normal(60)
        price = fuel + rng.standard_normal(60)
        estimator = KernelIV(image=ImageColumns(8, 8, first=0), random_state=0)
        estimator.fit(price + fuel, price, Z=fuel, X=pixels)
        with pytest.raises(InputError, match="got image columns; serve such a model with save"):
            to_onnx(estimator, tmp_path / "model.onnx")

    def test_what_is_no_fitted_model(self, tmp_path: Path) -> None:
        with pytest.raises(NotFittedError):
            to_onnx(DMLIV(), tmp_path / "model.onnx")
        with pytest.raises(InputError, match="got str"):
            to_onnx("model", tmp_path / "model.onnx")  # type: ignore[arg-type]

    def test_one_name_for_two_columns(self, frame: pd.DataFrame, tmp_path: Path) -> None:
        X = frame[["time"]].rename(columns={"time": "price"})
        with pytest.raises(InputError, match="name of its own, got 'price'; rename"):
            to_onnx(fit(TwoStageLeastSquares(), frame, X=X), tmp_path / "model.onnx")
        X = frame[["time"]].rename(columns={"time": "expected_outcome"})
        with pytest.raises(InputError, match="'expected_outcome', which is an output"):
            to_onnx(fit(TwoStageLeastSquares(), frame, X=X), tmp_path / "model.onnx")

    def test_a_folder_that_is_absent(self, frame: pd.DataFrame, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="path that can be written"):
            to_onnx(fit(TwoStageLeastSquares(), frame), tmp_path / "absent" / "model.onnx")


_SERVICE = """
import json, sys
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
rows = json.loads(sys.argv[2])
inputs = {"time": np.array(rows["time"]), "kind": np.array(rows["kind"], dtype=object)}
action, outcome = session.run(["recommended_action", "expected_outcome"], inputs)
assert not {"torch", "dmliv", "sklearn", "pandas", "onnx"} & set(sys.modules)
print(json.dumps([action.tolist(), outcome.tolist()]))
"""


def test_a_service_needs_numpy_and_onnxruntime_alone(frame: pd.DataFrame, tmp_path: Path) -> None:
    estimator = fit(DMLIV(tiny("piecewise"), n_folds=2, random_state=0), frame)
    policy = estimator.policy([10.0, 20.0, 30.0])
    to_onnx(policy, tmp_path / "policy.onnx")
    X = frame[["time", "kind"]][:10]
    rows = json.dumps({"time": X["time"].tolist(), "kind": X["kind"].tolist()})
    command = [sys.executable, "-c", _SERVICE, str(tmp_path / "policy.onnx"), rows]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    action, outcome = json.loads(answer.stdout)
    np.testing.assert_array_equal(action, policy.predict(X))
    np.testing.assert_allclose(outcome, policy.decide(X).value, rtol=1e-5)


def test_the_file_says_what_its_inputs_are(frame: pd.DataFrame, tmp_path: Path) -> None:
    to_onnx(fit(TwoStageLeastSquares(), frame), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    told = session.get_modelmeta().custom_metadata_map
    assert told["model"] == "TwoStageLeastSquares"
    assert json.loads(told["columns"]) == {
        "price": {"role": "action", "type": "number"},
        "time": {"role": "context", "type": "number"},
        "kind": {"role": "context", "type": "text", "levels": ["lunch", "night", "noon"]},
    }
    assert {each.name for each in session.get_inputs()} == {"price", "time", "kind"}
