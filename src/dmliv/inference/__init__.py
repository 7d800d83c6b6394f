"""Intervals for effects and values: debiased, or by the bootstrap."""

from dmliv.inference.bootstrap import Bootstrap
from dmliv.inference.debiased import Debiased

__all__ = ["Bootstrap", "Debiased"]
