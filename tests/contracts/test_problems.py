"""What every problem keeps: shapes, seeds, a truth that fits the outcomes, known rewards of policies.

All problems run on small files in the formats of the real ones; when the environment variable DMLIV_DATA
names a folder with the real files, those with external files run on them as well. The problems of the suite
and those about mean effects keep the first part of the contract; their distributions and policies have tests
of their own.
"""

import importlib.util
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dmliv.data import IVData
from dmliv.errors import InputError
from dmliv.problems import (
    IHDP,
    PMCMR,
    SUITE,
    VIOLATIONS,
    CardWages,
    Encouragement,
    ImageDemand,
    Problem,
    TicketDemand,
    assets,
)
from dmliv.problems.assets import Asset

SMALL_FILES = Path(__file__).parents[1] / "unit" / "problems" / "small_files.py"
REAL_FOLDER = os.environ.get("DMLIV_DATA")


@dataclass(frozen=True)
class Case:
    """A problem as a contract sees it.

    ``replicated`` problems give the truth of seed r by their replication r, the others for all seeds.
    """

    make: Callable[..., Any]
    n_rows: int
    n_seeds: int
    width: int
    replicated: bool = False
    n_instruments: int = 1
    n_actions: int = 1


CASES = {
    "ticket demand": Case(lambda **_: TicketDemand(), 20_000, 1, 8),
    "ticket demand, scalar type, weak": Case(lambda **_: TicketDemand(0.2, 0.5, "scalar"), 20_000, 1, 2),
    "image demand": Case(ImageDemand, 5_000, 1, 785),
    "image demand, digits 0-6": Case(lambda **a: ImageDemand(0.5, 0.7, "0-6", **a), 5_000, 1, 785),
    "IHDP": Case(IHDP, 300, 30, 6, True),
    "IHDP, 3 levels": Case(lambda **a: IHDP(3, **a), 300, 30, 6, True),
    "IHDP, text": Case(lambda **a: IHDP(variant="text", **a), 300, 30, 6, True),
    "PM-CMR": Case(PMCMR, 150, 30, 6, True),
    "PM-CMR, text, 3 levels": Case(lambda **a: PMCMR(3, "text", **a), 150, 30, 6, True),
}
WITH_FILES = [name for name in CASES if not name.startswith("ticket")]
SUITE_CASES = {
    problem.name: Case(
        lambda problem=problem, **_: problem,
        20_000,
        1,
        problem.n_contexts,
        n_instruments=problem.n_instruments,
        n_actions=problem.n_actions,
    )
    for problem in (*SUITE.values(), *VIOLATIONS.values())
}
SUITE_CASES |= {
    "encouragement": Case(lambda **_: Encouragement("curved"), 20_000, 1, 10),
    "Card": Case(lambda **_: CardWages(), 20_000, 1, 4),
}
RUNS = [(name, "small") for name in CASES]
SUITE_RUNS = [(name, "no") for name in SUITE_CASES]
if REAL_FOLDER is not None:
    RUNS += [(name, "real") for name in WITH_FILES]


@pytest.fixture(scope="session")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Asset]]:
    # Test folders are no packages, so the module that writes the files is loaded by its path.
    spec = importlib.util.spec_from_file_location("small_files", SMALL_FILES)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("small")
    return folder, module.write_small_files(folder)


@dataclass(frozen=True)
class Subject:
    """A case with its problem, on the files it runs on."""

    case: Case
    problem: Any

    def truth_of(self, seed: int) -> Any:
        """What knows the truth about the rows of a seed."""
        return self.problem.replication(seed) if self.case.replicated else self.problem

    def sample(self, seed: int) -> IVData:
        return self.problem.sample(self.case.n_rows, seed=seed)

    def features(self, data: IVData) -> np.ndarray:
        """Functions of context and instrument (n, k) that must not predict a residual, the constant first."""
        Z = data.Z[:, 0]
        if self.case.replicated:
            levels = (Z[:, None] == np.unique(Z)).astype(float)
            products = levels[:, :, None] * data.X[:, None, :]
            return np.column_stack([np.ones(len(Z)), levels, data.X, products.reshape(len(Z), -1)])
        time = data.X[:, 0].astype(float)
        kind = TYPES[type(self.problem)](self.problem, data.X)
        return np.column_stack(
            [np.ones(len(Z)), Z, time, Z * time, kind, Z * kind, Z**2, np.cos(time), time > 8]
        )


def ticket_types(problem: TicketDemand, X: np.ndarray) -> np.ndarray:
    return X[:, 1] if problem.customer_type == "scalar" else X[:, 1:] @ np.arange(1, 8)


TYPES: dict[type, Callable[[Any, np.ndarray], np.ndarray]] = {
    TicketDemand: ticket_types,
    ImageDemand: ImageDemand.customer_types,
}


def run_name(run: tuple[str, str]) -> str:
    return f"{run[0]} ({run[1]} files)"


def make_subject(
    request: pytest.FixtureRequest,
    small_files: tuple[Path, dict[str, Asset]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Subject:
    name, files = request.param
    if name in SUITE_CASES:
        return Subject(SUITE_CASES[name], SUITE_CASES[name].make())
    folder: str | Path | None = REAL_FOLDER
    if files == "small":
        folder, entries = small_files
        for entry, asset in entries.items():
            monkeypatch.setitem(assets.ASSETS, entry, asset)
    monkeypatch.delenv("DMLIV_DATA", raising=False)
    monkeypatch.setattr(assets, "user_cache_dir", lambda *_, **__: str(tmp_path / "cache"))
    case = CASES[name]
    return Subject(case, case.make() if name.startswith("ticket") else case.make(data_dir=folder))


subject = pytest.fixture(params=RUNS, ids=run_name, name="subject")(make_subject)
any_subject = pytest.fixture(params=RUNS + SUITE_RUNS, ids=run_name, name="any_subject")(make_subject)


def z_scores(residual: np.ndarray, features: np.ndarray) -> np.ndarray:
    """How many standard errors the mean of residual times feature lies from zero, for every feature."""
    products = residual[:, None] * features
    error = products.std(axis=0) / np.sqrt(len(products))
    return products.mean(axis=0) / np.where(error > 0, error, 1.0)


# --------------------------------------------------------------------------------------------- shapes, seeds


def test_shapes(any_subject: Subject) -> None:
    problem, width = any_subject.problem, any_subject.case.width
    assert isinstance(problem, Problem)
    data = problem.sample(40, seed=1)
    several = any_subject.case.n_actions > 1
    assert data.Y.shape == (40,)
    assert data.T.shape == ((40, any_subject.case.n_actions) if several else (40,))
    assert data.Z.shape == (40, any_subject.case.n_instruments)
    assert data.X.shape == (40, width)
    assert problem.contexts(9, seed=2).shape == (9, width)
    X, T, truth = problem.test_set()
    assert X.shape == (len(T), width)
    assert truth.shape == (len(T),)
    for values in (data.Y, data.T, data.Z, data.X, X, T, truth):
        assert values.dtype.kind in "UO" or np.isfinite(values).all()
    if not getattr(problem, "levels", ()):
        low, high = np.asarray(getattr(problem, "contrast", None) or problem.action_range)
        assert np.all(low < high)


def test_seeds_reproduce_and_differ(any_subject: Subject) -> None:
    first, again, other = (any_subject.problem.sample(60, seed=seed) for seed in (3, 3, 4))
    for role in ("Y", "T", "Z", "X"):
        np.testing.assert_array_equal(getattr(first, role), getattr(again, role))
        assert not np.array_equal(getattr(first, role), getattr(other, role))
    for one, two in zip(any_subject.problem.test_set(), any_subject.problem.test_set(), strict=True):
        np.testing.assert_array_equal(one, two)
    contexts = any_subject.problem.contexts(60, seed=3)
    np.testing.assert_array_equal(contexts, any_subject.problem.contexts(60, seed=3))
    assert not np.array_equal(contexts, any_subject.problem.contexts(60, seed=4))


def test_nothing_outside_decides_a_draw(any_subject: Subject) -> None:
    # Whatever an estimator did to the global generators or to arrays it was given, draws stay the same.
    first = any_subject.problem.sample(50, seed=5)
    kept = {role: getattr(first, role).copy() for role in ("Y", "T", "Z", "X")}
    for role in kept:
        getattr(first, role)[:] = 0
    np.random.seed(99)  # noqa: NPY002
    random.seed(99)
    before = np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    second = any_subject.problem.sample(50, seed=5)
    for role, values in kept.items():
        np.testing.assert_array_equal(getattr(second, role), values)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before  # noqa: NPY002


# --------------------------------------------------------------------------------------------------- truth


def test_truth_at_the_test_points_is_the_counterfactual(any_subject: Subject) -> None:
    X, T, truth = any_subject.problem.test_set()
    truth_of = any_subject.problem.counterfactual
    np.testing.assert_allclose(truth_of(X, T), truth, rtol=1e-5, atol=1e-5)
    # Actions may come as a column, and one action stands for all rows.
    columns = T[:5].reshape(5, -1)
    np.testing.assert_array_equal(truth_of(X[:5], columns), truth_of(X[:5], T[:5]))
    one = truth_of(X[:5], T[0])
    np.testing.assert_array_equal(one, truth_of(X[:5], np.repeat(T[:1], 5, axis=0)))


def test_residuals_are_exogenous_and_confounded(subject: Subject) -> None:
    structural, reduced, action, features, scaled = [], [], [], [], []
    for seed in range(subject.case.n_seeds):
        data, truth = subject.sample(seed), subject.truth_of(seed)
        mean, sd = truth.exact_action_distribution(data.X, data.Z)
        structural.append(data.Y - truth.counterfactual(data.X, data.T))
        reduced.append(data.Y - truth.exact_outcome_mean(data.X, data.Z))
        action.append(data.T - mean)
        scaled.append(action[-1] / sd)
        features.append(subject.features(data))
    stacked = np.vstack(features)
    # With some 40 functions and three residuals, 4.5 standard errors are hardly reached by chance.
    for residual in (structural, reduced, action):
        assert np.abs(z_scores(np.concatenate(residual), stacked)).max() < 4.5
    assert np.concatenate(scaled).std() == pytest.approx(1.0, abs=0.03)
    confounding = np.corrcoef(np.concatenate(structural), np.concatenate(action))[0, 1]
    text = getattr(subject.problem, "variant", "code") == "text"
    # In the printed equations noise of unit variance drowns the small confounder.
    assert abs(confounding) < 0.15 if text else confounding > 0.4


# ------------------------------------------------------------------------------------------------- policies


def test_reference_policies_agree_with_a_search(subject: Subject) -> None:
    truth = subject.truth_of(0)
    X = subject.problem.contexts(100, seed=6)
    low, high = subject.problem.action_range
    actions = np.linspace(low, high, 2001)
    rewards = np.stack([truth.reward(X[:20], action) for action in actions])
    X = X[:20]
    assert truth.optimal_value(X) == pytest.approx(rewards.max(axis=0).mean(), abs=1e-9)
    assert truth.worst_value(X) == pytest.approx(rewards.min(axis=0).mean(), abs=1e-4)
    # The trapezoidal rule on this grid.
    weights = np.full(2001, 1.0)
    weights[[0, -1]] = 0.5
    assert truth.random_value(X) == pytest.approx((weights @ rewards).mean() / weights.sum(), abs=1e-4)
    best = truth.optimal_action(X)
    np.testing.assert_allclose(truth.reward(X, best), rewards.max(axis=0))
    assert truth.optimal_value(X, -1.0, 0.5) < truth.optimal_value(X)


def test_bad_arguments(subject: Subject) -> None:
    truth, X = subject.truth_of(0), subject.problem.contexts(4)
    for n in (0, -2, 1.5, True):
        with pytest.raises(InputError, match="positive integer"):
            subject.problem.sample(n)
        with pytest.raises(InputError, match="positive integer"):
            subject.problem.contexts(n)
    with pytest.raises(InputError, match=f"n, {subject.case.width}"):
        truth.counterfactual(X[:, :-1], 0.0)
    with pytest.raises(InputError, match="one value per row"):
        truth.counterfactual(X, np.zeros(3))
    with pytest.raises(InputError, match="one value per row"):
        truth.exact_outcome_mean(X, np.zeros((4, 2)))
    for verb in ("optimal_action", "optimal_value", "random_value", "worst_value"):
        with pytest.raises(InputError, match="low < high"):
            getattr(truth, verb)(X, 2.0, -2.0)


# ----------------------------------------------------------------------------------------- known rewards


@pytest.mark.parametrize(
    ("shift", "bound", "optimum", "uniform", "worst"),
    [
        (0.0, 3.0, 0.748, -0.068, -0.885),
        (0.0, 5.0, 1.293, -0.068, -1.429),
        (1.0, 3.0, 0.948, 0.192, -0.564),
        (1.0, 5.0, 1.452, 0.192, -1.068),
    ],
)
@pytest.mark.parametrize(
    "subject",
    [run for run in RUNS if run[0] in ("ticket demand", "image demand")],
    ids=lambda run: f"{run[0]} ({run[1]} files)",
    indirect=True,
)
def test_rewards_of_the_demand_problems(
    subject: Subject, shift: float, bound: float, optimum: float, uniform: float, worst: float
) -> None:
    problem = subject.problem
    X = problem.contexts(10_000, shift=shift)
    best = problem.optimal_action(X, -bound, bound)
    for value, action, expected in (
        (problem.optimal_value, best, optimum),
        (problem.random_value, 0.0, uniform),
        (problem.worst_value, -best, worst),
    ):
        rewards = problem.reward(X, action)
        assert value(X, -bound, bound) == pytest.approx(rewards.mean())
        assert rewards.mean() == pytest.approx(expected, abs=4 * rewards.std() / 100)


# Means over the 20 published replications, on validation rows: actions 5 (the optimum), -3 and the worst.
REAL_REWARDS = [
    (IHDP(5, data_dir=REAL_FOLDER), 2.669, 2.148, -0.723),
    (IHDP(3, data_dir=REAL_FOLDER), 3.127, 2.540, -0.693),
    (PMCMR(5, data_dir=REAL_FOLDER), 2.411, 1.950, -0.588),
    (PMCMR(3, data_dir=REAL_FOLDER), 3.254, 2.671, -0.540),
]


@pytest.mark.skipif(REAL_FOLDER is None, reason="DMLIV_DATA names no folder with the real files")
@pytest.mark.parametrize(("problem", "optimum", "lowest", "worst"), REAL_REWARDS)
def test_rewards_of_the_real_problems(problem: IHDP, optimum: float, lowest: float, worst: float) -> None:
    values = []
    for number in range(20):
        replication = problem.replication(number)
        X = replication.contexts()
        assert (replication.optimal_action(X) == 5.0).all()
        values.append(
            (replication.optimal_value(X), replication.reward(X, -3.0).mean(), replication.worst_value(X))
        )
    assert np.mean(values, axis=0) == pytest.approx((optimum, lowest, worst), abs=6e-4)
