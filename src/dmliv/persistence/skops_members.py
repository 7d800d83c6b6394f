"""Estimators of scikit-learn as one member in the skops format, with the types we trust named one by one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from dmliv.errors import InputError, listed
from dmliv.persistence.container import read_stored
from dmliv.persistence.trees import check_trees

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


def dump_learners(learners: Sequence[tuple[str, BaseEstimator]]) -> bytes:
    """Return the bytes of all estimators together; each comes with the place it was found in.

    Raises
    ------
    InputError
        If an estimator holds something that cannot be saved; the message names its place.
    """
    try:
        content: bytes = _skops().dumps([learner for _, learner in learners])
        strange = _untrusted(content)
    except Exception as error:
        # Only now is it worth finding out which one it was.
        for place, learner in learners:
            _check_one(place, learner)
        raise InputError(f"Expected estimators that skops can save, got {error}.") from error
    if strange:
        for place, learner in learners:
            _check_one(place, learner)
    return content


def load_learners(content: bytes, source: str) -> list[BaseEstimator]:
    """Return the estimators; raises `ValueError` for anything that is not trusted."""
    for name, member in read_stored(content, source).items():
        if name.endswith(".npy"):
            _check_array_size(member)
        elif name != "schema.json":
            raise ValueError(f"the member {name!r} among the estimators of scikit-learn")
    # Refuses a file with any type that neither it nor the list trusts, before the first object is made.
    loaded = _skops().loads(content, trusted=list(_TRUSTED))
    if not isinstance(loaded, list) or not all(isinstance(each, BaseEstimator) for each in loaded):
        raise ValueError("something else than estimators of scikit-learn")
    for learner in loaded:
        check_trees(learner)
    return loaded


def _skops() -> Any:
    """Return the module: importing it imports all of scikit-learn, seconds that most uses can save."""
    return import_module("skops.io")


def _untrusted(content: bytes) -> list[str]:
    return sorted(set(_skops().get_untrusted_types(data=content)) - set(_TRUSTED))


def _check_one(place: str, learner: BaseEstimator) -> None:
    reason: Any
    try:
        reason = listed(_untrusted(_skops().dumps(learner)))
    except Exception as error:
        reason = error
    if reason:
        raise InputError(
            f"Expected an estimator of scikit-learn that can be saved in {place}, got {learner!r:.80} with "
            f"{reason}; use another one, or leave out functions and objects of other libraries."
        )


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
