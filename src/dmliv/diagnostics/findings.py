"""The findings of diagnostics, each with a verdict and a meaning; printable, and as frames."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.figure import Figure

from dmliv.data.savable import savable
from dmliv.diagnostics.contexts import ContextCell, strength_figure
from dmliv.diagnostics.folds import FoldLoss
from dmliv.diagnostics.strength import InstrumentStrength
from dmliv.errors import InputError, listed

Verdict = Literal["fine", "warning", "note", "not testable"]

_WIDTH = 100
_SHOWN_CELLS = 5


@savable
@dataclass(frozen=True, eq=False)
class Finding:
    """One number about a fit, and what to make of it.

    Attributes
    ----------
    key : str
        Short name to ask for it by.
    name : str
        Where it begins with "Share", numbers are shown in percent.
    value : float
        Not a number where it cannot be computed.
    threshold : float
        Where the warning starts; not a number where there is none.
    verdict : {"fine", "warning", "note", "not testable"}
        A note is no defect, but good to know.
    meaning : str
        What the number is.
    advice : str
        What a warning means for the estimates and what to do; empty for other verdicts.
    """

    key: str
    name: str
    value: float
    threshold: float
    verdict: Verdict
    meaning: str
    advice: str = ""

    def __eq__(self, other: object) -> bool:
        """Return whether all fields are the same, also where a value or a threshold is not a number."""
        return isinstance(other, Finding) and repr(self) == repr(other)

    def __hash__(self) -> int:
        """Return the same for findings that are equal."""
        return hash(repr(self))

    @property
    def shown(self) -> str:
        """The value as text; a dash where it cannot be computed."""
        return self._text(self.value)

    @property
    def shown_threshold(self) -> str:
        """The threshold as text; empty where there is none."""
        return "" if math.isnan(self.threshold) else self._text(self.threshold)

    @property
    def warning(self) -> str:
        """The warning in full: the value, its threshold, and what to do; empty for other verdicts."""
        if self.verdict != "warning":
            return ""
        limit = f" (threshold {self.shown_threshold})" if self.shown_threshold else ""
        return f"{self.name} is {self.shown}{limit}. {self.advice}"

    def _text(self, value: float) -> str:
        if math.isnan(value):
            return "-"
        if self.name.startswith("Share"):
            return f"{100.0 * value:.3g} %"
        return f"{value:,.0f}" if abs(value) >= 100.0 else f"{value:.3g}"


def warnings_of(findings: Iterable[Finding]) -> list[str]:
    """Return the warnings among some findings, in full."""
    return [finding.warning for finding in findings if finding.verdict == "warning"]


@savable
@dataclass(frozen=True)
class Diagnostics:
    """Diagnostics of a fit; ``print`` shows them.

    Attributes
    ----------
    findings : tuple of Finding
    strength : InstrumentStrength
    cells : tuple of ContextCell
        Strength of the instrument by groups of contexts, the weakest first.
    fold_losses : tuple of FoldLoss
    n_rows : int
        Rows that counted in the fit.
    """

    findings: tuple[Finding, ...]
    strength: InstrumentStrength
    cells: tuple[ContextCell, ...]
    fold_losses: tuple[FoldLoss, ...]
    n_rows: int

    def __getitem__(self, key: str) -> Finding:
        """Return the finding of a key."""
        for finding in self.findings:
            if finding.key == key:
                return finding
        raise InputError(
            f"Expected the key of a finding, got {key!r}; there are "
            f"{listed((finding.key for finding in self.findings), 20)}."
        )

    @property
    def warnings(self) -> list[str]:
        """The warnings in full, one text for each."""
        return warnings_of(self.findings)

    def to_frame(self) -> Any:
        """Return a pandas frame with key, name, value, threshold, verdict and meaning."""
        columns = ("key", "name", "value", "threshold", "verdict", "meaning")
        return _frame(columns, [[getattr(each, name) for name in columns] for each in self.findings])

    def contexts_frame(self) -> Any:
        """Return a pandas frame with the strength of the instrument in every group of contexts."""
        columns = ("column", "group", "row_share", "explained", "projected_f", "is_weak")
        return _frame(columns, [[getattr(each, name) for name in columns] for each in self.cells])

    def folds_frame(self) -> Any:
        """Return a pandas frame with the held-out losses of every fold."""
        columns = ("fold", "n_rows", "action", "outcome")
        return _frame(columns, [[getattr(each, name) for name in columns] for each in self.fold_losses])

    def contexts_figure(self) -> Figure:
        """Draw the strength of the instrument in the weakest groups of contexts."""
        return strength_figure(self.cells)

    def __str__(self) -> str:
        lines = [f"Diagnostics of a fit on {self.n_rows:,} rows", ""]
        name_width = max(len(finding.name) for finding in self.findings)
        lines.append(f"{'':<{name_width}}  {'value':>9}  {'threshold':>9}  verdict")
        for finding in self.findings:
            lines.append(
                f"{finding.name:<{name_width}}  {finding.shown:>9}  {finding.shown_threshold:>9}  "
                f"{finding.verdict}"
            )
        weak = [cell for cell in self.cells if cell.is_weak]
        if weak:
            lines += ["", "Contexts in which the instrument is weak (share of rows, partial R2, F statistic)"]
            lines += [
                f"  {cell.column} {cell.group}: {cell.row_share:.0%}, {cell.explained:.1%}, "
                f"{cell.projected_f:.1f}"
                for cell in weak[:_SHOWN_CELLS]
            ]
            if len(weak) > _SHOWN_CELLS:
                lines.append(f"  ... and {len(weak) - _SHOWN_CELLS} more")
        lines += ["", "Warnings" if self.warnings else "No warnings."]
        for warning in self.warnings:
            lines += textwrap.wrap(warning, _WIDTH, initial_indent="- ", subsequent_indent="  ")
        lines += ["", "What the numbers mean"]
        for finding in self.findings:
            text = f"{finding.name}: {finding.meaning}"
            lines += textwrap.wrap(text, _WIDTH, initial_indent="- ", subsequent_indent="  ")
        return "\n".join(lines)


def _frame(columns: Sequence[str], rows: list[list[Any]]) -> Any:
    try:
        # Only frames need pandas, which is no requirement of the package.
        import pandas as pd  # noqa: PLC0415
    except ImportError as error:
        raise InputError(
            "Expected pandas to be installed, which makes the frame, got none; install it, or read the "
            "attributes findings, cells and fold_losses."
        ) from error
    return pd.DataFrame(rows, columns=list(columns))
