"""Data and small learners for the first stage."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dmliv.data import TrainingData, prepare
from dmliv.nets.settings import NetworkSettings
from dmliv.parallel.runtime import Runtime
from dmliv.progress import SilentProgress


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(torch.device("cpu"), SilentProgress(), 1)


@pytest.fixture
def tiny() -> NetworkSettings:
    return NetworkSettings(hidden=(12,), epochs=3, batch_size=25, dropout=0.1, learning_rate=1e-2)


def _columns(n: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    context, instrument, hidden = (
        rng.standard_normal((n, 2)),
        rng.standard_normal((n, 2)),
        rng.standard_normal(n),
    )
    return rng, context, instrument, hidden


@pytest.fixture
def data() -> TrainingData:
    """Continuous action of one column."""
    rng, context, instrument, hidden = _columns(120)
    action = instrument @ [1.0, -0.5] + 0.5 * context[:, 0] + hidden
    outcome = action + np.sin(context[:, 1]) + hidden + 0.1 * rng.standard_normal(120)
    return prepare(outcome, action, Z=instrument, X=context)


@pytest.fixture
def data_two_columns() -> TrainingData:
    """Continuous action of two columns."""
    rng, context, instrument, hidden = _columns(120)
    action = instrument + 0.5 * context + hidden[:, None] * [1.0, 0.5] + 0.3 * rng.standard_normal((120, 2))
    return prepare(action.sum(axis=1) + hidden, action, Z=instrument, X=context)


@pytest.fixture
def data_discrete() -> TrainingData:
    """Discrete action with three levels."""
    rng, context, instrument, hidden = _columns(120)
    score = instrument[:, 0] + 0.5 * hidden
    action = np.array(["low", "middle", "high"])[np.digitize(score, [-0.6, 0.6])]
    return prepare(score + hidden + 0.1 * rng.standard_normal(120), action, Z=instrument, X=context)
