"""A policy tree as a figure."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from dmliv.diagnostics.house_style import DMLIV_COLOUR, QUIET_TEXT, SUPPORT_COLOUR, house_style
from dmliv.policy.tree import PolicyTree, TreeNode

_LEAF_INCHES = 1.9
_LEVEL_INCHES = 1.25
# Boxes of neighbouring leaves are one apart: text wider than this many characters would touch.
_LEAF_CHARACTERS = 22


def draw_policy_tree(tree: PolicyTree, title: str, *, action_name: str = "action") -> Figure:
    """Draw the rules from the first split down to the recommended actions.

    Parameters
    ----------
    tree : PolicyTree
    title : str
    action_name : str
        Name of the action in the leaves.
    """
    n_leaves, depth = sum(1 for _ in tree.root.leaves()), _depth(tree.root)
    with house_style():
        size = (max(6.0, _LEAF_INCHES * n_leaves), 1.5 + _LEVEL_INCHES * (depth + 1))
        # Room below for the two lines on the value of the rules.
        room = 0.5 / size[1]
        layout = ConstrainedLayoutEngine(rect=(0.0, room, 1.0, 1.0 - room))
        figure = Figure(figsize=size, layout=layout)
        axis = figure.subplots()
        axis.set(xlim=(-0.6, n_leaves - 0.4), ylim=(-depth - 0.55, 0.45))
        axis.set_axis_off()
        _draw(axis, tree, tree.root, 0.0, 0, action_name)
        figure.suptitle(title, x=0.01, ha="left")
        figure.text(
            0.01,
            0.01,
            f"estimated mean outcome: these rules {tree.tree_value:.3g}\n"
            f"best action row by row {tree.best_value:.3g}, best single action {tree.constant_value:.3g}",
            color=QUIET_TEXT,
        )
    return figure


def _draw(axis: Axes, tree: PolicyTree, node: TreeNode, first: float, level: int, action_name: str) -> float:
    """Draw a node whose leaves begin at ``first`` and return its own horizontal place."""
    if node.question is None or node.yes is None or node.no is None:
        text = f"{action_name}\n{tree.answer(node)}\n{tree.share(node):.0%} of rows: {node.value:.3g}"
        _box(axis, first, level, text, face=DMLIV_COLOUR, ink="white")
        return first
    n_yes = sum(1 for _ in node.yes.leaves())
    left = _draw(axis, tree, node.yes, first, level + 1, action_name)
    right = _draw(axis, tree, node.no, first + n_yes, level + 1, action_name)
    place = (left + right) / 2.0
    for end, word in ((left, "yes"), (right, "no")):
        axis.plot([place, end], [-level, -level - 1], color=QUIET_TEXT, lw=1.2, zorder=1)
        axis.text(
            (place + end) / 2.0,
            -level - 0.5,
            word,
            ha="center",
            va="center",
            color=QUIET_TEXT,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )
    _box(axis, place, level, _wrapped(str(node.question)), face=SUPPORT_COLOUR, ink="black")
    return place


def _box(axis: Axes, place: float, level: int, text: str, *, face: str, ink: str) -> None:
    axis.text(
        place,
        -level,
        text,
        ha="center",
        va="center",
        color=ink,
        zorder=2,
        bbox={"boxstyle": "round,pad=0.45", "facecolor": face, "edgecolor": "none"},
    )


def _wrapped(question: str) -> str:
    if len(question) <= _LEAF_CHARACTERS:
        return question
    head, _, tail = question.rpartition(" <= ") if " <= " in question else question.rpartition(" is ")
    return f"{head}\n{'<=' if ' <= ' in question else 'is'} {tail}"


def _depth(node: TreeNode) -> int:
    if node.yes is None or node.no is None:
        return 0
    return 1 + max(_depth(node.yes), _depth(node.no))
