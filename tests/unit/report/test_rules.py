"""The picture of a policy tree holds every question and every answer."""

from __future__ import annotations

import numpy as np

from dmliv.data import TableSchema
from dmliv.policy.tree import grow_policy_tree
from dmliv.report.rules import draw_policy_tree


def test_questions_answers_and_values_are_drawn() -> None:
    X = np.linspace(0.0, 1.0, 100)[:, None]
    schema = TableSchema.learn(X, "context")
    values = np.column_stack([1.0 - X[:, 0], X[:, 0]])
    tree = grow_policy_tree(
        values,
        np.array(["stay", "go"]),
        np.eye(2),
        schema.read(X),
        schema,
        mode="maximise",
        max_depth=2,
        min_share=0.1,
    )
    figure = draw_policy_tree(tree, "What to do", action_name="choice")
    words = [text.get_text() for text in figure.axes[0].texts]
    assert any("context <= 0.5" in word for word in words)
    assert sum("stay" in word for word in words) == 1
    assert sum("choice" in word for word in words) == 2
    assert {"yes", "no"} <= set(words)
    assert "0.75" in figure.texts[-1].get_text()


def test_a_single_answer_is_a_single_box() -> None:
    X = np.zeros((10, 1))
    schema = TableSchema.learn(X, "context")
    tree = grow_policy_tree(
        np.tile([0.0, 1.0], (10, 1)),
        np.array([1.5, 2.5]),
        np.array([[1.5], [2.5]]),
        schema.read(X),
        schema,
        mode="maximise",
        max_depth=2,
        min_share=0.1,
    )
    assert [text.get_text() for text in draw_policy_tree(tree, "t").axes[0].texts] == [
        "action\n2.5\n100% of rows: 1"
    ]
