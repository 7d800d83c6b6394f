"""DML-IV next to an ordinary regression on simulated ticket sales, both judged by the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from dmliv.data import FloatArray, IVData
from dmliv.estimators import DMLIV
from dmliv.problems import TicketDemand
from dmliv.report.ordinary import OrdinaryRegression

Predict: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]
"""Actions (n,) and contexts (n, d_X) in, expected outcomes (n,) out."""

# The candidates of the published benchmark.
CANDIDATES: Final = np.linspace(-5.0, 5.0, 200)
SUPPORT_QUANTILES: Final = (0.001, 0.999)
_N_CONTEXTS: Final = 2000
_FRESH_ROWS: Final = 10_000


@dataclass(frozen=True)
class Judgement:
    """One method against the truth.

    Attributes
    ----------
    counterfactual_error : float
        Mean squared error on the problem's test grid.
    observed_r2 : float
        Share of the variance of *observed* outcomes explained on fresh rows.
    policy_value : float
        True mean outcome when the method sets the actions.
    """

    counterfactual_error: float
    observed_r2: float
    policy_value: float


@dataclass(frozen=True)
class Comparison:
    """Two fitted methods and how they compare.

    Attributes
    ----------
    problem : TicketDemand
    data : IVData
        The rows both were fitted to.
    estimator : DMLIV
    regression : OrdinaryRegression
    dmliv, ordinary : Judgement
    best_value, random_value : float
        True mean outcome under the best actions and under uniformly random ones.
    support : tuple of float
        The action's 0.1 and 99.9 % quantiles, a rough estimate of its support.
    """

    problem: TicketDemand
    data: IVData
    estimator: DMLIV
    regression: OrdinaryRegression
    dmliv: Judgement
    ordinary: Judgement
    best_value: float
    random_value: float
    support: tuple[float, float]


def compare(problem: TicketDemand, data: IVData, *, seed: int, verbose: bool = False) -> Comparison:
    """Fit both methods to the same rows and judge them.

    Parameters
    ----------
    problem : TicketDemand
        The truth.
    data : IVData
        Rows sampled from it.
    seed : int
        Seed of all training.
    verbose : bool
        Show progress bars.

    Returns
    -------
    Comparison
    """
    regression = OrdinaryRegression.fit(data, seed=seed, verbose=verbose)
    estimator = DMLIV(random_state=seed, verbose=verbose).fit(data.Y, data.T, Z=data.Z, X=data.X)

    contexts = problem.contexts(_N_CONTEXTS)
    # Fresh rows come from a seed derived from the sample's own, so that they never are the training rows.
    fresh_seed = int(np.random.SeedSequence([seed, 1]).generate_state(1)[0])
    fresh = problem.sample(_FRESH_ROWS, seed=fresh_seed)
    test_contexts, test_actions, truth = problem.test_set()

    def judgement(predict: Predict, recommended: FloatArray) -> Judgement:
        residuals = fresh.Y - predict(fresh.T, fresh.X)
        return Judgement(
            counterfactual_error=float(np.mean((predict(test_actions, test_contexts) - truth) ** 2)),
            observed_r2=float(1.0 - np.mean(residuals**2) / np.var(fresh.Y)),
            policy_value=float(np.mean(problem.reward(contexts, recommended))),
        )

    low, high = float(CANDIDATES[0]), float(CANDIDATES[-1])
    bottom, top = np.quantile(data.T, SUPPORT_QUANTILES)
    return Comparison(
        problem=problem,
        data=data,
        estimator=estimator,
        regression=regression,
        dmliv=judgement(estimator.predict, estimator.policy(CANDIDATES).predict(contexts)),
        ordinary=judgement(regression.predict, regression.recommend(contexts, CANDIDATES)),
        best_value=problem.optimal_value(contexts, low, high),
        random_value=problem.random_value(contexts, low, high),
        support=(float(bottom), float(top)),
    )
