"""What is said of the pilot of a fit: where h starts from, what was added, and what the answer rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from dmliv.estimators.base import CounterfactualEstimator
from dmliv.estimators.two_stage import TwoStageIV
from dmliv.second_stage.pilot_model import PilotedModel

_CONTROL_WORDS: Final = {
    "residual": "the residual of the action given context and instrument",
    "rank": "the rank of the action in its estimated distribution given context and instrument",
}
# Beyond these odds the number itself says nothing more.
_MOST_ODDS: Final = 1_000_000.0


def pilot_words(estimator: CounterfactualEstimator) -> tuple[str, ...]:
    """Return sentences on the pilot of a two-stage fit; none for other estimators.

    Parameters
    ----------
    estimator : CounterfactualEstimator
        Fitted.
    """
    if not isinstance(estimator, TwoStageIV):
        return ()
    model = estimator.structural_model_
    if not isinstance(model, PilotedModel):
        return (_without_pilot(estimator),)
    details = model.describe()
    control = _pilot_of(details).get("control_variable")
    if control == "none":
        return (_too_weak(_pilot_of(details)), _flatness(model, details))
    start = "h, the expected outcome if the action is set, starts from a pilot"
    if control in _CONTROL_WORDS:
        start += (
            ", a control-function regression of the outcome on context, action and "
            f"{_CONTROL_WORDS[str(control)]}"
        )
    return (f"{start}.", _remainder(model, details), _assumption(control))


def pilot_cautions(estimator: CounterfactualEstimator) -> tuple[str, ...]:
    """Return a warning where the instrument was too weak for a pilot with an effect of the action."""
    model = getattr(estimator, "structural_model_", None)
    if not isinstance(model, PilotedModel):
        return ()
    if _pilot_of(model.describe()).get("control_variable") != "none":
        return ()
    flat = "zero" if model.remainder is None else "shrunk towards zero"
    return (
        f"All effects are {flat} because the instrument is too weak to show any. That is no sign that the "
        "action does nothing.",
    )


def _pilot_of(details: Mapping[str, object]) -> Mapping[str, Any]:
    found = details["pilot"]
    return found if isinstance(found, Mapping) else {}


def _without_pilot(estimator: TwoStageIV) -> str:
    start = "h has no pilot: it is learned from the moments of the instrument alone"
    if estimator.pilot is None:
        return f"{start} (pilot=None)."
    learners = estimator.learners
    if learners is not None and not learners.with_pilot:
        return f"{start}, as in the paper."
    if learners is not None and not getattr(learners.structural, "takes_pilot", True):
        return f"{start}, because these learners make h a line."
    return f"{start}."


def _remainder(model: PilotedModel, details: Mapping[str, object]) -> str:
    if model.remainder is None:
        return (
            "The moments of the instrument do not contradict the pilot, so h is the pilot: the remainder "
            "that could be added to it is 0."
        )
    reason = (
        f"The moments of the instrument contradict the pilot{_odds(details)}, so a" if _odds(details) else "A"
    )
    return f"{reason} remainder was learned from the moments and added: {_size(details)}."


def _assumption(control: object) -> str:
    assumed = f": this one {control} carries the confounding" if control in _CONTROL_WORDS else ""
    return (
        f"The pilot rests on an assumption of its own{assumed}. The remainder does not: it repairs a wrong "
        "pilot as far as the instrument shows it. What the instrument cannot show of h is the pilot's. "
        "pilot=None (dmliv fit --no-pilot) learns h from the moments alone."
    )


def _too_weak(details: Mapping[str, Any]) -> str:
    return (
        "The instrument is too weak to say anything about the effect of the action (odds that it moves "
        f"the action at all: {_ratio(details['instrument_evidence'])}): the pilot is the mean outcome in "
        "each "
        "context."
    )


def _flatness(model: PilotedModel, details: Mapping[str, object]) -> str:
    if model.remainder is None:
        return (
            "The moments say nothing else, so h is flat in the action. pilot=None (dmliv fit --no-pilot) "
            "learns h from the moments alone, whatever the strength."
        )
    return (
        "All effects are those of a remainder that was learned from the moments of the instrument"
        f"{_odds(details)}: {_size(details)}."
    )


def _size(details: Mapping[str, object]) -> str:
    return (
        f"its standard deviation at the observed actions is {details['remainder_size']:.2g} times "
        "that of the "
        "pilot"
    )


def _odds(details: Mapping[str, object]) -> str:
    """Return the odds against the pilot in words, or nothing where it was not tested."""
    evidence = details.get("evidence_against_pilot")
    if not isinstance(evidence, Mapping) or not evidence:
        return ""
    return f" (odds of {_ratio(max(evidence.values()))})"


def _ratio(evidence: float) -> str:
    """Return the odds that belong to the logarithm of a Bayes factor, in words."""
    if evidence > np.log(_MOST_ODDS):
        return f"more than {_MOST_ODDS:,.0f} to one"
    if evidence < 0.0:
        return "below one to one"
    return f"{float(f'{np.exp(evidence):.2g}'):,.0f} to one"
