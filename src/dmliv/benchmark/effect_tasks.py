"""Tasks about effects: how far an estimated mean effect, and effects in single contexts, are off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from dmliv.benchmark.oracle import rows_for
from dmliv.benchmark.trials import Metrics
from dmliv.data import FloatArray, IVData
from dmliv.problems import CardWages, ContextArray, Encouragement

# Contexts for judging have a seed of their own, far from those of training samples.
_CONTEXT_SEED = 1_000_001


class EffectProblem(Protocol):
    """A problem with a known effect of the action in every context; a frozen dataclass."""

    @property
    def contrast(self) -> tuple[float, float]:
        """The two actions between which an estimated effect is averaged."""
        ...

    def sample(self, n: int, seed: int = 0) -> IVData:
        """Draw ``n`` observed rows."""
        ...

    def contexts(self, n: int, seed: int = 1, shift: float = 0.0) -> ContextArray:
        """Draw contexts, shape (n, d_X)."""
        ...

    def effect(self, X: ArrayLike) -> FloatArray:
        """Return the effect of a unit of the action, averaged over the contrast, shape (n,)."""
        ...


@dataclass(frozen=True)
class EffectTask:
    """A problem judged by effects: h at the end of its contrast less h at the start, per unit of the action.

    Parameters
    ----------
    name, label : str
        Name of the problem in records, and what sets it apart, for people.
    problem : EffectProblem
    n_contexts : int
        Contexts at which effects are compared with the truth.
    """

    name: str
    label: str
    problem: EffectProblem
    n_contexts: int = 10_000

    def sample(self, rows: int, seed: int) -> IVData:
        """Draw training rows."""
        return self.problem.sample(rows, seed=seed)

    def judge(self, estimator: Any, data: IVData, seed: int) -> Metrics:
        """Fit, then compare effects with the truth."""
        rows = rows_for(estimator, self.problem, data, seed)
        estimator.fit(rows.Y, rows.T, Z=rows.Z, X=rows.X)
        X = self.problem.contexts(self.n_contexts, seed=_CONTEXT_SEED)
        low, high = (estimator.predict(np.full(len(X), end), X) for end in self.problem.contrast)
        start, end = self.problem.contrast
        errors = (high - low) / (end - start) - self.problem.effect(X)
        mse = float(np.mean(errors**2))
        return {"ate_error": float(errors.mean()), "effect_mse": mse, "effect_rmse": float(np.sqrt(mse))}

    def note(self) -> str:
        """Return how effects are measured."""
        start, end = self.problem.contrast
        per_unit = "" if end - start == 1.0 else ", per unit"
        return (
            f"{self.label}: effects are h at {end:g} less h at {start:g}{per_unit}, at {self.n_contexts} "
            "contexts of a seed of their own."
        )


def card_tasks() -> tuple[EffectTask, ...]:
    """Return wages and schooling with instruments of three strengths."""
    return tuple(
        EffectTask("card-wages", f"Card, pi {strength:g}", CardWages(strength))
        for strength in (0.35, 1.0, 3.0)
    )


def encouragement_tasks() -> tuple[EffectTask, ...]:
    """Return the encouragement design with effects of three shapes."""
    return tuple(
        EffectTask("encouragement", f"encouragement, {problem.effect_shape}", problem)
        for problem in (Encouragement("constant"), Encouragement("linear"), Encouragement("curved"))
    )
