"""Intervals for effects and values: debiased, from the pilot's posterior, or by the bootstrap."""

from dmliv.inference.bootstrap import Bootstrap
from dmliv.inference.debiased import Debiased
from dmliv.inference.posterior import Posterior

__all__ = ["Bootstrap", "Debiased", "Posterior"]
