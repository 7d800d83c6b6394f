"""Policy trees find planted rules, say what they are worth, and can be read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dmliv.data import TableSchema
from dmliv.errors import InputError, UnseenCategoryError
from dmliv.policy import GreedyPolicy, Interval, PolicyTree
from dmliv.policy.tree import grow_policy_tree

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RNG.uniform(0.0, 80.0, 400),
        "noise": RNG.normal(size=400),
        "region": RNG.choice(["north", "south", "west"], 400),
    }
)


def planted(mode: Any = "maximise", **changes: Any) -> tuple[PolicyTree, np.ndarray]:
    """In the south action b, else a below 30 and c from 30 on; each right answer is worth one."""
    best = np.where(FRAME["region"] == "south", 1, np.where(FRAME["age"] <= 30.0, 0, 2))
    values = np.eye(3)[best]
    schema = TableSchema.learn(FRAME, "context")
    options = {"max_depth": 2, "min_share": 0.01} | changes
    tree = grow_policy_tree(
        values, np.array(["a", "b", "c"]), np.eye(3), schema.read(FRAME), schema, mode=mode, **options
    )
    return tree, np.array(["a", "b", "c"])[best]


class TestPlantedRules:
    @pytest.mark.parametrize("mode", ["maximise", "imitate"])
    def test_are_found(self, mode: Any) -> None:
        tree, best = planted(mode)
        np.testing.assert_array_equal(tree.predict(FRAME), best)
        assert tree.tree_value == tree.best_value == 1.0
        assert tree.constant_value == pytest.approx((best == "c").mean(), abs=0.2)

    def test_are_readable(self) -> None:
        text = str(planted()[0])
        assert "region is south" in text
        assert "age <= " in text
        assert "noise" not in text
        assert "-> b  (" in text

    def test_do_not_depend_on_the_order_of_columns_or_rows(self) -> None:
        tree, best = planted()
        shuffled = FRAME.sample(frac=1.0, random_state=1)[["region", "noise", "age"]]
        np.testing.assert_array_equal(tree.predict(shuffled), best[shuffled.index])

    def test_depth_zero_is_the_best_single_action(self) -> None:
        tree, _ = planted(max_depth=0)
        assert len(set(tree.predict(FRAME))) == 1
        assert tree.tree_value == pytest.approx(tree.constant_value)

    def test_value_is_that_of_its_own_answers(self) -> None:
        for depth in (1, 2, 3):
            tree, best = planted(max_depth=depth)
            assert tree.tree_value == pytest.approx((tree.predict(FRAME) == best).mean())
            assert tree.constant_value <= tree.tree_value <= tree.best_value

    def test_min_share(self) -> None:
        tree, _ = planted(min_share=0.3)
        assert min(leaf.n_rows for leaf in tree.root.leaves()) >= 0.3 * 400

    def test_nothing_to_gain_means_no_question(self) -> None:
        schema = TableSchema.learn(FRAME, "context")
        tree = grow_policy_tree(
            np.tile([1.0, 2.0], (400, 1)),
            np.array([0.1, 0.2]),
            np.array([[0.1], [0.2]]),
            schema.read(FRAME),
            schema,
            mode="maximise",
            max_depth=3,
            min_share=0.1,
        )
        assert tree.root.question is None
        assert (tree.predict(FRAME) == 0.2).all()


class TestFromAPolicy:
    def test_continuous(self, make_bowl: Any) -> None:
        X = np.linspace(-1.0, 1.0, 200)[:, None]
        policy = GreedyPolicy(make_bowl(), Interval(-1.0, 1.0))
        tree = policy.tree(X, max_depth=1)
        np.testing.assert_allclose(np.unique(tree.predict(X)), [-0.5, 0.5], atol=0.05)
        # Within each half the squared distance from its middle is 1/12 on average.
        assert tree.tree_value == pytest.approx(10.0 - 1.0 / 12.0, abs=0.01)
        deep = policy.tree(X, max_depth=3, min_share=0.01)
        assert tree.tree_value < deep.tree_value < policy.value(X)

    def test_several_columns_and_few_answers(self, make_bowl: Any) -> None:
        axis = np.linspace(-1.0, 1.0, 15)
        candidates = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
        X = np.linspace(-1.0, 1.0, 200)[:, None]
        policy = GreedyPolicy(make_bowl(2), candidates)
        tree = policy.tree(X, max_depth=2, max_actions=6)
        assert tree.predict(X).shape == (200, 2)
        # The best answers lie on the diagonal, where both columns are the context.
        assert np.abs(np.diff(tree.predict(X), axis=1)).max() < 0.2

    def test_cost_counts(self, make_bowl: Any) -> None:
        X = np.linspace(-1.0, 1.0, 50)[:, None]
        dear = GreedyPolicy(make_bowl(), [-1.0, 1.0], cost=[0.0, 100.0])
        assert (dear.tree(X).predict(X) == -1.0).all()


class TestBadInput:
    def test_parameters(self, make_bowl: Any) -> None:
        policy = GreedyPolicy(make_bowl(), [0.0, 1.0])
        X = np.zeros((10, 1))
        for change in ({"max_depth": -1}, {"max_depth": 1.5}, {"min_share": 0.0}, {"min_share": 0.9}):
            with pytest.raises(InputError, match="a depth of at least 0"):
                policy.tree(X, **change)
        with pytest.raises(InputError, match="mode 'maximise' or 'imitate'"):
            policy.tree(X, mode="dream")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="positive whole number for max_actions"):
            policy.tree(X, max_actions=0)
        with pytest.raises(InputError, match="got none"):
            policy.tree(np.zeros((0, 1)))

    def test_contexts_with_other_columns(self) -> None:
        tree, _ = planted()
        with pytest.raises(InputError, match="region"):
            tree.predict(FRAME[["age", "noise"]])
        with pytest.raises(UnseenCategoryError):
            tree.predict(FRAME.assign(region="east"))
