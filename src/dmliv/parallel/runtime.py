"""What every long computation is told: device, progress and number of jobs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dmliv.progress import ProgressReporter


@dataclass(frozen=True)
class Runtime:
    """Where and how loudly to compute; never changes a result.

    Attributes
    ----------
    device : torch.device
    progress : ProgressReporter
    n_jobs : int
        Parallel jobs, as in joblib.
    """

    device: torch.device
    progress: ProgressReporter
    n_jobs: int
