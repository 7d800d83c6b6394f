"""Estimators users construct."""

from dmliv.estimators.deep_gmm import DeepGMM
from dmliv.estimators.dfiv import DFIV
from dmliv.estimators.interop import as_sklearn
from dmliv.estimators.kernel_iv import KernelIV
from dmliv.estimators.large_tables import can_stream, fit_parquet
from dmliv.estimators.least_squares import TwoStageLeastSquares
from dmliv.estimators.two_stage import CEDMLIV, DMLIV, DeepIV

__all__ = [
    "CEDMLIV",
    "DFIV",
    "DMLIV",
    "DeepGMM",
    "DeepIV",
    "KernelIV",
    "TwoStageLeastSquares",
    "as_sklearn",
    "can_stream",
    "fit_parquet",
]
