"""An h whose best action is known: minus the squared distance between action and context."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dmliv.data import ActionSpec, FloatArray, OutcomeSpec, Table, TableSchema
from dmliv.inference.counterfactual import Counterfactual


@dataclass(frozen=True)
class Bowl:
    """h = 10 - sum over columns of (action - first context)^2, in units in which actions are their own."""

    def predict(self, context: Table, action: FloatArray) -> FloatArray:
        wanted = context.numeric[:, :1] if context.numeric.shape[1] else np.zeros((len(context), 1))
        return np.asarray(10.0 - ((action - wanted) ** 2).sum(axis=1))

    def predict_grid(self, context: Table, actions: FloatArray) -> FloatArray:
        columns = [self.predict(context, np.tile(action, (len(context), 1))) for action in actions]
        return np.stack(columns, axis=1)

    def gradient(self, context: Table, action: FloatArray) -> FloatArray:
        wanted = context.numeric[:, :1] if context.numeric.shape[1] else np.zeros((len(context), 1))
        return np.asarray(-2.0 * (action - wanted))

    def describe(self) -> dict[str, object]:
        return {}


MakeBowl = Callable[..., Counterfactual]


@pytest.fixture
def make_bowl() -> MakeBowl:
    """Return a maker of the bowl in the user's units, for actions of one or several columns."""

    def make(width: int = 1, X: Any = ((0.0,), (1.0,))) -> Counterfactual:
        # Mean 0 and standard deviation 1: model units are the user's.
        action = np.tile(np.array([[-1.0], [1.0], [-1.0], [1.0]]), width)
        spec = ActionSpec.learn(action, "continuous")
        return Counterfactual(Bowl(), OutcomeSpec(0.0, 1.0), spec, TableSchema.learn(X, "context"))

    return make
