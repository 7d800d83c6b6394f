"""Shapes, types and relations of the answers, for every estimator and every kind of input."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dmliv.errors import InputError, NotFittedError, UnseenCategoryError
from dmliv.learners import Learners

N = 7


def some(values: Any, n: int = N) -> Any:
    return values[:n]


class TestShapes:
    def test_answers(self, method: Any, case: Any) -> None:
        estimator = method.fitted(case)
        T, X = some(case.T), case.some_X(N)
        predicted = estimator.predict(T, X)
        assert predicted.shape == (N,)
        assert predicted.dtype == np.float64
        assert np.isfinite(predicted).all()
        rows = 1 if X is None else N
        effect = estimator.effect(X, T0=case.T0, T1=case.T1)
        assert effect.shape == (rows,)
        assert effect.dtype == np.float64
        ate = estimator.ate(X, T0=case.T0, T1=case.T1)
        assert type(ate) is float
        assert ate == pytest.approx(effect.mean())

    def test_fit_returns_the_estimator(self, method: Any, plain: Any) -> None:
        estimator = method.make()
        assert estimator.fit(**plain.roles) is estimator

    def test_marginal_effects(self, method: Any, case: Any) -> None:
        estimator = method.fitted(case)
        T, X = some(case.T), case.some_X(N)
        if case.discrete:
            with pytest.raises(InputError, match=r"continuous action for a marginal effect.*use effect"):
                estimator.marginal_effect(T, X)
            return
        slopes = estimator.marginal_effect(T, X)
        assert slopes.shape == (N, case.width)
        assert slopes.dtype == np.float64
        assert np.isfinite(slopes).all()

    def test_policies(self, method: Any, case: Any) -> None:
        estimator = method.fitted(case)
        policy = estimator.policy(case.candidates)
        X = case.some_X(N)
        rows = 1 if X is None else N
        chosen = policy.predict(X)
        assert chosen.shape == ((rows, case.width) if case.width > 1 and not case.discrete else (rows,))
        offered = np.unique(case.T) if case.candidates is None else np.asarray(case.candidates)
        for action in chosen:
            assert any(
                action == candidate if case.discrete else np.allclose(action, candidate, rtol=1e-9, atol=1e-9)
                for candidate in offered
            )
        assert chosen.dtype.kind == offered.dtype.kind
        value = policy.value(X)
        assert type(value) is float
        # The value is what the estimator predicts for the recommended actions.
        assert value == pytest.approx(estimator.predict(chosen, X).mean(), rel=1e-4, abs=1e-4)

    def test_recommendations_are_the_candidates_bit_by_bit(
        self, method: Any, plain: Any, two_columns: Any
    ) -> None:
        """A price of 19.99 on offer is recommended as 19.99, so that it can be looked up."""
        candidates = np.arange(-100, 100) / 70.0
        policy = method.fitted(plain).policy(candidates)
        assert np.isin(policy.predict(plain.X), candidates).all()
        np.testing.assert_array_equal(policy.candidates, candidates)
        pairs = np.column_stack([candidates, candidates[::-1]])
        policy = method.fitted(two_columns).policy(pairs)
        np.testing.assert_array_equal(policy.candidates, pairs)

    def test_choices_in_every_role(self, make: Any, choosing_learners: Learners, case: Any) -> None:
        """Encodings and variance weights to choose from, so that both stages need fair splits."""
        estimator = make(choosing_learners).fit(**case.roles)
        assert np.isfinite(estimator.predict(some(case.T), case.some_X(N))).all()
        assert estimator.score(case.Y, case.T, Z=case.Z, X=case.X) < 1.0


class TestRelations:
    def test_an_effect_is_a_difference_of_predictions(self, method: Any, case: Any) -> None:
        estimator = method.fitted(case)
        X = case.some_X(N)
        rows = 1 if X is None else N
        start, end = (estimator.predict(np.array([action] * rows), X) for action in (case.T0, case.T1))
        effect = estimator.effect(X, T0=case.T0, T1=case.T1)
        np.testing.assert_allclose(effect, end - start, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(effect, -estimator.effect(X, T0=case.T1, T1=case.T0), atol=1e-12)
        np.testing.assert_array_equal(estimator.effect(X, T0=case.T0, T1=case.T0), 0.0)

    def test_effects_of_one_action_per_row(self, method: Any, case: Any) -> None:
        estimator = method.fitted(case)
        X = case.some_X(N)
        T0, T1 = case.T[:N], case.T[N : 2 * N]
        if hasattr(T1, "reset_index"):
            T1 = T1.reset_index(drop=True)
        expected = estimator.predict(T1, X) - estimator.predict(T0, X)
        effect = estimator.effect(X, T0=T0, T1=T1)
        assert effect.shape == (N,)
        np.testing.assert_allclose(effect, expected, rtol=1e-9, atol=1e-9)

    def test_a_scalar_action_stands_for_every_row(self, method: Any, plain: Any) -> None:
        estimator = method.fitted(plain)
        X = plain.X[:N]
        np.testing.assert_array_equal(estimator.predict(0.3, X), estimator.predict(np.full(N, 0.3), X))
        np.testing.assert_array_equal(estimator.predict(np.float64(0.3), X), estimator.predict(0.3, X))
        np.testing.assert_allclose(
            estimator.effect(X), estimator.predict(1.0, X) - estimator.predict(0.0, X), atol=1e-9
        )

    def test_a_level_stands_for_every_row(self, method: Any, labels: Any) -> None:
        estimator = method.fitted(labels)
        X = labels.X[:N]
        np.testing.assert_array_equal(estimator.predict("low", X), estimator.predict(["low"] * N, X))

    def test_one_pair_stands_for_every_row(self, method: Any, two_columns: Any) -> None:
        estimator = method.fitted(two_columns)
        X = two_columns.X[:N]
        np.testing.assert_array_equal(
            estimator.predict([0.0, 1.0], X), estimator.predict(np.tile([0.0, 1.0], (N, 1)), X)
        )

    def test_rows_are_predicted_one_by_one(self, method: Any, case: Any) -> None:
        estimator = method.fitted(case)
        whole = estimator.predict(some(case.T), case.some_X(N))
        for row in range(N):
            X = None if case.X is None else case.X[row : row + 1]
            np.testing.assert_allclose(
                estimator.predict(case.T[row : row + 1], X), whole[row], rtol=1e-4, atol=1e-5
            )

    def test_slopes_are_derivatives(self, make: Any, linear_learners: Learners, two_columns: Any) -> None:
        """For a linear model the slope is the difference over any step."""
        estimator = make(linear_learners).fit(**two_columns.roles)
        T, X = two_columns.T[:N], two_columns.X[:N]
        slopes = estimator.marginal_effect(T, X)
        for column in range(2):
            step = np.zeros(2)
            step[column] = 2.0
            difference = (estimator.predict(T + step, X) - estimator.predict(T, X)) / 2.0
            np.testing.assert_allclose(slopes[:, column], difference, atol=1e-8)

    def test_columns_of_a_frame_in_another_order(self, method: Any, categories: Any) -> None:
        estimator = method.fitted(categories)
        X = categories.X[:N]
        turned = X[["open", "kind", "time"]]
        np.testing.assert_array_equal(
            estimator.predict(categories.T[:N], turned), estimator.predict(categories.T[:N], X)
        )
        policy = estimator.policy(categories.candidates)
        np.testing.assert_array_equal(policy.predict(turned), policy.predict(X))
        wider = X.assign(unused=1.0)
        np.testing.assert_array_equal(estimator.predict(0.5, wider), estimator.predict(0.5, X))

    def test_no_rows(self, method: Any, plain: Any) -> None:
        estimator = method.fitted(plain)
        nothing = plain.X[:0]
        assert estimator.predict(np.empty(0), nothing).shape == (0,)
        assert estimator.effect(nothing).shape == (0,)
        assert estimator.policy(plain.candidates).predict(nothing).shape == (0,)


class TestScore:
    def test_who_has_one(self, method: Any) -> None:
        assert hasattr(method.make(), "score") == method.scores

    def test_a_number_below_one(self, scoring: Any, case: Any) -> None:
        score = scoring.fitted(case).score(case.Y, case.T, Z=case.Z, X=case.X)
        assert type(score) is float
        assert score < 1.0

    def test_asks_to_be_fitted(self, scoring: Any, plain: Any) -> None:
        estimator = scoring.make()
        with pytest.raises(NotFittedError, match=f"fitted {type(estimator).__name__}.*call fit first"):
            estimator.score(plain.Y, Z=plain.Z, X=plain.X)

    def test_instruments_that_do_not_fit(self, scoring: Any, plain: Any) -> None:
        with pytest.raises(InputError, match="Expected instrument with 100 rows, got 5"):
            scoring.fitted(plain).score(plain.Y, Z=plain.Z[:5], X=plain.X)

    def test_a_sensible_fit_is_better_than_a_constant(
        self, make: Any, linear_learners: Learners, constant_learners: Learners, plain: Any
    ) -> None:
        roles = {"Y": plain.Y, "T": plain.T, "Z": plain.Z, "X": plain.X}
        sensible, constant = (
            make(learners).fit(**roles).score(**roles) for learners in (linear_learners, constant_learners)
        )
        assert sensible > constant + 0.2
        assert sensible < 1.0
        assert constant == pytest.approx(0.0, abs=0.01)

    def test_observed_actions_are_not_used(self, scoring: Any, plain: Any) -> None:
        estimator = scoring.fitted(plain)
        given = estimator.score(plain.Y, plain.T, Z=plain.Z, X=plain.X)
        assert estimator.score(plain.Y, Z=plain.Z, X=plain.X) == given
        assert estimator.score(plain.Y, -plain.T, Z=plain.Z, X=plain.X) == given

    def test_new_rows_and_weights(self, scoring: Any, plain: Any) -> None:
        estimator = scoring.fitted(plain)
        part = slice(0, 20)
        weight = np.zeros(len(plain.Y))
        weight[part] = 2.0
        alone = estimator.score(plain.Y[part], Z=plain.Z[part], X=plain.X[part])
        weighted = estimator.score(plain.Y, Z=plain.Z, X=plain.X, sample_weight=weight)
        assert weighted == pytest.approx(alone, rel=1e-4)


class TestBeforeFitting:
    @pytest.mark.parametrize(
        "ask",
        [
            lambda estimator, case: estimator.predict(case.T, case.X),
            lambda estimator, case: estimator.effect(case.X),
            lambda estimator, case: estimator.ate(case.X),
            lambda estimator, case: estimator.marginal_effect(case.T, case.X),
            lambda estimator, case: estimator.policy(case.candidates),
        ],
        ids=["predict", "effect", "ate", "marginal_effect", "policy"],
    )
    def test_everything_asks_to_be_fitted(self, method: Any, plain: Any, ask: Any) -> None:
        estimator = method.make()
        with pytest.raises(NotFittedError, match=f"fitted {type(estimator).__name__}.*call fit first"):
            ask(estimator, plain)


class TestQuestionsThatCannotBeAnswered:
    def test_unseen_categories(self, method: Any, categories: Any) -> None:
        estimator = method.fitted(categories)
        X = categories.X[:N].copy()
        X.loc[3, "kind"] = "zeppelin"
        for ask in (
            lambda: estimator.predict(0.0, X),
            lambda: estimator.effect(X),
            lambda: estimator.policy(categories.candidates).predict(X),
        ):
            with pytest.raises(UnseenCategoryError, match="'kind', got 'zeppelin', the first in row 3"):
                ask()

    def test_unseen_levels(self, method: Any, labels: Any) -> None:
        estimator = method.fitted(labels)
        for ask in (
            lambda: estimator.predict("enormous", labels.X),
            lambda: estimator.effect(labels.X, T0="low", T1="enormous"),
            lambda: estimator.policy(["low", "enormous"]),
        ):
            with pytest.raises(UnseenCategoryError, match="got 'enormous'"):
                ask()

    def test_actions_of_another_width(self, method: Any, plain: Any, two_columns: Any) -> None:
        one = method.fitted(plain)
        two = method.fitted(two_columns)
        with pytest.raises(InputError, match="Expected action with 1 columns, got 2"):
            one.predict(two_columns.T[:N], plain.X[:N])
        with pytest.raises(InputError, match="Expected action with 1 columns, got 2"):
            one.policy(two_columns.candidates)
        with pytest.raises(InputError, match=r"Expected action of shape \(n, 2\)"):
            two.policy(plain.candidates)
        with pytest.raises(InputError, match="Expected action with 2 columns, got 3"):
            two.policy(np.ones((4, 3)))

    def test_candidates(self, method: Any, plain: Any) -> None:
        estimator = method.fitted(plain)
        with pytest.raises(InputError, match="Expected candidate actions for a continuous action, got none"):
            estimator.policy()
        with pytest.raises(InputError, match="at least one candidate"):
            estimator.policy([])
        with pytest.raises(InputError, match=r"array of candidate actions, got the single value 1\.0"):
            estimator.policy(1.0)
        with pytest.raises(InputError, match="missing values"):
            estimator.policy([0.0, np.nan])

    def test_contexts_that_do_not_fit(self, method: Any, plain: Any) -> None:
        estimator = method.fitted(plain)
        with pytest.raises(InputError, match="Expected context with 2 columns, got 3"):
            estimator.predict(0.0, np.ones((N, 3)))
        with pytest.raises(InputError, match=r"Expected context columns .*got none"):
            estimator.predict(np.zeros(N), None)
        with pytest.raises(InputError, match=f"Expected action with {N} rows, got 3"):
            estimator.predict(np.zeros(3), plain.X[:N])
        with pytest.raises(InputError, match="missing values"):
            estimator.predict(0.0, np.full((N, 2), np.nan))


class TestCopies:
    @pytest.mark.parametrize(
        "copier",
        [copy.deepcopy, lambda estimator: pickle.loads(pickle.dumps(estimator))],
        ids=["deepcopy", "pickle"],
    )
    def test_a_copy_gives_the_same_answers(self, method: Any, case: Any, copier: Any) -> None:
        estimator = method.fitted(case)
        X = case.some_X(N)
        before = estimator.predict(some(case.T), X)
        twin = copier(estimator)
        np.testing.assert_array_equal(twin.predict(some(case.T), X), before)

    def test_a_copy_is_independent(self, method: Any, plain: Any) -> None:
        estimator = method.fitted(plain)
        before = estimator.predict(plain.T, plain.X)
        twin = copy.deepcopy(estimator).fit(**replace(plain, Y=-plain.Y).roles)
        assert not np.array_equal(twin.predict(plain.T, plain.X), before)
        np.testing.assert_array_equal(estimator.predict(plain.T, plain.X), before)

    def test_a_copy_gives_the_same_score(self, scoring: Any, case: Any) -> None:
        estimator = scoring.fitted(case)
        twin = copy.deepcopy(estimator)
        assert twin.score(case.Y, Z=case.Z, X=case.X) == estimator.score(case.Y, Z=case.Z, X=case.X)

    @pytest.mark.parametrize("kind", ["linear_learners", "choosing_learners"])
    def test_other_learners(self, make: Any, kind: str, plain: Any, request: pytest.FixtureRequest) -> None:
        estimator = make(request.getfixturevalue(kind)).fit(**plain.roles)
        twin = pickle.loads(pickle.dumps(estimator))
        np.testing.assert_array_equal(twin.predict(plain.T, plain.X), estimator.predict(plain.T, plain.X))

    def test_a_policy_outlives_a_second_fit(self, method: Any, plain: Any) -> None:
        estimator = method.make().fit(**plain.roles)
        policy = estimator.policy(plain.candidates)
        before = policy.value(plain.X)
        estimator.fit(**replace(plain, Y=-100.0 * plain.Y).roles)
        assert policy.value(plain.X) == before
