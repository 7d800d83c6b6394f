"""Small fits and simulated tables for the diagnostics."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeCV

from dmliv import DMLIV
from dmliv.data import TrainingData, prepare
from dmliv.diagnostics import Diagnostics, diagnose
from dmliv.first_stage.regressors import RegressorAction, RegressorOutcome
from dmliv.learners import Learners
from dmliv.parallel.runtime import Runtime
from dmliv.progress import SilentProgress
from dmliv.second_stage.linear import LinearStructural

Rows = npt.NDArray[Any]
_RUNTIME = Runtime(torch.device("cpu"), SilentProgress(), 1)


def _lines() -> Learners:
    """Return the cheapest learners there are."""
    action = RegressorAction(RidgeCV(), classifier=LogisticRegression())
    return Learners(RegressorOutcome(RidgeCV()), action, LinearStructural())


def _two_instruments(
    n: int, seed: int, *, direct: float = 0.0, strength: float = 1.0
) -> tuple[Rows, Rows, Rows, Rows]:
    """Draw outcome, action, instruments and context; ``direct`` is the first instrument's own effect."""
    rng = np.random.default_rng([seed, 5])
    X, Z = rng.uniform(-1.0, 1.0, (n, 2)), rng.standard_normal((n, 2))
    hidden = rng.standard_normal(n)
    T = 0.5 * X[:, 0] + strength * (0.8 * Z[:, 0] + 0.6 * Z[:, 1]) + 0.8 * hidden
    Y = T + X[:, 1] + direct * Z[:, 0] + 0.9 * (0.8 * hidden + 0.6 * rng.standard_normal(n))
    return Y, T, Z, X


def _diagnosed(
    Y: Any, T: Any, *, Z: Any, X: Any = None, n_folds: int = 4, seed: int = 0, **more: Any
) -> tuple[Diagnostics, DMLIV, TrainingData]:
    """Fit lines and diagnose the fit."""
    estimator = DMLIV(_lines(), n_folds=n_folds, random_state=seed).fit(Y, T, Z=Z, X=X, **more)
    data = prepare(Y, T, Z=Z, X=X, **more)
    found = diagnose(data, estimator.first_stage_, estimator.structural_model_, seed=seed, runtime=_RUNTIME)
    return found, estimator, data


@pytest.fixture(scope="session")
def two_instruments() -> Any:
    return _two_instruments


@pytest.fixture(scope="session")
def diagnosed() -> Any:
    return _diagnosed


@pytest.fixture(scope="session")
def runtime() -> Runtime:
    return _RUNTIME


@pytest.fixture(scope="session")
def good() -> tuple[Diagnostics, DMLIV, TrainingData]:
    Y, T, Z, X = _two_instruments(800, 100)
    return _diagnosed(Y, T, Z=Z, X=X)
