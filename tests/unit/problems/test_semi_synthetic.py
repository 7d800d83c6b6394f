import os
import random
from pathlib import Path

import numpy as np
import pytest

from dmliv.errors import InputError
from dmliv.problems import IHDP, PMCMR, Problem, Replication
from dmliv.problems.equations import equations
from dmliv.problems.real_contexts import ihdp_contexts

PARTS = ("train", "validation", "test")
REAL = pytest.mark.skipif(
    "DMLIV_DATA" not in os.environ, reason="DMLIV_DATA names no folder with the real files"
)
PUBLISHED = Path(os.environ.get("DMLIV_DATA", "nowhere")) / "reference_realworld"


@pytest.fixture(params=[IHDP, PMCMR])
def make(request: pytest.FixtureRequest, small_data: Path):
    return lambda **arguments: request.param(data_dir=small_data, **arguments)


def columns(part) -> np.ndarray:
    """The columns of the published files: x1 to x6, u, z, t, d, y, g, v."""
    named = (part.X, part.confounder, part.Z, part.T, part.noiseless_action)
    return np.column_stack([*named, part.Y, part.action_part, part.truth])


# ------------------------------------------------------------------------------------------------ generator


@pytest.mark.parametrize("n_levels", [5, 3])
def test_replication_follows_the_published_recipe(n_levels: int, small_data: Path) -> None:
    number, X = 2, ihdp_contexts(small_data)
    shuffler = random.Random(2023)
    for _ in range(number + 1):
        order = list(range(747))
        shuffler.shuffle(order)
        X = X[order]
    stream = np.random.RandomState(527 * number + 2023)
    distribution = equations("code", n_levels)
    raw_outcomes, replication = [], IHDP(n_levels, data_dir=small_data).replication(number)
    for name, x in zip(PARTS, np.split(X, [470, 672]), strict=True):
        n = len(x)
        normals = stream.standard_normal((n, 7))
        z = stream.choice(list(range(n_levels)), (n, 1))[:, 0]
        e1, e2 = stream.normal(0, 0.1, (n, 1))[:, 0], stream.normal(0, 0.1, (n, 1))[:, 0]
        part = replication.split(name)
        u = part.confounder
        t = np.array([distribution.weights[k] @ row for k, row in zip(z, x, strict=True)]) + 0.2 * u + e1
        t += np.array([0, 1, 0, -0.2, -0.8])[z]
        raw = 0.9 * t**2 - 1.5 * t + x.sum(1) / 3 - np.abs(x[:, 0] * x[:, 1]) - np.sin(10 + x[:, 2] ** 2)
        raw_outcomes.append(raw + 2 * u + e2)
        np.testing.assert_array_equal(part.X, x)
        np.testing.assert_array_equal(part.Z[:, 0], z)
        np.testing.assert_allclose(part.T, t)
        # The confounder is a fixed mixture of the first and the last of the seven normals.
        assert np.linalg.lstsq(normals, u)[0][1:-1] == pytest.approx(np.zeros(5), abs=1e-12)
    mean, sd = raw_outcomes[0].mean(), raw_outcomes[0].std()
    for name, raw in zip(PARTS, raw_outcomes, strict=True):
        np.testing.assert_allclose(replication.split(name).Y, (raw - mean) / sd)
    assert (replication.outcome_mean, replication.outcome_sd) == pytest.approx((mean, sd))


def test_confounder_is_that_of_the_correlated_normals_up_to_two_signs(small_data: Path) -> None:
    covariance = np.eye(7)
    covariance[6, :6] = covariance[:6, 6] = 0.1
    drawn = np.random.RandomState(2023).multivariate_normal(np.zeros(7), covariance, size=470)[:, 6]
    normals = np.random.RandomState(2023).standard_normal((470, 7))
    # NumPy's linear algebra decides the signs; the sizes of the two weights are the same everywhere.
    ours = IHDP(data_dir=small_data).split(0, "train").confounder
    for u in (drawn, ours):
        weights = np.linalg.lstsq(normals, u)[0]
        assert np.abs(weights) == pytest.approx(np.abs([-0.7889705, 0, 0, 0, 0, 0, 0.6144310]), abs=1e-6)


def test_parts_share_the_rows_out(make) -> None:
    problem = make()
    for number in (0, 4):
        parts = [problem.split(number, name) for name in PARTS]
        n = sum(len(part) for part in parts)
        assert [len(part) for part in parts[:2]] == [int(0.63 * n), int(0.9 * n) - int(0.63 * n)]
        rows = np.vstack([part.X for part in parts])
        np.testing.assert_array_equal(
            np.sort(rows, axis=0), np.sort(problem._real_contexts(), axis=0), strict=True
        )
    assert not np.array_equal(problem.split(0, "train").X, problem.split(1, "train").X)


def test_outcomes_are_standardised_on_training_rows(make) -> None:
    for variant in ("code", "text"):
        replication = make(variant=variant).replication(1)
        assert replication.train.Y.mean() == pytest.approx(0, abs=1e-12)
        assert replication.train.Y.std() == pytest.approx(1)
        assert replication.test.Y.std() != pytest.approx(1, abs=1e-6)


def test_no_global_random_state(make) -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first = columns(make().split(3, "train"))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # noqa: NPY002
    random.seed(2)
    np.random.seed(2)  # noqa: NPY002
    np.testing.assert_array_equal(columns(make().split(3, "train")), first)


# ------------------------------------------------------------------------------------- equations in the text


def test_printed_equations_by_hand(make) -> None:
    part = make(variant="text", n_levels=3).split(0, "train")
    replication = make(variant="text", n_levels=3).replication(0)
    w = replication.equations.weights
    assert w.shape == (3, 6)
    assert np.abs(w).max() < 1
    z = part.Z[:, 0].astype(int)
    assert set(z) == {1, 2, 3}
    f = np.array([0.0, 1.0, 0.0])[z - 1]
    # A = sum_i w_iz (C_i + 0.2 eps + f_z) + delta: what is left is the noise delta, of unit variance.
    inner = part.X + 0.2 * part.confounder[:, None] + f[:, None]
    delta = part.T - (w[z - 1] * inner).sum(axis=1)
    assert delta.std() == pytest.approx(1.0, abs=0.12)
    assert part.confounder.var() == pytest.approx(0.1, abs=0.02)
    C, A = part.X, part.T
    structural = (
        9 * A**2 - 1.5 * A + C.sum(1) / 6 + np.abs(C[:, 0] * C[:, 1]) - np.sin(10 + C[:, 1] * C[:, 2])
    )
    raw = part.Y * replication.outcome_sd + replication.outcome_mean
    noise = raw - structural - 2 * part.confounder
    assert noise.std() == pytest.approx(1.0, abs=0.12)
    np.testing.assert_allclose(
        part.truth, (structural - replication.outcome_mean) / replication.outcome_sd, atol=1e-12
    )


def test_variants_share_rows_and_levels(make) -> None:
    code, text = make().split(2, "test"), make(variant="text").split(2, "test")
    np.testing.assert_array_equal(code.X, text.X)
    np.testing.assert_array_equal(code.Z + 1, text.Z)
    np.testing.assert_allclose(code.confounder * np.sqrt(0.1), text.confounder)


# -------------------------------------------------------------------------------------- replication by number


def test_a_sample_and_its_truth_come_from_one_replication(make) -> None:
    problem = make()
    assert isinstance(problem, Problem)
    for number in (0, 3):
        replication = problem.replication(number)
        assert isinstance(replication, Replication)
        assert replication.number == number
        data = problem.sample(seed=number)
        np.testing.assert_array_equal(data.Y, replication.train.Y)
        assert data.Z.shape == (len(data.Y), 1)
        assert data.X.shape == (len(data.Y), 6)
        for verb in ("validation_set", "test_set"):
            X, T, truth = getattr(problem, verb)(number)
            np.testing.assert_array_equal(truth, getattr(replication, verb)()[2])
            np.testing.assert_allclose(problem.counterfactual(X, T, replication=number), truth)
    assert not np.allclose(problem.counterfactual(X, T, replication=1), truth)
    np.testing.assert_array_equal(problem.test_set()[2], problem.test_set(0)[2])


def test_fewer_rows_are_the_first_rows_in_the_same_units(make) -> None:
    problem = make()
    few, every = problem.sample(50, seed=1), problem.sample(seed=1)
    for role in ("Y", "T", "Z", "X"):
        np.testing.assert_array_equal(getattr(few, role), getattr(every, role)[:50])
    with pytest.raises(InputError, match=r"at most .* training rows there are, got n=5000"):
        problem.sample(5000)
    with pytest.raises(InputError, match="positive integer"):
        problem.sample(0)


def test_contexts(make) -> None:
    problem = make()
    replication = problem.replication(1)
    np.testing.assert_array_equal(problem.contexts(replication=1), replication.validation.X)
    np.testing.assert_array_equal(problem.contexts(replication=1, part="test"), replication.test.X)
    drawn = problem.contexts(3000, seed=2, replication=1)
    assert drawn.shape == (3000, 6)
    np.testing.assert_array_equal(drawn, replication.contexts(3000, seed=2))
    assert not np.array_equal(drawn, replication.contexts(3000, seed=3))
    np.testing.assert_array_equal(np.unique(drawn, axis=0), np.unique(replication.validation.X, axis=0))
    with pytest.raises(InputError, match="shift=0"):
        problem.contexts(10, shift=1.0)
    with pytest.raises(InputError, match="positive integer"):
        problem.contexts(-1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"n_levels": 4}, r"n_levels.*\(5, 3\), got 4"), ({"variant": "paper"}, "variant.*code.*text.*paper")],
)
def test_bad_parameters(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        IHDP(**arguments)


@pytest.mark.parametrize("number", [-1, 10_000, 1.0, "0", True, None])
def test_bad_replications(number: object, small_data: Path) -> None:
    with pytest.raises(InputError, match="replication from 0 to 9999"):
        IHDP(data_dir=small_data).replication(number)


def test_bad_parts_contexts_and_levels(small_data: Path) -> None:
    replication = IHDP(data_dir=small_data).replication()
    X = replication.contexts()
    with pytest.raises(InputError, match=r"part.*train.*validation.*test.*val"):
        replication.split("val")
    with pytest.raises(InputError, match=r"\(n, 6\), got shape \(202, 5\)"):
        replication.counterfactual(X[:, 1:], 0.0)
    with pytest.raises(InputError, match="one value per row"):
        replication.counterfactual(X, np.zeros(3))
    for Z in (5.0, -1.0, 0.5):
        with pytest.raises(InputError, match="instrument levels 0 to 4"):
            replication.exact_action_distribution(X, Z)
    for verb in ("optimal_value", "random_value", "worst_value", "optimal_action"):
        with pytest.raises(InputError, match="low < high"):
            getattr(replication, verb)(X, 1.0, 1.0)


def test_no_file_is_needed_to_build_it(cache: Path) -> None:
    assert IHDP() == IHDP(5, "code")
    assert PMCMR(n_levels=3).n_levels == 3


# ------------------------------------------------------------------------------------------- published files


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="DMLIV_DATA names no folder with the published files")
@pytest.mark.parametrize(("problem", "name"), [(IHDP(), "IHDP"), (PMCMR(), "PM25")])
def test_replication_0_is_the_published_one(problem: IHDP | PMCMR, name: str) -> None:
    folder = PUBLISHED / f"3000_5_6_2_{name}_n_0.1" / "0"
    replication = problem.replication(0)
    for part, file in zip(PARTS, ("train", "val", "test"), strict=True):
        stored = np.loadtxt(folder / f"{file}.csv", delimiter=",", skiprows=1)[:, :13]
        np.testing.assert_allclose(columns(replication.split(part)), stored, rtol=0, atol=1e-9)
    with np.load(folder / "mean_std.npz", allow_pickle=False) as units:
        assert replication.outcome_mean == pytest.approx(float(units["mean"]), abs=1e-9)
        assert replication.outcome_sd == pytest.approx(float(units["std"]), abs=1e-9)
    with np.load(folder / "coefs.npz", allow_pickle=False) as stored_weights:
        np.testing.assert_allclose(replication.equations.weights, stored_weights["x_coef"][:, :6])


# Test rows in the repository of the paper: data set, levels, replication, row; then u, z, t, d, y, g, v.
PUBLISHED_ROWS = [
    (IHDP, 3, 19, 0, "1.276300969238116,0,1.2159945973327722,1.0179863568203398,-0.07454495476736436,"
     "-0.6647165525077879,-0.6728454425177236"),
    (PMCMR, 5, 19, 0, "-1.2000019086312477,4,-2.509439395210178,-2.468260004895204,1.029247069032606,"
     "1.562644929724161,1.5384833930152542"),
    (PMCMR, 3, 0, -1, "-1.0781627085676668,1,-1.9126749641861485,-1.7206206095510113,0.06827506227199431,"
     "1.1745104144395373,0.6016682074192301"),
    (PMCMR, 3, 19, -1, "-0.3426738060263549,1,1.8189319260634107,2.1199084637694985,-0.47367778762766527,"
     "-0.3317492343856006,-0.30295835089419165"),
]  # fmt: skip


@REAL
@pytest.mark.parametrize(("problem", "n_levels", "number", "row", "values"), PUBLISHED_ROWS)
def test_other_published_replications(problem, n_levels: int, number: int, row: int, values: str) -> None:
    ours = columns(problem(n_levels).split(number, "test"))[row, 6:]
    np.testing.assert_allclose(ours, [float(v) for v in values.split(",")], rtol=0, atol=1e-9)


@REAL
@pytest.mark.parametrize(
    ("problem", "sizes", "sd", "share"),
    [(IHDP(), (470, 202, 75), 4.62, 0.19), (PMCMR(), (1343, 575, 214), 5.22, 0.15)],
)
def test_facts_about_the_real_problems(problem, sizes, sd: float, share: float) -> None:
    replications = [problem.replication(number) for number in range(20)]
    assert tuple(len(replications[0].split(part)) for part in PARTS) == sizes
    assert np.mean([r.outcome_sd for r in replications]) == pytest.approx(sd, abs=0.01)
    assert np.mean([(2 / r.outcome_sd) ** 2 for r in replications]) == pytest.approx(share, abs=0.01)
    signal = np.mean([r.train.truth.var() for r in replications])
    assert 0.85 < signal < 0.92
    actions = np.concatenate([r.train.T for r in replications])
    assert np.mean(actions > 4) < 0.025
    confounders = np.concatenate([r.train.confounder for r in replications])
    assert np.corrcoef(actions, confounders)[0, 1] == pytest.approx(0.12, abs=0.03)
