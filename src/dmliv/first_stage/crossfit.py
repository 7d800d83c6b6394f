"""Cross-fitting: folds in, rows filled with predictions of models that never saw them out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from joblib import Parallel, delayed

from dmliv.data import TrainingData
from dmliv.first_stage.base import (
    ActionLearner,
    ActionModel,
    Exogenous,
    FloatArray,
    IntArray,
    OutcomeLearner,
    OutcomeModel,
    Runtime,
)
from dmliv.first_stage.laws import ActionLaw, assemble

# Choices in the second stage are judged on about this many rows, taken from as few folds as that needs.
_JUDGING_ROWS = 500
_UNSPLIT_JUDGING_SHARE = 0.2


@dataclass(frozen=True)
class JudgedSplit:
    """Nuisances that never saw ``judging_rows``: on these rows, second-stage choices are judged fairly.

    Attributes
    ----------
    fit_rows, judging_rows : ndarray of int
    target : ndarray, shape (n,)
        Outcome model of this split at every row (the observed outcome for a plug-in target).
    law : ActionLaw
        Action law of this split at every row.
    """

    fit_rows: IntArray
    judging_rows: IntArray
    target: FloatArray
    law: ActionLaw


@dataclass(frozen=True)
class FirstStage:
    """What the second stage needs of the first, and the models it came from.

    Attributes
    ----------
    target : ndarray, shape (n,)
        Second-stage target of every row, in standardised units.
    law : ActionLaw
        Action law of every row.
    fold : ndarray of int, shape (n,)
    splits : tuple of JudgedSplit
    outcome_model : OutcomeModel or None
        None when the target is the observed outcome.
    action_model : ActionModel
    n_folds : int
    n_members : int
        Models of each nuisance: one per fold, and more when settings were judged without folds.
    """

    target: FloatArray
    law: ActionLaw
    fold: IntArray
    splits: tuple[JudgedSplit, ...]
    outcome_model: OutcomeModel | None
    action_model: ActionModel
    n_folds: int
    n_members: int


def make_folds(n_rows: int, n_folds: int, generator: np.random.Generator) -> IntArray:
    """Return a random fold number for every row; sizes differ by at most one."""
    return generator.permutation(np.arange(n_rows) % n_folds).astype(np.int64)


def cross_fit(
    data: TrainingData,
    outcome_learner: OutcomeLearner | None,
    action_learner: ActionLearner,
    n_folds: int,
    *,
    seed: int,
    runtime: Runtime,
    judged: bool,
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
    judged : bool
        Whether the second stage has something to choose and needs fair splits for it.

    Returns
    -------
    FirstStage
    """
    n_rows = len(data)
    fold_seed, outcome_seed, action_seed = np.random.SeedSequence(seed).generate_state(3)
    generator = np.random.default_rng(fold_seed)
    fold = make_folds(n_rows, n_folds, generator)
    everything = np.arange(n_rows)
    if n_folds == 1:
        row_sets, used_rows = [everything], [everything]
        judging_sets = _unsplit_judging_sets(n_rows, generator) if judged else []
        row_sets = row_sets + [np.setdiff1d(everything, rows) for rows in judging_sets]
        judge_members = list(range(1, 1 + len(judging_sets)))
    else:
        row_sets = [np.flatnonzero(fold != k) for k in range(n_folds)]
        used_rows = [np.flatnonzero(fold == k) for k in range(n_folds)]
        n_judges = min(n_folds, math.ceil(_JUDGING_ROWS * n_folds / n_rows)) if judged else 0
        judge_members = list(range(n_judges))
        judging_sets = used_rows[:n_judges]

    def fit_outcome() -> OutcomeModel | None:
        if outcome_learner is None:
            return None
        return outcome_learner.fit(data, row_sets, seed=int(outcome_seed), runtime=runtime)

    def fit_action() -> ActionModel:
        return action_learner.fit(data, row_sets, seed=int(action_seed), runtime=runtime)

    # Threads, because both fits spend their time inside torch or inside joblib's own workers.
    outcome_model, action_model = Parallel(n_jobs=min(2, runtime.n_jobs), backend="threading")(
        [delayed(fit_outcome)(), delayed(fit_action)()]
    )
    exogenous = Exogenous(data.context, data.instrument)
    target, law = _fill(data, exogenous, outcome_model, action_model, used_rows, len(row_sets), runtime)
    splits = _judged_splits(
        data, exogenous, outcome_model, action_model, judge_members, judging_sets, len(row_sets)
    )
    return FirstStage(target, law, fold, tuple(splits), outcome_model, action_model, n_folds, len(row_sets))


def _unsplit_judging_sets(n_rows: int, generator: np.random.Generator) -> list[IntArray]:
    size = max(1, round(_UNSPLIT_JUDGING_SHARE * n_rows))
    n_sets = min(math.ceil(_JUDGING_ROWS / size), int(1.0 / _UNSPLIT_JUDGING_SHARE))
    order = generator.permutation(n_rows)
    return [np.sort(order[index * size : (index + 1) * size]) for index in range(n_sets)]


def _for_members(wanted: dict[int, IntArray], n_members: int) -> list[IntArray]:
    return [wanted.get(member, np.empty(0, dtype=np.int64)) for member in range(n_members)]


def _fill(
    data: TrainingData,
    exogenous: Exogenous,
    outcome_model: OutcomeModel | None,
    action_model: ActionModel,
    used_rows: Sequence[IntArray],
    n_members: int,
    runtime: Runtime,
) -> tuple[FloatArray, ActionLaw]:
    wanted = _for_members(dict(enumerate(used_rows)), n_members)
    target = data.outcome.copy()
    if outcome_model is not None:
        for rows, values in zip(wanted, outcome_model.predict(exogenous, wanted), strict=True):
            target[rows] = values
    laws = action_model.laws(exogenous, wanted)[: len(used_rows)]
    indices = [torch.from_numpy(rows).to(runtime.device) for rows in used_rows]
    return target, assemble(len(data), indices, laws)


def _judged_splits(
    data: TrainingData,
    exogenous: Exogenous,
    outcome_model: OutcomeModel | None,
    action_model: ActionModel,
    members: Sequence[int],
    judging_sets: Sequence[IntArray],
    n_members: int,
) -> list[JudgedSplit]:
    if not members:
        return []
    everything = np.arange(len(data))
    wanted = _for_members(dict.fromkeys(members, everything), n_members)
    laws = action_model.laws(exogenous, wanted)
    targets = (
        [data.outcome] * n_members if outcome_model is None else outcome_model.predict(exogenous, wanted)
    )
    return [
        JudgedSplit(np.setdiff1d(everything, rows), rows, targets[member], laws[member])
        for member, rows in zip(members, judging_sets, strict=True)
    ]
