"""Checks of numbers: what they let pass, and what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dmliv.errors import InputError, check_each_whole, check_number, check_whole


@pytest.mark.parametrize("value", [1, np.int64(3), 10**9])
def test_whole_numbers_pass(value: Any) -> None:
    check_whole(n_rows=value)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "1", None, np.nan])
def test_others_do_not(value: Any) -> None:
    with pytest.raises(InputError, match=r"positive whole number for n_rows, got .*; pass 1 or more"):
        check_whole(n_rows=value)


def test_the_least_number_is_named() -> None:
    check_whole(least=0, n_knots=0)
    with pytest.raises(InputError, match="a whole number of at least 2 for n_points, got 1; pass 2 or"):
        check_whole(least=2, n_points=1)


@pytest.mark.parametrize(
    ("bounds", "fine", "wrong", "words"),
    [
        ({"above": 0.0}, [1e-9, np.float32(2), 3], [0.0, -1.0], "above 0"),
        ({"least": 0.0}, [0, 0.0, 5], [-1e-9], "of at least 0"),
        ({"above": 0.0, "most": 1.0}, [0.5, 1.0], [0.0, 1.1], "above 0 and at most 1"),
        ({"least": 0.0, "below": 1.0}, [0.0, 0.999], [1.0, 2], "of at least 0 and below 1"),
    ],
)
def test_bounds(bounds: dict[str, float], fine: list[Any], wrong: list[Any], words: str) -> None:
    for value in fine:
        check_number(**bounds, rate=value)
    for value in [*wrong, np.nan, np.inf, "0.5", None, True]:
        with pytest.raises(InputError, match=f"Expected a finite number {words} for rate, got "):
            check_number(**bounds, rate=value)


def test_sequences_of_whole_numbers() -> None:
    check_each_whole("steps", (20, 20, 1), length=3)
    for wrong in ((), 3, (1, 2), "123"):
        with pytest.raises(InputError, match="Expected 3 positive whole numbers for steps"):
            check_each_whole("steps", wrong, length=3)
    with pytest.raises(InputError, match="Expected a positive whole number for steps, got 0"):
        check_each_whole("steps", [1, 0, 2], length=3)
