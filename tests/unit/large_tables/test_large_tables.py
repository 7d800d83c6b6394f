"""Fits on files: close to the truth, the same for the same seed, and as usable as any other fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dmliv import CEDMLIV, DMLIV, DeepIV, load
from dmliv.data import ParquetRows, TrainingData
from dmliv.data.parquet import hashed_parts
from dmliv.errors import InputError
from dmliv.estimators import fit_parquet
from dmliv.learners import boosting, neural
from dmliv.second_stage.pilot_model import PilotedModel

from .conftest import ROLES, rows_of, write

FAST = neural(effort="fast")


@dataclass(frozen=True)
class SlopePilot:
    """A pilot that knows nothing: a line in the action with a slope that was given."""

    slope: float

    @property
    def model(self) -> Any:
        return self

    def fit(self, data: Any, distribution: Any, fold: Any, *, seed: int, runtime: Any) -> Any:
        return self

    def at(self, data: TrainingData) -> np.ndarray:
        return self.predict(data.context, data.action_spec.vectors(data.action))

    def evidence_against(self, data: Any, distribution: Any, *, seed: int) -> dict[str, float]:
        return {}

    def project(self, context: Any, distribution: Any) -> np.ndarray:
        return self.predict(context, distribution.mean().double().numpy())

    def predict(self, context: Any, action: np.ndarray) -> np.ndarray:
        return self.slope * action[:, 0]

    def predict_grid(self, context: Any, actions: np.ndarray) -> np.ndarray:
        return np.tile(self.slope * actions[:, 0], (len(context), 1))

    def gradient(self, context: Any, action: np.ndarray) -> np.ndarray:
        return np.full(action.shape, self.slope)

    def describe(self) -> dict[str, object]:
        return {"slope": self.slope}


def frame(n: int, seed: int) -> dict[str, np.ndarray]:
    new = rows_of(n, seed)
    return {"day": new["day"], "kind": new["kind"]}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[DMLIV, Path]:
    folder = write(tmp_path_factory.mktemp("fit") / "rows", rows_of(3000, seed=104), group_rows=250)
    rows = ParquetRows(folder, **ROLES)
    estimator = DMLIV(FAST, n_folds=3, pilot=None, random_state=0)
    assert fit_parquet(estimator, rows, sample_rows=1000, buffer_rows=800) is estimator
    return estimator, folder


def contexts(n: int) -> object:
    import pandas as pd  # noqa: PLC0415

    return pd.DataFrame(frame(n, seed=105))


def test_the_effect_is_found_despite_confounding(fitted: tuple[DMLIV, Path]) -> None:
    estimator, _ = fitted
    effect = estimator.effect(contexts(200), T0=0.0, T1=1.0)
    # Ordinary regression says 3: the confounder moves sales by 2 for each unit of price it brings.
    assert abs(np.median(effect) - 2.0) < 0.3


def test_a_fitted_model_predicts_decides_and_is_saved(fitted: tuple[DMLIV, Path], tmp_path: Path) -> None:
    estimator, _ = fitted
    X = contexts(20)
    estimator.save(tmp_path / "model.dmliv")
    loaded = load(tmp_path / "model.dmliv")
    np.testing.assert_array_equal(loaded.predict(0.5, X), estimator.predict(0.5, X))
    assert set(estimator.policy([-1.0, 1.0]).predict(X)) == {1.0}
    assert estimator.policy([-1.0, 1.0], min_support=0.01).predict(X).shape == (20,)
    assert estimator.nuisance_losses_["outcome_r2"] > 0.3
    new = rows_of(300, seed=106)
    assert estimator.score(new["sales"], Z=new["fuel"], X=contexts(300)) < 1.0


def test_predictions_are_on_disk_in_the_order_of_the_rows(fitted: tuple[DMLIV, Path]) -> None:
    _, folder = fitted
    tables = [pq.read_table(folder / "_nuisances" / f"part-{number}.parquet") for number in range(3)]
    assert [len(table) for table in tables] == [1000, 1000, 1000]
    target = np.concatenate([table.column("target").to_numpy() for table in tables])
    fold = np.concatenate([table.column("fold").to_numpy() for table in tables])
    assert set(fold) == {0, 1, 2}
    columns = rows_of(3000, seed=104)
    expected = 2.0 * (columns["fuel"] + 0.5 * columns["day"]) + columns["day"] + (columns["kind"] == "b")
    assert np.corrcoef(target, expected)[0, 1] > 0.97
    weights = tables[0].column("distribution_weights").combine_chunks().flatten().to_numpy().reshape(1000, -1)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-5)
    assert not list((folder / "_nuisances").glob(".*"))


def test_the_same_seed_gives_the_same_bits_wherever_predictions_go(folder: Path, tmp_path: Path) -> None:
    values = []
    for seed, place in ((1, "first"), (1, "second"), (2, "third")):
        estimator = CEDMLIV(FAST, pilot=None, random_state=seed)
        fit_parquet(estimator, ParquetRows(folder, **ROLES), nuisances=tmp_path / place, sample_rows=300)
        values.append(estimator.predict(0.5, contexts(50)))
    np.testing.assert_array_equal(values[0], values[1])
    assert not np.array_equal(values[0], values[2])
    assert (tmp_path / "first" / "part-0.parquet").read_bytes() == (
        tmp_path / "second" / "part-0.parquet"
    ).read_bytes()


def test_a_discrete_action_and_the_observed_outcome_as_target(tmp_path: Path) -> None:
    columns = rows_of(900, seed=107)
    columns["price"] = np.array(["low", "middle", "high"])[np.digitize(columns["price"], [-0.7, 0.7])]
    folder = write(tmp_path / "levels", columns)
    estimator = DeepIV(FAST, n_folds=2, pilot=None, random_state=0)
    fit_parquet(estimator, ParquetRows(folder, **ROLES), sample_rows=300)
    assert estimator.predict("high", contexts(5)).shape == (5,)
    assert np.mean(estimator.effect(contexts(100), T0="low", T1="high")) > 0.5
    table = pq.read_table(folder / "_nuisances" / "part-1.parquet")
    assert table.column_names == ["fold", "target", "distribution_probabilities"]
    # DeepIV's target is what was observed.
    observed = columns["sales"][300:600]
    assert np.corrcoef(table.column("target").to_numpy(), observed)[0, 1] > 0.999999


def test_folds_on_disk_are_hashes_of_row_numbers(fitted: tuple[DMLIV, Path]) -> None:
    _, folder = fitted
    fold = np.concatenate(
        [pq.read_table(path).column("fold").to_numpy() for path in sorted((folder / "_nuisances").glob("*"))]
    )
    seed = int(np.random.SeedSequence(int(np.random.RandomState(0).randint(2**31 - 1))).generate_state(5)[0])
    np.testing.assert_array_equal(fold, hashed_parts(np.arange(3000), 3, seed))


class TestPilot:
    def test_where_it_stands_no_outcome_model_is_needed(self, tmp_path: Path) -> None:
        folder = write(tmp_path / "rows", rows_of(3000, seed=104), group_rows=250)
        estimator = DMLIV(FAST, n_folds=2, random_state=0)
        fit_parquet(estimator, ParquetRows(folder, **ROLES), sample_rows=800)
        model = estimator.structural_model_
        assert isinstance(model, PilotedModel)
        assert model.remainder is None
        assert estimator.first_stage_.outcome_model is None
        assert not (folder / "_nuisances").exists()
        assert np.median(estimator.effect(contexts(200), T0=0.0, T1=1.0)) == pytest.approx(2.0, abs=0.15)
        estimator.save(tmp_path / "model.dmliv")
        loaded = load(tmp_path / "model.dmliv")
        np.testing.assert_array_equal(loaded.predict(0.5, contexts(5)), estimator.predict(0.5, contexts(5)))

    def test_one_of_zero_changes_nothing(self, folder: Path, tmp_path: Path) -> None:
        """Its remainder is learned in any case, from the rows as they are."""
        values = []
        for number, pilot in enumerate((None, SlopePilot(0.0))):
            estimator = DMLIV(FAST, n_folds=2, pilot=pilot, random_state=0)
            place = tmp_path / str(number)
            fit_parquet(estimator, ParquetRows(folder, **ROLES), nuisances=place, sample_rows=300)
            values.append(estimator.predict(0.5, contexts(50)))
        np.testing.assert_allclose(values[0], values[1], atol=1e-6)

    def test_a_wrong_one_is_repaired(self, tmp_path: Path) -> None:
        """What it says of the action is taken from every block, and learned back from the moments."""
        folder = write(tmp_path / "rows", rows_of(3000, seed=104), group_rows=250)
        estimator = DMLIV(FAST, n_folds=2, pilot=SlopePilot(1.5), random_state=0)
        fit_parquet(estimator, ParquetRows(folder, **ROLES), sample_rows=1000)
        model = estimator.structural_model_
        assert isinstance(model, PilotedModel)
        assert model.remainder is not None
        assert np.median(estimator.effect(contexts(200), T0=0.0, T1=1.0)) == pytest.approx(2.0, abs=0.4)


def test_nothing_of_an_earlier_fit_is_left(folder: Path) -> None:
    """Diagnostics after a fit on files must not speak of rows that were fitted in memory before."""
    columns = rows_of(300, seed=101)
    before = CEDMLIV(FAST, random_state=0)
    before.fit(columns["sales"], columns["price"], Z=columns["fuel"], X=columns["day"])
    assert before.diagnostics().n_rows == 300
    after = fit_parquet(before, ParquetRows(folder, **ROLES))
    with pytest.raises(InputError, match="Expected an estimator that still has its training rows"):
        after.diagnostics()


def test_other_learners_and_places_are_refused(folder: Path) -> None:
    rows = ParquetRows(folder, **ROLES)
    with pytest.raises(InputError, match="blocks of rows"):
        fit_parquet(DMLIV(boosting()), rows)
    with pytest.raises(InputError, match="apart from the rows"):
        fit_parquet(DMLIV(FAST, n_folds=2), rows, nuisances=folder, sample_rows=100)
    with pytest.raises(InputError, match="positive buffer_rows"):
        fit_parquet(DMLIV(FAST), rows, buffer_rows=0)
