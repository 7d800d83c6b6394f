"""Learners of a user's own in the roles: they work everywhere without a change in the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from dmliv import CEDMLIV, DMLIV, load
from dmliv.benchmark.runner import run
from dmliv.benchmark.store import RecordStore
from dmliv.benchmark.tasks import SuiteTask
from dmliv.benchmark.trials import Cell, Method, build_trial
from dmliv.data import FloatArray, IntArray, Table, TrainingData
from dmliv.export import to_onnx
from dmliv.export.graph import Block, side_by_side
from dmliv.export.models import write_model
from dmliv.export.raw_rows import ContextRows
from dmliv.first_stage.crossfit import FirstStage
from dmliv.first_stage.nuisances import Exogenous
from dmliv.inference import Bootstrap
from dmliv.learners import Learners, neural
from dmliv.parallel.runtime import Runtime
from dmliv.persistence import savable
from dmliv.problems import SUITE
from dmliv.report import write_report

ROWS = 300


@savable
@dataclass(frozen=True)
class NearestMean:
    """Outcome learner: the mean of the nearest rows."""

    n_neighbours: int = 15

    def fit(
        self, data: TrainingData, row_sets: Sequence[IntArray], *, seed: int, runtime: Runtime
    ) -> NearestMeans:
        """Remember the rows."""
        inputs = _inputs(Exogenous(data.context, data.instrument))
        pairs = tuple((inputs[rows], data.outcome[rows]) for rows in row_sets)
        return NearestMeans(pairs, self.n_neighbours)


@savable
@dataclass(frozen=True)
class NearestMeans:
    """Rows with their outcomes, one set per member."""

    pairs: tuple[tuple[FloatArray, FloatArray], ...]
    n_neighbours: int

    def predict(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[FloatArray]:
        """Return the predictions of each member for its rows."""
        inputs, found = _inputs(exogenous), []
        for (known, outcome), rows in zip(self.pairs, row_sets, strict=True):
            distance = np.sum((inputs[rows][:, None] - known) ** 2, axis=2)
            nearest = np.argsort(distance, axis=1)[:, : self.n_neighbours]
            found.append(outcome[nearest].mean(axis=1))
        return found

    def describe(self) -> dict[str, object]:
        """Return the number of neighbours."""
        return {"n_neighbours": self.n_neighbours}


@savable
@dataclass(frozen=True)
class OneSlope:
    """Structural learner: one slope of the action, and lines in the context."""

    @property
    def needs_validation(self) -> bool:
        """Nothing is chosen."""
        return False

    def fit(
        self, data: TrainingData, first_stage: FirstStage, *, seed: int, runtime: Runtime
    ) -> OneSlopeModel:
        """Regress the target on the mean action, with weights."""
        action = first_stage.distribution.mean().double().numpy()[:, :1]
        inputs = np.hstack([np.ones((len(data), 1)), data.context.numeric, action])
        root = np.sqrt(data.weight)
        found = np.linalg.lstsq(inputs * root[:, None], first_stage.target * root, rcond=None)[0]
        return OneSlopeModel(found)


@savable
@dataclass(frozen=True)
class OneSlopeModel:
    """Intercept, slopes of the context, slope of the action."""

    coefficients: FloatArray

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""
        return np.asarray(
            self.coefficients[0] + np.hstack([context.numeric, action[:, :1]]) @ self.coefficients[1:]
        )

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action."""
        base = self.coefficients[0] + context.numeric @ self.coefficients[1:-1]
        return np.asarray(base[:, None] + self.coefficients[-1] * actions[:, 0])

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the slope."""
        return np.full(action.shape, self.coefficients[-1])

    def describe(self) -> dict[str, object]:
        """Return the slope."""
        return {"slope": float(self.coefficients[-1])}


@write_model.register
def _(model: OneSlopeModel, rows: ContextRows, action: Block) -> Block:
    found = model.coefficients
    return side_by_side([rows.numeric, action]) @ found[1:, None] + found[0]


def _inputs(exogenous: Exogenous) -> FloatArray:
    return np.hstack([exogenous.context.numeric, exogenous.instrument.numeric])


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X, Z, hidden = rng.uniform(-1, 1, (ROWS, 2)), rng.standard_normal((ROWS, 1)), rng.standard_normal(ROWS)
    T = 1.5 * Z[:, 0] + X[:, 0] + hidden
    return {"Y": 2.0 * T + X[:, 1] + hidden, "T": T, "Z": Z, "X": X}


def learners() -> Learners:
    return Learners(NearestMean(), neural(effort="fast").action, OneSlope())


@pytest.mark.parametrize("pilot", ["control-function", None])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_finds_the_effect_and_is_saved(
    pilot: Any, weighted: bool, rows: dict[str, Any], tmp_path: Path
) -> None:
    est = DMLIV(learners(), n_folds=3, pilot=pilot, random_state=0)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, ROWS) if weighted else None
    est.fit(**rows, sample_weight=weight)
    assert est.ate(rows["X"]) == pytest.approx(2.0, abs=0.4)
    est.save(tmp_path / "m.dmliv")
    again: Any = load(tmp_path / "m.dmliv")
    np.testing.assert_array_equal(again.predict(rows["T"], rows["X"]), est.predict(rows["T"], rows["X"]))
    rest = {key: rows[key] for key in ("Y", "Z", "X")}
    assert again.score(**rest) == est.score(**rest)


def test_intervals_policies_diagnostics_and_a_report(rows: dict[str, Any], tmp_path: Path) -> None:
    est = DMLIV(learners(), n_folds=3, pilot=None, random_state=0)
    for inference in ("debiased", Bootstrap(5)):
        est.fit(**rows, inference=inference)
        lower, upper = est.ate_interval(rows["X"])
        assert lower < upper
    assert np.all(est.policy(np.linspace(-1, 1, 5)).predict(rows["X"]) == 1.0)
    assert "outcome_r2" in {finding.key for finding in est.diagnostics().findings}
    write_report(est, tmp_path / "report.html", **rows)
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_controls_are_averaged_over(rows: dict[str, Any]) -> None:
    est = CEDMLIV(learners(), pilot=None, random_state=0)
    est.fit(rows["Y"], rows["T"], Z=rows["Z"], X=rows["X"][:, :1], W=rows["X"][:, 1:])
    assert est.ate(rows["X"][:, :1]) == pytest.approx(2.0, abs=0.4)


def test_a_model_that_says_how_is_exported(rows: dict[str, Any], tmp_path: Path) -> None:
    est = CEDMLIV(learners(), pilot=None, random_state=0).fit(**rows)
    to_onnx(est, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    inputs = {each.name: each for each in session.get_inputs()}
    assert len(inputs) >= 2


def test_settings_are_tuned_beside_those_of_the_presets(rows: dict[str, Any]) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    from dmliv.tuning import SearchSpace  # noqa: PLC0415

    est = CEDMLIV(learners(), pilot=None, random_state=0)
    result = est.tune(**rows, space=SearchSpace(families={"own": learners()}), n_trials=2)
    assert isinstance(result.learners, Learners)


def test_the_benchmark_runs_it(tmp_path: Path) -> None:
    cell, store = Cell(SuiteTask(SUITE["saturating-dose"]), 100), RecordStore(tmp_path / "records.jsonl")
    method = Method("own", "own", lambda: DMLIV(learners(), n_folds=2))
    other = Method("other", "other", lambda: DMLIV(replace(learners(), outcome=NearestMean(5)), n_folds=2))
    trials = [build_trial(cell, each, 100) for each in (method, other)]
    # Its parameters are part of what names a record.
    assert trials[0].digest != trials[1].digest
    assert run(trials[:1], store).failed == 0
    (record,) = store.read()
    assert record.digest == build_trial(cell, method, 100).digest
    assert record.metrics["relative_mse"] < 2.0
