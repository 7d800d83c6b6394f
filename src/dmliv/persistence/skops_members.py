"""Estimators of scikit-learn, each a member in the skops format, with the types we trust named one by one."""

from __future__ import annotations

import io
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
