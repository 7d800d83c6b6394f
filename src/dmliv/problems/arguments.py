"""The checks of arguments that several problems make."""

from numbers import Integral, Real
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dmliv.data import FloatArray
from dmliv.errors import InputError


def is_finite_number(value: object) -> TypeGuard[float]:
    """Tell whether ``value`` is a real, finite number."""
    return not isinstance(value, bool) and isinstance(value, Real) and bool(np.isfinite(float(value)))


def check_count(n: object) -> None:
    """Raise unless ``n`` is a positive integer."""
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise InputError(f"Expected n to be a positive integer, got {n!r}; ask for 1 at least.")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise InputError(f"Expected {name} to be one of {choices}, got {value!r}; pass one of these.")


def check_not_negative(name: str, value: object) -> None:
    """Raise unless ``value`` is a finite number of at least 0."""
    if not is_finite_number(value) or value < 0:
        raise InputError(f"Expected {name} to be a finite number of at least 0, got {value!r}; correct it.")


def check_confounding(value: object) -> None:
    """Raise unless ``value`` is a correlation."""
    if not is_finite_number(value) or abs(value) > 1:
        raise InputError(f"Expected confounding to be a number in [-1, 1], got {value!r}; correct it.")


def check_shift(value: object) -> None:
    """Raise unless ``value`` is a finite number."""
    if not is_finite_number(value):
        raise InputError(f"Expected shift to be a finite number, got {value!r}; pass one.")


def check_bounds(low: float, high: float) -> None:
    """Raise unless [low, high] is a proper interval."""
    if not (is_finite_number(low) and is_finite_number(high) and low < high):
        raise InputError(
            f"Expected finite action bounds with low < high, got low={low!r} and high={high!r}; correct them."
        )


def as_contexts(X: ArrayLike, width: int, of: str = "", dtype: DTypeLike | None = np.float64) -> NDArray[Any]:
    """Return ``X`` as an (n, width) array; ``of`` adds to the error what the columns are."""
    context = np.asarray(X, dtype=dtype)
    if context.ndim != 2 or context.shape[1] != width:
        raise InputError(
            f"Expected X of shape (n, {width}){of}, got shape {context.shape}; pass all context columns."
        )
    return context


def as_column(values: ArrayLike, n: int, name: str) -> FloatArray:
    """Return ``values`` as an (n,) array; a scalar is repeated."""
    column = np.asarray(values, dtype=np.float64)
    if column.ndim == 0:
        return np.full(n, column)
    if column.shape not in {(n,), (n, 1)}:
        raise InputError(
            f"Expected {name} of shape ({n},) or ({n}, 1), one value per row of X, got shape {column.shape}; "
            "pass as many values as contexts, or one for all."
        )
    return column.reshape(n)
