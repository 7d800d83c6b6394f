"""What a policy recommends, and what held it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dmliv.data import FloatArray


@dataclass(frozen=True, eq=False)
class Decisions:
    """Recommended actions of n rows.

    Attributes
    ----------
    action : ndarray, shape (n,) or (n, d)
        In the user's units.
    value : ndarray, shape (n,)
        Estimated outcome under the action, net of its cost.
    at_edge : ndarray of bool, shape (n,)
        Whether the action lies on the edge of what was allowed: a wider space might hold a better one, or
        the model is extrapolating.
    support : ndarray, shape (n,), or None
        Probability of such an action under the estimated action distribution; None without ``min_support``.
    support_binds : ndarray of bool, shape (n,)
        Whether a better action was forbidden for want of support.
    min_support : float or None
        The least support asked for.
    """

    action: npt.NDArray[Any]
    value: FloatArray
    at_edge: npt.NDArray[np.bool_]
    support: FloatArray | None
    support_binds: npt.NDArray[np.bool_]
    min_support: float | None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.value)

    def __str__(self) -> str:
        """Return the whole in words."""
        if not len(self):
            return "no decisions"
        lines = [
            f"{len(self)} decisions, estimated mean outcome {self.value.mean():.4g}",
            f"on the edge of the allowed actions: {_share(self.at_edge)}",
        ]
        if self.support is not None and self.min_support is not None:
            lines.append(
                f"held back from a better action with support below {self.min_support:g}: "
                f"{_share(self.support_binds)}"
            )
            lines.append(f"no action with enough support: {_share(self.support < self.min_support)}")
        return "\n".join(lines)


def _share(flags: npt.NDArray[np.bool_]) -> str:
    return f"{int(flags.sum())} of {len(flags)} rows"
