"""The bootstrap: the whole estimator again, with random weights of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from joblib import delayed

from dmliv.data import FloatArray, IntArray, Table
from dmliv.errors import InputError
from dmliv.first_stage.base import Runtime
from dmliv.first_stage.workers import in_order, jobs
from dmliv.functionals import Band, Functional
from dmliv.second_stage.base import StructuralModel


@dataclass(frozen=True)
class Bootstrap:
    """Percentile intervals from replicates with exponential weights; they know no bias, only spread.

    Parameters
    ----------
    n_replicates : int
        Fits, each as long as the first.
    """

    n_replicates: int = 50

    def __post_init__(self) -> None:
        """Check the number."""
        if not isinstance(self.n_replicates, (int, np.integer)) or self.n_replicates < 2:
            raise InputError(f"Expected at least 2 replicates, got {self.n_replicates!r}; 50 is the default.")

    def learn(
        self,
        refit: Callable[[FloatArray, int], StructuralModel],
        weight: FloatArray,
        cluster: IntArray | None,
        *,
        seed: int,
        runtime: Runtime,
    ) -> ReplicateUncertainty:
        """Fit the replicates; joblib decides where.

        Parameters
        ----------
        refit : callable
            Takes row weights (n,) and a seed, returns h.
        weight : ndarray, shape (n,)
            Row weights of the fit itself.
        cluster : ndarray of int, shape (n,), optional
        seed : int
        runtime : Runtime
        """
        factors = self.weights(len(weight), cluster, seed)
        seeds = np.random.SeedSequence([seed, 6]).generate_state(len(factors))
        tasks = (
            delayed(refit)(weight * factor, int(replicate_seed))
            for factor, replicate_seed in zip(factors, seeds, strict=True)
        )
        found = []
        with runtime.progress.stage("bootstrap", len(factors)) as advance:
            for model in in_order(tasks, jobs(runtime)):
                found.append(model)
                advance()
        return ReplicateUncertainty(tuple(found))

    def weights(self, n_rows: int, cluster: IntArray | None, seed: int) -> list[FloatArray]:
        """Return factors on the weights of rows, one array (n,) per replicate; a cluster shares its own."""
        generator = np.random.default_rng([seed, 5])
        codes = np.arange(n_rows) if cluster is None else np.unique(cluster, return_inverse=True)[1]
        return [
            generator.exponential(size=int(codes.max()) + 1)[codes] for _ in range(int(self.n_replicates))
        ]


@dataclass(frozen=True, eq=False)
class ReplicateUncertainty:
    """The spread of h over replicates.

    Attributes
    ----------
    models : tuple of StructuralModel
    """

    models: tuple[StructuralModel, ...]

    @property
    def width(self) -> int:
        """Number of replicates."""
        return len(self.models)

    def evaluate(self, context: Table, action: FloatArray) -> FloatArray:
        """Return h of every replicate, shape (n, replicates)."""
        return np.column_stack([model.predict(context, action) for model in self.models])

    def unseen(self, functional: Functional, applied: FloatArray) -> FloatArray:
        """Return zeros: nothing is hidden."""
        del functional
        return np.zeros(len(applied))

    def band(self, plug_in: FloatArray, applied: FloatArray, unseen: FloatArray, alpha: float) -> Band:
        """Return percentile intervals around the estimate of all rows."""
        del unseen
        lower, upper = np.quantile(applied, [alpha / 2.0, 1.0 - alpha / 2.0], axis=1)
        return Band(plug_in, lower, upper, applied.std(axis=1, ddof=1))
