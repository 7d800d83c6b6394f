"""Estimators users construct."""

from dmliv.estimators.kernel_iv import KernelIV
from dmliv.estimators.least_squares import TwoStageLeastSquares
from dmliv.estimators.two_stage import CEDMLIV, DMLIV, DeepIV

__all__ = ["CEDMLIV", "DMLIV", "DeepIV", "KernelIV", "TwoStageLeastSquares"]
