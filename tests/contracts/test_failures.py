"""Input that cannot work is refused with a helpful message, and nothing is left half fitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neighbors import KNeighborsRegressor

from dmliv.errors import DMLIVError, InputError, NotFittedError, TrainingDivergedError
from dmliv.learners import Learners
from dmliv.nets.settings import NetworkSettings

Spoil = Callable[[dict[str, Any]], dict[str, Any]]


def with_value(values: Any, value: float) -> np.ndarray:
    spoiled = np.array(values, dtype=float)
    spoiled.reshape(-1)[3] = value
    return spoiled


BAD_INPUT: dict[str, tuple[Spoil, str]] = {
    "missing outcome": (
        lambda r: r | {"Y": with_value(r["Y"], np.nan)},
        "outcome column.*1 missing values.*row 3",
    ),
    "missing action": (lambda r: r | {"T": with_value(r["T"], np.nan)}, "action column.*missing values"),
    "missing instrument": (
        lambda r: r | {"Z": with_value(r["Z"], np.nan)},
        "instrument column.*missing values",
    ),
    "missing context": (lambda r: r | {"X": with_value(r["X"], np.nan)}, "context column.*missing values"),
    "infinite outcome": (lambda r: r | {"Y": with_value(r["Y"], np.inf)}, "outcome column.*infinite values"),
    "infinite action": (lambda r: r | {"T": with_value(r["T"], -np.inf)}, "action column.*infinite values"),
    "infinite context": (lambda r: r | {"X": with_value(r["X"], np.inf)}, "context column.*infinite values"),
    "missing weight": (
        lambda r: r | {"sample_weight": with_value(np.ones(100), np.nan)},
        "weight column.*missing values",
    ),
    "short action": (lambda r: r | {"T": r["T"][:-1]}, "same number of rows.*100 in outcome, 99 in action"),
    "short instrument": (lambda r: r | {"Z": r["Z"][:-5]}, "same number of rows.*95 in instrument"),
    "short context": (lambda r: r | {"X": r["X"][:-5]}, "same number of rows.*95 in context"),
    "short weight": (lambda r: r | {"sample_weight": np.ones(7)}, "same number of rows.*7 in weight"),
    "constant instrument": (lambda r: r | {"Z": np.ones(100)}, "vary in instrument column.*got a constant"),
    "constant action": (lambda r: r | {"T": np.ones(100)}, "vary in action column.*got a constant"),
    "instrument is the outcome": (lambda r: r | {"Z": r["Y"]}, "an instrument that is also the outcome"),
    "instrument is a context": (lambda r: r | {"Z": r["X"][:, 0]}, "instruments apart from the context"),
    "no instrument": (lambda r: r | {"Z": np.empty((100, 0))}, "at least one instrument column"),
    "words as outcome": (lambda r: r | {"Y": ["much"] * 100}, "Expected numbers in outcome column"),
    "two outcomes": (lambda r: r | {"Y": np.ones((100, 2))}, "Expected one outcome column, got 2"),
    "negative weight": (
        lambda r: r | {"sample_weight": with_value(np.ones(100), -2.0)},
        "weights of at least zero, got -2",
    ),
    "weights of zero": (lambda r: r | {"sample_weight": np.zeros(100)}, "some positive weights"),
}
bad_input = pytest.mark.parametrize(("spoil", "message"), BAD_INPUT.values(), ids=BAD_INPUT)


class TestBadInput:
    @bad_input
    def test_is_refused_and_leaves_a_fresh_estimator_fresh(
        self, method: Any, plain: Any, spoil: Spoil, message: str
    ) -> None:
        estimator = method.make()
        with pytest.raises(InputError, match=message):
            estimator.fit(**spoil(plain.roles))
        assert vars(estimator) == vars(method.make())
        with pytest.raises(NotFittedError):
            estimator.predict(plain.T, plain.X)

    def test_too_few_rows(self, method: Any, plain: Any) -> None:
        given = method.fewest_rows - 1
        message = method.too_few_rows.format(fewest=method.fewest_rows, given=given)
        estimator = method.make()
        with pytest.raises(InputError, match=message):
            estimator.fit(**{role: values[:given] for role, values in plain.roles.items()})
        assert vars(estimator) == vars(method.make())

    def test_leaves_a_fitted_estimator_as_it_was(self, method: Any, plain: Any) -> None:
        estimator = method.make().fit(**plain.roles)
        before = vars(estimator).copy()
        expected = estimator.predict(plain.T, plain.X)
        for spoil, _ in BAD_INPUT.values():
            with pytest.raises(DMLIVError):
                estimator.fit(**spoil(plain.roles))
            assert vars(estimator) == before
        np.testing.assert_array_equal(estimator.predict(plain.T, plain.X), expected)

    def test_fewer_rows_than_folds(self, tiny_learners: Learners, make: Any, plain: Any) -> None:
        estimator = make(tiny_learners)
        if "n_folds" not in estimator.get_params():
            with pytest.raises(ValueError, match="Invalid parameter 'n_folds'"):
                estimator.set_params(n_folds=2)
            return
        estimator.set_params(n_folds=101)
        with pytest.raises(InputError, match="at least 202 rows, got 100"):
            estimator.fit(**plain.roles)
        for n_folds in (0, -1, 2.5, "ten", None):
            with pytest.raises(InputError, match="positive whole number for n_folds"):
                estimator.set_params(n_folds=n_folds).fit(**plain.roles)

    def test_parameters_that_cannot_work(self, make: Any, tiny_learners: Learners, plain: Any) -> None:
        with pytest.raises(InputError, match="Expected a device torch can use"):
            make(tiny_learners, device="abacus").fit(**plain.roles)

    def test_an_unknown_kind_of_action(self, method: Any, plain: Any) -> None:
        with pytest.raises(InputError, match="Expected action_kind"):
            method.make(action_kind="sometimes").fit(**plain.roles)


class TestFailuresWhileTraining:
    def test_divergence_of_a_fresh_estimator(
        self, make: Any, diverging_learners: Learners, plain: Any
    ) -> None:
        estimator = make(diverging_learners)
        with pytest.raises(TrainingDivergedError, match=r"diverged.*Lower the learning rate"):
            estimator.fit(**plain.roles)
        assert vars(estimator) == vars(make(diverging_learners))

    def test_divergence_of_a_fitted_estimator(
        self, make: Any, tiny_learners: Learners, diverging_learners: Learners, plain: Any
    ) -> None:
        estimator = make(tiny_learners).fit(**plain.roles)
        policy_value = estimator.policy(plain.candidates).value(plain.X)
        expected = estimator.predict(plain.T, plain.X)
        score = estimator.score(plain.Y, Z=plain.Z, X=plain.X)
        estimator.set_params(learners=diverging_learners)
        with pytest.raises(DMLIVError):
            estimator.fit(-plain.Y, plain.T, Z=plain.Z, X=plain.X[:, :1])
        np.testing.assert_array_equal(estimator.predict(plain.T, plain.X), expected)
        assert estimator.score(plain.Y, Z=plain.Z, X=plain.X) == score
        assert estimator.policy(plain.candidates).value(plain.X) == policy_value

    def test_learners_that_do_not_fit_the_action(
        self, make: Any, linear_learners: Learners, tiny_learners: Learners, plain: Any, labels: Any
    ) -> None:
        with pytest.raises(InputError, match="Expected a classifier for a discrete action"):
            make(linear_learners).fit(**labels.roles)
        classifier = Learners(tiny_learners.outcome, LogisticRegression(), tiny_learners.structural)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="Expected a regressor for a continuous action"):
            make(classifier).fit(**plain.roles)
        assert make(classifier).fit(**labels.roles).predict("low", labels.X).shape == (100,)

    def test_learners_without_weights(self, make: Any, linear_learners: Learners, plain: Any) -> None:
        learners = Learners(linear_learners.outcome, KNeighborsRegressor(), linear_learners.structural)  # type: ignore[arg-type]
        weight = np.linspace(0.5, 1.5, 100)
        estimator = make(learners)
        with pytest.raises(InputError, match="takes sample_weight"):
            estimator.fit(**plain.roles, sample_weight=weight)
        with pytest.raises(NotFittedError):
            estimator.predict(plain.T, plain.X)
        estimator.fit(**plain.roles)


class TestExtremeInput:
    """Input that is unusual but possible works."""

    def test_huge_and_tiny_units(self, method: Any, plain: Any) -> None:
        estimator = method.make().fit(1e12 * plain.Y, 1e-12 * plain.T, Z=1e9 * plain.Z, X=1e-9 * plain.X)
        predicted = estimator.predict(1e-12 * plain.T, 1e-9 * plain.X)
        assert np.isfinite(predicted).all()
        assert predicted.std() > 0.0

    def test_constant_contexts(self, method: Any, plain: Any) -> None:
        """A context that never varied carries no information: other values of it do not blow answers up."""
        X = np.column_stack([plain.X, np.full(100, 0.1)])
        estimator = method.make().fit(plain.Y, plain.T, Z=plain.Z, X=X)
        elsewhere = X.copy()
        elsewhere[:, 2] = 0.3
        gap = estimator.predict(plain.T, elsewhere) - estimator.predict(plain.T, X)
        assert np.abs(gap).max() < 10.0 * plain.Y.std()

    def test_a_constant_outcome(self, method: Any, plain: Any) -> None:
        estimator = method.make().fit(np.full(100, 3.0), plain.T, Z=plain.Z, X=plain.X)
        np.testing.assert_allclose(estimator.predict(plain.T, plain.X), 3.0, atol=1.0)

    def test_the_fewest_rows(self, method: Any, plain: Any) -> None:
        rows = slice(0, method.fewest_rows)
        estimator = method.make().fit(plain.Y[rows], plain.T[rows], Z=plain.Z[rows], X=plain.X[rows])
        assert np.isfinite(estimator.predict(plain.T, plain.X)).all()

    def test_many_action_columns(self, method: Any, plain: Any) -> None:
        rng = np.random.default_rng(0)
        Z = rng.standard_normal((100, 6))
        T = Z + rng.standard_normal((100, 6))
        estimator = method.make().fit(plain.Y, T, Z=Z, X=plain.X)
        assert estimator.predict(T, plain.X).shape == (100,)
        assert estimator.marginal_effect(T, plain.X).shape == (100, 6)

    def test_choices_with_many_action_columns(
        self, make: Any, choosing_learners: Learners, plain: Any
    ) -> None:
        """Rules that draw work for any number of columns; judging and scoring need no grid of nodes."""
        T = np.random.default_rng(0).standard_normal((100, 6)) + plain.Z[:, None]
        estimator = make(choosing_learners).fit(plain.Y, T, Z=plain.Z, X=plain.X)
        assert estimator.predict(T, plain.X).shape == (100,)
        assert estimator.score(plain.Y, Z=plain.Z, X=plain.X) < 1.0

    def test_a_level_of_a_single_row(self, method: Any, labels: Any) -> None:
        T = labels.T.astype(object)
        T[7] = "rare"
        estimator = method.make().fit(labels.Y, T, Z=labels.Z, X=labels.X)
        assert np.isfinite(estimator.predict("rare", labels.X)).all()


class TestSettingsThatCannotWork:
    @pytest.mark.parametrize("learners", ["networks", LinearRegression()])
    def test_something_else_than_learners(self, make: Any, plain: Any, learners: Any) -> None:
        with pytest.raises(InputError, match="Expected learners"):
            make(learners).fit(plain.Y, plain.T, Z=plain.Z, X=plain.X)

    @pytest.mark.parametrize("change", [{"schedule": "linear"}, {"warmup": 5.0}, {"weight_decay": -1.0}])
    def test_plans(self, change: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="Expected"):
            NetworkSettings(**change).plan(100)

    def test_a_score_without_variation(self, scoring: Any, plain: Any) -> None:
        estimator = scoring.fitted(plain)
        for rows in (slice(0, 0), slice(0, 5)):
            with pytest.raises(InputError, match="outcomes that vary"):
                estimator.score(np.zeros(100)[rows], Z=plain.Z[rows], X=plain.X[rows])
