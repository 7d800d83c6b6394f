"""All diagnostics of a two-stage fit: a pure function of data, first stage and h."""

from __future__ import annotations

import math

import numpy as np

from dmliv.data import FloatArray, TrainingData
from dmliv.diagnostics.contexts import strength_by_context, weak_share
from dmliv.diagnostics.findings import Diagnostics, Finding, Verdict
from dmliv.diagnostics.folds import fold_losses, worst_fold
from dmliv.diagnostics.held_out import explained, plain_columns, predicted
from dmliv.diagnostics.moment_test import MomentTest, moment_test
from dmliv.diagnostics.recommendations import unsupported_share
from dmliv.diagnostics.strength import (
    WEAK_F,
    InstrumentStrength,
    MovedAction,
    moved_action,
    strength_of,
)
from dmliv.first_stage.crossfit import FirstStage
from dmliv.nets.device import single_thread
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.score import nuisance_losses
from dmliv.second_stage.structural import StructuralModel

# Thresholds; docs/results/diagnostics.md shows how often each warns where it should and where it should not.
MOMENT_LEVEL = 0.05
WEAK_CONTEXTS = 0.25
UNSUPPORTED = 0.1
BALANCED = 0.02
FOLD_SPREAD = 4.0


def diagnose(
    data: TrainingData, first_stage: FirstStage, model: StructuralModel, *, seed: int, runtime: Runtime
) -> Diagnostics:
    """Say how far a fit can be trusted: strength, first stage, moment restriction, support and balance.

    Nothing of the fit is trained again; small models predict action, outcome and instrument on held-out rows,
    at most 5000 of them.

    Parameters
    ----------
    data : TrainingData
        The rows of the fit.
    first_stage : FirstStage
    model : StructuralModel
        h in model units.
    seed : int
        Draws rows and folds; the same seed gives the same numbers.
    runtime : Runtime

    Returns
    -------
    Diagnostics
    """
    with single_thread():
        moved = moved_action(data, seed=seed, progress=runtime.progress)
        with runtime.progress.stage("diagnostics", 4) as advance:
            strength = strength_of(data, moved)
            cells = strength_by_context(data, moved)
            advance()
            context = plain_columns(data.context_schema, data.context)[moved.rows]
            instrument = plain_columns(data.instrument_schema, data.instrument)[moved.rows]
            outcome = data.outcome[moved.rows][:, None]
            from_context = predicted(context, outcome, moved.weight, seed)
            from_both = predicted(np.hstack([context, instrument]), outcome, moved.weight, seed)
            outcome_gain = explained(outcome, from_both, moved.weight)
            outcome_gain -= explained(outcome, from_context, moved.weight)
            balance = _balance(context, instrument, moved, seed)
            advance()
            tested = moment_test(data, model, moved, from_context)
            advance()
            unsupported = unsupported_share(data, first_stage, model, seed=seed)
            advance()
        worst = worst_fold(data, first_stage)
        losses = nuisance_losses(data, first_stage)
    cross_fitted = int(first_stage.fold.max()) > 0
    findings = (
        *_strength_findings(strength, weak_share(cells)),
        *_fit_findings(losses, strength, outcome_gain, cross_fitted=cross_fitted),
        _moment_finding(tested),
        _finding(
            "unsupported",
            "Best actions outside the support",
            unsupported,
            UNSUPPORTED,
            "Share of contexts whose best action, among those that span the data, is hardly ever taken in "
            "such contexts.",
            "there h is a guess; offer fewer actions, or pass min_support to policy.",
            warned=unsupported > UNSUPPORTED,
        ),
        _finding(
            "balance",
            "Instrument from context, R2",
            balance,
            BALANCED,
            "How well the context predicts the instrument on held-out rows: above the threshold the "
            "instrument is as good as random only given the context, which has to stay in the model; no "
            "defect.",
            verdict="note" if balance > BALANCED else "fine",
        ),
        _finding(
            "fold_spread",
            "Worst fold, standard errors",
            worst,
            FOLD_SPREAD,
            "By how many standard errors the held-out loss of the worst fold exceeds that of the others.",
            "part of the rows follows other distributions, or a few rows are far off; look at folds_frame().",
            warned=worst > FOLD_SPREAD,
        ),
    )
    return Diagnostics(findings, strength, cells, fold_losses(data, first_stage), moved.n_rows)


def _balance(context: FloatArray, instrument: FloatArray, moved: MovedAction, seed: int) -> float:
    """Return the held-out R2 of the instrument column that the context predicts best; 0 without a context."""
    if not context.shape[1]:
        return 0.0
    guessed = predicted(context, instrument, moved.weight, seed)
    return max(
        explained(column[:, None], guess[:, None], moved.weight)
        for column, guess in zip(instrument.T, guessed.T, strict=True)
    )


def _strength_findings(strength: InstrumentStrength, weak: float) -> tuple[Finding, ...]:
    return (
        _finding(
            "projected_f",
            "Instrument strength, F (nonlinear)",
            strength.projected_f,
            WEAK_F,
            "F statistic of what a simple model, lines or trees, predicts of the action from the instrument "
            "beyond the context, on held-out rows.",
            "the instrument hardly moves the action, and h rests on its smoothness; find a stronger "
            "instrument or more rows.",
            warned=strength.is_weak,
        ),
        _finding(
            "effective_f",
            "Instrument strength, effective F (linear)",
            strength.effective_f,
            strength.critical_f,
            "Robust F statistic of Montiel Olea and Pflueger; below the threshold two-stage least squares "
            "may keep a tenth of its worst bias. It sees lines only: a low value with a high nonlinear F "
            "means that the instrument acts along curves or in some contexts.",
            verdict="note" if strength.effective_f < strength.critical_f else "fine",
        ),
        _finding(
            "partial_r2",
            "Share of the action the instrument explains",
            strength.partial_r2,
            math.nan,
            "Of what the context leaves open of the action, the share that the instrument explains on "
            "held-out rows.",
        ),
        _finding(
            "weak_contexts",
            "Rows in contexts with a weak instrument",
            weak,
            WEAK_CONTEXTS,
            "Share of rows in groups of contexts in which the instrument's F is below its threshold, for the "
            "column where it is largest; effects there are carried over from other contexts.",
            "do not rely on effects in these contexts alone; contexts_frame() names them.",
            warned=weak > WEAK_CONTEXTS,
        ),
    )


def _fit_findings(
    losses: dict[str, float],
    strength: InstrumentStrength,
    outcome_gain: float,
    *,
    cross_fitted: bool,
) -> tuple[Finding, ...]:
    where = "on rows the models have not seen" if cross_fitted else "in sample, because there is one fold"
    found = []
    if "action_r2" in losses:
        found.append(
            _finding(
                "action_r2",
                "Action distribution, R2",
                losses["action_r2"],
                math.nan,
                f"How much of the action the first stage's distribution predicts, {where}.",
            )
        )
    else:
        found.append(
            _finding(
                "action_nll",
                "Action distribution, negative log-likelihood",
                losses["action_nll"],
                math.nan,
                f"How well the first stage's distribution predicts the chosen level, {where}; 0 is perfect.",
            )
        )
    found.append(
        _finding(
            "action_gain",
            "Gain of the instrument for the action, R2",
            strength.full_r2 - strength.context_r2,
            math.nan,
            "By how much the held-out R2 of the action grows when the instrument joins the context, with the "
            "same simple models.",
        )
    )
    if "outcome_r2" in losses:
        found.append(
            _finding(
                "outcome_r2",
                "Outcome model, R2",
                losses["outcome_r2"],
                0.0,
                f"How much of the outcome context and instrument predict, {where}.",
                "context and instrument predict the outcome no better than its mean; there is nothing to "
                "learn h from.",
                warned=losses["outcome_r2"] <= 0.0,
            )
        )
    found.append(
        _finding(
            "outcome_gain",
            "Gain of the instrument for the outcome, R2",
            outcome_gain,
            math.nan,
            "By how much the held-out R2 of the outcome grows when the instrument joins the context: near "
            "zero either the action has no effect or the instrument is weak.",
        )
    )
    return tuple(found)


def _moment_finding(tested: MomentTest) -> Finding:
    meaning = (
        "Chance of residuals this related to the instrument if it acts through the action only and h is "
        "right; 5 % of good fits fall below the threshold. "
    )
    if tested.freedom == 0:
        meaning += "With this instrument no such relation could be told from an effect of the action."
    else:
        meaning += (
            "A direct effect of the instrument that some h could explain away is invisible to any test, as "
            "always with one instrument for one action."
        )
    return _finding(
        "moment_test",
        "Moment test, p value",
        tested.p_value,
        MOMENT_LEVEL,
        meaning,
        "the instrument reaches the outcome by another way, or h is too simple; try other instruments or "
        "more flexible learners.",
        warned=tested.p_value < MOMENT_LEVEL,
        verdict="not testable" if tested.freedom == 0 else None,
    )


def _finding(
    key: str,
    name: str,
    value: float,
    threshold: float,
    meaning: str,
    advice: str = "",
    *,
    warned: bool = False,
    verdict: Verdict | None = None,
) -> Finding:
    if verdict is None:
        verdict = "warning" if warned else "fine"
    if math.isnan(value) and verdict == "fine":
        verdict = "not testable"
    return Finding(
        key, name, float(value), float(threshold), verdict, meaning, advice if verdict == "warning" else ""
    )
