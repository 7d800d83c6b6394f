"""Tasks: the benchmark problems, each with how estimators are judged on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sklearn.base import clone

from dmliv.benchmark.oracle import rows_for
from dmliv.benchmark.trials import Metrics
from dmliv.data import FloatArray, IVData
from dmliv.policy.value import policy_value
from dmliv.problems import IHDP, PMCMR, ImageDemand, TicketDemand
from dmliv.problems.replication import Replication

# Contexts and fresh draws for judging have seeds of their own, far from those of training samples.
_CONTEXT_SEED = 1_000_001
_FRESH_SEED = 12_345

# Rows of the training parts of the data sets with real contexts: all there are.
REAL_ROWS: Final = {"ihdp": 470, "pm-cmr": 1343}

# Ranges of the action by the suffix of their metrics: the published figures imply the wide one, the released
# code has the narrow one.
_WIDE = (-5.0, 5.0)
_NARROW = (-3.0, 3.0)


@dataclass(frozen=True)
class DemandTask:
    """Ticket demand, plain or with images: error on the grid and on fresh draws, and rewards.

    Parameters
    ----------
    problem : TicketDemand or ImageDemand
    n_contexts : int
        Contexts that policies are judged on.
    n_actions : int
        Equally spaced actions a policy chooses from, on [-5, 5] and on [-3, 3].
    n_fresh : int
        Fresh draws for the error inside the training distribution.
    """

    problem: TicketDemand | ImageDemand
    n_contexts: int = 2000
    n_actions: int = 201
    n_fresh: int = 10_000

    @property
    def name(self) -> str:
        """Name of the problem."""
        return "image-demand" if isinstance(self.problem, ImageDemand) else "demand"

    @property
    def label(self) -> str:
        """The strength of the instrument."""
        return f"strength {self.problem.instrument_strength:g}"

    def sample(self, rows: int, seed: int) -> IVData:
        """Draw training rows."""
        return self.problem.sample(rows, seed=seed)

    def judge(self, estimator: Any, data: IVData, seed: int) -> Metrics:
        """Fit, then measure errors and rewards."""
        problem = self.problem
        rows = rows_for(estimator, problem, data, seed)
        estimator.fit(rows.Y, rows.T, Z=rows.Z, X=rows.X)
        metrics = {
            "grid_mse": _error(estimator, *problem.test_set()),
            "iid_mse": _error(estimator, *problem.iid_test_set(self.n_fresh, seed=_FRESH_SEED)),
        }
        for distribution, shift in (("", 0.0), ("shifted_", 1.0)):
            contexts = problem.contexts(self.n_contexts, seed=_CONTEXT_SEED, shift=shift)
            for suffix, (low, high) in (("", _WIDE), ("_narrow", _NARROW)):
                policy = estimator.policy(np.linspace(low, high, self.n_actions))
                metrics[f"{distribution}reward{suffix}"] = policy_value(policy, problem, contexts)
                metrics[f"{distribution}optimum{suffix}"] = problem.optimal_value(contexts, low, high)
        return metrics

    def note(self) -> str:
        """Return how rewards are measured."""
        return (
            f"Rewards: {self.n_actions} equally spaced actions on [-5, 5] or [-3, 3], "
            f"{self.n_contexts} contexts, true mean outcome of the chosen actions; shifted: time in [1, 11]. "
            "The best policy on [0, 10] is a constant: the reward mostly tests the sign of a slope outside "
            "the support."
        )


@dataclass(frozen=True)
class RealTask:
    """IHDP or PM-CMR; the seed is the number of the replication.

    Parameters
    ----------
    problem : IHDP or PMCMR
    n_actions : int
        Equally spaced actions on [-3, 5] a policy chooses from.
    """

    problem: IHDP | PMCMR
    n_actions: int = 2000

    @property
    def name(self) -> str:
        """Name of the problem."""
        return "ihdp" if isinstance(self.problem, IHDP) else "pm-cmr"

    @property
    def label(self) -> str:
        """Name of the problem for people."""
        return "IHDP" if isinstance(self.problem, IHDP) else "PM-CMR"

    def sample(self, rows: int, seed: int) -> IVData:
        """Return the first so many training rows of replication ``seed``."""
        return self.problem.replication(seed).sample(rows)

    def judge(self, estimator: Any, data: IVData, seed: int) -> Metrics:
        """Fit, then measure errors and rewards on validation and test rows."""
        replication = self.problem.replication(seed)
        estimator.fit(data.Y, data.T, Z=data.Z, X=data.X)
        policy = estimator.policy(np.linspace(*replication.action_range, self.n_actions))
        metrics: Metrics = {}
        for part, (X, T, truth) in _parts(replication).items():
            metrics[f"{part}_mse"] = _error(estimator, X, T, truth)
            metrics[f"{part}_reward"] = policy_value(policy, replication, X)
            metrics[f"{part}_optimum"] = replication.optimal_value(X)
        return metrics

    def note(self) -> str:
        """Return how rewards are measured."""
        return (
            f"Errors at the observed points of a part; rewards with {self.n_actions} equally spaced actions "
            "on [-3, 5], contexts of that part. The published numbers are for the validation part. Seeds are "
            "numbers of replications. The best action is the constant 5, where there are few rows: the "
            "reward mostly tests how a parabola is extrapolated."
        )


@dataclass(frozen=True)
class BanditTask:
    """Ticket demand as an offline bandit: few actions, contexts with their instruments, rewards only.

    Parameters
    ----------
    problem : TicketDemand
    n_actions : int
        Equally spaced actions to choose from.
    n_contexts : int
        Contexts that policies are judged on.
    """

    problem: TicketDemand
    n_actions: int = 20
    n_contexts: int = 10_000

    @property
    def name(self) -> str:
        """Name of the problem."""
        return "demand-bandit"

    @property
    def label(self) -> str:
        """Nothing: there is one such task."""
        return ""

    def sample(self, rows: int, seed: int) -> IVData:
        """Draw training rows."""
        return self.problem.sample(rows, seed=seed)

    def judge(self, estimator: Any, data: IVData, seed: int) -> Metrics:
        """Fit, once for each range of actions where the learner has to know it, and measure rewards."""
        del seed
        fresh = self.problem.sample(self.n_contexts, seed=_CONTEXT_SEED)
        contexts: Any = fresh.X
        has_model = hasattr(estimator, "policy")
        if has_model:
            estimator.fit(data.Y, data.T, Z=data.Z, X=data.X)
        metrics: Metrics = {}
        for suffix, bounds in (("", _WIDE), ("_narrow", _NARROW)):
            if has_model:
                policy = estimator.policy(np.linspace(*bounds, self.n_actions))
            else:
                policy = clone(estimator).set_params(n_actions=self.n_actions, action_range=bounds)
                policy.fit(data.Y, data.T, Z=data.Z, X=data.X)
            instrument = None if has_model else fresh.Z
            metrics[f"reward{suffix}"] = policy_value(policy, self.problem, contexts, instrument=instrument)
            metrics[f"optimum{suffix}"] = self.problem.optimal_value(contexts, *bounds)
            metrics[f"random{suffix}"] = self.problem.random_value(contexts, *bounds)
        return metrics

    def note(self) -> str:
        """Return how rewards are measured."""
        return (
            f"Rewards: {self.n_actions} equally spaced actions on [-5, 5] or [-3, 3], "
            f"{self.n_contexts} fresh contexts with their instruments, true mean outcome of the chosen "
            "actions. The line is what random actions get."
        )


def demand(strength: float = 1.0) -> DemandTask:
    """Return ticket demand with an instrument of that strength."""
    return DemandTask(TicketDemand(instrument_strength=strength))


def image_demand() -> DemandTask:
    """Return demand with images; fewer contexts, as each carries 784 pixels."""
    return DemandTask(ImageDemand(), n_contexts=1000, n_fresh=2000)


def real_world() -> tuple[RealTask, RealTask]:
    """Return IHDP and PM-CMR."""
    return RealTask(IHDP()), RealTask(PMCMR())


def _error(estimator: Any, X: Any, T: FloatArray, truth: FloatArray) -> float:
    return float(np.mean((estimator.predict(T, X) - truth) ** 2))


def _parts(replication: Replication) -> dict[str, tuple[FloatArray, FloatArray, FloatArray]]:
    return {"validation": replication.validation_set(), "test": replication.test_set()}
