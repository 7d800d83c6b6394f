"""Bootstrap replicates of the first stage: the folds of many resampled data sets, networks as one stack.

A replicate is a number of copies for every row, and folds of its own. Folds are drawn for rows, not for
copies, so that no model is used on a row of which it saw a copy. Encodings, learning rates and budgets are
those of the fit that is replicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

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
from dmliv.first_stage.nuisances import Exogenous, FittedPilot, FloatArray, IntArray
from dmliv.first_stage.stacks import FittedStack, StackFitter, group_generator
from dmliv.nets.heads import Head
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.runtime import Runtime

# Rows outside a fold that differ from each other: one to learn from, one to stop by.
_FEWEST_ROWS = 2
# Networks that are trained at once: more are no faster, and need more memory.
_STACK_SIZE = 100


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


@runtime_checkable
class ResamplingNuisance(Protocol):
    """A nuisance learner that fits the folds of many resampled data sets at once.

    Encodings and other choices are those of an earlier fit. A learner without these methods is fitted anew
    for every replicate.
    """

    def fit_again(
        self, data: TrainingData, first_stage: FirstStage, resamples: Sequence[Resample], *, runtime: Runtime
    ) -> Any:
        """Return the model of all folds of all resamples: fold k of resample r is member r * K + k."""
        ...

    def most_replicates(self, first_stage: FirstStage) -> int:
        """Return how many replicates are worth fitting at once."""
        ...


@runtime_checkable
class ResamplingPilot(Protocol):
    """A pilot learner that keeps the choices and parameters of an earlier fit."""

    def fit_again(
        self,
        data: TrainingData,
        distribution: ActionDistribution,
        fold: IntArray,
        like: Any,
        *,
        seed: int,
        runtime: Runtime,
    ) -> FittedPilot:
        """Fit the pilot to the rows of ``like``, with other weights."""
        ...


def cross_fit_again(
    data: TrainingData,
    outcome_learner: ResamplingNuisance | None,
    action_learner: ResamplingNuisance,
    first_stage: FirstStage,
    resamples: Sequence[Resample],
    *,
    runtime: Runtime,
) -> list[FirstStage]:
    """Fit both nuisances to resampled rows, and fill each row by models that saw no copy of it.

    Parameters
    ----------
    data : TrainingData
    outcome_learner : ResamplingNuisance or None
        None leaves the observed outcome as target.
    action_learner : ResamplingNuisance
    first_stage : FirstStage
        What the learners left of all rows, in which everything was chosen.
    resamples : sequence of Resample
    runtime : Runtime

    Returns
    -------
    list of FirstStage
        One per resample: its target, distribution and folds, with the models of ``first_stage``.
    """
    exogenous, n_folds = Exogenous(data.context, data.instrument), len(first_stage.fold_members)
    used = [member.used_rows for resample in resamples for member in resample.plan()]
    targets = np.tile(data.outcome, (len(resamples), 1))
    if outcome_learner is not None:
        outcome_model = outcome_learner.fit_again(data, first_stage, resamples, runtime=runtime)
        for member, values in enumerate(outcome_model.predict(exogenous, used)):
            targets[member // n_folds, used[member]] = values
    action_model = action_learner.fit_again(data, first_stage, resamples, runtime=runtime)
    found = action_model.distributions(exogenous, used)
    indices = [torch.from_numpy(rows).to(runtime.device) for rows in used]
    distributions = [
        assemble(len(data), indices[start : start + n_folds], found[start : start + n_folds])
        for start in range(0, len(found), n_folds)
    ]
    return [
        replace(first_stage, target=target, distribution=distribution, fold=resample.fold, splits=())
        for target, distribution, resample in zip(targets, distributions, resamples, strict=True)
    ]


def most_stacked(n_networks: int) -> int:
    """Return how many replicates of so many networks are worth training as one stack."""
    return max(1, _STACK_SIZE // n_networks)


def fit_stack_again(
    data: TrainingData,
    target: FloatArray | IntArray,
    head: Head,
    settings: NetworkSettings,
    fitted: FittedStack,
    first_stage: FirstStage,
    resamples: Sequence[Resample],
    seeds: Sequence[int],
    label: str,
    runtime: Runtime,
) -> FittedStack:
    """Train the networks of all folds of all resamples as one stack, with the inputs of a fitted one.

    Parameters
    ----------
    data : TrainingData
    target : ndarray, shape (n,) or (n, d)
    head : Head
    settings : NetworkSettings
    fitted : FittedStack
    first_stage : FirstStage
        That the fitted stack is a part of.
    resamples : sequence of Resample
    seeds : sequence of int
        One per resample.
    label : str
        Of the progress bar.
    runtime : Runtime
    """
    members, plans = first_stage.fold_members, [resample.plan() for resample in resamples]
    sizes = np.bincount(first_stage.fold, minlength=len(members))
    n_rows = [len(data) - (size if len(sizes) > 1 else 0) for size in sizes.tolist()]
    fitter = StackFitter(data, target.astype(np.float32), head, settings, fitted.encoder, label, runtime)
    groups = []
    for number, group in enumerate(fitted.groups):
        folds = [fold for fold, member in enumerate(members) if member in group.members]
        if not folds:
            continue
        groups.append(
            fitter.fit_group_again(
                group,
                [replicate * len(members) + fold for replicate in range(len(plans)) for fold in folds],
                [[plan[fold].fit_rows for fold in folds] for plan in plans],
                [resample.counts for resample in resamples],
                max(n_rows[fold] for fold in folds),
                [group_generator(seed, number) for seed in seeds],
            )
        )
    return FittedStack(fitted.encoder, tuple(groups))
