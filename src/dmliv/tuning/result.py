"""What tuning tried and what it chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dmliv.learners import Learners
from dmliv.tuning.parameters import FACTORS

_LOSSES: Final = {
    "outcome": "squared error",
    "action": "negative log-likelihood",
    "structural": "squared projected error",
}


@dataclass(frozen=True)
class TuningTrial:
    """One candidate and its held-out loss.

    Attributes
    ----------
    role : {"outcome", "action", "structural"}
    number : int
        Position among the trials of the role; 0 is the estimator's own learner.
    family : str
    settings : dict of str to float
        Empty for a family as it is. ``learning_rate``, ``width`` and ``weight_decay`` are multiples.
    loss : float
        Mean over held-out rows; NaN where training diverged.
    gain, gain_error : float
        How much lower the loss is than that of trial 0, and the standard error of this difference.
    chosen : bool
    """

    role: str
    number: int
    family: str
    settings: dict[str, float]
    loss: float
    gain: float
    gain_error: float
    chosen: bool

    def describe(self) -> str:
        """Return family and settings in words."""
        parts = [
            f"{name.replace('_', ' ')} {'x ' if name in FACTORS else ''}{value:.3g}"
            for name, value in self.settings.items()
        ]
        return f"{self.family} ({', '.join(parts)})" if parts else self.family


@dataclass(frozen=True)
class TuningResult:
    """All trials, and the learners that were chosen.

    Attributes
    ----------
    learners : Learners
        The chosen learner of every role, not fitted.
    trials : tuple of TuningTrial
    """

    learners: Learners
    trials: tuple[TuningTrial, ...]

    def to_frame(self) -> Any:
        """Return one row per trial as a pandas frame.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        import pandas  # type: ignore[import-untyped,unused-ignore] # noqa: PLC0415 - an optional package

        rows = [{**vars(trial), **trial.settings} for trial in self.trials]
        return pandas.DataFrame(rows).drop(columns="settings")

    def __str__(self) -> str:
        lines = []
        for role in dict.fromkeys(trial.role for trial in self.trials):
            trials = [trial for trial in self.trials if trial.role == role]
            chosen = next(trial for trial in trials if trial.chosen)
            lines.append(f"{role} model, {_LOSSES[role]} of held-out rows, {len(trials)} trials")
            lines.append(f"  before  {trials[0].loss:<10.5g} {trials[0].describe()}")
            kept = "kept, nothing was clearly better" if chosen is trials[0] else chosen.describe()
            lines.append(f"  chosen  {chosen.loss:<10.5g} {kept}")
            if chosen is not trials[0]:
                lines.append(f"  gain    {chosen.gain:<10.5g} standard error {chosen.gain_error:.2g}")
        return "\n".join(lines)
