"""Cross-fitting: folds in, rows filled with predictions of models that never saw them out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed

from dmliv.data import TrainingData
from dmliv.data.savable import savable
from dmliv.errors import InputError
from dmliv.first_stage.distributions import ActionDistribution, assemble
from dmliv.first_stage.nuisances import (
    ActionLearner,
    ActionModel,
    Exogenous,
    FittedPilot,
    FloatArray,
    IntArray,
    OutcomeLearner,
    OutcomeModel,
    PilotLearner,
)
from dmliv.parallel.runtime import Runtime
from dmliv.parallel.workers import on_cluster

#: Logarithm of the Bayes factor from which on the moments contradict a pilot: odds of twenty to one.
LEAST_EVIDENCE = 3.0


@dataclass(frozen=True)
class ValidationSplit:
    """Nuisances that were not fitted on ``validation_rows``, where second-stage settings are compared.

    Attributes
    ----------
    fit_rows, validation_rows : ndarray of int
    target : ndarray, shape (n,)
        Outcome model of this split at every row (the observed outcome for a plug-in target).
    distribution : ActionDistribution
        Action distribution of this split at every row.
    """

    fit_rows: IntArray
    validation_rows: IntArray
    target: FloatArray
    distribution: ActionDistribution


@savable(renamed={"law": "distribution"}, left_out={"splits": (), "pilot": None})
@dataclass(frozen=True)
class FirstStage:
    """What the second stage needs of the first, and the models it came from.

    Attributes
    ----------
    target : ndarray, shape (n,)
        Second-stage target of every row, in standardised units.
    distribution : ActionDistribution
        Action distribution of every row.
    fold : ndarray of int, shape (n,)
    splits : tuple of ValidationSplit
    outcome_model : OutcomeModel or None
        None when the target is the observed outcome.
    action_model : ActionModel
    fold_members : tuple of int
        Positions of the fold models among all models of a nuisance; the others are for validation.
    n_members : int
        Number of all models of a nuisance.
    pilot : FittedPilot or None
        What was taken from the outcome before the outcome model was fitted: the target is that of the rest.
    pilot_mean : ndarray, shape (n,), or None
        Mean of the pilot over the action distribution of every row.
    pilot_evidence : dict of str to float
        How strongly the moments contradict the pilot, in logarithms of Bayes factors, by the size of the
        remainder; empty where that was not tested.
    """

    target: FloatArray
    distribution: ActionDistribution
    fold: IntArray
    splits: tuple[ValidationSplit, ...]
    outcome_model: OutcomeModel | None
    action_model: ActionModel
    fold_members: tuple[int, ...]
    n_members: int
    pilot: FittedPilot | None = None
    pilot_mean: FloatArray | None = None
    pilot_evidence: dict[str, float] = field(default_factory=dict)

    @property
    def pilot_stands(self) -> bool:
        """Whether the moments do not contradict the pilot, so that no remainder is learned."""
        return self.pilot is not None and max(self.pilot_evidence.values(), default=np.inf) < LEAST_EVIDENCE

    @property
    def outcome_mean(self) -> FloatArray:
        """Mean outcome of every row given context and instrument, shape (n,): target and pilot together."""
        return self.target if self.pilot_mean is None else self.target + self.pilot_mean

    def joined(self, rest: FirstStage) -> FirstStage:
        """Return the first stage of what the pilot leaves, with this pilot."""
        return replace(rest, pilot=self.pilot, pilot_mean=self.pilot_mean, pilot_evidence=self.pilot_evidence)

    def residual_rows(self, data: TrainingData) -> TrainingData:
        """Return the rows with the residual of the outcome after the pilot."""
        return data if self.pilot is None else replace(data, outcome=data.outcome - self.pilot.at(data))


def first_stage_at(first_stage: FirstStage, rows: IntArray) -> FirstStage:
    """Return what the first stage left for some rows (sorted), re-indexed from zero."""
    index = torch.from_numpy(rows)

    def split_at(split: ValidationSplit) -> ValidationSplit:
        return ValidationSplit(
            np.flatnonzero(np.isin(rows, split.fit_rows)),
            np.flatnonzero(np.isin(rows, split.validation_rows)),
            split.target[rows],
            split.distribution.take(index),
        )

    return replace(
        first_stage,
        target=first_stage.target[rows],
        distribution=first_stage.distribution.take(index),
        fold=first_stage.fold[rows],
        splits=tuple(split_at(split) for split in first_stage.splits),
        pilot=None,
        pilot_mean=None if first_stage.pilot_mean is None else first_stage.pilot_mean[rows],
    )


def make_folds(n_rows: int, n_folds: int, generator: np.random.Generator) -> IntArray:
    """Return a random fold number for every row; sizes differ by at most one."""
    return generator.permutation(np.arange(n_rows) % n_folds).astype(np.int64)


def cluster_folds(
    n_rows: int, n_folds: int, cluster: IntArray | None, generator: np.random.Generator
) -> IntArray:
    """Return a fold for every row, the same for all rows of a cluster."""
    if cluster is None:
        return make_folds(n_rows, n_folds, generator)
    labels, codes = np.unique(cluster, return_inverse=True)
    if len(labels) < 2 * n_folds:
        raise InputError(
            f"Expected at least {2 * n_folds} clusters for {n_folds} folds, got {len(labels)}; use fewer "
            "folds."
        )
    return make_folds(len(labels), n_folds, generator)[codes]


def nuisance_seeds(seed: int) -> tuple[int, int, int]:
    """Return the seeds of the folds, of the outcome model and of the action model."""
    folds, outcome, action = np.random.SeedSequence(seed).generate_state(3)
    return int(folds), int(outcome), int(action)


def cross_fit(
    data: TrainingData,
    outcome_learner: OutcomeLearner | None,
    action_learner: ActionLearner,
    n_folds: int,
    *,
    seed: int,
    runtime: Runtime,
    validates: bool,
    cluster: IntArray | None = None,
    pilot_learner: PilotLearner | None = None,
) -> FirstStage:
    """Fit both nuisances on the complement of every fold and fill each fold's rows with their predictions.

    Parameters
    ----------
    data : TrainingData
    outcome_learner : OutcomeLearner or None
        None uses the observed outcome as target (DeepIV).
    action_learner : ActionLearner
    n_folds : int
        One means no splitting: the models are fitted on all rows and used on the same rows.
    seed : int
    runtime : Runtime
    validates : bool
        Whether the second stage has something to choose and needs fair splits for it.
    cluster : ndarray of int, shape (n,), optional
        Rows of one number stay in one fold.
    pilot_learner : PilotLearner, optional
        Fitted after the action model; the outcome model then learns what the pilot leaves of the outcome.

    Returns
    -------
    FirstStage
    """
    fold_seed, outcome_seed, action_seed = nuisance_seeds(seed)
    fold = cluster_folds(len(data), n_folds, cluster, np.random.default_rng(fold_seed))
    two_parts = cluster_folds(len(data), 2, cluster, np.random.default_rng([fold_seed, 1]))
    plan = plan_members(fold, n_folds, validates, two_parts)
    row_sets = [member.fit_rows for member in plan]

    def fit_outcome(rows: TrainingData = data) -> OutcomeModel | None:
        if outcome_learner is None:
            return None
        return outcome_learner.fit(rows, row_sets, seed=outcome_seed, runtime=runtime)

    def fit_action() -> ActionModel:
        return action_learner.fit(data, row_sets, seed=action_seed, runtime=runtime)

    if pilot_learner is not None:
        action_model = fit_action()
        started = start_from_pilot(
            data, fold, plan, action_model, pilot_learner, seed=outcome_seed, runtime=runtime
        )
        if started.pilot_stands:
            return started
        left = started.residual_rows(data)
        return started.joined(fill_rows(left, fold, plan, fit_outcome(left), action_model, runtime))
    if on_cluster():
        # Each spreads over all workers; calls from threads would stay on this machine.
        fitted: list[Any] = [fit_outcome(), fit_action()]
    else:
        # Threads, because both fits spend their time inside torch or inside joblib's own workers.
        fitted = Parallel(n_jobs=min(2, runtime.n_jobs), backend="threading")(
            [delayed(fit_outcome)(), delayed(fit_action)()]
        )
    outcome_model: OutcomeModel | None = fitted[0]
    return fill_rows(data, fold, plan, outcome_model, fitted[1], runtime)


def start_from_pilot(
    data: TrainingData,
    fold: IntArray,
    plan: Sequence[MemberPlan],
    action_model: ActionModel,
    learner: PilotLearner,
    *,
    seed: int,
    runtime: Runtime,
) -> FirstStage:
    """Fit the pilot, and ask the moments whether there is anything left to learn.

    Parameters
    ----------
    data : TrainingData
    fold : ndarray of int, shape (n,)
    plan : sequence of MemberPlan
        In rows of ``data``.
    action_model : ActionModel
        Fitted, one member per plan.
    learner : PilotLearner
    seed : int
    runtime : Runtime

    Returns
    -------
    FirstStage
        Without an outcome model: where the pilot stands, its projection is the mean outcome, and the target
        of what is left is zero.
    """
    distribution = fill_distributions(data, plan, action_model, runtime)
    pilot = learner.fit(data, distribution, fold, seed=seed, runtime=runtime)
    evidence = pilot.evidence_against(data, distribution, seed=seed)
    filling = tuple(index for index, member in enumerate(plan) if member.fills)
    return FirstStage(
        np.zeros(len(data)),
        distribution,
        fold,
        (),
        None,
        action_model,
        filling,
        len(plan),
        pilot,
        pilot.project(data.context, distribution),
        evidence,
    )


def fill_distributions(
    data: TrainingData, plan: Sequence[MemberPlan], action_model: ActionModel, runtime: Runtime
) -> ActionDistribution:
    """Return the action distribution of every row by models that never saw it."""
    filling = [index for index, member in enumerate(plan) if member.fills]
    wanted = _for_members({index: plan[index].used_rows for index in filling}, len(plan))
    distributions = action_model.distributions(Exogenous(data.context, data.instrument), wanted)
    indices = [torch.from_numpy(wanted[index]).to(runtime.device) for index in filling]
    return assemble(len(data), indices, [distributions[index] for index in filling])


def fill_rows(
    data: TrainingData,
    fold: IntArray,
    plan: Sequence[MemberPlan],
    outcome_model: OutcomeModel | None,
    action_model: ActionModel,
    runtime: Runtime,
) -> FirstStage:
    """Fill every row with predictions of models that never saw it.

    Parameters
    ----------
    data : TrainingData
    fold : ndarray of int, shape (n,)
    plan : sequence of MemberPlan
        In rows of ``data``.
    outcome_model, action_model
        Fitted, one member per plan; no outcome model leaves the observed outcome as target.
    runtime : Runtime
    """
    exogenous = Exogenous(data.context, data.instrument)
    filling = [index for index, member in enumerate(plan) if member.fills]
    target = _fill_target(data, exogenous, outcome_model, plan, filling)
    distribution = fill_distributions(data, plan, action_model, runtime)
    splits = _validation_splits(data, exogenous, outcome_model, action_model, plan)
    return FirstStage(
        target, distribution, fold, splits, outcome_model, action_model, tuple(filling), len(plan)
    )


@savable
@dataclass(frozen=True)
class MemberPlan:
    """One model of each nuisance: the rows it learns from, and the rows it is used on.

    ``fills`` tells the model of a fold, which fills rows, from that of a validation split.
    """

    fit_rows: IntArray
    used_rows: IntArray
    fills: bool


def plan_members(fold: IntArray, n_folds: int, validates: bool, two_parts: IntArray) -> list[MemberPlan]:
    """Return one model per fold and, where settings are compared, one per validation split.

    There are two splits: one half of the data to fit on and the other to validate on, and the same in
    exchange. With folds the halves are unions of folds. The model fitted on the second half stands with the
    folds of the first, and the other way round, so that neighbours share rows to choose their inputs from.
    """
    everything = np.arange(len(fold))
    if n_folds == 1:
        first_half = two_parts == 0
        groups = [[MemberPlan(everything, everything, fills=True)], []]
    else:
        n_first = (n_folds + 1) // 2
        first_half = fold < n_first
        members = [
            MemberPlan(np.flatnonzero(fold != k), np.flatnonzero(fold == k), fills=True)
            for k in range(n_folds)
        ]
        groups = [members[:n_first], members[n_first:]]
    if validates:
        first, second = np.flatnonzero(first_half), np.flatnonzero(~first_half)
        groups[0].append(MemberPlan(second, first, fills=False))
        groups[1].append(MemberPlan(first, second, fills=False))
    return groups[0] + groups[1]


def _for_members(wanted: dict[int, IntArray], n_members: int) -> list[IntArray]:
    return [wanted.get(member, np.empty(0, dtype=np.int64)) for member in range(n_members)]


def _fill_target(
    data: TrainingData,
    exogenous: Exogenous,
    outcome_model: OutcomeModel | None,
    plan: Sequence[MemberPlan],
    filling: Sequence[int],
) -> FloatArray:
    wanted = _for_members({index: plan[index].used_rows for index in filling}, len(plan))
    target = data.outcome.copy()
    if outcome_model is not None:
        for rows, values in zip(wanted, outcome_model.predict(exogenous, wanted), strict=True):
            target[rows] = values
    return target


def _validation_splits(
    data: TrainingData,
    exogenous: Exogenous,
    outcome_model: OutcomeModel | None,
    action_model: ActionModel,
    plan: Sequence[MemberPlan],
) -> tuple[ValidationSplit, ...]:
    validating = [index for index, member in enumerate(plan) if not member.fills]
    if not validating:
        return ()
    everything = np.arange(len(data))
    wanted = _for_members(dict.fromkeys(validating, everything), len(plan))
    distributions = action_model.distributions(exogenous, wanted)
    targets = (
        [data.outcome] * len(plan) if outcome_model is None else outcome_model.predict(exogenous, wanted)
    )
    return tuple(
        ValidationSplit(plan[index].fit_rows, plan[index].used_rows, targets[index], distributions[index])
        for index in validating
    )
