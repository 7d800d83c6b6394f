"""Tasks: the benchmark problems, each with how estimators are evaluated on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sklearn.base import clone

from dmliv.benchmark.oracle import rows_for
from dmliv.benchmark.trials import Cell, Metrics
from dmliv.data import FloatArray, IVData
from dmliv.policy.value import policy_value
from dmliv.problems import (
    IHDP,
    ORDINARY_REPORTED_ONLY,
    ORDINARY_SHARES,
    ORDINARY_TUNED_ON,
    PMCMR,
    REPORTED_ONLY,
    TUNED_ON,
    VIOLATIONS,
    CardWages,
    Encouragement,
    ImageDemand,
    SuiteProblem,
    TicketDemand,
    with_instrument_share,
)

# Contexts and fresh draws for evaluation have seeds of their own, far from those of training samples.
_CONTEXT_SEED = 1_000_001
_FRESH_SEED = 12_345

# Ranges of the action by the suffix of their metrics: the published figures imply the wide one, the released
# code has the narrow one.
_RANGES: Final = (("", (-5.0, 5.0)), ("_narrow", (-3.0, 3.0)))


class _ProblemTask:
    """What tasks have in common: their rows are those of their problem."""

    problem: Any

    def sample(self, rows: int, seed: int) -> IVData:
        """Draw training rows."""
        data: IVData = self.problem.sample(rows, seed=seed)
        return data

    def _fit(self, estimator: Any, data: IVData, seed: int) -> None:
        """Fit an estimator to the rows it learns from."""
        rows = rows_for(estimator, self.problem, data, seed)
        estimator.fit(rows.Y, rows.T, Z=rows.Z, X=rows.X)


# --------------------------------------------------------------------------------------- the paper's problems


@dataclass(frozen=True)
class DemandTask(_ProblemTask):
    """Ticket demand, plain or with images: error on the grid and on fresh draws, and rewards.

    Parameters
    ----------
    problem : TicketDemand or ImageDemand
    n_contexts : int
        Contexts that policies are evaluated on.
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

    def evaluate(self, estimator: Any, data: IVData, seed: int) -> Metrics:
        """Fit, then measure errors and rewards."""
        self._fit(estimator, data, seed)
        problem = self.problem
        metrics = {
            "grid_mse": _error(estimator, *problem.test_set()),
            "iid_mse": _error(estimator, *problem.iid_test_set(self.n_fresh, seed=_FRESH_SEED)),
        }
        for distribution, shift in (("", 0.0), ("shifted_", 1.0)):
            contexts = problem.contexts(self.n_contexts, seed=_CONTEXT_SEED, shift=shift)
            for suffix, bounds in _RANGES:
                policy = estimator.policy(np.linspace(*bounds, self.n_actions))
                metrics[f"{distribution}reward{suffix}"] = policy_value(policy, problem, contexts)
                metrics[f"{distribution}optimum{suffix}"] = problem.optimal_value(contexts, *bounds)
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
class RealTask(_ProblemTask):
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

    def evaluate(self, estimator: Any, data: IVData, seed: int) -> Metrics:
        """Fit, then measure errors and rewards on validation and test rows."""
        self._fit(estimator, data, seed)
        replication = self.problem.replication(seed)
        policy = estimator.policy(np.linspace(*replication.action_range, self.n_actions))
        metrics: Metrics = {}
        for part, points in (("validation", replication.validation_set()), ("test", replication.test_set())):
            metrics[f"{part}_mse"] = _error(estimator, *points)
            metrics[f"{part}_reward"] = policy_value(policy, replication, points[0])
            metrics[f"{part}_optimum"] = replication.optimal_value(points[0])
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
class BanditTask(_ProblemTask):
    """Ticket demand as an offline bandit: few actions, contexts with their instruments, rewards only.

    Parameters
    ----------
    problem : TicketDemand
    n_actions : int
        Equally spaced actions to choose from.
    n_contexts : int
        Contexts that policies are evaluated on.
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

    def evaluate(self, estimator: Any, data: IVData, seed: int) -> Metrics:
        """Fit, once for each range of actions where the learner has to know it, and measure rewards."""
        fresh = self.problem.sample(self.n_contexts, seed=_CONTEXT_SEED)
        contexts: Any = fresh.X
        has_model = hasattr(estimator, "policy")
        if has_model:
            self._fit(estimator, data, seed)
        metrics: Metrics = {}
        for suffix, bounds in _RANGES:
            if has_model:
                policy = estimator.policy(np.linspace(*bounds, self.n_actions))
            else:
                policy = clone(estimator).set_params(n_actions=self.n_actions, action_range=bounds)
                self._fit(policy, data, seed)
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


# -------------------------------------------------------------------------------------------------- the suite


@dataclass(frozen=True)
class SuiteTask(_ProblemTask):
    """A problem of the suite: error at its test points, and the reward of the policy on some contexts."""

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

    def evaluate(self, estimator: Any, data: IVData, seed: int) -> Metrics:
        """Fit, then measure the error and the policy."""
        self._fit(estimator, data, seed)
        problem = self.problem
        X, T, truth = problem.test_set()
        error = _error(estimator, X, T, truth)
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
    """A problem of the suite, with the strength at which its instrument explains ``share`` of the action."""

    share: float = 0.1

    @property
    def label(self) -> str:
        """Name of the problem, and the share."""
        return f"{self.problem.name}, {100.0 * self.share:g} %"


# ---------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True)
class EffectTask(_ProblemTask):
    """A problem with known effects: how far an estimated mean effect, and effects in contexts, are off.

    An effect is h at the end of the problem's contrast less h at the start, per unit of the action.

    Parameters
    ----------
    name, label : str
        Name of the problem in records, and what sets it apart, for people.
    problem : CardWages or Encouragement
    n_contexts : int
        Contexts at which effects are compared with the truth.
    """

    name: str
    label: str
    problem: CardWages | Encouragement
    n_contexts: int = 10_000

    def evaluate(self, estimator: Any, data: IVData, seed: int) -> Metrics:
        """Fit, then compare effects with the truth."""
        self._fit(estimator, data, seed)
        X = self.problem.contexts(self.n_contexts, seed=_CONTEXT_SEED)
        start, end = self.problem.contrast
        low, high = (estimator.predict(np.full(len(X), action), X) for action in (start, end))
        errors = (high - low) / (end - start) - self.problem.effect(X)
        mse = float(np.mean(errors**2))
        return {"ate_error": float(errors.mean()), "effect_mse": mse, "effect_rmse": float(np.sqrt(mse))}

    def note(self) -> str:
        """Return how effects are measured."""
        start, end = self.problem.contrast
        per_unit = "" if end - start == 1.0 else ", per unit"
        return (
            f"{self.label}: effects are h at {end:g} less h at {start:g}{per_unit}, at {self.n_contexts} "
            "contexts of a seed of their own."
        )


# --------------------------------------------------------------------------------------------- lists of tasks


def demand(strength: float = 1.0) -> DemandTask:
    """Return ticket demand with an instrument of that strength."""
    return DemandTask(TicketDemand(instrument_strength=strength))


def image_demand() -> DemandTask:
    """Return demand with images; fewer contexts, as each carries 784 pixels."""
    return DemandTask(ImageDemand(), n_contexts=1000, n_fresh=2000)


def real_cells() -> tuple[Cell, Cell]:
    """Return IHDP and PM-CMR with all rows of their training parts."""
    return Cell(RealTask(IHDP()), 470), Cell(RealTask(PMCMR()), 1343)


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


def card_tasks() -> tuple[EffectTask, ...]:
    """Return wages and schooling with instruments of three strengths."""
    return tuple(
        EffectTask("card-wages", f"Card, pi {strength:g}", CardWages(strength))
        for strength in (0.35, 1.0, 3.0)
    )


def encouragement_tasks() -> tuple[EffectTask, ...]:
    """Return the encouragement design with effects of three shapes."""
    return tuple(
        EffectTask("encouragement", f"encouragement, {problem.effect_shape}", problem)
        for problem in (Encouragement("constant"), Encouragement("linear"), Encouragement("curved"))
    )


def _error(estimator: Any, X: Any, T: Any, truth: FloatArray) -> float:
    return float(np.mean((estimator.predict(T, X) - truth) ** 2))
