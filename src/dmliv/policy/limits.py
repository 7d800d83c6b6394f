"""Limits of each row's action, such as a price that may move by at most ten percent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dmliv.data import ActionSpec, FloatArray, IntArray
from dmliv.errors import InputError
from dmliv.policy.spaces import ActionSpace

# A limit that was computed (today's price times 1.1) may miss a candidate by a rounding error.
_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Limits:
    """Lowest and highest action of each row, in model units, shape (n, d)."""

    low: FloatArray
    high: FloatArray

    @classmethod
    def read(cls, limits: object, spec: ActionSpec, n_rows: int, space: ActionSpace) -> Limits | None:
        """Read what the user gave and keep it inside the space; None when nothing limits a list.

        Raises
        ------
        InputError
            If limits cross, are not numbers, or leave a row without any action.
        """
        if limits is None:
            if space.low is None or space.high is None:
                return None
            shape = (n_rows, len(space.low))
            return cls(np.broadcast_to(space.low, shape), np.broadcast_to(space.high, shape))
        if spec.kind == "discrete":
            raise InputError(
                "Expected no limits for a discrete action, got some; pass the allowed labels as candidates."
            )
        if not isinstance(limits, (tuple, list)) or len(limits) != 2:
            raise InputError(
                f"Expected limits as a pair (low, high), got {type(limits).__name__}; pass both, each one "
                "number or one per row."
            )
        user_low, user_high = (_read_bound(bound, spec.width, n_rows) for bound in limits)
        _refuse(np.any(user_low > user_high, axis=1), user_low, user_high, "low <= high", "swap the two")
        low, high = (user_low - spec.mean) / spec.scale, (user_high - spec.mean) / spec.scale
        if space.low is not None and space.high is not None:
            low, high = np.maximum(low, space.low), np.minimum(high, space.high)
            empty = np.any(low > high + _TOLERANCE, axis=1)
            # Limits that touch the space in one point may have crossed by a rounding error.
            result = cls(low, np.maximum(low, high))
        else:
            result = cls(low, high)
            empty = ~result.allow(space.vectors).any(axis=1)
        _refuse(empty, user_low, user_high, "an action of the policy inside the limits", "widen either")
        return result

    def take(self, rows: IntArray) -> Limits:
        """Return the limits of some rows."""
        return Limits(self.low[rows], self.high[rows])

    def allow(self, vectors: FloatArray) -> npt.NDArray[np.bool_]:
        """Return which of the actions (m, d) each row may take, shape (n, m)."""
        above = vectors >= self.low[:, None, :] - _TOLERANCE
        return np.asarray(np.all(above & (vectors <= self.high[:, None, :] + _TOLERANCE), axis=2))

    def touched_by(self, vectors: FloatArray) -> npt.NDArray[np.bool_]:
        """Return in which rows the action (n, d) lies on a limit, shape (n,)."""
        distance = np.minimum(np.abs(vectors - self.low), np.abs(vectors - self.high))
        return np.asarray(np.any(distance <= _TOLERANCE, axis=1))


def _read_bound(bound: object, width: int, n_rows: int) -> FloatArray:
    try:
        numbers = np.asarray(bound, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.full(1, np.nan)
    if numbers.ndim == 1 and width == 1:
        numbers = numbers[:, None]
    try:
        rows = np.broadcast_to(numbers, (n_rows, width))
    except ValueError:
        raise InputError(
            f"Expected limits of {n_rows} rows and {width} action columns, got shape {numbers.shape}; "
            "pass one number, or one per row."
        ) from None
    if np.isnan(rows).any():
        raise InputError("Expected numbers as limits, got missing values or words; fill them in.")
    return rows


def _refuse(
    bad: npt.NDArray[np.bool_], low: FloatArray, high: FloatArray, expected: str, advice: str
) -> None:
    rows = np.flatnonzero(bad)
    if rows.size:
        row = rows[0]
        raise InputError(
            f"Expected limits with {expected}, got {low[row].tolist()} to {high[row].tolist()} in row {row} "
            f"({rows.size} such rows); {advice}."
        )
