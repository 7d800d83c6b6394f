"""A regressor whose first fit kills the process it runs in; workers import it from here."""

import os
import signal
from pathlib import Path
from typing import Any

from sklearn.linear_model import Ridge


class DiesOnce(Ridge):
    """A ridge regression; ``marker`` is the file that tells that somebody has died already."""

    def __init__(self, marker: str = "", alpha: float = 1.0) -> None:
        super().__init__(alpha=alpha)
        self.marker = marker

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "DiesOnce":
        """Die, or fit."""
        if self.marker:
            try:
                with Path(self.marker).open("x"):
                    os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        super().fit(X, y, sample_weight)
        return self
