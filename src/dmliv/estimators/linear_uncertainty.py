"""Intervals of a model that is linear in known features, from the covariance of its coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dmliv.data import FloatArray, Table
from dmliv.functionals import Band, Functional


class Design(Protocol):
    """Anything whose prediction is a row of features times coefficients."""

    def features(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the features of every row in the order of the coefficients, shape (n, p)."""
        ...


@dataclass(frozen=True, eq=False)
class LinearUncertainty:
    """The covariance of coefficients.

    Attributes
    ----------
    design : Design
    covariance : ndarray, shape (p, p)
        For outcomes in model units.
    """

    design: Design
    covariance: FloatArray

    @property
    def width(self) -> int:
        """Number of coefficients."""
        return len(self.covariance)

    def evaluate(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the features of every row, shape (n, p)."""
        return self.design.features(context, action)

    def unseen(self, functional: Functional, applied: FloatArray) -> FloatArray:
        """Return zeros: nothing is hidden."""
        del functional
        return np.zeros(len(applied))

    def band(self, plug_in: FloatArray, applied: FloatArray, unseen: FloatArray, alpha: float) -> Band:
        """Return normal intervals around the estimates."""
        del unseen
        return Band.normal(plug_in, np.einsum("np,pq,nq->n", applied, self.covariance, applied), alpha)
