"""All diagnostics of a two-stage fit: a pure function of data, first stage and h."""

from __future__ import annotations

from collections import Counter

import numpy as np

from dmliv.data import TrainingData
from dmliv.diagnostics.checks import (
    BALANCED,
    FOLD_SPREAD,
    MOMENT_LEVEL,
    UNSUPPORTED,
    WEAK_CONTEXTS,
    judge,
    loss_findings,
    moment_finding,
    pilot_findings,
    strength_findings,
)
from dmliv.diagnostics.contexts import weak_share
from dmliv.diagnostics.findings import Diagnostics, Finding
from dmliv.diagnostics.folds import fold_losses, worst_fold
from dmliv.diagnostics.held_out import explained
from dmliv.diagnostics.moment_test import moment_test
from dmliv.diagnostics.recommendations import unsupported_share
from dmliv.diagnostics.registry import DiagnosedFit, diagnostic, registered
from dmliv.errors import InputError, listed
from dmliv.first_stage.crossfit import FirstStage
from dmliv.nets.device import single_thread
from dmliv.parallel.runtime import Runtime
from dmliv.second_stage.score import nuisance_losses
from dmliv.second_stage.structural import StructuralModel

# The calibration of the thresholds reads them here.
__all__ = ["BALANCED", "FOLD_SPREAD", "MOMENT_LEVEL", "UNSUPPORTED", "WEAK_CONTEXTS", "diagnose"]


def diagnose(
    data: TrainingData, first_stage: FirstStage, model: StructuralModel, *, seed: int, runtime: Runtime
) -> Diagnostics:
    """Measure how far a fit can be trusted: instrument strength, first stage, moments, support and balance.

    The fit itself stays as it is; linear models and boosted trees predict action, outcome and instrument on
    held-out rows, at most 5000 of them. Functions decorated with ``diagnostic`` add their findings.

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

    Raises
    ------
    InputError
        If two findings have one key.
    """
    fit = DiagnosedFit(data, first_stage, model, seed, runtime)
    findings: list[Finding] = []
    with single_thread():
        _ = fit.held_out  # shows progress of its own
        functions = registered()
        with runtime.progress.stage("diagnostics", len(functions)) as advance:
            for function in functions:
                found = function(fit)
                findings += [found] if isinstance(found, Finding) else found
                advance()
    twice = [key for key, count in Counter(finding.key for finding in findings).items() if count > 1]
    if twice:
        raise InputError(
            f"Expected one finding for each key, got several for {listed(twice)}; give the findings of your "
            "diagnostics keys of their own."
        )
    return Diagnostics(
        tuple(findings), fit.strength, fit.cells, fold_losses(data, first_stage), fit.held_out.n_rows
    )


@diagnostic
def _strength(fit: DiagnosedFit) -> list[Finding]:
    *of_strength, _ = strength_findings(fit.strength)
    return [*of_strength, judge("weak_contexts", weak_share(fit.cells))]


@diagnostic
def _first_stage(fit: DiagnosedFit) -> list[Finding]:
    losses = nuisance_losses(fit.data, fit.first_stage)
    findings = {
        finding.key: finding
        for finding in loss_findings(losses, cross_fitted=int(fit.first_stage.fold.max()) > 0)
    }
    *_, action_gain = strength_findings(fit.strength)
    found = [findings["action_r2" if "action_r2" in findings else "action_nll"], action_gain]
    if "outcome_r2" in findings:
        found.append(findings["outcome_r2"])
    return found


@diagnostic
def _outcome_gain(fit: DiagnosedFit) -> Finding:
    """Say by how much the instrument improves simple predictions of the outcome."""
    from_both = fit.predict(np.hstack([fit.context, fit.instrument]), fit.outcome)
    gain = explained(fit.outcome, from_both, fit.held_out.weight)
    return judge("outcome_gain", gain - explained(fit.outcome, fit.outcome_from_context, fit.held_out.weight))


@diagnostic
def _moments(fit: DiagnosedFit) -> Finding:
    return moment_finding(moment_test(fit.data, fit.model, fit.held_out, fit.outcome_from_context))


@diagnostic
def _support(fit: DiagnosedFit) -> Finding:
    return judge("unsupported", unsupported_share(fit.data, fit.first_stage, fit.model, seed=fit.seed))


@diagnostic
def _balance(fit: DiagnosedFit) -> Finding:
    """Give the held-out R2 of the instrument column that the context predicts best; 0 without a context."""
    best = 0.0
    if fit.context.shape[1]:
        predictions = fit.predict(fit.context, fit.instrument)
        best = max(
            explained(column[:, None], prediction[:, None], fit.held_out.weight)
            for column, prediction in zip(fit.instrument.T, predictions.T, strict=True)
        )
    return judge("balance", best)


@diagnostic
def _folds(fit: DiagnosedFit) -> Finding:
    return judge("fold_spread", worst_fold(fit.data, fit.first_stage))


@diagnostic
def _pilot(fit: DiagnosedFit) -> tuple[Finding, ...]:
    return pilot_findings(fit.model)
