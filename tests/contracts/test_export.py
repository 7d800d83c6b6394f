"""Exported models answer as the estimators do, for every estimator and every kind of input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dmliv import DMLIV, InputError
from dmliv.export import to_onnx
from dmliv.first_stage import crossfit
from dmliv.kernels.process import ProcessSettings
from dmliv.second_stage.pilot import ControlFunction
from dmliv.second_stage.pilot_model import PilotedModel
from dmliv.second_stage.regressor import RegressorStructuralModel

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

N = 30


def as_input(values: Any) -> Any:
    array = np.asarray(values)
    return array.astype(np.float64) if array.dtype.kind in "biuf" else array.astype(object)


def context_inputs(estimator: Any, X: Any) -> dict[str, Any]:
    columns = estimator.counterfactual_.context.input_order
    if hasattr(X, "columns"):
        return {name: as_input(X[name]) for name in columns}
    return {name: as_input(X[:, position]) for position, name in enumerate(columns)}


def action_inputs(estimator: Any, T: Any) -> dict[str, Any]:
    array = np.asarray(T).reshape(len(T), -1)
    return {
        name: as_input(array[:, position])
        for position, name in enumerate(estimator.counterfactual_.action.names)
    }


def exported(model: Any, folder: Path) -> Any:
    to_onnx(model, folder / "model.onnx")
    return onnxruntime.InferenceSession(str(folder / "model.onnx"))


def refuses(estimator: Any) -> bool:
    model = estimator.structural_model_
    learned = model.remainder if isinstance(model, PilotedModel) else model
    return isinstance(learned, RegressorStructuralModel)


def agree(estimator: Any, case: Any, folder: Path) -> None:
    X, T = case.some_X(N), case.T[:N]
    session = exported(estimator, folder)
    inputs = {} if X is None else context_inputs(estimator, X)
    (found,) = session.run(None, inputs | action_inputs(estimator, T))
    expected = estimator.predict(T, X)
    assert found.shape == (N,)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_predictions(method: Any, case: Any, tmp_path: Path) -> None:
    estimator = method.fitted(case)
    if refuses(estimator):
        with pytest.raises(InputError, match=r"trees; fit with learners=neural\(\) or kernel\(\)"):
            to_onnx(estimator, tmp_path / "model.onnx")
        assert not list(tmp_path.iterdir())
        return
    agree(estimator, case, tmp_path)


@pytest.mark.parametrize("least_evidence", [np.inf, -np.inf], ids=["alone", "with a remainder"])
def test_pilots(
    least_evidence: float,
    case: Any,
    tiny_learners: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the moments say of a pilot on these few rows, both kinds of models are written."""
    monkeypatch.setattr(crossfit, "LEAST_EVIDENCE", least_evidence)
    pilot = ControlFunction(ProcessSettings(40, 100, 20), least_evidence=-np.inf)
    estimator = DMLIV(tiny_learners, n_folds=2, pilot=pilot, random_state=0).fit(**case.roles)
    assert (estimator.structural_model_.remainder is None) == (least_evidence > 0.0)
    agree(estimator, case, tmp_path)


def test_without_a_pilot(case: Any, tiny_learners: Any, tmp_path: Path) -> None:
    estimator = DMLIV(tiny_learners, n_folds=2, pilot=None, random_state=0).fit(**case.roles)
    assert not isinstance(estimator.structural_model_, PilotedModel)
    agree(estimator, case, tmp_path)


def test_policies(method: Any, case: Any, tmp_path: Path) -> None:
    estimator = method.fitted(case)
    policy = estimator.policy(case.candidates)
    if refuses(estimator) or case.X is None:
        with pytest.raises(InputError, match=r"fit with learners|always answers the same"):
            to_onnx(policy, tmp_path / "model.onnx")
        return
    X = case.some_X(N)
    session = exported(policy, tmp_path)
    *actions, outcome = session.run(None, context_inputs(estimator, X))
    decisions = policy.decide(X)
    np.testing.assert_allclose(outcome, decisions.value, rtol=1e-5, atol=1e-5)
    chosen = actions[0] if len(actions) == 1 else np.column_stack(actions)
    # Where two candidates are as good as each other, rounding may decide between them.
    same = (chosen == decisions.action).reshape(N, -1).all(axis=1)
    assert same.mean() > 0.9
    np.testing.assert_allclose(estimator.predict(chosen, X), decisions.value, rtol=1e-4, atol=1e-4)
