"""Whether the data support recommended actions, and which of these lie at the edge of what is on offer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dmliv.data import FloatArray, TrainingData
from dmliv.first_stage.crossfit import FirstStage
from dmliv.policy.decisions import Decisions
from dmliv.policy.support import DistributionSupport
from dmliv.second_stage.structural import StructuralModel

# A quarter of a standard deviation around the mean of a normal action holds a fifth of the rows, per column;
# an action with a twentieth of that is hardly ever seen.
USUAL = 0.2
RARE = 0.05
_CONTEXTS = 300
_INSTRUMENTS = 40
_CANDIDATES = 41
# Candidates hold this central part of the observed actions.
_CENTRAL = (0.01, 0.99)


def edge_rows(candidates: npt.NDArray[Any], decisions: Decisions) -> npt.NDArray[np.bool_]:
    """Return which recommendations lie at the edge of the continuous actions on offer, shape (n,)."""
    offered, chosen = (np.reshape(each, (len(each), -1)) for each in (candidates, decisions.action))
    at_ends = (chosen <= offered.min(axis=0)) | (chosen >= offered.max(axis=0))
    return np.asarray(decisions.at_edge | at_ends.any(axis=1))


def least_support(n_columns: int) -> float:
    """Return the probability below which an action of so many columns counts as hardly ever seen."""
    return float(round(RARE * USUAL**n_columns, 9))


def unsupported_share(
    data: TrainingData, first_stage: FirstStage, model: StructuralModel, *, seed: int
) -> float:
    """Return the share of contexts whose best action is hardly ever taken in such contexts.

    The best action is that of all levels, among 41 actions that span the central 98 % of one column, or
    among 41 observed actions of several columns; contexts are at most 300 rows of the data.
    """
    generator = np.random.default_rng(seed)
    used = generator.permutation(np.flatnonzero(data.weight > 0))
    asked, some = used[:_CONTEXTS], used[-_INSTRUMENTS:]
    candidates = _candidates(data, generator)
    context = data.context.take(asked)
    best = candidates[model.predict_grid(context, candidates).argmax(axis=1)]
    # The context holds controls as well here, so that the support is that of the row itself.
    support = DistributionSupport(first_stage, data.instrument.take(some))
    probability = support.probability(context, best[:, None, :])[:, 0]
    n_columns = 1 if data.action_spec.kind == "discrete" else data.action_spec.width
    return float(np.mean(probability < least_support(n_columns)))


def _candidates(data: TrainingData, generator: np.random.Generator) -> FloatArray:
    spec = data.action_spec
    if spec.kind == "discrete":
        return np.eye(spec.width)
    used = np.flatnonzero(data.weight > 0)
    action = spec.vectors(data.action)[used]
    if spec.width == 1:
        low, high = np.quantile(action[:, 0], _CENTRAL)
        return np.linspace(low, high, _CANDIDATES)[:, None]
    return action[generator.permutation(len(action))[:_CANDIDATES]]
