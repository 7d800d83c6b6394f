"""Estimators of scikit-learn, each a member in the skops format, with the types we trust named one by one."""

from __future__ import annotations

import io
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.ensemble._gb import BaseGradientBoosting
from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE
from sklearn.ensemble._hist_gradient_boosting.predictor import TreePredictor
from sklearn.tree._tree import Tree

from dmliv.errors import InputError, listed
from dmliv.persistence.container import read_stored

# Beyond what skops trusts by itself. All are written in Python and only hold numbers and names, but for the
# first two, whose content is checked after loading.
_TRUSTED = (
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.tree._tree.Tree",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.gaussian_process._gpc._BinaryGaussianProcessClassifierLaplace",
    "sklearn.gaussian_process.kernels.ConstantKernel",
    "sklearn.gaussian_process.kernels.Matern",
    "sklearn.gaussian_process.kernels.Product",
    "sklearn.gaussian_process.kernels.RBF",
    "sklearn.gaussian_process.kernels.Sum",
    "sklearn.gaussian_process.kernels.WhiteKernel",
    "sklearn.metrics._scorer._PassthroughScorer",
    "sklearn.model_selection._split.KFold",
    "sklearn.model_selection._split.StratifiedKFold",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.utils._bunch.Bunch",
)


def dump_learner(place: str, learner: BaseEstimator) -> bytes:
    """Return the bytes of an estimator; ``place`` is where it was found.

    Raises
    ------
    InputError
        If the estimator holds something that cannot be saved; the message names its place.
    """
    reason: Any
    try:
        content: bytes = _skops().dumps(learner)
        reason = listed(_untrusted(content))
    except Exception as error:
        reason = error
    if reason:
        raise InputError(
            f"Expected an estimator of scikit-learn that can be saved in {place}, got {learner!r:.80} with "
            f"{reason}; use another one, or leave out functions and objects of other libraries."
        )
    return content


def load_learners(content: bytes, source: str) -> list[BaseEstimator]:
    """Return the estimators of a member; raises `ValueError` for anything that is not trusted.

    A member holds one estimator; in the first version of the format it held a list of all.
    """
    for name, member in read_stored(content, source).items():
        if name.endswith(".npy"):
            _check_array_size(member)
        elif name != "schema.json":
            raise ValueError(f"the member {name!r} among the estimators of scikit-learn")
    # Refuses a file with any type that neither it nor the list trusts, before the first object is made.
    loaded = _skops().loads(content, trusted=list(_TRUSTED))
    learners = loaded if isinstance(loaded, list) else [loaded]
    if not all(isinstance(each, BaseEstimator) for each in learners):
        raise ValueError("something else than estimators of scikit-learn")
    for learner in learners:
        check_trees(learner)
    return learners


def _skops() -> Any:
    """Return the module: importing it imports all of scikit-learn, seconds that most uses can save."""
    return import_module("skops.io")


def _untrusted(content: bytes) -> list[str]:
    return sorted(set(_skops().get_untrusted_types(data=content)) - set(_TRUSTED))


def _check_array_size(member: bytes) -> None:
    """Compare the size that the header of an array announces with the bytes there are."""
    stream = io.BytesIO(member)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    # Python's whole numbers: a product of sizes may exceed what NumPy can count.
    size = dtype.itemsize
    for length in shape:
        size *= int(length)
    if dtype.hasobject or size > len(member):
        raise ValueError("an array that announces more than there is")


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
