"""The greedy policy: for each context the candidate action with the highest estimated outcome."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dmliv.counterfactual import Counterfactual
from dmliv.data import FloatArray, Table
from dmliv.errors import InputError

# Entries (contexts x candidates) of the value matrix held at once.
_CHUNK_ENTRIES = 2_000_000


class GreedyPolicy:
    """Recommends the best of a list of candidate actions.

    Parameters
    ----------
    counterfactual : Counterfactual
        A fitted h.
    candidates : array-like, shape (m,) or (m, d), or None
        Actions to choose from, in the user's units. ``None`` takes all levels of a discrete action.

    Attributes
    ----------
    candidates : ndarray
        The candidates, in the user's units.
    """

    def __init__(self, counterfactual: Counterfactual, candidates: object = None) -> None:
        spec = counterfactual.action
        if candidates is None:
            if spec.kind == "continuous":
                raise InputError(
                    "Expected candidate actions for a continuous action, got none; pass an array such as "
                    "numpy.linspace(low, high, 200)."
                )
            candidates = np.array(spec.levels)
        if np.ndim(candidates) == 0:  # type: ignore[arg-type]
            raise InputError(f"Expected an array of candidate actions, got the single value {candidates!r}.")
        if len(candidates) == 0:  # type: ignore[arg-type]
            raise InputError("Expected at least one candidate action, got an empty array.")
        self._counterfactual = counterfactual
        self._vectors = counterfactual.read_action(candidates)
        self.candidates: npt.NDArray[Any] = counterfactual.action_to_user(self._vectors)
        if spec.kind == "continuous":
            # The user's own numbers: the way through model units and back may change the last digit.
            self.candidates = spec.numbers(candidates).reshape(self.candidates.shape)

    def predict(self, X: object = None) -> npt.NDArray[Any]:
        """Return the recommended action of each row of ``X``, shape (n,), or (n, d) for several columns."""
        best = [values.argmax(axis=1) for values in self._values(X)]
        return np.asarray(self.candidates[np.concatenate(best) if best else np.empty(0, dtype=np.int64)])

    def value(self, X: object = None) -> float:
        """Return the estimated mean outcome when the policy is followed on the rows of ``X``."""
        best = [values.max(axis=1) for values in self._values(X)]
        if not best:
            raise InputError("Expected at least one context to value a policy on, got none.")
        return float(np.concatenate(best).mean())

    def _values(self, X: object) -> Iterator[FloatArray]:
        # Without context there is one situation to decide for.
        context = self._counterfactual.read_context(X, 1 if X is None else None)
        step = max(1, _CHUNK_ENTRIES // len(self._vectors))
        for start in range(0, len(context), step):
            rows = np.arange(start, min(start + step, len(context)))
            part: Table = context.take(rows)
            yield self._counterfactual.value_grid(part, self._vectors)
