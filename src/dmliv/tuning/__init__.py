"""Choosing learners and their settings by held-out losses, one role after the other."""

from dmliv.tuning.result import TuningResult, TuningTrial
from dmliv.tuning.space import Range, SearchSpace
from dmliv.tuning.tune import tune

__all__ = ["Range", "SearchSpace", "TuningResult", "TuningTrial", "tune"]
