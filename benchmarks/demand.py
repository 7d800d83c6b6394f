"""Counterfactual error on ticket demand: every method, size and seed is one line of a records file.

Finished lines are not run again, so the script can be stopped and started at will::

    python benchmarks/demand.py --methods default --sizes 1000 5000 10000 --seeds 0 1 2 3 4
    python benchmarks/demand.py --summary
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from records import Record, arguments, run_missing, table

from dmliv import CEDMLIV, DFIV, DMLIV, DeepGMM, DeepIV, KernelIV, TwoStageLeastSquares
from dmliv.learners import (
    Learners,
    boosting,
    forest,
    kernel,
    neural,
    paper_boosting,
    paper_forest,
    paper_neural,
)
from dmliv.problems import TicketDemand


def changed(**settings: Any) -> Learners:
    """Return the default learners with other settings of the structural learner."""
    preset = neural()
    return replace(preset, structural=replace(preset.structural, **settings))


def standardised(preset: Learners) -> Learners:
    """Return a preset whose networks all see standardised columns."""
    roles = {
        role: replace(learner, settings=replace(learner.settings, encodings=("standardised",)))
        for role, learner in vars(preset).items()
    }
    return Learners(**roles)


METHODS: dict[str, Callable[[int], Any]] = {
    "default": lambda seed: DMLIV(random_state=seed),
    "default-ce": lambda seed: CEDMLIV(random_state=seed),
    "default-deepiv": lambda seed: DeepIV(random_state=seed),
    "paper": lambda seed: DMLIV(paper_neural(), random_state=seed),
    "paper-ce": lambda seed: CEDMLIV(paper_neural(), random_state=seed),
    "paper-deepiv": lambda seed: DeepIV(paper_neural(), random_state=seed),
    # The default and the paper's preset with one thing changed each: what that thing is worth.
    "default-raw-action": lambda seed: DMLIV(changed(centre_action=False), random_state=seed),
    "default-no-variance": lambda seed: DMLIV(changed(variance_weight=0.0), random_state=seed),
    "default-standardised": lambda seed: DMLIV(standardised(neural()), random_state=seed),
    "paper-standardised": lambda seed: DMLIV(standardised(paper_neural()), random_state=seed),
    "boosting": lambda seed: DMLIV(boosting(), random_state=seed),
    "boosting-ce": lambda seed: CEDMLIV(boosting(), random_state=seed),
    "boosting-deepiv": lambda seed: DeepIV(boosting(), random_state=seed),
    "forest": lambda seed: DMLIV(forest(), random_state=seed),
    "forest-ce": lambda seed: CEDMLIV(forest(), random_state=seed),
    "forest-deepiv": lambda seed: DeepIV(forest(), random_state=seed),
    "paper-boosting-ce": lambda seed: CEDMLIV(paper_boosting(), random_state=seed),
    "paper-boosting-deepiv": lambda seed: DeepIV(paper_boosting(), random_state=seed),
    "paper-forest-ce": lambda seed: CEDMLIV(paper_forest(), random_state=seed),
    "paper-forest-deepiv": lambda seed: DeepIV(paper_forest(), random_state=seed),
    "kernel": lambda seed: DMLIV(kernel(), random_state=seed),
    "dfiv": lambda seed: DFIV(random_state=seed),
    "dfiv-published": lambda seed: DFIV(
        n_fits=1,
        first_penalty=0.1,
        second_penalty=0.1,
        n_epochs=100,
        learning_rate=1e-3,
        schedule="constant",
        batch_size=None,
        weight_decay=(0.0, 0.1, 0.0),
        action_layers=(16, 1),
        random_state=seed,
    ),
    "deepgmm": lambda seed: DeepGMM(random_state=seed),
    "deepgmm-published": lambda seed: DeepGMM(
        (128, 64, 32),
        learning_rates=(2e-4,),
        final_rate=1.0,
        epochs=600,
        batch_size=1024,
        n_averaged=1,
        weight_decay=0.0,
        encoding="standardised",
        critic_encoding="standardised",
        centre_action=False,
        random_state=seed,
    ),
    "kiv": lambda seed: KernelIV(random_state=seed),
    "kiv-published": lambda seed: KernelIV("random", n_features=100, bandwidth="joint", random_state=seed),
    "2sls": lambda seed: TwoStageLeastSquares(),
}
KEYS = ("method", "rows", "strength", "seed")


def run(method: str, rows: int, strength: float, seed: int) -> Record:
    """Fit one method on one sample and measure it against the truth."""
    problem = TicketDemand(instrument_strength=strength)
    data = problem.sample(rows, seed=seed)
    estimator = METHODS[method](seed).fit(data.Y, data.T, Z=data.Z, X=data.X)

    def error(X: object, T: object, truth: np.ndarray) -> float:
        return float(np.mean((estimator.predict(T, X) - truth) ** 2))

    contexts = problem.contexts(2000, seed=1)
    actions = estimator.policy(np.linspace(-5.0, 5.0, 200)).predict(contexts)
    chosen = estimator.structural_model_.describe()
    settings = {name: chosen[name] for name in ("encoding", "variance_weight") if name in chosen}
    return {
        "grid_mse": error(*problem.test_set()),
        "iid_mse": error(*problem.iid_test_set()),
        "reward": float(problem.counterfactual(contexts, actions).mean()),
        "nuisances": getattr(estimator, "nuisance_losses_", {}),
    } | settings


if __name__ == "__main__":
    options = arguments(
        __doc__,
        "demand.jsonl",
        methods=["default"],
        sizes=[1000, 5000, 10_000],
        strengths=[1.0],
        seeds=[0, 1, 2, 3, 4],
    )
    grid = product(options.methods, options.sizes, options.strengths, options.seeds)
    records = run_missing(options.records, KEYS, () if options.summary else grid, run)
    print(table(records, ("method", "rows", "strength"), "seed", ("grid_mse", "iid_mse")))
