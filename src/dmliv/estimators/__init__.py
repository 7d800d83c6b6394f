"""Estimators users construct."""

from dmliv.estimators.two_stage import CEDMLIV, DMLIV, DeepIV

__all__ = ["CEDMLIV", "DMLIV", "DeepIV"]
