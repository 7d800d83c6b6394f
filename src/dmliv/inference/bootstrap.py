"""The bootstrap: the estimator again, on rows drawn anew or with random weights of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from joblib import delayed

from dmliv.data import FloatArray, IntArray, Table
from dmliv.errors import InputError
from dmliv.first_stage.base import Runtime
from dmliv.first_stage.workers import in_order, jobs
from dmliv.functionals import Band, Functional
from dmliv.inference.replication import TwoStageFit
from dmliv.progress import SilentProgress
from dmliv.second_stage.base import StructuralModel


@dataclass(frozen=True)
class Bootstrap:
    """Percentile intervals from replicates; they know no bias, only spread.

    A replicate of network or kernel learners on network nuisances is fitted to rows, or clusters, drawn with
    replacement, and many of them are trained as one stack. Each has its own folds, initial weights and row
    order; copies of a row stay in one fold. Encodings, learning rates, bandwidths and penalties are those of
    the fit: replicates vary the training, not the choices. With other learners, or beyond 50,000 rows, a
    replicate is the whole fit again, choices included, with exponential weights of rows.

    Parameters
    ----------
    n_replicates : int
        Fits.
    """

    n_replicates: int = 50

    def __post_init__(self) -> None:
        """Check the number."""
        if not isinstance(self.n_replicates, (int, np.integer)) or self.n_replicates < 2:
            raise InputError(f"Expected at least 2 replicates, got {self.n_replicates!r}; 50 is the default.")

    def learn(self, fitted: TwoStageFit, *, seed: int, runtime: Runtime) -> ReplicateUncertainty:
        """Fit the replicates, networks in stacks; joblib decides where.

        Parameters
        ----------
        fitted : TwoStageFit
        seed : int
        runtime : Runtime
        """
        quiet = replace(runtime, progress=SilentProgress(), n_jobs=1)
        seeds = [int(each) for each in np.random.SeedSequence([seed, 6]).generate_state(self.n_replicates)]
        if fitted.stacks:
            size = fitted.stack_size
            # A stack takes long enough to be worth bars of its own, where they can be seen.
            shown = replace(quiet, progress=runtime.progress) if jobs(runtime) == 1 else quiet
            tasks: list[Any] = [
                delayed(_fit_stack)(fitted, seeds[start : start + size], shown)
                for start in range(0, len(seeds), size)
            ]
        else:
            factors = self.weights(len(fitted.data), fitted.cluster, seed)
            tasks = [
                delayed(_fit_one)(fitted, factor, replicate_seed, quiet)
                for factor, replicate_seed in zip(factors, seeds, strict=True)
            ]
        found: list[StructuralModel] = []
        with runtime.progress.stage("bootstrap", len(seeds)) as advance:
            for models in in_order(tasks, jobs(runtime)):
                found.extend(models)
                for _ in models:
                    advance()
        return ReplicateUncertainty(tuple(found))

    def weights(self, n_rows: int, cluster: IntArray | None, seed: int) -> list[FloatArray]:
        """Return factors on the weights of rows, one array (n,) per replicate; a cluster shares its own."""
        generator = np.random.default_rng([seed, 5])
        codes = np.arange(n_rows) if cluster is None else np.unique(cluster, return_inverse=True)[1]
        return [
            generator.exponential(size=int(codes.max()) + 1)[codes] for _ in range(int(self.n_replicates))
        ]


def _fit_stack(fitted: TwoStageFit, seeds: Sequence[int], runtime: Runtime) -> list[StructuralModel]:
    return fitted.fit_resamples([fitted.resample(seed) for seed in seeds], runtime)


def _fit_one(fitted: TwoStageFit, factor: FloatArray, seed: int, runtime: Runtime) -> list[StructuralModel]:
    return [fitted.fit_weighted(factor, seed, runtime)]


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
