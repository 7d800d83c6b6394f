"""Learn what an action really does, and what to do, from confounded data with an instrument."""

from dmliv.data import IVData
from dmliv.deprecation import warn_of_moved_modules
from dmliv.errors import (
    DMLIVError,
    InputError,
    ModelFileError,
    NotFittedError,
    TrainingDivergedError,
    UnseenCategoryError,
)
from dmliv.estimators import CEDMLIV, DFIV, DMLIV, DeepGMM, DeepIV, KernelIV, TwoStageLeastSquares
from dmliv.persistence import load

__version__ = "0.1.0"

warn_of_moved_modules()

__all__ = [
    "CEDMLIV",
    "DFIV",
    "DMLIV",
    "DMLIVError",
    "DeepGMM",
    "DeepIV",
    "IVData",
    "InputError",
    "KernelIV",
    "ModelFileError",
    "NotFittedError",
    "TrainingDivergedError",
    "TwoStageLeastSquares",
    "UnseenCategoryError",
    "load",
]
