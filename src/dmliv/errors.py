"""The exceptions of the package, and the messages that more than one check gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    # scikit-learn ships no types; these are the bases its class has at run time.
    class _SklearnNotFittedError(ValueError, AttributeError): ...
else:
    from sklearn.exceptions import NotFittedError as _SklearnNotFittedError

_MOST_LISTED = 8


class DMLIVError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(DMLIVError, ValueError):
    """Data or an argument that cannot be used as given."""


class UnseenCategoryError(InputError):
    """A category or discrete action that was not among the training rows."""


class NotFittedError(DMLIVError, _SklearnNotFittedError):
    """A fitted quantity was asked of an estimator that has not been fitted."""


class TrainingDivergedError(DMLIVError, RuntimeError):
    """Training reached a loss or parameters that are not finite."""


class ModelFileError(DMLIVError, ValueError):
    """A model file that cannot be read or written: absent, damaged, foreign, or from a newer version."""


def check_whole(*, least: int = 1, **values: object) -> None:
    """Raise unless every value, given by its name, is a whole number of at least ``least``."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            kind = "a positive whole number" if least == 1 else f"a whole number of at least {least}"
            raise InputError(f"Expected {kind} for {name}, got {value!r}; pass {least} or more.")


def check_each_whole(name: str, values: object, *, length: int | None = None) -> None:
    """Raise unless ``values`` is a tuple or list of positive whole numbers, of a given length."""
    if not isinstance(values, (tuple, list)) or not values or length not in (None, len(values)):
        raise InputError(
            f"Expected {'' if length is None else f'{length} '}positive whole numbers for {name}, got "
            f"{values!r}; pass such numbers."
        )
    for value in values:
        check_whole(**{name: value})


def check_number(
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    **values: object,
) -> None:
    """Raise unless every value, given by its name, is a finite number within the bounds.

    Parameters
    ----------
    above, least : float, optional
        Lower bounds, without and with the bound itself.
    below, most : float, optional
        Upper bounds, likewise.
    **values
    """
    bounds = {"above": above, "of at least": least, "below": below, "at most": most}
    limits = " and ".join(f"{words} {bound:g}" for words, bound in bounds.items() if bound is not None)
    for name, value in values.items():
        fine = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        number = float(value) if fine else np.nan  # type: ignore[arg-type]
        fine = np.isfinite(number)
        fine = fine and (above is None or number > above) and (least is None or number >= least)
        if not (fine and (below is None or number < below) and (most is None or number <= most)):
            raise InputError(f"Expected a finite number {limits} for {name}, got {value!r}; pass another.")


def listed(values: Iterable[object], most: int = _MOST_LISTED) -> str:
    """Return the values as a comma-separated phrase, abbreviated past `most` of them."""
    shown = [repr(value) for value in values]
    if len(shown) > most:
        return f"{', '.join(shown[:most])}, ... ({len(shown)} in all)"
    return ", ".join(shown)


def unknown_columns(role: str, unknown: Sequence[str], available: Sequence[str]) -> InputError:
    """Return the error for names that a frame does not have, with the names they resemble."""
    phrases = []
    for name in unknown:
        near = get_close_matches(name, available, n=3)
        phrases.append(f"{name!r} (did you mean {' or '.join(map(repr, near))}?)" if near else repr(name))
    return InputError(
        f"Expected {role} columns {listed(unknown)}, got a frame without {', '.join(phrases)}; "
        f"add or rename columns, there are {listed(available)}."
    )


def common_length(lengths: Mapping[str, int]) -> int:
    """Return the number of rows that all roles have; raise `InputError` when they differ."""
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{length} in {role}" for role, length in lengths.items())
        raise InputError(f"Expected the same number of rows in every role, got {got}; align the rows.")
    return next(iter(lengths.values()))


def unusable_values(role: str, name: str, what: str, count: int, first: int) -> InputError:
    """Return the error for missing or infinite values in a column."""
    return InputError(
        f"Expected complete, finite values in {role} column {name!r}, got {count} {what}, "
        f"the first in row {first}; drop these rows or impute the values."
    )


def constant_column(role: str, name: str) -> InputError:
    """Return the error for an action or instrument that does not vary."""
    return InputError(
        f"Expected values that vary in {role} column {name!r}, got a constant; "
        f"drop the column, or use another {role} if it is the only one."
    )


def unsupported_type(role: str, name: str, got: str) -> InputError:
    """Return the error for a column whose type is neither a number nor a category."""
    return InputError(
        f"Expected numbers, booleans, strings or categories in {role} column {name!r}, got {got}; "
        "convert it, for example a date to days since a start date (a number) or to a weekday (a category)."
    )


def unseen_levels(
    role: str, name: str, unseen: Iterable[object], first: int, levels: Sequence[object], advice: str
) -> UnseenCategoryError:
    """Return the error for levels that were not among the training rows."""
    return UnseenCategoryError(
        f"Expected known levels in {role} column {name!r}, got {listed(unseen)}, the first in row {first}; "
        f"known levels are {listed(levels)}. {advice}"
    )
