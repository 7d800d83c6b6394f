"""What must not matter does not: repetition, chance elsewhere, units, frames, and rows without weight."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from dmliv import load

ABSENT = np.arange(100) % 4 == 1
WEIGHT = np.where(ABSENT, 0.0, 1.0)


def global_states() -> list[Any]:
    return [
        np.random.get_state()[1].tolist(),  # type: ignore[index, union-attr] # noqa: NPY002
        torch.get_rng_state().tolist(),
        random.getstate(),
        torch.get_num_threads(),
    ]


class TestSeeds:
    def test_a_second_fit_gives_the_same_numbers(self, method: Any, plain: Any, labels: Any) -> None:
        for case in (plain, labels):
            again = method.make().fit(**case.roles)
            np.testing.assert_array_equal(
                again.predict(case.T, case.X), method.fitted(case).predict(case.T, case.X)
            )

    def test_another_seed_gives_others(self, seeded: Any, plain: Any) -> None:
        other = seeded.make(random_state=1).fit(**plain.roles)
        assert not np.array_equal(
            other.predict(plain.T, plain.X), seeded.fitted(plain).predict(plain.T, plain.X)
        )

    def test_a_random_state_moves_on(self, seeded: Any, plain: Any) -> None:
        """A generator gives other numbers at every fit, and the same ones from the same start."""
        runs = []
        for _ in range(2):
            estimator = seeded.make(random_state=np.random.RandomState(0))
            runs.append([estimator.fit(**plain.roles).predict(plain.T, plain.X) for _ in range(2)])
        np.testing.assert_array_equal(runs[0], runs[1])
        assert not np.array_equal(runs[0][0], runs[0][1])

    def test_the_past_of_an_estimator_does_not_matter(
        self, method: Any, plain: Any, two_columns: Any
    ) -> None:
        used = method.make().fit(**two_columns.roles).fit(**plain.roles)
        np.testing.assert_array_equal(
            used.predict(plain.T, plain.X), method.fitted(plain).predict(plain.T, plain.X)
        )

    def test_global_generators_are_neither_read_nor_moved(self, method: Any, plain: Any) -> None:
        torch.manual_seed(7)
        np.random.seed(7)  # noqa: NPY002
        before = global_states()
        estimator = method.make().fit(**plain.roles)
        estimator.policy(plain.candidates).value(plain.X)
        assert global_states() == before
        np.testing.assert_array_equal(
            estimator.predict(plain.T, plain.X), method.fitted(plain).predict(plain.T, plain.X)
        )


@pytest.fixture
def double_by_default() -> Iterator[None]:
    """Double precision for all tensors that name none, as users of Gaussian-process libraries set it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("double_by_default")
class TestDefaultPrecision:
    def test_every_estimator(self, method: Any, plain: Any, labels: Any, two_columns: Any) -> None:
        for case in (plain, labels, two_columns):
            estimator = method.make().fit(**case.roles)
            known = method.fitted(case).predict(case.T, case.X)
            np.testing.assert_array_equal(estimator.predict(case.T, case.X), known)
            decided = estimator.policy(case.candidates).decide(case.X)
            assert len(decided) == len(case.Y)

    def test_networks_for_h(self, make: Any, choosing_learners: Any, plain: Any) -> None:
        estimator = make(choosing_learners, pilot=None).fit(**plain.roles)
        with_networks = estimator.predict(plain.T, plain.X)
        torch.set_default_dtype(torch.float32)
        again = make(choosing_learners, pilot=None).fit(**plain.roles)
        np.testing.assert_array_equal(again.predict(plain.T, plain.X), with_networks)

    def test_convolutions(self, make: Any, convolution_learners: Any) -> None:
        rng = np.random.default_rng(0)
        z, hidden = rng.standard_normal((2, 100))
        pixels = rng.uniform(size=(100, 784))
        estimator = make(convolution_learners, pilot=None)
        estimator.fit(z + 2.0 * hidden, z + hidden, Z=z, X=pixels)
        assert np.isfinite(estimator.predict(z + hidden, pixels)).all()

    def test_saved_files(self, method: Any, plain: Any, tmp_path: Path) -> None:
        fitted = method.fitted(plain)
        fitted.save(tmp_path / "model.dmliv")
        again = load(tmp_path / "model.dmliv")
        np.testing.assert_array_equal(again.predict(plain.T, plain.X), fitted.predict(plain.T, plain.X))


class TestUnits:
    def test_powers_of_two_change_nothing(self, method: Any, plain: Any) -> None:
        """Multiplying by a power of two is exact, so what remains is a dependence on units."""
        base = method.fitted(plain)
        other = method.make().fit(8.0 * plain.Y, plain.T / 4.0, Z=2.0 * plain.Z, X=plain.X * [16.0, 0.5])
        X, moved = plain.X, plain.X * [16.0, 0.5]
        expected = 8.0 * base.predict(plain.T, X)
        np.testing.assert_allclose(other.predict(plain.T / 4.0, moved), expected, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(
            other.marginal_effect(plain.T / 4.0, moved),
            32.0 * base.marginal_effect(plain.T, X),
            rtol=1e-6,
            atol=1e-5,
        )
        chosen = other.policy(plain.candidates / 4.0).predict(moved)
        np.testing.assert_array_equal(4.0 * chosen, base.policy(plain.candidates).predict(X))

    def test_other_units_with_labels(self, method: Any, labels: Any) -> None:
        other = method.make().fit(0.25 * labels.Y, labels.T, Z=2.0 * labels.Z, X=4.0 * labels.X)
        expected = 0.25 * method.fitted(labels).predict(labels.T, labels.X)
        np.testing.assert_allclose(other.predict(labels.T, 4.0 * labels.X), expected, rtol=1e-6, atol=1e-6)


class TestFrames:
    @pytest.fixture
    def frames(self, categories: Any) -> dict[str, pd.DataFrame]:
        return {
            "Y": pd.DataFrame({"sales": categories.Y}),
            "T": pd.DataFrame({"price": categories.T}),
            "Z": pd.DataFrame({"fuel": categories.Z}),
            "X": categories.X,
        }

    def test_pandas_and_polars_agree_with_arrays(
        self, method: Any, categories: Any, frames: dict[str, pd.DataFrame]
    ) -> None:
        expected = method.fitted(categories).predict(categories.T, categories.X)
        for convert in (pd.DataFrame, pl.from_pandas):
            given = {role: convert(frame) for role, frame in frames.items()}
            estimator = method.make().fit(**given)
            np.testing.assert_array_equal(estimator.predict(given["T"], given["X"]), expected)
            # Frames of the other kind may ask.
            np.testing.assert_array_equal(
                estimator.predict(frames["T"], pl.from_pandas(frames["X"])), expected
            )

    def test_labels_of_rows_do_not_matter(
        self, method: Any, categories: Any, frames: dict[str, pd.DataFrame]
    ) -> None:
        """Rows belong together by position, whatever a pandas index says."""
        turned = {role: frame.set_index(np.arange(100)[::-1]) for role, frame in frames.items()}
        estimator = method.make().fit(frames["Y"], turned["T"], Z=frames["Z"], X=turned["X"])
        np.testing.assert_array_equal(
            estimator.predict(categories.T, turned["X"]),
            method.fitted(categories).predict(categories.T, categories.X),
        )


class TestWeights:
    def test_equal_weights_of_any_size(self, method: Any, plain: Any) -> None:
        weighted = method.make().fit(**plain.roles, sample_weight=np.full(100, 4.0))
        np.testing.assert_allclose(
            weighted.predict(plain.T, plain.X),
            method.fitted(plain).predict(plain.T, plain.X),
            rtol=1e-4,
            atol=1e-4,
        )

    def test_weights_change_the_answer(self, method: Any, plain: Any) -> None:
        weighted = method.make().fit(**plain.roles, sample_weight=np.where(plain.X[:, 0] > 0, 3.0, 0.1))
        gap = weighted.predict(plain.T, plain.X) - method.fitted(plain).predict(plain.T, plain.X)
        assert np.abs(gap).max() > 1e-3

    def test_outcomes_of_weight_zero_do_not_matter(self, method: Any, plain: Any) -> None:
        honest = method.make().fit(**plain.roles, sample_weight=WEIGHT)
        spoiled = method.make().fit(
            np.where(ABSENT, 1e3, plain.Y), plain.T, Z=plain.Z, X=plain.X, sample_weight=WEIGHT
        )
        np.testing.assert_allclose(
            spoiled.predict(plain.T, plain.X), honest.predict(plain.T, plain.X), rtol=1e-4, atol=1e-4
        )

    def test_rows_of_weight_zero_do_not_matter(self, dropping: Any, plain: Any) -> None:
        honest = dropping.make().fit(**plain.roles, sample_weight=WEIGHT)
        wild = np.random.default_rng(5).normal(50.0, 20.0, 100)
        spoiled = dropping.make().fit(
            np.where(ABSENT, wild, plain.Y),
            np.where(ABSENT, wild[::-1], plain.T),
            Z=np.where(ABSENT, -wild, plain.Z),
            X=np.where(ABSENT[:, None], wild[:, None] / 2.0, plain.X),
            sample_weight=WEIGHT,
        )
        np.testing.assert_allclose(
            spoiled.predict(plain.T, plain.X), honest.predict(plain.T, plain.X), rtol=1e-4, atol=1e-4
        )
