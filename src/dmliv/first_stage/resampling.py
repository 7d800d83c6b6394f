"""Bootstrap replicates of neural nuisances: the folds of many resampled data sets as one stack.

A replicate is a number of copies for every row, and folds of its own. Folds are drawn for rows, not for
copies, so that no model is used on a row of which it saw a copy. Encodings, learning rates and budgets are
those of the fit that is replicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dmliv.data import TrainingData
from dmliv.first_stage.crossfit import (
    FirstStage,
    MemberPlan,
    cluster_folds,
    nuisance_seeds,
    plan_members,
)
from dmliv.first_stage.distributions import ActionDistribution, assemble
from dmliv.first_stage.networks import (
    NeuralAction,
    NeuralActionModel,
    NeuralOutcome,
    NeuralOutcomeModel,
)
from dmliv.first_stage.nuisances import ActionLearner, Exogenous, FloatArray, IntArray, OutcomeLearner
from dmliv.first_stage.stacks import FittedStack, StackFitter, side_generator
from dmliv.nets.heads import Head, MeanHead
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.runtime import Runtime

# Rows outside a fold that differ from each other: one to learn from, one to stop by.
_FEWEST_ROWS = 2


@dataclass(frozen=True, eq=False)
class Resample:
    """One resampled data set.

    Attributes
    ----------
    counts : ndarray of int, shape (n,)
        Copies of every row.
    fold : ndarray of int, shape (n,)
    n_folds : int
    outcome_seed, action_seed, structural_seed : int
    """

    counts: IntArray
    fold: IntArray
    n_folds: int
    outcome_seed: int
    action_seed: int
    structural_seed: int

    @classmethod
    def draw(cls, weight: FloatArray, cluster: IntArray | None, n_folds: int, seed: int) -> Resample:
        """Draw rows, or clusters, with replacement; the folds are those of a fit with this seed.

        Parameters
        ----------
        weight : ndarray, shape (n,)
            Rows of weight zero do not count, so they are left as they are.
        cluster : ndarray of int, shape (n,), optional
            Rows of one number are drawn together.
        n_folds : int
        seed : int
        """
        whole = cls.whole(len(weight), cluster, n_folds, seed)
        codes = np.arange(len(weight)) if cluster is None else np.unique(cluster, return_inverse=True)[1]
        units = np.unique(codes[weight > 0.0])
        generator = np.random.default_rng([seed, 1])
        least = min(_FEWEST_ROWS, whole.fewest_outside(weight))
        while True:
            drawn = np.bincount(generator.choice(units, len(units)), minlength=int(codes.max()) + 1)
            resample = replace(whole, counts=np.where(weight > 0.0, drawn[codes], 1))
            # With few clusters a draw may leave a fold without rows to learn from.
            if resample.fewest_outside(weight) >= least:
                return resample

    @classmethod
    def whole(cls, n_rows: int, cluster: IntArray | None, n_folds: int, seed: int) -> Resample:
        """Return every row once, with the folds and seeds of a fit with this seed."""
        first_seed, structural_seed = (int(each) for each in np.random.SeedSequence(seed).generate_state(2))
        fold_seed, outcome_seed, action_seed = nuisance_seeds(first_seed)
        fold = cluster_folds(n_rows, n_folds, cluster, np.random.default_rng(fold_seed))
        counts = np.ones(n_rows, dtype=np.int64)
        return cls(counts, fold, n_folds, outcome_seed, action_seed, structural_seed)

    def fewest_outside(self, weight: FloatArray) -> int:
        """Return how many rows of positive weight the model of a fold sees at least, copies not counted."""
        used = (self.counts > 0) & (weight > 0.0)
        inside = np.bincount(self.fold[used], minlength=self.n_folds)
        return int(used.sum() - (inside.max() if self.n_folds > 1 else 0))

    def plan(self) -> list[MemberPlan]:
        """Return one model of each nuisance per fold."""
        return plan_members(self.fold, self.n_folds, False, self.fold)


def can_stack(outcome: OutcomeLearner | None, action: ActionLearner) -> bool:
    """Return whether replicates of these nuisances can be trained as one stack."""
    return (outcome is None or isinstance(outcome, NeuralOutcome)) and isinstance(action, NeuralAction)


def cross_fit_again(
    data: TrainingData,
    outcome_learner: OutcomeLearner | None,
    action_learner: ActionLearner,
    first_stage: FirstStage,
    resamples: Sequence[Resample],
    *,
    runtime: Runtime,
) -> list[FirstStage]:
    """Fit both nuisances to resampled rows and fill every row with predictions that never saw a copy of it.

    Parameters
    ----------
    data : TrainingData
    outcome_learner : NeuralOutcome or None
        None leaves the observed outcome as target.
    action_learner : NeuralAction
    first_stage : FirstStage
        What the learners left of all rows, in which everything was chosen.
    resamples : sequence of Resample
    runtime : Runtime

    Returns
    -------
    list of FirstStage
        One per resample: its target, distribution and folds, with the models of ``first_stage``.
    """
    again = _Again(data, first_stage, resamples, runtime)
    targets = [data.outcome] * len(resamples)
    if isinstance(outcome_learner, NeuralOutcome):
        if not isinstance(first_stage.outcome_model, NeuralOutcomeModel):
            raise TypeError(f"Expected outcome networks, got {type(first_stage.outcome_model).__name__}.")
        targets = again.outcomes(outcome_learner, first_stage.outcome_model)
    if not isinstance(action_learner, NeuralAction) or not isinstance(
        first_stage.action_model, NeuralActionModel
    ):
        raise TypeError(f"Expected action networks, got {type(first_stage.action_model).__name__}.")
    distributions = again.distributions(action_learner, first_stage.action_model)
    return [
        replace(first_stage, target=target, distribution=distribution, fold=resample.fold, splits=())
        for target, distribution, resample in zip(targets, distributions, resamples, strict=True)
    ]


class _Again:
    """Trains nuisances on resampled rows and predicts with them."""

    def __init__(
        self, data: TrainingData, first_stage: FirstStage, resamples: Sequence[Resample], runtime: Runtime
    ) -> None:
        self._data, self._resamples, self._runtime = data, resamples, runtime
        self._members = first_stage.fold_members
        self._plans = [resample.plan() for resample in resamples]
        self._exogenous = Exogenous(data.context, data.instrument)
        self._used = [member.used_rows for plan in self._plans for member in plan]
        sizes = np.bincount(first_stage.fold, minlength=len(self._members))
        self._n_rows = [len(data) - (size if len(sizes) > 1 else 0) for size in sizes.tolist()]

    def outcomes(self, learner: NeuralOutcome, model: NeuralOutcomeModel) -> list[FloatArray]:
        """Return the target of every resample, shape (n,)."""
        target = self._data.outcome
        seeds = [resample.outcome_seed for resample in self._resamples]
        stack = self._stack(model.stack, target, MeanHead(), learner.settings, "outcome model", seeds)
        filled = np.empty((len(self._resamples), len(target)))
        for member, values in enumerate(NeuralOutcomeModel(stack).predict(self._exogenous, self._used)):
            filled[member // len(self._members), self._used[member]] = values
        return list(filled)

    def distributions(self, learner: NeuralAction, model: NeuralActionModel) -> list[ActionDistribution]:
        """Return the action distribution of every resample."""
        action, head = self._data.action, learner.head(self._data.action_spec)
        seeds = [resample.action_seed for resample in self._resamples]
        stack = self._stack(model.stack, action, head, learner.settings, "action model", seeds)
        found = NeuralActionModel(stack, head).distributions(self._exogenous, self._used)
        indices = [torch.from_numpy(rows).to(self._runtime.device) for rows in self._used]
        per = len(self._members)
        return [
            assemble(len(self._data), indices[start : start + per], found[start : start + per])
            for start in range(0, len(found), per)
        ]

    def _stack(
        self,
        fitted: FittedStack,
        target: FloatArray | IntArray,
        head: Head,
        settings: NetworkSettings,
        label: str,
        seeds: Sequence[int],
    ) -> FittedStack:
        """Return the models of all folds of all resamples: fold k of resample r is member r * K + k."""
        fitter = StackFitter(
            self._data,
            target.astype(np.float32),
            head,
            settings,
            fitted.encoder,
            f"{label}: replicates",
            self._runtime,
        )
        sides = []
        for number, side in enumerate(fitted.sides):
            folds = [fold for fold, member in enumerate(self._members) if member in side.members]
            if not folds:
                continue
            sides.append(
                fitter.fit_side_again(
                    side,
                    [
                        group * len(self._members) + fold
                        for group in range(len(self._plans))
                        for fold in folds
                    ],
                    [[plan[fold].fit_rows for fold in folds] for plan in self._plans],
                    [resample.counts for resample in self._resamples],
                    max(self._n_rows[fold] for fold in folds),
                    [side_generator(seed, number) for seed in seeds],
                )
            )
        return FittedStack(fitted.encoder, tuple(sides))
