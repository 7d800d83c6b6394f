"""Learn what an action really does, and what to do, from confounded data with an instrument."""

from dmliv.data import IVData
from dmliv.errors import DMLIVError, InputError, NotFittedError, TrainingDivergedError, UnseenCategoryError
from dmliv.estimators import CEDMLIV, DFIV, DMLIV, DeepGMM, DeepIV, KernelIV, TwoStageLeastSquares

__version__ = "0.1.0"

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
    "NotFittedError",
    "TrainingDivergedError",
    "TwoStageLeastSquares",
    "UnseenCategoryError",
]
