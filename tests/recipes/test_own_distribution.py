"""A distribution of a user's own, with its learner: it works everywhere without a change in the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LinearRegression
from torch import Tensor

from dmliv import CEDMLIV, DMLIV, load
from dmliv.benchmark.runner import run
from dmliv.benchmark.store import RecordStore
from dmliv.benchmark.tasks import SuiteTask
from dmliv.benchmark.trials import Cell, Method, build_trial
from dmliv.data import FloatArray, IntArray, TrainingData
from dmliv.data.parquet import RowGroup
from dmliv.first_stage.distributions import ActionDistribution, Nodes, assemble
from dmliv.first_stage.nuisances import Exogenous
from dmliv.first_stage.parquet_blocks import NuisanceFiles, Prediction
from dmliv.inference import Bootstrap
from dmliv.learners import Learners, LinearStructural, kernel, neural
from dmliv.nets.randomness import Draws, drawn
from dmliv.parallel.runtime import Runtime
from dmliv.persistence import savable
from dmliv.problems import SUITE

ROWS = 300


@savable
@dataclass(frozen=True)
class LaplaceDistribution(ActionDistribution):
    """One action column with a Laplace distribution in each row.

    Attributes
    ----------
    location, scale : Tensor, shape (n_rows, 1)
    """

    location: Tensor
    scale: Tensor

    @property
    def width(self) -> int:
        """One column."""
        return 1

    def mean(self) -> Tensor:
        """Return the locations."""
        return self.location

    def sample(self, rows: Tensor, n_draws: int, generator: Draws) -> Nodes:
        """Draw by inversion."""
        uniform = drawn(torch.rand, (*rows.shape, n_draws), generator, self.device).clamp(1e-6, 1 - 1e-6)
        return self._at(rows, uniform)

    def nodes(self, rows: Tensor, n_points: int) -> Nodes:
        """Return evenly spaced quantiles, many enough to be accurate where h bends."""
        ranks = (torch.arange(8 * n_points, dtype=torch.float32) + 0.5) / (8 * n_points)
        return self._at(rows, ranks.expand(*rows.shape, -1))

    def log_density(self, action: FloatArray | IntArray) -> FloatArray:
        """Return the log density of one action per row."""
        location, scale = (each[:, 0].double().numpy() for each in (self.location, self.scale))
        return np.asarray(stats.laplace.logpdf(action[:, 0], location, scale))

    def _at(self, rows: Tensor, ranks: Tensor) -> Nodes:
        apart = torch.sign(ranks - 0.5) * torch.log1p(-2 * (ranks - 0.5).abs())
        actions = self.location[rows] - self.scale[rows] * apart
        return Nodes(actions.unsqueeze(-1), torch.full_like(ranks, 1.0 / ranks.shape[-1]))


@savable
@dataclass(frozen=True)
class LaplaceAction:
    """Action learner: a line for the location, one scale."""

    def fit(
        self, data: TrainingData, row_sets: Sequence[IntArray], *, seed: int, runtime: Runtime
    ) -> LaplaceModel:
        """Fit one line per row set."""
        inputs = _inputs(Exogenous(data.context, data.instrument))
        lines = tuple(LinearRegression().fit(inputs[rows], data.action[rows, 0]) for rows in row_sets)
        spreads = [
            np.mean(np.abs(data.action[rows, 0] - line.predict(inputs[rows])))
            for line, rows in zip(lines, row_sets, strict=True)
        ]
        return LaplaceModel(lines, tuple(map(float, spreads)))


@savable
@dataclass(frozen=True)
class LaplaceModel:
    """Lines with their scales."""

    lines: tuple[Any, ...]
    spreads: tuple[float, ...]

    def distributions(self, exogenous: Exogenous, row_sets: Sequence[IntArray]) -> list[ActionDistribution]:
        """Return the distribution of each member for its rows."""
        inputs, found = _inputs(exogenous), []
        for line, spread, rows in zip(self.lines, self.spreads, row_sets, strict=True):
            location = np.empty(0) if not len(rows) else line.predict(inputs[rows])
            column = torch.as_tensor(location, dtype=torch.float32)[:, None]
            found.append(LaplaceDistribution(column, torch.full_like(column, spread)))
        return [*found]

    def describe(self) -> dict[str, object]:
        """Return the scales."""
        return {"spreads": self.spreads}


def _inputs(exogenous: Exogenous) -> FloatArray:
    return np.hstack([exogenous.context.numeric, exogenous.instrument.numeric])


@pytest.fixture(scope="module")
def rows() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X, Z, hidden = rng.uniform(-1, 1, (ROWS, 2)), rng.standard_normal((ROWS, 1)), rng.laplace(size=ROWS)
    T = 1.5 * Z[:, 0] + X[:, 0] + hidden
    return {"Y": 2.0 * T + X[:, 1] + hidden + 0.1 * rng.standard_normal(ROWS), "T": T, "Z": Z, "X": X}


def learners(structural: Any) -> Learners:
    return Learners(LinearRegression(), LaplaceAction(), structural)


STRUCTURAL = {
    "line": LinearStructural(),
    "kernel": kernel(n_landmarks=40).structural,
    "networks": replace(neural().structural, n_members=1),  # type: ignore[type-var]
}


@pytest.mark.parametrize("name", STRUCTURAL)
@pytest.mark.parametrize("pilot", ["control-function", None])
def test_a_fit_finds_the_effect_and_is_saved(
    name: str, pilot: Any, rows: dict[str, Any], tmp_path: Path
) -> None:
    est = DMLIV(learners(STRUCTURAL[name]), n_folds=3, pilot=pilot, random_state=0).fit(**rows)
    assert isinstance(est.first_stage_.distribution, LaplaceDistribution)
    assert est.ate(rows["X"]) == pytest.approx(2.0, abs=0.5)
    assert est.nuisance_losses_["action_nll"] < 2.2
    est.save(tmp_path / "m.dmliv")
    again: Any = load(tmp_path / "m.dmliv")
    np.testing.assert_array_equal(again.predict(rows["T"], rows["X"]), est.predict(rows["T"], rows["X"]))
    rest = {key: rows[key] for key in ("Y", "Z", "X")}
    assert again.score(**rest) == est.score(**rest)


def test_intervals_policies_and_diagnostics(rows: dict[str, Any]) -> None:
    est = DMLIV(learners(LinearStructural()), n_folds=3, pilot=None, random_state=0)
    for inference in ("debiased", Bootstrap(5)):
        est.fit(**rows, inference=inference)
        lower, upper = est.ate_interval(rows["X"])
        assert lower < 2.3
        assert upper > 1.7
    policy = est.policy(np.linspace(-1, 1, 5), min_support=0.01)
    assert np.all(policy.predict(rows["X"]) > 0)
    assert est.diagnostics()["action_r2"].value == pytest.approx(est.nuisance_losses_["action_r2"])


def test_controls_are_averaged_over(rows: dict[str, Any]) -> None:
    est = CEDMLIV(learners(LinearStructural()), pilot=None, random_state=0)
    est.fit(rows["Y"], rows["T"], Z=rows["Z"], X=rows["X"][:, :1], W=rows["X"][:, 1:])
    assert est.ate(rows["X"][:, :1]) == pytest.approx(2.0, abs=0.3)


def test_rows_are_taken_joined_and_stored(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    whole = LaplaceDistribution(*torch.rand((2, 6, 1), generator=generator))
    sets = [torch.tensor([4, 0]), torch.tensor([1, 5, 2, 3])]
    joined = assemble(6, sets, [whole.take(each) for each in sets])
    assert torch.equal(joined.mean(), whole.mean())
    files, group = NuisanceFiles(tmp_path / "predictions"), RowGroup(tmp_path / "rows.parquet", 0, 0, 6)
    files.write([(group, Prediction(np.zeros(6, dtype=np.int64), np.zeros(6, dtype=np.float32), whole))])
    _, stored = files.read(group, torch.device("cpu"))
    assert isinstance(stored, LaplaceDistribution)
    assert torch.equal(stored.scale, whole.scale)


def test_the_benchmark_runs_it(tmp_path: Path) -> None:
    cell, store = Cell(SuiteTask(SUITE["saturating-dose"]), 100), RecordStore(tmp_path / "records.jsonl")
    method = Method("own", "own", lambda: DMLIV(learners(LinearStructural()), n_folds=2))
    other = Method("other", "other", lambda: DMLIV(learners(kernel().structural), n_folds=2))
    trials = [build_trial(cell, each, 100) for each in (method, other)]
    assert trials[0].digest != trials[1].digest
    assert run(trials[:1], store).failed == 0
    (record,) = store.read()
    assert record.digest == build_trial(cell, method, 100).digest
    assert record.metrics["relative_mse"] < 2.0
