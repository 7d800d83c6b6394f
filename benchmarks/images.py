"""Demand with images: error on the grid with test images, time and peak memory.

The MNIST files are found through the environment variable ``DMLIV_DATA`` or downloaded::

    python benchmarks/images.py --features gradients --sizes 1000 2000 --seeds 0 1 2

Run one size at a time for its peak memory: the number is the process's peak so far.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from records import Record, arguments, run_missing, table

from dmliv import DMLIV
from dmliv.learners import ImageColumns, Learners, neural
from dmliv.nets.settings import ByRows
from dmliv.problems import ImageDemand

KEYS = ("features", "rows", "seed")
PIXELS = ImageColumns(28, 28, first=1)


def learners(features: str) -> Learners:
    """Return the default with fixed image features, or short training of the paper's convolutions."""
    if features == "gradients":
        return neural(image=PIXELS)
    preset = neural()
    # The paper's image networks with the default's schedule: 500 epochs at a constant rate would take hours.
    changes = {
        "image": replace(PIXELS, features="convolution"),
        "hidden": (32,),
        "dropout": 0.1,
        "epochs": ByRows(factor=20_000, offset=5, high=40),
        "batch_size": 64,
        "rate_factors": (1.0,),
        "learning_rate": 2e-3,
    }
    outcome, action, structural = preset.outcome, preset.action, preset.structural
    first = replace(outcome.settings, encodings=("piecewise_context",), **changes)
    second = replace(structural.settings, encodings=("piecewise",), **changes)
    return Learners(
        replace(outcome, settings=first),
        replace(action, settings=first),
        replace(structural, settings=second, variance_weight=0.2, n_members=1),
    )


def run(features: str, rows: int, seed: int) -> Record:
    """Fit on one sample of training images and judge on test images."""
    problem = ImageDemand()
    data = problem.sample(rows, seed=seed)
    estimator = DMLIV(learners(features), random_state=seed).fit(data.Y, data.T, Z=data.Z, X=data.X)
    X, T, truth = problem.test_set()
    contexts = problem.contexts(1000, seed=1)
    actions = estimator.policy(np.linspace(-5.0, 5.0, 200)).predict(contexts)
    return {
        "grid_mse": float(np.mean((estimator.predict(T, X) - truth) ** 2)),
        "reward": float(problem.counterfactual(contexts, actions).mean()),
        "nuisances": estimator.nuisance_losses_,
    }


if __name__ == "__main__":
    options = arguments(
        __doc__, "images.jsonl", features=["gradients"], sizes=[1000, 2000], seeds=[0, 1, 2, 3, 4]
    )
    grid = product(options.features, options.sizes, options.seeds)
    records = run_missing(options.records, KEYS, () if options.summary else grid, run)
    print(table(records, ("features", "rows"), "seed", ("grid_mse", "reward", "seconds", "peak_memory_mb")))
