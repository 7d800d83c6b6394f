"""The tasks of the suite: how estimators are judged on its problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dmliv.benchmark.oracle import rows_for
from dmliv.benchmark.trials import Metrics
from dmliv.data import IVData
from dmliv.policy.value import policy_value
from dmliv.problems.suite import (
    ORDINARY_REPORTED_ONLY,
    ORDINARY_SHARES,
    ORDINARY_TUNED_ON,
    REPORTED_ONLY,
    TUNED_ON,
    VIOLATIONS,
    SuiteProblem,
    with_instrument_share,
)

# Contexts for policies have a seed of their own, far from those of training samples.
_CONTEXT_SEED = 1_000_001


@dataclass(frozen=True)
class SuiteTask:
    """A problem of the suite: error at its test points, and the reward of the policy.

    Parameters
    ----------
    problem : SuiteProblem
    n_contexts : int
        Contexts that policies are judged on.
    """

    problem: SuiteProblem
    n_contexts: int = 1000

    @property
    def name(self) -> str:
        """Name of the problem."""
        return self.problem.name

    @property
    def label(self) -> str:
        """Name of the problem."""
        return self.problem.name

    def sample(self, rows: int, seed: int) -> IVData:
        """Draw training rows."""
        return self.problem.sample(rows, seed=seed)

    def judge(self, estimator: Any, data: IVData, seed: int) -> Metrics:
        """Fit, then measure the error and the policy."""
        problem = self.problem
        rows = rows_for(estimator, problem, data, seed)
        estimator.fit(rows.Y, rows.T, Z=rows.Z, X=rows.X)
        X, T, truth = problem.test_set()
        error = float(np.mean((estimator.predict(T, X) - truth) ** 2))
        contexts = problem.contexts(self.n_contexts, seed=_CONTEXT_SEED)
        reward = policy_value(estimator.policy(problem.candidates()), problem, contexts)
        optimum = problem.optimal_value(contexts)
        return {
            "mse": error,
            "relative_mse": error / float(truth.var()),
            "reward": reward,
            "optimum": optimum,
            "suboptimality": optimum - reward,
        }

    def note(self) -> str:
        """Return how errors and rewards are measured."""
        return (
            "Errors at 2000 points, contexts as in the data and actions uniform between the 5 and 95 percent "
            f"quantiles of the data or on the levels; rewards: {self.n_contexts} contexts, true mean outcome "
            "of the actions chosen from a grid on that range or from the levels."
        )


@dataclass(frozen=True)
class OrdinaryTask(SuiteTask):
    """A problem of the suite whose instrument explains a known share of the action.

    Parameters
    ----------
    problem : SuiteProblem
        With the strength that belongs to the share.
    n_contexts : int
        Contexts that policies are judged on.
    share : float
        What the instrument explains of the action, beyond the context.
    """

    share: float = 0.1

    @property
    def label(self) -> str:
        """Name of the problem, and the share."""
        return f"{self.problem.name}, {100.0 * self.share:g} %"


def suite_tasks() -> tuple[SuiteTask, ...]:
    """Return the tasks of all problems, those that settings may be chosen on first."""
    return tuple(SuiteTask(problem) for problem in (*TUNED_ON, *REPORTED_ONLY))


def ordinary_tasks() -> tuple[OrdinaryTask, ...]:
    """Return problems with instruments of ordinary strength, those that settings may be chosen on first."""
    return tuple(
        OrdinaryTask(with_instrument_share(problem, share), share=share)
        for problem in (*ORDINARY_TUNED_ON, *ORDINARY_REPORTED_ONLY)
        for share in ORDINARY_SHARES
    )


def violation_tasks() -> tuple[SuiteTask, ...]:
    """Return the problems without a control function, those that settings may be chosen on first."""
    return tuple(SuiteTask(problem) for problem in VIOLATIONS.values())
