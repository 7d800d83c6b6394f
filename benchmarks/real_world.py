"""IHDP and PM-CMR: error and reward on the validation split (as in the released code) and on the test split.

The data files are found through the environment variable ``DMLIV_DATA`` or downloaded::

    python benchmarks/real_world.py --replications 1 2 3 4 5
"""

from __future__ import annotations

from itertools import product

import numpy as np
from records import Record, arguments, run_missing, table

from dmliv import CEDMLIV, DMLIV, DeepIV
from dmliv.problems import IHDP, PMCMR

PROBLEMS = {"IHDP": IHDP, "PM-CMR": PMCMR}
METHODS = {"default": DMLIV, "default-ce": CEDMLIV, "default-deepiv": DeepIV}
KEYS = ("problem", "method", "replication")


def run(problem: str, method: str, replication: int) -> Record:
    """Fit one method on the training rows of one replication and judge it on the others."""
    source = PROBLEMS[problem]().replication(replication)
    data = source.sample()
    estimator = METHODS[method](random_state=replication).fit(data.Y, data.T, Z=data.Z, X=data.X)
    policy = estimator.policy(np.linspace(*source.action_range, 2000))
    record: Record = {"rows": len(data), "nuisances": estimator.nuisance_losses_}
    for part in ("validation", "test"):
        X, T, truth = source.validation_set() if part == "validation" else source.test_set()
        record[f"{part}_mse"] = float(np.mean((estimator.predict(T, X) - truth) ** 2))
        record[f"{part}_reward"] = float(source.counterfactual(X, policy.predict(X)).mean())
        record[f"{part}_best_reward"] = float(source.optimal_value(X))
    chosen = estimator.structural_model_.describe()
    return record | {"encoding": chosen["encoding"], "variance_weight": chosen["variance_weight"]}


if __name__ == "__main__":
    options = arguments(
        __doc__,
        "real-world.jsonl",
        problems=list(PROBLEMS),
        methods=["default"],
        replications=[1, 2, 3, 4, 5],
    )
    grid = product(options.problems, options.methods, options.replications)
    records = run_missing(options.records, KEYS, () if options.summary else grid, run)
    metrics = ("validation_mse", "validation_reward", "test_mse", "test_reward")
    print(table(records, ("problem", "method"), "replication", metrics))
