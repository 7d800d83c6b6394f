"""Checks of loaded trees: scikit-learn follows their node numbers without looking.

The type of a loaded object says nothing about its content. A tree whose nodes point outside its arrays, at a
missing column or at each other would read foreign memory or never end, so every tree is looked at first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.ensemble._gb import BaseGradientBoosting
from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
from sklearn.tree._tree import Tree

_BITSET_WIDTH = 8


def check_trees(learner: BaseEstimator) -> None:
    """Look at every tree inside a loaded estimator; raise `ValueError` for one that must not be used."""
    seen: set[int] = set()
    waiting: list[tuple[Any, Any]] = [(learner, learner)]
    while waiting:
        value, owner = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tree):
            _check_tree(value, owner)
        elif isinstance(value, TreePredictor):
            _check_predictor(value, owner)
        else:
            if isinstance(value, BaseGradientBoosting):
                _check_boosting(value)
            owner = value if isinstance(value, BaseEstimator) else owner
            waiting.extend((part, owner) for part in _parts(value))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif isinstance(value, np.ndarray):
        if value.dtype == object:
            yield from value.reshape(-1).tolist()
    elif hasattr(value, "__dict__"):
        yield from vars(value).values()


def _check_tree(tree: Any, owner: Any) -> None:
    # The count comes first: the arrays of a tree are views of that length, whatever there is.
    if not 0 < tree.node_count <= tree.capacity:
        raise ValueError("a tree with more nodes than it holds")
    left, right = tree.children_left, tree.children_right
    leaf = left == -1
    _check_children(left, right, leaf)
    _check_columns(tree.feature[~leaf], owner)


def _check_predictor(predictor: TreePredictor, owner: Any) -> None:
    nodes = predictor.nodes
    if not isinstance(nodes, np.ndarray) or nodes.dtype != PREDICTOR_RECORD_DTYPE or nodes.ndim != 1:
        raise ValueError("a boosted tree whose nodes are something else")
    if not len(nodes):
        raise ValueError("a boosted tree without nodes")
    leaf = nodes["is_leaf"] != 0
    _check_children(nodes["left"].astype(np.int64), nodes["right"].astype(np.int64), leaf)
    _check_columns(nodes["feature_idx"][~leaf], owner)
    by_category = ~leaf & (nodes["is_categorical"] != 0)
    if by_category.any():
        known = np.asarray(owner._bin_mapper.is_categorical_, dtype=bool)
        bitsets = predictor.raw_left_cat_bitsets
        if (
            len(known) != owner.n_features_in_
            or not known[nodes["feature_idx"][by_category]].all()
            or bitsets.ndim != 2
            or bitsets.shape[1] != _BITSET_WIDTH
            or nodes["bitset_idx"][by_category].max() >= len(bitsets)
        ):
            raise ValueError("a boosted tree that asks for categories there are none of")


def _check_children(left: npt.NDArray[Any], right: npt.NDArray[Any], leaf: npt.NDArray[np.bool_]) -> None:
    """Children stand behind their parents, inside the tree: so every walk ends, at a leaf."""
    inner = np.flatnonzero(~leaf)
    for children in (left[inner], right[inner]):
        if np.any(children <= inner) or np.any(children >= len(leaf)):
            raise ValueError("a tree whose nodes point outside of it or back")


def _check_columns(columns: npt.NDArray[Any], owner: Any) -> None:
    if np.any(columns < 0) or np.any(columns >= owner.n_features_in_):
        raise ValueError("a tree that asks for a column there is none of")


def _check_boosting(model: Any) -> None:
    """Gradient boosting writes the sum of its trees straight into an array."""
    trees = getattr(model, "estimators_", None)
    if trees is None:
        return
    if (
        trees.ndim != 2
        or trees.shape[1] != model.n_trees_per_iteration_
        or any(each.n_features_in_ != model.n_features_in_ for each in trees.reshape(-1))
        or any(each.tree_.n_outputs != 1 or each.tree_.max_n_classes != 1 for each in trees.reshape(-1))
    ):
        raise ValueError("boosted trees of another shape than their sum")
