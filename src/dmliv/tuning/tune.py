"""Tuning: the action model, the outcome model, and then h, each by its own held-out loss."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from dmliv.data import FloatArray, TrainingData, prepare
from dmliv.errors import InputError, check_number, check_whole
from dmliv.first_stage.crossfit import FirstStage, cross_fit
from dmliv.learners import Learners, neural
from dmliv.nets.device import resolve_device, single_thread
from dmliv.parallel.runtime import Runtime
from dmliv.parallel.workers import worker_count
from dmliv.progress import SilentProgress, progress_for
from dmliv.tuning.losses import action_losses, outcome_losses, structural_losses
from dmliv.tuning.result import TuningResult, TuningTrial
from dmliv.tuning.space import ROLES, SearchSpace, role_space

_FEWEST_ROWS = 40
# By then, as a share of the time, the search of a role has to end; h is the slowest to fit.
_TIME_SHARES = {"outcome": 0.25, "action": 0.5, "structural": 1.0}


def tune(
    estimator: Any,
    Y: object,
    T: object,
    *,
    Z: object,
    X: object = None,
    W: object = None,
    sample_weight: object = None,
    space: SearchSpace | None = None,
    n_trials: int = 20,
    budget_minutes: float | None = None,
    storage: str | os.PathLike[str] | None = None,
    validation_fraction: float = 0.3,
    max_rows: int = 20_000,
    margin: float = 1.0,
    refit: bool = False,
) -> TuningResult:
    """Choose learners and settings, and set the estimator's ``learners`` to them.

    A share of the rows is set aside. On the other rows the outcome model is chosen by out-of-fold squared
    error and the action model by out-of-fold likelihood, each on its own. With the chosen ones h is then
    fitted on these rows, and chosen by the squared difference of the outcome and the projection of h on the
    rows set aside, which neither h nor its nuisances saw. The estimator's own learners come first in every
    role, and stay unless a candidate is clearly better.

    Parameters
    ----------
    estimator : DMLIV, CEDMLIV or DeepIV
        Its ``random_state`` fixes splits, fits and the search.
    Y, T, Z, X, W, sample_weight
        As in ``fit``.
    space : SearchSpace, optional
        Families of learners and ranges of their settings.
    n_trials : int
        Trials of each role, those found in the storage included.
    budget_minutes : float, optional
        No trial starts later than this, except the first of each role. A trial that has started is finished.
        How many fit in depends on the machine, and so may the result.
    storage : str or path, optional
        File that trials are kept in; a later call with the same data, learners, space and ``random_state``
        goes on where it ended. A name that ends in ``.db`` or ``.sqlite`` is a database, any other a journal.
    validation_fraction : float
        Share of the rows set aside for h.
    max_rows : int
        Rows that tuning looks at, at most; the estimator's ``fit`` uses all.
    margin : float
        Standard errors by which a candidate must be better than the estimator's own learner.
    refit : bool
        Whether to fit the estimator on all rows with what was chosen.

    Returns
    -------
    TuningResult

    Raises
    ------
    InputError
        If data or arguments cannot be used, or the storage belongs to another search.
    ImportError
        If the package optuna is not installed.
    """
    try:
        from dmliv.tuning.study import open_storage, quiet  # noqa: PLC0415 - optuna is an optional package
    except ModuleNotFoundError as error:
        raise ImportError("Expected the package optuna for tuning, got none; install dmliv[tune].") from error
    _check_numbers(n_trials, budget_minutes, validation_fraction, max_rows, margin)
    own = _own_learners(estimator)
    n_folds = int(estimator.n_folds)
    data = prepare(
        Y,
        T,
        Z=Z,
        X=X,
        W=W,
        sample_weight=sample_weight,
        action_kind=estimator.action_kind,
        min_rows=max(_FEWEST_ROWS, math.ceil(2 * n_folds / (1.0 - validation_fraction))),
    ).with_positive_weight(_FEWEST_ROWS)
    runtime = Runtime(
        resolve_device(estimator.device),
        progress_for(estimator.verbose),
        worker_count(estimator.n_jobs),
    )
    with quiet(), single_thread():
        search = _Search(
            data,
            own,
            SearchSpace() if space is None else space,
            n_folds,
            estimator._target == "orthogonal",
            open_storage(storage),
            estimator.random_state,
            runtime,
        )
        result = search.run(n_trials, budget_minutes, validation_fraction, max_rows, margin)
    estimator.set_params(learners=result.learners)
    if refit:
        estimator.fit(Y, T, Z=Z, X=X, W=W, sample_weight=sample_weight)
    return result


@dataclass(frozen=True)
class _Search:
    """One search: what does not change from role to role."""

    data: TrainingData
    own: Learners
    space: SearchSpace
    n_folds: int
    orthogonal: bool
    storage: Any
    random_state: Any
    runtime: Runtime

    def run(
        self,
        n_trials: int,
        budget_minutes: float | None,
        validation_fraction: float,
        max_rows: int,
        margin: float,
    ) -> TuningResult:
        """Search the roles in turn."""
        from dmliv.tuning.study import Limits, RoleStudy, fingerprint, stored_seed  # noqa: PLC0415

        start = time.monotonic()
        seed = stored_seed(self.storage) if self.random_state is None else None
        if seed is None:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        split_seed, fit_seed = (int(state) for state in np.random.SeedSequence(seed).generate_state(2))
        order = np.random.default_rng(split_seed).permutation(len(self.data))[:max_rows]
        n_validation = max(1, round(validation_fraction * len(order)))
        validation, fitting = (
            self.data.take(np.sort(order[:n_validation])),
            self.data.take(np.sort(order[n_validation:])),
        )
        parts = (*_arrays(validation), *_arrays(fitting), self.own, self.space, self.n_folds, seed)
        silent = replace(self.runtime, progress=SilentProgress())
        chosen = self.own
        trials: list[TuningTrial] = []
        for role in ROLES:
            if role == "outcome" and not self.orthogonal:
                continue
            rows = validation if role == "structural" else fitting
            described = (*parts, chosen) if role == "structural" else parts
            study = RoleStudy.open(
                role,
                role_space(self.space, self.own, role),
                self.storage,
                fingerprint(*described),
                seed,
                rows.weight,
            )
            share = None if budget_minutes is None else _TIME_SHARES[role] * 60.0 * budget_minutes
            limits = Limits(n_trials, None if share is None else start + share)
            losses_of = self._losses_of(role, fitting, validation, chosen, fit_seed, silent)
            study.run(losses_of, limits, self.runtime.progress)
            found = study.trials(margin)
            trials.extend(found)
            best = next(trial for trial in found if trial.chosen)
            chosen = replace(chosen, **{role: study.space.learner(best.family, best.settings)})
        return TuningResult(chosen, tuple(trials))

    def _losses_of(
        self,
        role: str,
        fitting: TrainingData,
        validation: TrainingData,
        chosen: Learners,
        seed: int,
        runtime: Runtime,
    ) -> Callable[[Any], FloatArray]:
        """Return held-out losses of a learner in a role; all learners meet the same splits and seeds."""
        if role == "outcome":
            return lambda learner: outcome_losses(learner, fitting, seed=seed, runtime=runtime)
        if role == "action":
            return lambda learner: action_losses(learner, fitting, seed=seed, runtime=runtime)
        first_stage: list[FirstStage] = []

        def losses_of(learner: Any) -> FloatArray:
            # Fitted once, and only if there are trials left.
            if not first_stage:
                first_stage.append(
                    cross_fit(
                        fitting,
                        chosen.outcome if self.orthogonal else None,
                        chosen.action,
                        self.n_folds,
                        seed=seed,
                        runtime=self.runtime,
                        validates=True,
                    )
                )
            return structural_losses(learner, fitting, first_stage[0], validation, seed=seed, runtime=runtime)

        return losses_of


def _own_learners(estimator: Any) -> Learners:
    if not hasattr(estimator, "_target") or not hasattr(estimator, "learners"):
        raise InputError(
            f"Expected an estimator with learners to tune, got {type(estimator).__name__}; pass DMLIV, "
            "CEDMLIV or DeepIV."
        )
    check_whole(n_folds=estimator.n_folds)
    if estimator.learners is None:
        return neural()
    if not isinstance(estimator.learners, Learners):
        raise InputError(f"Expected learners such as neural() or None, got {estimator.learners!r}.")
    return estimator.learners


def _check_numbers(
    n_trials: int, budget_minutes: float | None, validation_fraction: float, max_rows: int, margin: float
) -> None:
    check_whole(n_trials=n_trials)
    if budget_minutes is not None:
        check_number(least=0.0, budget_minutes=budget_minutes)
    check_number(above=0.0, below=1.0, validation_fraction=validation_fraction)
    check_whole(least=_FEWEST_ROWS, max_rows=max_rows)
    check_number(least=0.0, margin=margin)


def _arrays(data: TrainingData) -> tuple[Any, ...]:
    tables = [part for table in (data.context, data.instrument) for part in (table.numeric, table.codes)]
    return (data.outcome, data.action, data.weight, *tables)
