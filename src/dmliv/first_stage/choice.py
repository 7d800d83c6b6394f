"""Choosing a network's inputs by held-out loss, without a look at rows a model must not see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dmliv.first_stage.base import FloatArray, IntArray
from dmliv.nets.settings import NetworkSettings

# A choice looks at no more rows than this: enough to tell candidates apart, and choosing stays cheap next to
# fitting. With few rows several splits make the choice less noisy.
_MOST_ROWS = 2000
_ENOUGH_HELDOUT_ROWS = 400
_MOST_SPLITS = 3


@dataclass(frozen=True)
class ChosenInputs:
    """How a member sees its inputs and how fast it learns.

    Attributes
    ----------
    encoding : str
    rate_factor : float
        Multiple of the plan's learning rate.
    """

    encoding: str
    rate_factor: float


@dataclass(frozen=True)
class Trial:
    """One short training that judges one candidate for one group of members.

    Attributes
    ----------
    members : tuple of int
        The group.
    split : int
        Trials of the same split share rows and starting weights.
    inputs : ChosenInputs
        The candidate.
    fit_rows, heldout_rows : ndarray of int
    """

    members: tuple[int, ...]
    split: int
    inputs: ChosenInputs
    fit_rows: IntArray
    heldout_rows: IntArray


Judge = Callable[[Sequence[Trial], str], FloatArray]


def choose_inputs(
    row_sets: Sequence[IntArray], settings: NetworkSettings, generator: np.random.Generator, judge: Judge
) -> list[ChosenInputs]:
    """Return the inputs of every member: first the best encoding, then the best learning rate for it.

    Parameters
    ----------
    row_sets : sequence of M index arrays
        Rows each member may see.
    settings : NetworkSettings
        Holds the candidates.
    generator : numpy.random.Generator
        Draws the splits.
    judge : callable
        Trains trials, described by a word for the progress bar, and returns their held-out losses.
    """
    default = ChosenInputs(settings.encodings[0], settings.rate_factors[0])
    chosen = [default] * len(row_sets)
    if len(settings.encodings) == 1 and len(settings.rate_factors) == 1:
        return chosen
    splits = _splits(row_sets, settings.validation_fraction, generator)
    best = {split.members: default for split in splits}
    if len(settings.encodings) > 1:
        candidates = [replace(default, encoding=name) for name in settings.encodings]
        best = _best(splits, dict.fromkeys(best, candidates), judge, "encoding")
    if len(settings.rate_factors) > 1:
        paces = {
            members: [replace(inputs, rate_factor=factor) for factor in settings.rate_factors]
            for members, inputs in best.items()
        }
        best = _best(splits, paces, judge, "learning rate")
    for members, inputs in best.items():
        for member in members:
            chosen[member] = inputs
    return chosen


def _splits(
    row_sets: Sequence[IntArray], heldout_share: float, generator: np.random.Generator
) -> list[Trial]:
    """Return splits as trials without a candidate yet.

    A member's inputs may not depend on rows that member must not see. Two halves of the members each choose
    from the rows all their members share; with K folds that is the other half of the folds.
    """
    nothing = ChosenInputs("", 1.0)
    splits: list[Trial] = []
    for half in np.array_split(np.arange(len(row_sets)), min(2, len(row_sets))):
        shared = row_sets[half[0]]
        for member in half[1:]:
            shared = np.intersect1d(shared, row_sets[member], assume_unique=True)
        shared = generator.permutation(shared)[:_MOST_ROWS]
        size = max(1, round(heldout_share * len(shared)))
        for number in range(int(np.clip(_ENOUGH_HELDOUT_ROWS // size, 1, _MOST_SPLITS))):
            heldout = shared[number * size : (number + 1) * size]
            fit_rows = np.setdiff1d(shared, heldout, assume_unique=True)
            splits.append(Trial(tuple(half.tolist()), len(splits), nothing, fit_rows, heldout))
    return splits


def _best(
    splits: Sequence[Trial],
    candidates: dict[tuple[int, ...], list[ChosenInputs]],
    judge: Judge,
    what: str,
) -> dict[tuple[int, ...], ChosenInputs]:
    trials = [replace(split, inputs=inputs) for split in splits for inputs in candidates[split.members]]
    losses = judge(trials, what)
    best = {}
    for members, options in candidates.items():
        mean_loss = [
            np.mean(
                [
                    loss
                    for trial, loss in zip(trials, losses, strict=True)
                    if trial.members == members and trial.inputs == option
                ]
            )
            for option in options
        ]
        best[members] = options[int(np.argmin(mean_loss))]
    return best
