"""Learners and data shared by the identities."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

from dmliv.first_stage.networks import NeuralAction, NeuralOutcome
from dmliv.learners import Learners
from dmliv.nets.settings import NetworkSettings
from dmliv.second_stage.linear import LinearStructural
from dmliv.second_stage.network import NeuralStructural

_TINY = NetworkSettings(
    hidden=(16,),
    epochs=3,
    batch_size=50,
    dropout=0.1,
    learning_rate=5e-3,
    encodings=("standardised", "piecewise"),
)


@pytest.fixture
def tiny_learners() -> Learners:
    """Small networks with something to choose in every role."""
    return Learners(
        NeuralOutcome(_TINY),
        NeuralAction(_TINY, n_components=3),
        NeuralStructural(_TINY, n_members=2),
    )


@pytest.fixture
def linear_learners() -> Learners:
    """Linear models in every role: with one fold this is two-stage least squares."""
    return Learners(LinearRegression(), LinearRegression(), LinearStructural())  # type: ignore[arg-type]


@pytest.fixture
def frame() -> pd.DataFrame:
    """Return a table with several instruments and contexts, one of each a category, and two actions."""
    rng = np.random.default_rng(0)
    n = 240
    hidden = rng.standard_normal(n)
    table = pd.DataFrame(
        {
            "fuel": rng.standard_normal(n),
            "strike": rng.choice(["none", "short", "long"], n),
            "time": rng.uniform(0.0, 10.0, n),
            "kind": rng.choice(["a", "b", "c", "d"], n),
            "age": rng.integers(20, 60, n),
        }
    )
    push = table["strike"].map({"none": 0.0, "short": 0.5, "long": 2.0})
    table["price"] = 3.0 + table["fuel"] + push + 0.1 * table["time"] + hidden
    table["ads"] = 1.0 - 0.5 * table["fuel"] + push + 0.3 * hidden + rng.standard_normal(n)
    table["sales"] = 50.0 - 2.0 * table["price"] + table["ads"] + 0.2 * table["age"] + 3.0 * hidden
    table["sales"] += rng.standard_normal(n)
    table["weight"] = rng.uniform(0.2, 3.0, n)
    return table
