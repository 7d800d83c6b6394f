"""Every check of a fit and of recommendations: its threshold, what its number means, and what to do.

``est.diagnostics()``, the shell commands and the report pass the numbers they have and show the findings that
come back, so that thresholds and sentences exist once. docs/results/diagnostics.md shows how often the checks
of a fit warn where they should and where they should not.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from dmliv.data import ActionSpec, FloatArray, IntArray
from dmliv.diagnostics.findings import Finding, Verdict
from dmliv.diagnostics.moment_test import MomentTest
from dmliv.diagnostics.strength import WEAK_F, InstrumentStrength
from dmliv.errors import listed
from dmliv.second_stage.pilot_model import PilotedModel
from dmliv.second_stage.structural import StructuralModel

MOMENT_LEVEL: Final = 0.05
WEAK_CONTEXTS: Final = 0.25
UNSUPPORTED: Final = 0.1
BALANCED: Final = 0.02
FOLD_SPREAD: Final = 4.0
_FEW_ROWS: Final = 200
_FEW_ROWS_PER_LEVEL: Final = 10
_MANY_AT_EDGE: Final = 0.5
# Standard deviations from the mean beyond which hardly any action is observed.
_FAR: Final = 3.0
# A larger Bayes factor says nothing more.
_MOST_EVIDENCE: Final = 1e6


@dataclass(frozen=True)
class _Check:
    """What is said of one number; texts may hold names in braces, to be filled in."""

    key: str
    name: str
    meaning: str
    threshold: float = math.nan
    crossed: Callable[[float, float], bool] = operator.gt
    advice: str = ""
    verdict: Verdict = "warning"


_CHECKS: Final = (
    _Check(
        "projected_f",
        "Nonlinear first-stage F statistic",
        "Robust F statistic of the instrument given the context. The only instrument is the prediction of "
        "the action on held-out rows, by a linear model or by boosted trees.",
        WEAK_F,
        operator.lt,
        "The instrument is weak: it explains too little of the action to learn effects from, and the "
        "estimates depend on the smoothness that the learners assume. Find a stronger instrument or more "
        "rows.",
    ),
    _Check(
        "effective_f",
        "Linear first-stage F statistic (effective F)",
        "Robust F statistic of Montiel Olea and Pflueger. Below the threshold the bias of two-stage least "
        "squares may exceed a tenth of its worst case. If it is low and the nonlinear F statistic is high, "
        "the instrument acts nonlinearly or only in some contexts.",
        crossed=operator.lt,
        verdict="note",
    ),
    _Check(
        "partial_r2",
        "Partial R2 of the instrument",
        "Share of the action's variance given the context that the instrument explains on held-out rows.",
    ),
    _Check(
        "action_gain",
        "Increase in R2 of the action by the instrument",
        "R2 of the action on held-out rows: {context_r2:.3f} given the context, {full_r2:.3f} given context "
        "and instrument, with the same simple models.",
    ),
    _Check(
        "weak_contexts",
        "Share of rows in contexts with a weak instrument",
        f"Share of rows in groups of contexts with a nonlinear F statistic below {WEAK_F:g}, for the context "
        "column where it is largest. Effects there are extrapolated from other contexts.",
        WEAK_CONTEXTS,
        advice="Do not rely on effects in these contexts alone; contexts_frame() lists them.",
    ),
    _Check(
        "action_r2",
        "R2 of the action distribution",
        "Share of the action's variance that the mean of the estimated action distribution predicts, "
        "{where}.",
    ),
    _Check(
        "action_accuracy",
        "Accuracy of the action distribution",
        "Share of rows whose action is the most likely level of the estimated action distribution, {where}.",
    ),
    _Check(
        "action_nll",
        "Negative log-likelihood of the action distribution",
        "Mean over rows, {where}; 0 is a perfect prediction of a discrete action.",
    ),
    _Check(
        "action_mse",
        "Mean squared error of the action",
        "Squared error of the mean of the estimated action distribution, {where}.",
    ),
    _Check(
        "outcome_r2",
        "R2 of the outcome model",
        "Share of the outcome's variance that context and instrument predict, {where}.",
        0.0,
        operator.le,
        "Context and instrument predict the outcome no better than its mean does, so there is nothing to "
        "learn h from.",
    ),
    _Check(
        "outcome_mse",
        "Mean squared error of the outcome model",
        "Squared error of the mean outcome given context and instrument, {where}.",
    ),
    _Check(
        "outcome_gain",
        "Increase in R2 of the outcome by the instrument",
        "Increase in the held-out R2 of the outcome when the instrument joins the context. Near zero, "
        "either the action has no effect or the instrument is weak.",
    ),
    _Check(
        "partial_f",
        "Partial F statistic of the instruments for {feature}",
        "F statistic of the excluded instruments in the linear first stage.",
    ),
    _Check(
        "moment_test",
        "P value of the moment test",
        "P value of a test that the residuals of h are unrelated to the instrument given the context, as "
        "they are if the instrument is valid and h is correct; 5 % of correct fits fall below the "
        "threshold. {power}",
        MOMENT_LEVEL,
        operator.lt,
        "Either the instrument affects the outcome in another way than through the action, or h is too "
        "simple. Try other instruments or more flexible learners.",
    ),
    _Check(
        "unsupported",
        "Share of best actions that are hardly ever taken",
        "Share of contexts whose best action, among those on offer, is hardly ever taken in such contexts.",
        UNSUPPORTED,
        advice="The outcomes of such actions are extrapolated. Offer fewer actions, or set a minimum support "
        "(min_support).",
    ),
    _Check(
        "balance",
        "R2 of the instrument given the context",
        "Measured on held-out rows. Above the threshold the instrument is as good as random only given the "
        "context, which therefore has to stay in the model. This is not a defect.",
        BALANCED,
        verdict="note",
    ),
    _Check(
        "fold_spread",
        "Excess loss of the worst fold in standard errors",
        "By how many standard errors the held-out loss of the worst fold exceeds that of the other folds.",
        FOLD_SPREAD,
        advice="Some rows follow other distributions, or a few rows are far off; look at folds_frame().",
    ),
    _Check(
        "pilot_evidence",
        "Bayes factor for an effect of the instrument on the action",
        "How much better a model of the action with the instrument explains the rows than one without; "
        "values above a million are shown as a million. If it is low, the pilot leaves out the action.",
        advice="The instrument is too weak to show any effect of the action, so all estimated effects are "
        "{effects}. This is not evidence that the action has no effect.",
    ),
    _Check(
        "n_rows",
        "Number of rows",
        "Rows that the numbers rest on.",
        _FEW_ROWS,
        operator.lt,
        "With so few rows, estimates vary a lot from sample to sample.",
    ),
    _Check(
        "rarest_level",
        "Number of rows at the rarest action level",
        "Rows that the estimates for the rarest level rest on.",
        _FEW_ROWS_PER_LEVEL,
        operator.lt,
        "Estimates for {levels} rest on too few rows.",
    ),
    _Check(
        "far_action",
        "Distance in standard deviations from the training mean to the action {action}",
        "How far the action is from the mean of the training rows; of several columns the largest.",
        _FAR,
        advice="Hardly any training row has such an action, so its outcome is extrapolated.",
    ),
    _Check(
        "at_edge",
        "Share of recommendations at the edge of the actions on offer",
        "Share of rows whose recommended action is the lowest or the highest on offer.",
        _MANY_AT_EDGE,
        advice="A better action may lie beyond the edge, or the model extrapolates.",
    ),
    _Check(
        "outside",
        "Share of recommendations outside the observed actions",
        "Share of rows whose recommended action is lower or higher than every action in the table.",
        0.0,
        advice="The outcomes of these actions are extrapolated. Offer actions within the observed range.",
    ),
    _Check(
        "min_support",
        "Number of rows without an action of sufficient support",
        "Rows in which every action on offer has less support than was asked for.",
        0.0,
        advice="For these rows the action with the highest support is recommended.",
    ),
    _Check(
        "gain",
        "Lower end of the 95 % confidence interval of the gain over the actions in the data",
        "The gain in mean outcome if the recommendations are followed.",
        0.0,
        operator.le,
        "The recommendations may be no better than the actions in the data.",
    ),
)
_BY_KEY: Final = {check.key: check for check in _CHECKS}


def judge(
    key: str,
    value: float,
    *,
    threshold: float | None = None,
    verdict: Verdict | None = None,
    **words: object,
) -> Finding:
    """Return the finding for a number.

    Parameters
    ----------
    key : str
        Which check it is.
    value : float
        Not a number where it cannot be computed.
    threshold : float, optional
        Of checks whose threshold depends on the data.
    verdict : str, optional
        Of checks that no threshold decides.
    **words
        What the texts of the check leave open.
    """
    check = _BY_KEY[key]
    limit = check.threshold if threshold is None else threshold
    if verdict is None and math.isnan(value):
        verdict = "not testable"
    elif verdict is None:
        # No number crosses a threshold that is not a number.
        verdict = check.verdict if check.crossed(value, limit) else "fine"
    name, meaning, advice = (text.format(**words) for text in (check.name, check.meaning, check.advice))
    return Finding(
        key, name, float(value), float(limit), verdict, meaning, advice if verdict == "warning" else ""
    )


def strength_findings(strength: InstrumentStrength) -> tuple[Finding, ...]:
    """Return the F statistics, the partial R2 and the gain in R2 of a first stage."""
    context_r2, full_r2 = strength.context_r2, strength.full_r2
    return (
        judge("projected_f", strength.projected_f),
        judge("effective_f", strength.effective_f, threshold=strength.critical_f),
        judge("partial_r2", strength.partial_r2),
        judge("action_gain", full_r2 - context_r2, context_r2=context_r2, full_r2=full_r2),
    )


def loss_findings(losses: Mapping[str, float], *, cross_fitted: bool) -> tuple[Finding, ...]:
    """Return the losses of both nuisances, those of the action first.

    Parameters
    ----------
    losses : mapping of str to float
        As an estimator's ``nuisance_losses_``.
    cross_fitted : bool
        Whether the losses are out of fold.
    """
    where = "out of fold" if cross_fitted else "in sample, because there is one fold"
    return tuple(judge(key, losses[key], where=where) for key in _BY_KEY if key in losses)


def pilot_findings(model: StructuralModel) -> tuple[Finding, ...]:
    """Return whether the instrument is strong enough for a pilot with an effect; nothing without a pilot."""
    details = model.pilot.describe() if isinstance(model, PilotedModel) else {}
    evidence = details.get("instrument_evidence")
    if not isinstance(model, PilotedModel) or not isinstance(evidence, float):
        return ()
    return (
        judge(
            "pilot_evidence",
            math.exp(min(evidence, math.log(_MOST_EVIDENCE))),
            verdict="warning" if details.get("control_variable") == "none" else "fine",
            effects="zero" if model.remainder is None else "shrunk towards zero",
        ),
    )


def moment_finding(tested: MomentTest) -> Finding:
    """Return the verdict of the test that the residuals of h are unrelated to the instrument."""
    if tested.freedom == 0:
        power = (
            "With this instrument every such relation could also be an effect of the action: nothing to test."
        )
    else:
        power = (
            "No test can detect a direct effect of the instrument that another h explains equally well; with "
            "one instrument for one action most direct effects are of this kind."
        )
    return judge("moment_test", tested.p_value, power=power)


def sample_findings(spec: ActionSpec, action: FloatArray | IntArray) -> tuple[Finding, ...]:
    """Return whether there are enough rows, and enough at every level of a discrete action (n,)."""
    rows = judge("n_rows", len(action))
    if spec.kind != "discrete":
        return (rows,)
    counts = np.bincount(action.astype(np.int64), minlength=spec.width)
    rare = [level for level, n in zip(spec.levels, counts, strict=True) if n < _FEW_ROWS_PER_LEVEL]
    return rows, judge("rarest_level", counts.min(), levels=listed(rare))


def far_action_finding(spec: ActionSpec, action: float | FloatArray) -> Finding:
    """Return whether a continuous action, in the user's units, is far from those of the training rows."""
    numbers = np.ravel(np.asarray(action, dtype=np.float64))
    distance = np.abs((numbers - spec.mean) / spec.scale).max()
    return judge("far_action", distance, action=", ".join(f"{number:.4g}" for number in numbers))
