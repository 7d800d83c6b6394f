"""Data, first stages and small settings for the second stage."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dmliv.data import TrainingData, prepare
from dmliv.first_stage.crossfit import FirstStage, ValidationSplit
from dmliv.first_stage.distributions import ActionDistribution, CategoricalDistribution, MixtureDistribution
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.runtime import Runtime
from dmliv.progress import SilentProgress

N_ROWS = 150


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(torch.device("cpu"), SilentProgress(), 1)


@pytest.fixture
def tiny() -> NetworkSettings:
    return NetworkSettings(hidden=(12,), epochs=4, batch_size=50, dropout=0.0, learning_rate=1e-2)


@pytest.fixture(params=["one column", "two columns", "discrete"])
def data(request: pytest.FixtureRequest) -> TrainingData:
    """Training data with a numeric and a categorical context, for each kind of action."""
    rng = np.random.default_rng(0)
    context = np.empty((N_ROWS, 2), dtype=object)
    context[:, 0] = rng.standard_normal(N_ROWS)
    context[:, 1] = np.array(["u", "v", "w"])[rng.integers(0, 3, N_ROWS)]
    instrument, hidden = rng.standard_normal((N_ROWS, 2)), rng.standard_normal(N_ROWS)
    action: np.ndarray = instrument + hidden[:, None]
    outcome = action.sum(axis=1) + hidden
    if request.param == "one column":
        action = action[:, 0]
    elif request.param == "discrete":
        action = np.array(["a", "b", "c"])[np.digitize(action[:, 0], [-1.0, 1.0])]
    return prepare(outcome, action, Z=instrument, X=context)


@pytest.fixture
def make_first_stage() -> Callable[[TrainingData], FirstStage]:
    """Return a maker of first stages with simple distributions, and two fair splits."""

    def make(data: TrainingData) -> FirstStage:
        n, width = len(data), data.action_spec.width
        rng = np.random.default_rng(1)
        distribution: ActionDistribution
        if data.action_spec.kind == "discrete":
            distribution = CategoricalDistribution(torch.from_numpy(rng.dirichlet(np.ones(width), n)).float())
        else:
            means = torch.from_numpy(rng.standard_normal((n, 1, width))).float()
            distribution = MixtureDistribution(
                torch.ones(n, 1), means, 0.5 * torch.eye(width).expand(n, 1, width, width)
            )
        halves = np.arange(0, n, 2), np.arange(1, n, 2)
        splits = tuple(
            ValidationSplit(fit_rows, validation_rows, data.outcome, distribution)
            for fit_rows, validation_rows in (halves, halves[::-1])
        )
        return FirstStage(
            target=data.outcome,
            distribution=distribution,
            fold=np.zeros(n, dtype=np.int64),
            splits=splits,
            outcome_model=None,
            action_model=None,  # type: ignore[arg-type]
            fold_members=(0,),
            n_members=1,
        )

    return make
