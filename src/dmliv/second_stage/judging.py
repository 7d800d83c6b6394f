"""How trial models are judged: by their projections on rows that neither they nor their nuisances saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from dmliv.data import FloatArray, IntArray, TrainingData

Key = TypeVar("Key")


@dataclass(frozen=True, eq=False)
class TrialProjections:
    """Projections of a model that was fitted on one half of the data.

    Attributes
    ----------
    fit, judging : ndarray
        At the rows it learned from, and at those it is judged on.
    """

    fit: FloatArray
    judging: FloatArray


def judged_losses(
    data: TrainingData, judging_rows: Sequence[IntArray], halves: Sequence[TrialProjections]
) -> FloatArray:
    """Return weighted (outcome - projection)^2 of the judging rows of all halves, one after the other."""
    return np.concatenate(
        [
            data.weight[rows] * (data.outcome[rows] - half.judging) ** 2
            for rows, half in zip(judging_rows, halves, strict=True)
        ]
    )


def mean_of_trials(rivals: Sequence[Sequence[TrialProjections]]) -> tuple[TrialProjections, ...]:
    """Return the mean over rivals, half by half."""
    return tuple(
        TrialProjections(
            np.mean([trial.fit for trial in half], axis=0), np.mean([trial.judging for trial in half], axis=0)
        )
        for half in zip(*rivals, strict=True)
    )


def not_clearly_worse(judged: Mapping[Key, FloatArray], margin: float) -> tuple[Key, ...]:
    """Return the keys whose losses (n,) exceed the lowest mean by at most ``margin`` standard errors."""
    best = min(judged, key=lambda name: float(judged[name].mean()))
    staying = []
    for name, losses in judged.items():
        excess = losses - judged[best]
        if excess.mean() <= margin * excess.std() / np.sqrt(len(excess)):
            staying.append(name)
    return tuple(staying)
