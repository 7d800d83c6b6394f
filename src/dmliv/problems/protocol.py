"""What every benchmark problem offers."""

from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dmliv.data import FloatArray, IVData

Part: TypeAlias = Literal["train", "test"]
"""What contexts are for: they may look different in training and in evaluation, as images do."""

ContextArray: TypeAlias = NDArray[np.floating[Any]]
"""Contexts of shape (n, d_X); images are held in single precision."""

EvaluationSet: TypeAlias = tuple[FloatArray, FloatArray, FloatArray]
"""Contexts ``X`` of shape (n, d_X), actions ``T`` of shape (n,) and the counterfactual there, shape (n,)."""


@runtime_checkable
class Problem(Protocol):
    """A data-generating process whose counterfactual is known."""

    def sample(self, n: int, seed: int = 0) -> IVData:
        """Draw ``n`` observed rows."""
        ...

    def counterfactual(self, X: ArrayLike, T: ArrayLike) -> FloatArray:
        """Return the true mean outcome under do(T) in context X, shape (n,)."""
        ...

    def test_set(self) -> tuple[ContextArray, FloatArray, FloatArray]:
        """Return contexts (n, d_X), actions (n,) and truth (n,) at which errors are reported."""
        ...

    def contexts(self, n: int, seed: int = 1, shift: float = 0.0) -> ContextArray:
        """Draw contexts, shape (n, d_X), for evaluating policies; ``shift`` moves them away from the data."""
        ...
