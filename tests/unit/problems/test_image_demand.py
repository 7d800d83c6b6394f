import os
import pickle
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dmliv.errors import InputError
from dmliv.problems import ImageDemand, Problem, TicketDemand
from dmliv.problems.mnist import digits_shown, load_digits

GRID = 2800


def as_bytes(X: np.ndarray) -> np.ndarray:
    return np.rint(X[:, 1:] * 255).astype(np.uint8)


def rows_of(pixels: np.ndarray) -> set[bytes]:
    return {image.tobytes() for image in pixels}


@pytest.mark.parametrize(("strength", "confounding"), [(1.0, 0.9), (0.2, 0.5)])
@pytest.mark.parametrize("digits", ["1-7", "0-6"])
def test_draws_are_those_of_ticket_demand(
    strength: float, confounding: float, digits: str, small_data: Path
) -> None:
    images = ImageDemand(strength, confounding, digits, small_data)
    tickets = TicketDemand(strength, confounding, "scalar")
    shown, plain = images.sample(300, seed=5), tickets.sample(300, seed=5)
    for role in ("Y", "T", "Z"):
        np.testing.assert_array_equal(getattr(shown, role), getattr(plain, role))
    np.testing.assert_array_equal(shown.X[:, 0], plain.X[:, 0].astype(np.float32))
    np.testing.assert_array_equal(images.customer_types(shown.X), plain.X[:, 1])
    np.testing.assert_allclose(
        images.contexts(50, seed=3, shift=1.0)[:, 0], tickets.contexts(50, 3, 1.0)[:, 0], rtol=1e-6
    )
    X, T, truth = images.test_set()
    assert len(X) == GRID
    np.testing.assert_array_equal(T, tickets.test_set()[1])
    np.testing.assert_array_equal(truth, tickets.test_set()[2])
    np.testing.assert_array_equal(images.customer_types(X), tickets.test_set()[0][:, 1])


@pytest.mark.parametrize(("digits", "first"), [("1-7", 1), ("0-6", 0)])
def test_the_digit_tells_the_type(digits: str, first: int, small_data: Path) -> None:
    problem = ImageDemand(digits=digits, data_dir=small_data)
    X = problem.sample(200).X
    digit = digits_shown(as_bytes(X), small_data)
    np.testing.assert_array_equal(problem.customer_types(X), digit - first + 1)
    assert set(digit) == set(range(first, first + 7))


def test_contexts_are_single_precision_pixels_in_the_unit_interval(small_data: Path) -> None:
    problem = ImageDemand(data_dir=small_data)
    for X in (
        problem.sample(20).X,
        problem.contexts(20),
        problem.test_set()[0],
        problem.iid_test_set(20)[0],
    ):
        assert X.dtype == np.float32
        assert X.shape[1] == 785
        assert X[:, 1:].min() == 0
        assert X[:, 1:].max() == 1


def test_training_and_evaluation_use_their_own_images(small_data: Path) -> None:
    problem = ImageDemand(data_dir=small_data)
    train, test = (rows_of(load_digits(part, small_data).pixels) for part in ("train", "test"))
    assert rows_of(as_bytes(problem.sample(100).X)) <= train
    for X in (problem.contexts(100), problem.test_set()[0], problem.iid_test_set(100)[0]):
        assert rows_of(as_bytes(X)) <= test


def test_no_image_again_before_all_were_used(small_files: ModuleType, small_data: Path) -> None:
    problem = ImageDemand(data_dir=small_data)
    supply = small_files.N_TRAIN_IMAGES
    for n in (30, 1000):
        X = problem.sample(n, seed=2).X
        kinds = problem.customer_types(X)
        for kind in range(1, 8):
            images = as_bytes(X[kinds == kind])
            _, uses = np.unique(images, axis=0, return_counts=True)
            assert uses.max() - (uses.min() if len(uses) == supply else 0) <= 1


def test_images_follow_the_seed_and_nothing_else(small_data: Path) -> None:
    first = ImageDemand(data_dir=small_data).sample(40, seed=1).X
    np.testing.assert_array_equal(first, ImageDemand(0.1, 0.0, "1-7", small_data).sample(40, seed=1).X)
    assert not np.array_equal(first, ImageDemand(data_dir=small_data).sample(40, seed=2).X)
    np.testing.assert_array_equal(
        ImageDemand(data_dir=small_data).test_set()[0], ImageDemand(data_dir=small_data).test_set()[0]
    )


def test_exact_answers_are_those_of_ticket_demand(small_data: Path) -> None:
    images, tickets = ImageDemand(0.7, data_dir=small_data), TicketDemand(0.7, customer_type="scalar")
    X, plain = images.contexts(80, seed=4, shift=1.0), tickets.contexts(80, seed=4, shift=1.0)
    Z = np.linspace(-2, 2, 80)
    for verb, other in (
        ("counterfactual", Z),
        ("reward", Z),
        ("exact_outcome_mean", Z),
        ("optimal_action", -3.0),
        ("optimal_value", -3.0),
        ("random_value", -3.0),
        ("worst_value", -3.0),
    ):
        np.testing.assert_allclose(
            getattr(images, verb)(X, other), getattr(tickets, verb)(plain, other), rtol=1e-5, atol=1e-5
        )
    (mean, sd), (plain_mean, plain_sd) = (
        images.exact_action_distribution(X, Z),
        tickets.exact_action_distribution(plain, Z),
    )
    np.testing.assert_allclose(mean, plain_mean, rtol=1e-5, atol=1e-5)
    assert sd == plain_sd
    assert images.action_range == tickets.action_range


def test_is_a_value_that_can_be_sent_around(small_data: Path) -> None:
    problem = ImageDemand(data_dir=small_data)
    assert isinstance(problem, Problem)
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert len(pickle.dumps(problem)) < 1000


def test_no_file_is_needed_to_build_it(cache: Path) -> None:
    assert ImageDemand().digits == "1-7"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"digits": "2-8"}, "digits.*1-7.*0-6.*2-8"),
        ({"instrument_strength": -1}, "instrument_strength"),
        ({"confounding": 2}, "confounding"),
    ],
)
def test_bad_parameters(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ImageDemand(**arguments)


def test_bad_contexts(small_data: Path) -> None:
    problem = ImageDemand(data_dir=small_data)
    X = problem.contexts(5)
    with pytest.raises(InputError, match=r"\(n, 785\), got shape \(5, 784\)"):
        problem.counterfactual(X[:, 1:], 0.0)
    bright = X.copy()
    bright[:, 1:] *= 255
    with pytest.raises(InputError, match="divide pixels"):
        problem.counterfactual(bright, 0.0)
    other = X.copy()
    other[3, 1:] = 0.5
    with pytest.raises(InputError, match="not in MNIST in row 3"):
        problem.counterfactual(other, 0.0)
    # An image of a 0 has no type when the digits are 1 to 7.
    zeros = ImageDemand(digits="0-6", data_dir=small_data).sample(60).X
    with pytest.raises(InputError, match="got a digit 0 in row"):
        problem.counterfactual(zeros, 0.0)
    with pytest.raises(InputError, match="one value per row"):
        problem.counterfactual(X, np.zeros(3))


@pytest.mark.skipif("DMLIV_DATA" not in os.environ, reason="DMLIV_DATA names no folder with the real files")
def test_real_images_last_for_the_largest_sample() -> None:
    problem = ImageDemand()
    for X in (problem.sample(10_000).X, problem.test_set()[0], problem.contexts(5000)):
        assert len(rows_of(as_bytes(X))) == len(X)
