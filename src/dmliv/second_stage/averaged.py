"""A fitted h on average over columns that are not asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dmliv.data import FloatArray, Table
from dmliv.data.controls import crossed
from dmliv.data.savable import savable
from dmliv.second_stage.structural import StructuralModel

# Values of h (rows x controls x actions) computed at once.
_CHUNK_VALUES = 1 << 18


@savable
@dataclass(frozen=True, eq=False)
class AveragedModel:
    """h(x, a) = mean of h(x, w, a) over rows w of the controls, whatever x is.

    Attributes
    ----------
    model : StructuralModel
        h of the whole context [x, w].
    controls : Table
        The rows to average over.
    weight : ndarray, shape (rows of the controls,)
        Sums to one.
    n_levels : tuple of int
        Levels of each categorical control.
    """

    model: StructuralModel
    controls: Table
    weight: FloatArray
    n_levels: tuple[int, ...]

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h row by row."""

        def values(part: Table, repeated: FloatArray) -> FloatArray:
            return self.model.predict(part, repeated)[:, None]

        return self.mean_of(context, action, values, 1)[:, 0]

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        """Return h for every context with every action."""

        def values(part: Table, _: FloatArray) -> FloatArray:
            return self.model.predict_grid(part, actions)

        return self.mean_of(context, np.empty((len(context), 0)), values, len(actions))

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        """Return the derivative of h in the action."""
        return self.mean_of(context, action, self.model.gradient, action.shape[1])

    def describe(self) -> dict[str, object]:
        """Return what the model that is averaged tells of itself."""
        return self.model.describe()

    def mean_of(
        self,
        context: Table,
        action: FloatArray,
        evaluate: Callable[[Table, FloatArray], FloatArray],
        width: int,
    ) -> FloatArray:
        """Return the mean of what `evaluate` gives for each row with each control, shape (n, width)."""
        result, k = np.empty((len(context), width)), len(self.controls)
        step = max(1, _CHUNK_VALUES // (k * width))
        for start in range(0, len(context), step):
            rows = np.arange(start, min(start + step, len(context)))
            part = crossed(context.take(rows), self.controls)
            values = evaluate(part, np.repeat(action[rows], k, axis=0)).reshape(len(rows), k, width)
            result[rows] = np.einsum("nkd,k->nd", values, self.weight)
        return result
