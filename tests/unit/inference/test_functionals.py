"""Smoothed functionals are means over normal actions."""

from __future__ import annotations

import numpy as np
import pytest

from dmliv.errors import InputError
from dmliv.inference.functionals import around, check_smoothing


@pytest.mark.parametrize("width", [1, 2, 3])
def test_terms_have_the_moments_of_normal_actions(width: int) -> None:
    action = np.random.default_rng(0).standard_normal((4, width))
    terms = around(action, 0.3)
    assert sum(share for share, _ in terms) == pytest.approx(1.0)
    mean = np.sum([share * places for share, places in terms], axis=0)
    np.testing.assert_allclose(mean, action, atol=1e-12)
    second = np.sum([share * (places - action) ** 2 for share, places in terms], axis=0)
    np.testing.assert_allclose(second, 0.09, atol=1e-12)
    # Columns are independent: no mean product.
    product = np.sum([share * np.prod(places - action, axis=1) for share, places in terms], axis=0)
    np.testing.assert_allclose(product, 0.0, atol=1e-12)


def test_without_smoothing_actions_stay() -> None:
    action = np.ones((2, 5))
    ((share, places),) = around(action, 0.0)
    assert share == 1.0
    assert places is action


def test_many_columns_are_refused() -> None:
    with pytest.raises(InputError, match="at most 3 action columns to smooth over, got 4"):
        around(np.ones((2, 4)), 0.1)


def test_levels_have_no_neighbours() -> None:
    assert check_smoothing(0.0, discrete=True) == 0.0
    with pytest.raises(InputError, match="smoothing=0 for a discrete action"):
        check_smoothing(0.2, discrete=True)
