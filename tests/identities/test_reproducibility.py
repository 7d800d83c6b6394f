"""The same question gives the same numbers, whatever the jobs, the frames and the order of columns."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor

from dmliv import CEDMLIV, DMLIV, DeepIV
from dmliv.first_stage.regressors import RegressorAction, RegressorOutcome
from dmliv.learners import Learners

ESTIMATORS = {
    "DMLIV": lambda learners, **options: DMLIV(learners, n_folds=3, **options),
    "CEDMLIV": CEDMLIV,
    "DeepIV": DeepIV,
}
estimators = pytest.mark.parametrize("make", ESTIMATORS.values(), ids=ESTIMATORS)
CONTEXTS, INSTRUMENTS, ACTIONS = ["time", "kind", "age"], ["fuel", "strike"], ["price", "ads"]


def fit(estimator: Any, frame: Any, actions: Any = "price") -> Any:
    return estimator.fit(
        frame["sales"], frame[actions], Z=frame[INSTRUMENTS], X=frame[CONTEXTS], sample_weight=frame["weight"]
    )


def answers(estimator: Any, frame: pd.DataFrame, actions: Any = "price") -> list[np.ndarray]:
    """Return everything an estimator says about some rows."""
    T, X = frame[actions], frame[CONTEXTS]
    return [
        estimator.predict(T, X),
        estimator.marginal_effect(T, X),
        estimator.first_stage_.target,
        estimator.first_stage_.distribution.mean().numpy(),
        np.array([estimator.score(frame["sales"], Z=frame[INSTRUMENTS], X=X)]),
        np.array(sorted(estimator.nuisance_losses_.items()), dtype=object)[:, 1].astype(float),
    ]


def assert_same(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


class TestSeeds:
    @estimators
    def test_same_seed(self, frame: pd.DataFrame, tiny_learners: Learners, make: Any) -> None:
        first, second = (answers(fit(make(tiny_learners, random_state=3), frame), frame) for _ in range(2))
        assert_same(first, second)

    @estimators
    def test_other_seeds(self, frame: pd.DataFrame, tiny_learners: Learners, make: Any) -> None:
        first, second = (
            fit(make(tiny_learners, random_state=seed), frame).predict(frame["price"], frame[CONTEXTS])
            for seed in (3, 4)
        )
        assert not np.array_equal(first, second)

    def test_no_seed(self, frame: pd.DataFrame, tiny_learners: Learners) -> None:
        first, second = (
            fit(CEDMLIV(tiny_learners), frame).predict(frame["price"], frame[CONTEXTS]) for _ in range(2)
        )
        assert not np.array_equal(first, second)

    def test_a_random_state_moves_on(self, frame: pd.DataFrame, tiny_learners: Learners) -> None:
        """A generator gives other numbers at every fit, and the same ones from the same start."""
        runs = []
        for _ in range(2):
            estimator = CEDMLIV(tiny_learners, random_state=np.random.RandomState(0))
            runs.append([fit(estimator, frame).predict(frame["price"], frame[CONTEXTS]) for _ in range(2)])
        np.testing.assert_array_equal(runs[0], runs[1])
        assert not np.array_equal(runs[0][0], runs[0][1])

    @estimators
    def test_the_past_of_an_estimator_does_not_matter(
        self, frame: pd.DataFrame, tiny_learners: Learners, make: Any
    ) -> None:
        used = make(tiny_learners, random_state=3)
        fit(used, frame[:100])
        fresh = make(tiny_learners, random_state=3)
        assert_same(answers(fit(used, frame), frame), answers(fit(fresh, frame), frame))

    def test_global_generators_are_left_alone(self, frame: pd.DataFrame, tiny_learners: Learners) -> None:
        def states() -> list[Any]:
            return [
                np.random.get_state()[1].tolist(),  # type: ignore[index, union-attr] # noqa: NPY002
                torch.get_rng_state().tolist(),
                random.getstate(),
                torch.get_num_threads(),
            ]

        before = states()
        estimator = fit(DMLIV(tiny_learners, n_folds=2, random_state=0), frame)
        answers(estimator, frame)
        assert states() == before

    def test_global_seeds_do_not_matter(self, frame: pd.DataFrame, tiny_learners: Learners) -> None:
        results = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            results.append(answers(fit(CEDMLIV(tiny_learners, random_state=0), frame), frame))
        assert_same(*results)


class TestJobs:
    @pytest.mark.parametrize("n_jobs", [2, -1])
    def test_networks(self, frame: pd.DataFrame, tiny_learners: Learners, n_jobs: int) -> None:
        one, many = (
            answers(fit(DMLIV(tiny_learners, n_folds=3, random_state=3, n_jobs=jobs), frame), frame)
            for jobs in (None, n_jobs)
        )
        assert_same(one, many)

    def test_forests(self, frame: pd.DataFrame, tiny_learners: Learners) -> None:
        forest = RandomForestRegressor(n_estimators=3, min_samples_leaf=5)
        learners = Learners(RegressorOutcome(forest), RegressorAction(forest, 2), tiny_learners.structural)
        one, two = (
            answers(fit(DMLIV(learners, n_folds=2, random_state=3, n_jobs=jobs), frame), frame)
            for jobs in (1, 2)
        )
        assert_same(one, two)

    def test_verbosity(
        self, frame: pd.DataFrame, tiny_learners: Learners, capsys: pytest.CaptureFixture[str]
    ) -> None:
        silent, shown = (
            answers(fit(CEDMLIV(tiny_learners, random_state=3, verbose=verbose), frame), frame)
            for verbose in (False, True)
        )
        assert_same(silent, shown)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "pilot: control function" in captured.err


class TestFrames:
    @estimators
    @pytest.mark.parametrize("library", [pl.from_pandas, pa.Table.from_pandas], ids=["polars", "pyarrow"])
    def test_libraries(self, frame: pd.DataFrame, tiny_learners: Learners, make: Any, library: Any) -> None:
        plain = answers(fit(make(tiny_learners, random_state=3), frame), frame)
        table = library(frame)

        def pick(names: Any) -> Any:
            if isinstance(names, str):
                return table[names]
            return table.select(names)

        estimator = make(tiny_learners, random_state=3).fit(
            pick("sales"), pick("price"), Z=pick(INSTRUMENTS), X=pick(CONTEXTS), sample_weight=pick("weight")
        )
        # Fitted on one library, asked with the other one, and with its own.
        assert_same(answers(estimator, frame), plain)
        np.testing.assert_array_equal(estimator.predict(pick("price"), pick(CONTEXTS)), plain[0])

    @estimators
    def test_order_of_columns(self, frame: pd.DataFrame, tiny_learners: Learners, make: Any) -> None:
        plain = answers(fit(make(tiny_learners, random_state=3), frame), frame)
        turned = make(tiny_learners, random_state=3).fit(
            frame["sales"],
            frame["price"],
            Z=frame[INSTRUMENTS[::-1]],
            X=frame[["age", "time", "kind"]],
            sample_weight=frame["weight"],
        )
        assert_same(answers(turned, frame), plain)

    def test_order_of_action_columns_at_prediction(
        self, frame: pd.DataFrame, tiny_learners: Learners
    ) -> None:
        estimator = fit(CEDMLIV(tiny_learners, random_state=3), frame, ACTIONS)
        one, other = (estimator.predict(frame[names], frame[CONTEXTS]) for names in (ACTIONS, ACTIONS[::-1]))
        np.testing.assert_array_equal(one, other)

    def test_the_index_of_a_frame_does_not_matter(self, frame: pd.DataFrame, tiny_learners: Learners) -> None:
        plain = answers(fit(CEDMLIV(tiny_learners, random_state=3), frame), frame)
        moved = frame.set_axis(np.random.default_rng(0).permutation(len(frame)), axis=0)
        assert_same(answers(fit(CEDMLIV(tiny_learners, random_state=3), moved), moved), plain)

    def test_arrays_and_frames(self, frame: pd.DataFrame, tiny_learners: Learners) -> None:
        """Numeric columns as an array, in the order in which a frame's columns are sorted."""
        names = ["age", "time"]
        of_frame = CEDMLIV(tiny_learners, random_state=3).fit(
            frame["sales"], frame["price"], Z=frame[["fuel"]], X=frame[names]
        )
        of_arrays = CEDMLIV(tiny_learners, random_state=3).fit(
            frame["sales"].to_numpy(),
            frame["price"].to_numpy(),
            Z=frame["fuel"].to_numpy(),
            X=frame[names].to_numpy(dtype=float),
        )
        np.testing.assert_array_equal(
            of_frame.predict(frame["price"], frame[names]),
            of_arrays.predict(frame["price"].to_numpy(), frame[names].to_numpy(dtype=float)),
        )

    def test_input_is_not_changed(self, frame: pd.DataFrame, tiny_learners: Learners) -> None:
        before = frame.copy(deep=True)
        estimator = fit(DMLIV(tiny_learners, n_folds=2, random_state=0), frame)
        answers(estimator, frame)
        pd.testing.assert_frame_equal(frame, before)
