"""Choosing how a network sees its inputs and how fast it learns, by held-out loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dmliv.data.savable import savable
from dmliv.first_stage.nuisances import FloatArray, IntArray
from dmliv.nets.settings import NetworkSettings

# A choice looks at no more rows than this: enough to tell candidates apart, and choosing stays cheap next to
# fitting. Few held-out rows make a noisy choice; then up to half of the rows are held out, and the
# two parts change places.
MOST_CHOICE_ROWS = 2000
_ENOUGH_HELDOUT_ROWS = 400


@savable
@dataclass(frozen=True)
class ChosenInputs:
    """How networks see their inputs and how fast they learn.

    Attributes
    ----------
    encoding : str
    rate_factor : float
        Multiple of the plan's learning rate.
    """

    encoding: str
    rate_factor: float


@savable
@dataclass(frozen=True)
class Trial:
    """One short training of a candidate.

    Attributes
    ----------
    split : int
        Trials of the same split share rows and starting weights.
    inputs : ChosenInputs
        The candidate.
    fit_rows, heldout_rows : ndarray of int
    """

    split: int
    inputs: ChosenInputs
    fit_rows: IntArray
    heldout_rows: IntArray


HeldOutLosses = Callable[[Sequence[Trial], str], FloatArray]


def has_choice(settings: NetworkSettings) -> bool:
    """Return whether there is more than one candidate."""
    return len(settings.encodings) * len(settings.rate_factors) > 1


def choose_inputs(
    rows: IntArray,
    settings: NetworkSettings,
    generator: np.random.Generator,
    held_out_losses: HeldOutLosses,
    most_rows: int = MOST_CHOICE_ROWS,
) -> ChosenInputs:
    """Return the best inputs: first the best encoding, then the best learning rate for it.

    Parameters
    ----------
    rows : ndarray of int
        Rows the choice may look at.
    settings : NetworkSettings
        Holds the candidates.
    generator : numpy.random.Generator
        Draws the splits.
    held_out_losses : callable
        Trains trials, described by a word for the progress bar, and returns their held-out losses.
    most_rows : int
        Rows that are looked at, at most.
    """
    chosen = ChosenInputs(settings.encodings[0], settings.rate_factors[0])
    if not has_choice(settings):
        return chosen
    shuffled = generator.permutation(rows)[:most_rows]
    least = round(settings.validation_fraction * len(shuffled))
    size = max(1, least, min(_ENOUGH_HELDOUT_ROWS, len(shuffled) // 2))
    n_splits = 2 if size < _ENOUGH_HELDOUT_ROWS and 2 * size <= len(shuffled) else 1
    heldout_sets = [shuffled[number * size : (number + 1) * size] for number in range(n_splits)]

    known: dict[ChosenInputs, float] = {}

    def best(candidates: Sequence[ChosenInputs], what: str) -> ChosenInputs:
        new = [inputs for inputs in candidates if inputs not in known]
        trials = [
            Trial(number, inputs, np.setdiff1d(shuffled, heldout, assume_unique=True), heldout)
            for number, heldout in enumerate(heldout_sets)
            for inputs in new
        ]
        losses = held_out_losses(trials, what).reshape(n_splits, len(new)).mean(axis=0)
        known.update(zip(new, losses.tolist(), strict=True))
        return min(candidates, key=known.__getitem__)

    if len(settings.encodings) > 1:
        chosen = best([replace(chosen, encoding=name) for name in settings.encodings], "encoding")
    if len(settings.rate_factors) > 1:
        chosen = best([replace(chosen, rate_factor=factor) for factor in settings.rate_factors], "rate")
    return chosen
